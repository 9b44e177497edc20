from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from slimprompt import InputError, SharedPrefixTextEncoder, start_prompt
from slimprompt.methods.head import Head
from slimprompt.methods.prompt_learning import prompt_head
from slimprompt.methods.zero_shot import zero_shot_head
from slimprompt.training.evaluation import EvalSet, accuracy

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


def test_heads_classify_as_their_class_features_do(tiny) -> None:
    features = F.normalize(torch.randn(50, 24, generator=torch.Generator().manual_seed(0)), dim=-1)
    labels = torch.arange(50) % 3
    prompt = start_prompt("joint", width=32, seed=1, n_ctx=4, rank=2)
    learned = prompt_head(tiny, NAMES, prompt)
    expected = accuracy(features, SharedPrefixTextEncoder(tiny, NAMES, 4)(prompt()), labels)
    eval_set = EvalSet(features, labels, NAMES)
    assert 100 * float(learned.correct(eval_set).double().mean()) == pytest.approx(expected)
    zero_shot = zero_shot_head(tiny, NAMES, ["a photo of a {}."])
    texts = tiny.encode_texts([f"a photo of a {name}." for name in NAMES])
    torch.testing.assert_close(zero_shot.logits(features), tiny.logit_scale * features @ texts.T, rtol=1e-4, atol=1e-4)
