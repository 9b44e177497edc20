from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from slimprompt import InputError
from slimprompt.methods.head import CacheHead, Head
from slimprompt.training.evaluation import EvalSet

NAMES = ("cat", "red panda", "dog")


def test_logits_are_scaled_products_plus_bias() -> None:
    features = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    head = Head(("a", "b"), torch.tensor([[2.0, 0.0], [0.0, 1.0]]), scale=10.0, bias=torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(head.logits(features), torch.tensor([[20.0, 1.0], [12.0, 9.0]]))
    assert head.correct(EvalSet(features, torch.tensor([0, 1]), ("a", "b"))).tolist() == [True, False]


def test_an_eval_set_of_other_classes_is_refused() -> None:
    head = Head(("a", "b"), torch.eye(2), 1.0)
    with pytest.raises(InputError, match="other classes"):
        head.correct(EvalSet(torch.eye(2), torch.tensor([0, 1]), ("b", "a")))


def test_a_cache_head_adds_the_labels_of_similar_keys() -> None:
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    head = CacheHead(("a", "b"), torch.eye(2), 10.0, keys, torch.tensor([0, 1, 1]), alpha=2.0, beta=3.0)
    feature = torch.tensor([[0.6, 0.8]])
    near = [math.exp(-3 * (1 - cosine)) for cosine in (0.6, 0.8, 1.0)]
    expected = torch.tensor([[6 + 2 * near[0], 8 + 2 * (near[1] + near[2])]])
    torch.testing.assert_close(head.logits(feature), expected)
    many = feature.expand(5000, 2)  # computed in several chunks
    torch.testing.assert_close(head.logits(many), expected.expand(5000, 2))


@pytest.mark.parametrize("kind", ["linear", "cache"])
def test_some_classes_of_a_head_keep_their_logits(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weights, keys = (F.normalize(torch.randn(n, 5, generator=generator), dim=-1) for n in (3, 6))
    features = F.normalize(torch.randn(4, 5, generator=generator), dim=-1)
    labels = torch.tensor([0, 0, 1, 2, 2, 1])
    head = (
        Head(NAMES, weights, 7.0, torch.tensor([1.0, 2.0, 3.0]))
        if kind == "linear"
        else CacheHead(NAMES, weights, 7.0, keys, labels, 2.0, 3.0)
    )
    some = head.of_classes(["dog", "cat"])
    assert some.class_names == ("dog", "cat")
    torch.testing.assert_close(some.logits(features), head.logits(features)[:, [2, 0]])
