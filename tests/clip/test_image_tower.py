"""The shortened pass of the image tower against open_clip's own, in float64."""

from __future__ import annotations

import json

import open_clip
import pytest
import torch
from open_clip.transformer import QuickGELU, VisionTransformer

from slimprompt.clip import image_tower
from slimprompt.clip.architectures import takes_image_prompts
from slimprompt.clip.image_reference import plain_image_features
from slimprompt.clip.image_tower import (
    features_from_block,
    image_features,
    image_features_in_parts,
    input_of_block,
    reads_class_token,
)
from slimprompt.clip.products import differentiable_linear

_SIZES = {"image_size": 32, "patch_size": 8, "layers": 3, "width": 32, "head_width": 16}


def _tower(quick_gelu: bool = False, **vision: object) -> torch.nn.Module:
    text = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = open_clip.CLIP(embed_dim=24, vision_cfg=_SIZES | vision, text_cfg=text, quick_gelu=quick_gelu)
        for weight in model.parameters():  # biases and layer scales that are not 0 or 1
            torch.nn.init.normal_(weight, std=0.2)
    return model.visual.double().eval()


def _kinds_of_vision_transformers() -> list[str]:
    """The settings of open_clip's own vision transformers without their sizes, each once."""
    found = set()
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        vision = config["vision_cfg"]
        if "timm_model_name" not in vision and not isinstance(vision.get("layers", 12), list | tuple):
            kept = {key: value for key, value in vision.items() if key not in _SIZES}
            found.add(json.dumps(kept | {"quick_gelu": config.get("quick_gelu", False)}, sort_keys=True))
    return sorted(found)


@pytest.mark.parametrize("settings", _kinds_of_vision_transformers())
def test_features_equal_those_of_open_clip(settings: str) -> None:
    tower = _tower(**json.loads(settings))
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    with torch.inference_mode():
        expected = tower(pixels)
        expected = expected[0] if isinstance(expected, tuple) else expected
        if reads_class_token(tower):
            torch.testing.assert_close(image_features(tower, pixels), expected, rtol=1e-10, atol=1e-12)
        else:
            assert tower.pool_type != "tok" or tower.attn_pool is not None or tower.output_tokens
    assert takes_image_prompts({"vision_cfg": json.loads(settings)}) == reads_class_token(tower)


@pytest.mark.parametrize("quick_gelu", [False, True])
def test_the_last_block_computes_one_row_per_image(quick_gelu: bool) -> None:
    tower = _tower(quick_gelu)
    rows = []
    for block in tower.transformer.resblocks:
        block.ln_2.register_forward_hook(lambda _module, _inputs, out: rows.append(out.shape[1]))
    assert isinstance(tower.transformer.resblocks[0].mlp.gelu, QuickGELU) == quick_gelu
    with torch.inference_mode():
        image_features(tower, torch.randn(2, 3, 32, 32, dtype=torch.float64))
    assert rows == [17, 17, 1]


def test_a_residual_network_is_run_by_open_clip() -> None:
    tower = _tower(layers=[1, 1, 1, 1], width=16)
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.inference_mode():
        assert not reads_class_token(tower)
        assert torch.equal(image_features(tower, pixels), tower(pixels))


@pytest.mark.parametrize("quick_gelu", [False, True])
def test_features_in_single_precision(quick_gelu: bool) -> None:
    """With the products of `slimprompt.clip.products`, and with torch's own as in an exported network."""
    tower = _tower(quick_gelu, width=96).float()
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = tower(pixels)
        for found in (image_features(tower, pixels), image_features(tower, pixels, torch.nn.functional.linear)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_parts_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches are encoded in parts of nearly equal size: 7 images of 17 rows with about 40 rows per part."""
    tower = _tower()
    pixels = torch.randn(7, 3, 32, 32, dtype=torch.float64)
    sizes = []
    tower.conv1.register_forward_hook(lambda _module, _inputs, out: sizes.append(len(out)))
    with torch.inference_mode():
        expected = image_features_in_parts(tower, pixels)
        monkeypatch.setattr(image_tower, "_ROWS", 40)
        torch.testing.assert_close(image_features_in_parts(tower, pixels), expected)
        monkeypatch.setattr(image_tower, "_ROWS", 5)  # fewer than one image has
        torch.testing.assert_close(image_features_in_parts(tower, pixels[:2]), expected[:2])
    assert sizes == [7, 3, 2, 2, 1, 1]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("first", "n_blocks"), [(0, 1), (0, 3), (1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("quick_gelu", [False, True])
def test_prompts_of_the_image_tower_equal_open_clips_blocks(
    quick_gelu: bool, first: int, n_blocks: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Features from the stored input of a block, and gradients of the rows, against a plain pass from pixels."""
    tower = _tower(quick_gelu).to(dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(3, 3, 32, 32, dtype=dtype, generator=generator)
    rows = torch.randn(n_blocks, 2, 32, dtype=dtype, generator=generator).requires_grad_()
    expected = plain_image_features(tower, pixels, first, rows)
    weights = torch.randn(expected.shape, dtype=dtype, generator=generator)
    (expected_grad,) = torch.autograd.grad((expected * weights).sum(), rows)
    with torch.no_grad():
        stored = input_of_block(tower, pixels, first)
    found = features_from_block(tower, stored, first, rows, differentiable_linear)
    (grad,) = torch.autograd.grad((found * weights).sum(), rows)
    for one, other in ((found, expected), (grad, expected_grad)):
        assert (one - other).norm() <= tolerance * other.norm()
    assert expected_grad.abs().min() > 0


def test_replaced_rows_are_not_computed() -> None:
    tower = _tower()
    rows = []
    for block in tower.transformer.resblocks:
        block.ln_2.register_forward_hook(lambda _module, _inputs, out: rows.append(out.shape[1]))
    with torch.inference_mode():
        features_from_block(tower, torch.randn(2, 17, 32, dtype=torch.float64), 0, torch.zeros(2, 4, 32).double())
    assert rows == [17, 21, 1]  # the rows of block 0 are replaced, those of block 1 stay, the last block reads one


@pytest.mark.parametrize(
    ("patch", "width", "n_blocks", "heads", "embed_dim"),
    [
        (32, 768, 12, 12, 512),
        (16, 768, 12, 12, 512),
        pytest.param(14, 1024, 24, 16, 768, marks=pytest.mark.slow),
    ],
    ids=["ViT-B/32", "ViT-B/16", "ViT-L/14"],
)
def test_prompts_of_the_image_tower_at_true_size(
    patch: int, width: int, n_blocks: int, heads: int, embed_dim: int
) -> None:
    """Rows before the first, a middle and the last blocks of the published towers, in float32 with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tower = VisionTransformer(224, patch, width, n_blocks, heads, 4.0, output_dim=embed_dim, act_layer=QuickGELU)
    tower.requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(1, 3, 224, 224, generator=generator)
    for first, end in ((0, 2), (n_blocks // 2, n_blocks), (n_blocks - 1, n_blocks)):
        rows = (0.02 * torch.randn(end - first, 4, width, generator=generator)).requires_grad_()
        expected = plain_image_features(tower, pixels, first, rows)
        (expected_grad,) = torch.autograd.grad(expected.square().sum(), rows)
        with torch.no_grad():
            stored = input_of_block(tower, pixels, first)
        found = features_from_block(tower, stored, first, rows, differentiable_linear)
        (grad,) = torch.autograd.grad(found.square().sum(), rows)
        assert (found - expected).norm() <= 1e-5 * expected.norm()
        assert (grad - expected_grad).norm() <= 1e-5 * expected_grad.norm()
