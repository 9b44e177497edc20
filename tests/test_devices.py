"""No computation mixes tensors of the host with tensors of the model's device.

There is no GPU in CI. Torch's `meta` device stands in for one: its tensors have shapes and no values. Some operations on a meta
tensor and a CPU tensor raise an error by themselves, as they would on a GPU; `OneDevice` adds the others, such as products of
matrices. The tests move the model to `meta` and run everything up to the
first transfer of values to the host (`.tolist()`, `.item()`, `.cpu()`), which `meta` does not have. They show where tensors are;
they do not show that values are right on a device. `slimprompt doctor --device cuda` shows that.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from slimprompt.clip.architectures import EMBEDDED
from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.prompts.start import start_prompt
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.text.reference import full_pass_encoder, shared_prefix_reference
from slimprompt.training.evaluation import class_scores
from slimprompt.training.loop import train
from slimprompt.training.recipe import RECIPES, Recipe

META = torch.device("meta")
NAMES = ("cat", "red panda", "a rather long name", "737-300")


class OneDevice(TorchDispatchMode):
    """Raises if an operation gets tensors of two devices, except for transfers and for indices, as on a GPU."""

    _ALLOWED = (torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten.index)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves = tree_leaves((args, kwargs or {}))
        devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim}
        if len(devices) > 1 and func.overloadpacket not in self._ALLOWED:
            raise RuntimeError(f"{func} got tensors on {devices}")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _one_device():
    with OneDevice():
        yield


def load_on_meta(name: str) -> Backbone:
    """Of the text tower, a first layer, one in the middle and a last one: operations on `meta` take long."""
    backbone = load_backbone(name, device="cpu")
    model = copy.deepcopy(backbone.model).to(META)
    del model.transformer.resblocks[3:]
    return replace(backbone, model=model)


@pytest.fixture(scope="module")
def on_meta() -> Backbone:
    """The other embedded model differs in the image tower only."""
    return load_on_meta("pocket")


@pytest.fixture
def host_transfers(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Makes `Tensor.tolist` of meta tensors give zeros, and records the tensors."""
    transferred: list[torch.Tensor] = []
    right = torch.Tensor.tolist

    def tolist(tensor: torch.Tensor) -> list:
        if tensor.device != META:
            return right(tensor)
        transferred.append(tensor)
        return right(torch.zeros(tensor.shape))

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    return transferred


def test_mixed_devices_raise() -> None:
    """The premise of these tests."""
    host, device = torch.ones(2, 2), torch.ones(2, 2, device=META)
    index = torch.tensor([0, 1])
    for mixed in (
        lambda: host @ device,
        lambda: device + host,
        lambda: torch.cat([host, device]),
        lambda: F.linear(device, host),
        lambda: F.embedding(index, device),
        lambda: device.index_select(0, index),
    ):
        with pytest.raises(RuntimeError):
            mixed()
    assert device[index].device == META


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("make", [SharedPrefixTextEncoder, shared_prefix_reference, full_pass_encoder])
def test_text_passes_stay_on_the_device(on_meta: Backbone, make: type, position: str) -> None:
    encode = make(on_meta, NAMES, 4, position)
    for shape in ((4,), (3, 4)):
        context = torch.zeros(*shape, on_meta.text_width, device=META, requires_grad=True)
        features = encode(context)
        assert features.device == META and features.shape[-2] == len(NAMES)
        (gradient,) = torch.autograd.grad(features.sum(), context)
        assert gradient.device == META and gradient.shape == context.shape


def test_chunks_stay_on_the_device(on_meta: Backbone) -> None:
    encode = SharedPrefixTextEncoder(on_meta, NAMES, 4, chunk_size=2)
    context = torch.zeros(4, on_meta.text_width, device=META, requires_grad=True)
    (gradient,) = torch.autograd.grad(encode(context).sum(), context)
    assert encode.n_chunks == 2 and gradient.device == META


def test_what_is_on_the_host_is_moved_to_the_device(on_meta: Backbone) -> None:
    assert on_meta.encode_texts(["a cat", "a dog"]).device == META
    context = torch.zeros(4, on_meta.text_width)
    for make in (SharedPrefixTextEncoder, shared_prefix_reference, full_pass_encoder):
        assert make(on_meta, NAMES, 4)(context).device == META


@pytest.mark.parametrize("n_prompts", [1, 2])
@pytest.mark.parametrize("recipe", [Recipe(epochs=2, batch_size=4), RECIPES["fast"].model_copy(update={"epochs": 2})])
def test_training_stays_on_the_device(
    on_meta: Backbone,
    recipe: Recipe,
    n_prompts: int,
    host_transfers: list[torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two whole epochs; features and labels come from the host, and only losses and hits go back, once per epoch."""
    prompts = [
        start_prompt("joint", width=on_meta.text_width, seed=0, n_ctx=4, rank=2).to(META) for _ in range(n_prompts)
    ]
    encode = SharedPrefixTextEncoder(on_meta, NAMES, 4)
    features = F.normalize(torch.randn(10, _embed_dim(on_meta)), dim=-1)
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda tensor: True)  # the final test for finite features
    curves = train(
        prompts, encode, lambda epoch: features, torch.arange(10) % 4, 100.0, recipe, seed=0, show_progress=False
    )
    assert [len(curve) for curve in curves] == [2] * n_prompts
    assert all(factor.device == META for prompt in prompts for factor in prompt.parameters())
    assert len(host_transfers) == 2 * 2


def test_scores_are_where_the_image_features_are(on_meta: Backbone) -> None:
    """Evaluation reads image features on the host; the class features come from the device."""
    images = torch.zeros(3, _embed_dim(on_meta), device=META)
    classes = SharedPrefixTextEncoder(on_meta, NAMES, 4)(torch.zeros(4, on_meta.text_width))
    assert class_scores(images, classes).device == META
    assert class_scores(images, torch.zeros(len(NAMES), _embed_dim(on_meta))).device == META


@pytest.mark.parametrize("name", EMBEDDED)
def test_images_are_moved_to_the_device(name: str) -> None:
    """Views are made on the host; the bank and `encode_eval_views` pass them to `encode_images` as they are."""
    backbone = load_on_meta(name)
    size = backbone.preprocess.size
    height = size if isinstance(size, int) else size[0]
    features = backbone.encode_images(torch.zeros(2, 3, height, height))
    assert features.device == META and features.shape == (2, _embed_dim(backbone))


def _embed_dim(backbone: Backbone) -> int:
    return int(backbone.text_tower.text_projection.shape[1])
