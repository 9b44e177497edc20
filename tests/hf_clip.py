"""An open_clip ViT as a Hugging Face `CLIPModel`: the same image tower in other software."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

from slimprompt import Backbone

_PARTS = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def save_clip_model(backbone: Backbone, folder: Path) -> Path:
    """Write model and image processor for `from_pretrained`; the text tower has one random layer and is not used."""
    visual = backbone.model.visual
    blocks, patch = visual.transformer.resblocks, visual.conv1
    (side, _) = visual.image_size
    vision = {
        "hidden_size": patch.out_channels,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": blocks[0].attn.num_heads,
        "intermediate_size": blocks[0].mlp.c_fc.out_features,
        "image_size": side,
        "patch_size": patch.kernel_size[0],
        "hidden_act": {"gelu": "gelu", "quickgelu": "quick_gelu"}[backbone.activation],
    }
    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = CLIPModel(CLIPConfig(vision_config=vision, text_config=text, projection_dim=visual.output_dim))
    weights = _vision_weights(visual)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and not [name for name in missing if name.startswith(("vision_model", "visual_"))]
    model.eval().save_pretrained(folder)
    processor = CLIPImageProcessor(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_mean=list(backbone.preprocess.mean),
        image_std=list(backbone.preprocess.std),
    )
    processor.save_pretrained(folder)
    return folder


def _vision_weights(visual: torch.nn.Module) -> dict[str, Tensor]:
    state = visual.state_dict()
    found = {
        "vision_model.embeddings.class_embedding": state["class_embedding"],
        "vision_model.embeddings.patch_embedding.weight": state["conv1.weight"],
        "vision_model.embeddings.position_embedding.weight": state["positional_embedding"],
        "visual_projection.weight": state["proj"].T,
    }
    for kind in ("weight", "bias"):
        found[f"vision_model.pre_layrnorm.{kind}"] = state[f"ln_pre.{kind}"]
        found[f"vision_model.post_layernorm.{kind}"] = state[f"ln_post.{kind}"]
        for number in range(len(visual.transformer.resblocks)):
            ours, theirs = f"transformer.resblocks.{number}", f"vision_model.encoder.layers.{number}"
            for name, other in _PARTS.items():
                found[f"{theirs}.{other}.{kind}"] = state[f"{ours}.{name}.{kind}"]
            for name, part in zip("qkv", state[f"{ours}.attn.in_proj_{kind}"].chunk(3), strict=True):
                found[f"{theirs}.self_attn.{name}_proj.{kind}"] = part
    return {name: value.contiguous() for name, value in found.items()}
