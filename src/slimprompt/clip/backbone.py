"""A frozen CLIP: both towers, tokenizer, image transform and a fingerprint of its weights."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict, convert_weights_to_lp
from open_clip.pretrained import download_pretrained, get_pretrained_cfg, list_pretrained_tags_by_model
from open_clip.transform import PreprocessCfg, image_transform_v2
from open_clip.transformer import LayerNorm, LayerNormFp32
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from slimprompt.clip.checkpoints import read_state_dict
from slimprompt.errors import InputError, unknown
from slimprompt.storage import cache_dir

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DEVICES = ("auto", "cpu", "cuda", "mps")

#: Models whose weights are part of this package.
_MODELS = Path(__file__).parent / "models"
EMBEDDED = tuple(sorted(path.stem for path in _MODELS.glob("*.safetensors")))


@dataclass(frozen=True)
class Backbone:
    """A frozen open_clip model in eval mode with what goes with it.

    `fingerprint` is a hash of the weights and the activation at full precision: equal fingerprints mean equal features
    up to the precision of the forward pass.
    """

    name: str
    pretrained: str | None
    model: Any  # an open_clip CLIP or CustomTextCLIP
    tokenizer: Any
    preprocess: PreprocessCfg
    device: torch.device
    precision: str
    fingerprint: str

    @property
    def dtype(self) -> torch.dtype:
        """Of the frozen forward passes."""
        return _DTYPES[self.precision]

    @property
    def text_tower(self) -> Any:
        """The module that holds `token_embedding`, `transformer`, `ln_final` and `text_projection`."""
        return getattr(self.model, "text", self.model)

    @property
    def text_width(self) -> int:
        """d, the width of a context vector."""
        return int(self.text_tower.token_embedding.weight.shape[1])

    @property
    def context_length(self) -> int:
        """The most tokens the text tower reads."""
        return int(self.text_tower.context_length)

    @property
    def logit_scale(self) -> float:
        """The frozen factor on cosine similarities, exp(logit_scale)."""
        return float(self.model.logit_scale.detach().float().exp())

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text` as the model reads it, with its start and end tokens, without padding and never cut off."""
        room = 4 * (len(text.encode()) + 8)
        ids = self.tokenizer([text], context_length=room)[0].tolist()
        end = end_of_text(self.text_tower, ids)
        if end is None:
            pad = ids[-1]
            end = max((i for i, token in enumerate(ids) if token != pad), default=-1) + 1
        return ids[: end + 1]

    @torch.inference_mode()
    def encode_images(self, pixels: Tensor) -> Tensor:
        """(n, 3, height, width) → unit-length features (n, embed_dim), fp32."""
        features = self.model.encode_image(pixels.to(self.device, self.dtype))
        return F.normalize(features.float(), dim=-1)

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str], batch_size: int = 256) -> Tensor:
        """Whole sentences → unit-length features (n, embed_dim), fp32."""
        for text in texts:
            if len(self.tokenize(text)) > self.context_length:
                raise InputError(
                    f"the text {text!r} has more than the {self.context_length} tokens that {self.name} reads; shorten it"
                )
        features = []
        for start in range(0, len(texts), batch_size):
            ids = self.tokenizer(list(texts[start : start + batch_size]), context_length=self.context_length).to(
                self.device
            )
            features.append(F.normalize(self.model.encode_text(ids).float(), dim=-1))
        return torch.cat(features)

    def eval_view(self, image: Image.Image) -> Tensor:
        """RGB picture → (3, height, width): the model's own deterministic preprocessing."""
        return self._eval_transform(image)

    @property
    def _eval_transform(self) -> Any:
        return image_transform_v2(self.preprocess, is_train=False)

    def __repr__(self) -> str:
        return f"Backbone({self.name!r}, pretrained={self.pretrained!r}, {self.device.type} {self.precision}, {self.fingerprint[:8]})"


def load_backbone(
    name: str = "pocket",
    pretrained: str | None = None,
    *,
    seed: int | None = None,
    device: str = "auto",
    precision: str = "fp32",
    quick_gelu: bool | None = None,
    cache: Path | None = None,
) -> Backbone:
    """Load a CLIP model and freeze it.

    Parameters
    ----------
    name
        An embedded model ("pocket"), any open_clip architecture ("ViT-B-16", "RN50"), "hf-hub:org/model" or
        "local-dir:folder".
    pretrained
        An open_clip tag ("openai", "laion2b_s34b_b88k") or a checkpoint file (OpenAI's .pt archive, open_clip's .pt or
        .safetensors). A tag is looked up at `<cache>/weights/<name>/<tag>.{pt,safetensors}` before it is downloaded.
    seed
        With `pretrained=None`: random weights from this seed, for tests and benchmarks. `pretrained="random:0"` is the same.
    device
        "auto", "cpu", "cuda" or "mps".
    precision
        Of the frozen forward passes: "fp32", "bf16" or "fp16". Prompts are always trained in fp32.
    quick_gelu
        Whether to use QuickGELU; None turns it on for weights that are known to be trained with it (OpenAI's).
    cache
        Cache directory; default: `storage.cache_dir()`.

    Returns
    -------
    Backbone
    """
    if pretrained is not None and pretrained.startswith("random:"):
        seed = _seed(pretrained)
        pretrained = None
    if precision not in _DTYPES:
        raise unknown("precision", precision, _DTYPES)
    torch_device = _device(device)
    if ":" in name and not name.startswith(("hf-hub:", "local-dir:")):
        raise InputError(f"backbone {name!r}: the part before ':' must be hf-hub or local-dir")

    if name.startswith(("hf-hub:", "local-dir:")):
        if pretrained is not None or seed is not None:
            raise InputError(f"{name} brings its own weights: give neither pretrained nor seed with it")
        model = _load_hub(name)
    elif name in EMBEDDED:
        if pretrained is not None or seed is not None:
            raise InputError(
                f"the embedded model {name!r} brings its own weights: give neither pretrained nor seed with it"
            )
        model = _load_embedded(name)
    else:
        name = name.replace("/", "-")
        known = [*open_clip.list_models(), *EMBEDDED]
        if name not in known:
            raise unknown("backbone", name, known, next_step="`slimprompt backbones` lists them all.")
        if "hf_model_name" in open_clip.get_model_config(name)["text_cfg"]:
            raise _hugging_face_text(name)
        if pretrained is None:
            if seed is None:
                tags = ", ".join(list_pretrained_tags_by_model(name)) or "none published"
                raise InputError(
                    f"which weights for {name}? Give pretrained= a tag ({tags}) or a checkpoint file; "
                    "random weights, for tests and benchmarks, need an explicit seed."
                )
            model = _build(name, quick_gelu or False, seed)
            pretrained = f"random:{seed}"
        else:
            model = _load_pretrained(name, pretrained, quick_gelu, cache or cache_dir())

    _refuse_unusable(model, name)
    model.requires_grad_(False).eval()
    fingerprint = _fingerprint(model)
    _lower_precision(model, precision)
    model.to(torch_device)
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        tokenizer = _tokenizer(name)
    return Backbone(
        name=name,
        pretrained=pretrained,
        model=model,
        tokenizer=tokenizer,
        preprocess=PreprocessCfg(**model.visual.preprocess_cfg),
        device=torch_device,
        precision=precision,
        fingerprint=fingerprint,
    )


def _seed(pretrained: str) -> int:
    number = pretrained.removeprefix("random:")
    if not number.isdecimal():
        raise InputError(f"pretrained {pretrained!r}: after 'random:' comes a seed, as in random:0")
    return int(number)


def _device(device: str) -> torch.device:
    if device not in _DEVICES and not device.startswith("cuda:"):
        raise unknown("device", device, _DEVICES)
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        device = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if not available[device.split(":")[0]]:
        raise InputError(f"device {device!r} is not available here; use auto or cpu")
    return torch.device(device)


class _quiet:
    """open_clip logs each step of building a model through the root logger."""

    def __enter__(self) -> None:
        self._level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        logging.disable(self._level)


def _build(name: str, quick_gelu: bool, seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        return open_clip.create_model(name, pretrained=None, force_quick_gelu=quick_gelu)


def _load_pretrained(name: str, pretrained: str, quick_gelu: bool | None, cache: Path) -> Any:
    tag = get_pretrained_cfg(name, pretrained)
    if not tag and not Path(pretrained).exists():
        tags = list_pretrained_tags_by_model(name)
        if Path(pretrained).suffix or "/" in pretrained:
            raise InputError(f"no checkpoint file at {pretrained}; tags known for {name}: {', '.join(tags) or 'none'}")
        raise unknown(
            f"weights tag for {name}", pretrained, tags, next_step="A checkpoint file may be given instead of a tag."
        )
    path = _weights_of_tag(name, pretrained, tag, cache) if tag else Path(pretrained)
    state, openai = read_state_dict(path)
    if quick_gelu is None:
        quick_gelu = openai or bool(tag and tag.get("quick_gelu"))
    model = _build(name, quick_gelu)
    if tag:
        model.visual.preprocess_cfg.update(
            {key: tag[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in tag}
        )
    _fill(model, state, f"{path}", name)
    return model


def _weights_of_tag(name: str, pretrained: str, tag: dict[str, Any], cache: Path) -> Path:
    folder = cache / "weights" / name
    for suffix in (".pt", ".safetensors"):
        if (folder / f"{pretrained}{suffix}").is_file():
            return folder / f"{pretrained}{suffix}"
    try:
        with _quiet():
            return Path(download_pretrained(tag))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        sources = " or ".join(
            source for source in (tag.get("url"), tag.get("hf_hub") and f"the hub repository {tag['hf_hub']}") if source
        )
        raise InputError(
            f"the weights {pretrained!r} of {name} are not on this machine and could not be downloaded ({reason}). "
            f"Get them from {sources} and put the file at {folder}/{pretrained}.pt (or .safetensors), or give the file's path "
            "as pretrained. The embedded model 'pocket' needs no download."
        ) from None


def _fill(model: Any, state: dict[str, Tensor], path: str, name: str) -> None:
    state = convert_state_dict(model, state)
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    if "logit_scale" in state:
        state["logit_scale"] = state["logit_scale"].reshape(model.logit_scale.shape)
    expected = model.state_dict()
    wrong = [
        f"{key} has shape {tuple(state[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in expected
        if key in state and state[key].shape != expected[key].shape
    ]
    missing = [f"{key} is missing" for key in expected if key not in state]
    surplus = [f"{key} is not part of it" for key in state if key not in expected]
    problems = wrong + missing + surplus
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InputError(
            f"{path} does not fit {name}: {'; '.join(problems[:3])}{more}. Is it the checkpoint of another architecture?"
        )
    model.load_state_dict(state)


def _load_hub(name: str) -> Any:
    try:
        with _quiet():
            return open_clip.create_model(name, require_pretrained=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        hint = (
            "Is the id right, and is there a network or a cached copy?"
            if name.startswith("hf-hub:")
            else "Expected open_clip_config.json and the weights in it."
        )
        raise InputError(f"cannot load {name}: {reason}. {hint}") from None


def _load_embedded(name: str) -> Any:
    """A model of this package; only the vocabulary rows it was trained on are stored."""
    from safetensors.torch import load_file

    path = _MODELS / f"{name}.safetensors"
    facts = json.loads((_MODELS / f"{name}.facts.json").read_text())
    if hashlib.sha256(path.read_bytes()).hexdigest() != facts["sha256"]:
        raise InputError(f"{path} is damaged (its hash differs from the published one); reinstall slimprompt")
    open_clip.add_model_config(_MODELS / f"{name}.json")
    model = _build(name, quick_gelu=False)
    state = {key: value.float() if value.is_floating_point() else value for key, value in load_file(path).items()}
    rows, stored = state.pop("token_embedding.rows"), state["token_embedding.weight"]
    # Words it has never read still differ from each other: rows drawn like the others, always the same.
    table = torch.randn(model.vocab_size, stored.shape[1], generator=torch.Generator().manual_seed(0)) * stored.std()
    table[rows] = stored
    state["token_embedding.weight"] = table
    _fill(model, state, str(path), name)
    model.visual.preprocess_cfg.update(mean=tuple(facts["mean"]), std=tuple(facts["std"]))
    return model


def _tokenizer(name: str) -> Any:
    try:
        return open_clip.get_tokenizer(name)
    except ImportError as error:
        raise InputError(
            f"the tokenizer of {name} needs another package ({error}): pip install 'slimprompt[hf]'"
        ) from None
    except Exception as error:
        raise InputError(f"the tokenizer of {name} cannot be loaded: {str(error).splitlines()[0]}") from None


def _hugging_face_text(name: str) -> InputError:
    return InputError(
        f"{name} has a Hugging Face text tower, which takes no context vectors here; use an open_clip text tower"
    )


def _refuse_unusable(model: Any, name: str) -> None:
    text = getattr(model, "text", model)
    if not hasattr(text, "token_embedding"):
        raise _hugging_face_text(name)
    if getattr(text, "cls_emb", None) is not None:
        raise InputError(
            f"{name} reads its text feature from an appended class token (CoCa), which is not supported; use a CLIP model"
        )


def end_of_text(tower: Any, ids: Sequence[int]) -> int | None:
    """Index of the end-of-text token, by the rule with which the tower finds it; None if it pools elsewhere."""
    pool = getattr(tower, "text_pool_type", None) or tower.pool_type
    if pool == "argmax":
        return max(range(len(ids)), key=ids.__getitem__)
    if pool == "eos":
        eos = getattr(tower, "text_eos_id", None) or tower.eos_id
        return ids.index(eos)
    return None


def _fingerprint(model: Any) -> str:
    """sha256 over names, shapes and fp32 bytes of all weights, and the text activation (QuickGELU changes the features too)."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(f"{key}{tuple(value.shape)}".encode())
        digest.update(
            value.detach().cpu().contiguous().view(torch.uint8).numpy() if value.ndim else value.cpu().numpy().tobytes()
        )
    digest.update(type(getattr(model, "text", model).transformer.resblocks[0].mlp.gelu).__name__.encode())
    return digest.hexdigest()


def _lower_precision(model: Any, precision: str) -> None:
    """What open_clip does when it builds in low precision: matrices in it, norms in fp32."""
    if precision == "fp32":
        return
    for module in model.modules():
        if isinstance(module, LayerNorm):
            module.__class__ = LayerNormFp32
    if hasattr(model.visual, "trunk"):  # a timm tower has its own norms, which work in the input's precision
        model.visual.to(_DTYPES[precision])
    convert_weights_to_lp(model, _DTYPES[precision])
