"""Class names of different lengths, backbones in double precision, and open_clip's own text features."""

import pytest
import torch

from slimprompt import load_backbone
from slimprompt.clip.backbone import Backbone
from slimprompt.text.tokens import CONTEXT, prompt_tokens
from tests.conftest import in_double

NAMES = ["cat", "red panda", "a_rather_long_name of many different words", "737-300", "forget-me-not"]


@pytest.fixture(scope="session", params=["tiny", "pocket"])
def double(request, tiny) -> Backbone:
    """The tiny model and the pocket model in fp64."""
    backbone = tiny if request.param == "tiny" else load_backbone("pocket", device="cpu")
    return in_double(backbone)


def random_context(backbone: Backbone, *shape: int):
    generator = torch.Generator().manual_seed(1)
    return (0.02 * torch.randn(*shape, backbone.text_width, generator=generator, dtype=backbone.dtype)).requires_grad_()


def features_and_gradient(encode, context):
    """Class features, and the gradient of the context for a fixed random gradient of the features."""
    features = encode(context)
    grad = torch.randn(features.shape, generator=torch.Generator().manual_seed(2), dtype=features.dtype)
    return features.detach(), torch.autograd.grad(features, context, grad)[0]


def open_clip_features(backbone: Backbone, names, context, position="end"):
    """`encode_text` of open_clip, with the context vectors inserted at the output of the token embedding.

    A deep context (depth, n_ctx, width) also replaces their rows at the input of the blocks 1 … depth − 1.
    """
    layers = context if context.ndim == 3 else context[None]
    sequences = prompt_tokens(backbone, names, layers.shape[1], position)
    length = backbone.context_length
    pad = int(backbone.tokenizer(["a"], context_length=length)[0, -1])
    ids = torch.tensor([sequence + [pad] * (length - len(sequence)) for sequence in sequences])
    is_context = (ids == CONTEXT)[..., None]

    def put(x, layer):
        return x.masked_scatter(is_context, layers[layer].expand(len(ids), -1, -1))

    tower = backbone.text_tower
    hooks = [tower.token_embedding.register_forward_hook(lambda module, args, out: put(out, 0))]
    for layer in range(1, len(layers)):
        hooks.append(
            tower.transformer.resblocks[layer].register_forward_pre_hook(
                lambda module, args, layer=layer: (put(args[0], layer), *args[1:])
            )
        )
    try:
        return backbone.model.encode_text(ids.clamp(min=0))
    finally:
        for hook in hooks:
            hook.remove()
