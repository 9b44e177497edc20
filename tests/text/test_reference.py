"""The plain passes equal open_clip's `encode_text`, in features and gradients."""

import json

import pytest
import torch

from slimprompt import InputError, load_backbone
from slimprompt.text.reference import full_pass_encoder, shared_prefix_reference
from tests.conftest import TINY_CONFIG
from tests.text.conftest import NAMES, features_and_gradient, open_clip_features, random_context

TIGHT = {"rtol": 1e-9, "atol": 1e-12}


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_full_pass_equals_open_clip(double, position, chunk_size):
    context = random_context(double, 6)
    encode = full_pass_encoder(double, NAMES, 6, position, chunk_size=chunk_size)
    expected = features_and_gradient(lambda context: open_clip_features(double, NAMES, context, position), context)
    torch.testing.assert_close(features_and_gradient(encode, context), expected, **TIGHT)
    assert encode.n_chunks == (1 if chunk_size is None else 3)


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("shape", [(6,), (3, 6)], ids=["one context", "three contexts"])
def test_shared_prefix_reference_equals_full_pass(double, position, shape):
    context = random_context(double, *shape)
    shared = features_and_gradient(shared_prefix_reference(double, NAMES, 6, position), context)
    full = features_and_gradient(full_pass_encoder(double, NAMES, 6, position), context)
    assert shared[0].shape == (*shape[:-1], len(NAMES), full[0].shape[-1])
    torch.testing.assert_close(shared, full, **TIGHT)


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("position", ["end", "middle", "front"])
def test_deep_contexts_equal_open_clip_with_replaced_rows(double, depth, position):
    context = random_context(double, depth, 6)
    expected = features_and_gradient(lambda context: open_clip_features(double, NAMES, context, position), context)
    for encode in (
        full_pass_encoder(double, NAMES, 6, position, depth=depth),
        full_pass_encoder(double, NAMES, 6, position, depth=depth, chunk_size=2),
        shared_prefix_reference(double, NAMES, 6, position, depth=depth),
    ):
        torch.testing.assert_close(features_and_gradient(encode, context), expected, **TIGHT)
    assert all(gradient.norm() > 0 for gradient in expected[1])  # every layer counts


def test_tower_that_is_not_causal_is_refused(model_config):
    config = json.loads(json.dumps(TINY_CONFIG))
    config["text_cfg"]["no_causal_mask"] = True
    backbone = load_backbone(model_config("tiny-reference-not-causal", config), seed=0, device="cpu")
    with pytest.raises(InputError, match="cannot share a prefix; use full_pass_encoder"):
        shared_prefix_reference(backbone, NAMES, 4)
