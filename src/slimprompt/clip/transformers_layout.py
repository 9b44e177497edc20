"""Weights in the layout of transformers' `CLIPModel`, in which the Hugging Face hub has `openai/clip-vit-base-patch16`.

They are a folder with `config.json` and the weights, or the weight file alone, which does not state the activation.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimprompt.errors import InputError, first_few, shown
from slimprompt.files import read_json

#: Weight files of a folder, in the order in which they are looked for.
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")

#: Name in transformers → name in open_clip, outside the blocks.
_NAMES = {
    "logit_scale": "logit_scale",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
    "text_projection.weight": "text_projection",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",  # spelt so
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
    "visual_projection.weight": "visual.proj",
}
_TRANSPOSED = ("text_projection.weight", "visual_projection.weight")  # x Wᵀ in transformers, x W in open_clip
_BLOCKS = {"text_model": "transformer.resblocks", "vision_model": "visual.transformer.resblocks"}
_LAYERS = {
    "layer_norm1": "ln_1",
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_BLOCK_NAME = re.compile(r"(text_model|vision_model)\.encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
_ACTIVATIONS = {"gelu": "gelu", "quick_gelu": "quickgelu"}


def weight_file(path: Path) -> Path:
    """The weight file of a folder; a file as it is."""
    if not path.is_dir():
        return path
    found = [path / name for name in _WEIGHT_FILES if (path / name).is_file()]
    if not found:
        hint = (
            f"It is a model of its own: use it as the backbone local-dir:{path}"
            if (path / "open_clip_config.json").is_file()
            else "In the Hugging Face cache, that is the folder snapshots/<commit> of a model"
        )
        raise InputError(f"no {' and no '.join(_WEIGHT_FILES)} in {path}, which transformers' CLIPModel saves. {hint}")
    return found[0]


def is_clip_model(state: dict[str, Tensor]) -> bool:
    """Whether weights have the names of transformers' `CLIPModel`."""
    return "text_model.embeddings.token_embedding.weight" in state


def to_open_clip(state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights under open_clip's names: projections transposed, and Wq, Wk and Wv as one matrix."""
    found: dict[str, Tensor] = {}
    unknown: list[str] = []
    for name, value in state.items():
        block = _BLOCK_NAME.fullmatch(name)
        if name in _NAMES:
            found[_NAMES[name]] = value.T if name in _TRANSPOSED else value
        elif block and block[3] in _LAYERS:
            found[f"{_BLOCKS[block[1]]}.{block[2]}.{_LAYERS[block[3]]}.{block[4]}"] = value
        elif block and block[3] == "self_attn.q_proj":
            names = [name.replace("q_proj", f"{part}_proj") for part in "qkv"]
            parts = [state[part] for part in names if part in state and state[part].shape == value.shape]
            joined = torch.cat(parts)  # (3 · width, width) or (3 · width,)
            found[f"{_BLOCKS[block[1]]}.{block[2]}.attn.in_proj_{block[4]}"] = joined
        elif not (block and block[3] in ("self_attn.k_proj", "self_attn.v_proj")) and not name.endswith("position_ids"):
            unknown.append(name)
    if unknown:
        raise InputError(f"{path} holds weights that no CLIPModel of transformers has: {first_few(unknown)}")
    return found


def read_config(folder: Path) -> dict[str, Any] | None:
    """The `config.json` beside the weights of a `CLIPModel`, if there is one."""
    path = folder / "config.json"
    if not path.is_file():
        return None
    config = read_json(path)
    is_clip = isinstance(config, dict) and config.get("model_type") == "clip"
    if not is_clip or not all(isinstance(config.get(part), dict) for part in ("text_config", "vision_config")):
        raise InputError(f"{path} does not describe a CLIPModel of transformers (model_type clip)")
    return config


def activation_of(config: dict[str, Any], path: Path) -> str | None:
    """The activation that `config.json` states for both towers, "gelu" or "quickgelu"; None if it does not."""
    text, image = (config[part].get("hidden_act") for part in ("text_config", "vision_config"))
    if text is None or image is None:
        return None
    if text != image or str(text) not in _ACTIVATIONS:
        raise InputError(
            f"the configuration of {path} states the activations {shown(text)} for texts and {shown(image)} for images; supported "
            "are gelu or quick_gelu, the same for both"
        )
    return _ACTIVATIONS[text]


def check_config(config: dict[str, Any], model: Any, name: str, path: Path) -> None:
    """Raise an error if `config.json` and the architecture differ, also in what weights do not show, such as heads."""
    if not hasattr(model.visual, "transformer"):
        raise InputError(
            f"{path} holds a vision transformer of transformers' CLIPModel; {name} has another image tower"
        )
    text, visual = getattr(model, "text", model), model.visual
    expected: dict[tuple[str, str], float] = {
        ("text_config", "max_position_embeddings"): text.context_length,
        ("text_config", "vocab_size"): text.vocab_size,
        ("vision_config", "image_size"): visual.image_size[0],
        ("vision_config", "patch_size"): visual.patch_size[0],
    }
    for part, tower in (("text_config", text), ("vision_config", visual)):
        block = tower.transformer.resblocks[0]
        expected |= {
            (part, "hidden_size"): tower.transformer.width,
            (part, "num_hidden_layers"): len(tower.transformer.resblocks),
            (part, "num_attention_heads"): block.attn.num_heads,
            (part, "intermediate_size"): block.mlp.c_fc.out_features,
            (part, "layer_norm_eps"): block.ln_1.eps,
        }
    wrong = [
        f"{part}.{field} is {shown(config[part][field])} instead of {value}"
        for (part, field), value in expected.items()
        if config[part].get(field, value) != value
    ]
    if wrong:
        raise InputError(
            f"{path} does not fit {name}: {first_few(wrong)}. Choose the architecture with these sizes as the backbone"
        )


def preprocessing(folder: Path) -> dict[str, Any]:
    """Mean and standard deviation of the pixels, if `preprocessor_config.json` beside the weights states them."""
    path = folder / "preprocessor_config.json"
    config = read_json(path) if path.is_file() else {}
    return {name: tuple(config[f"image_{name}"]) for name in ("mean", "std") if f"image_{name}" in config}
