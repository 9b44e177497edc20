"""A frozen CLIP model with its tokenizer, its image preprocessing and a fingerprint of its weights."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import open_clip
import torch
from open_clip.model import convert_weights_to_lp
from open_clip.transform import PreprocessCfg, image_transform_v2
from open_clip.transformer import LayerNorm, LayerNormFp32
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from slimprompt.clip.architectures import (
    ACTIVATIONS,
    EMBEDDED,
    HUB,
    LOCAL_FOLDER,
    TOKENIZER_EXTRA,
    absolute_weights,
    default_pretrained,
)
from slimprompt.clip.image_tower import (
    features_from_block,
    image_features,
    image_features_in_parts,
    input_of_block,
    reads_class_token,
)
from slimprompt.clip.load import load_architecture, load_embedded, load_hub, quiet
from slimprompt.clip.products import differentiable_linear
from slimprompt.clip.towers import end_of_text
from slimprompt.errors import InputError, shown, unknown

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DEVICES = ("auto", "cpu", "cuda", "mps")


class ImagePass(NamedTuple):
    """What `Backbone.encode_images` computes: features with prompts of the image tower or, without rows, the input of a block."""

    base: Any = None
    """The frozen `Backbone`; None for the features of the frozen tower."""
    first: int = 0
    """The first block with rows, or the block whose input is meant."""
    rows: Tensor | None = None
    """(n_blocks, n_rows, width)."""

    def compute(self, tower: Any, pixels: Tensor) -> Tensor:
        """Pixels (n, 3, height, width) → features (n, embed_dim), not normalised, or inputs (n, n_tokens, width)."""
        x = input_of_block(tower, pixels, self.first)
        return x if self.rows is None else features_from_block(tower, x, self.first, self.rows)


@dataclass(frozen=True)
class Backbone:
    """A frozen open_clip model in eval mode.

    Attributes
    ----------
    name
        Name of the embedded model or of the open_clip architecture.
    pretrained
        Tag, file or folder of the weights; "random:<seed>" for random weights, None if the name determines them.
    model
        The open_clip `CLIP` or `CustomTextCLIP`.
    tokenizer
        The tokenizer of the model.
    preprocess
        Image size, normalisation and resize mode.
    fingerprint
        Hash of the full-precision weights and of the activation; recorded, not computed, for embedded models. Backbones with equal
        fingerprints and equal preprocessing give equal features up to the precision of the forward pass.
    image_pass
        What `encode_images` computes, if not the features of the frozen image tower.
    """

    name: str
    pretrained: str | None
    model: Any
    tokenizer: Any
    preprocess: PreprocessCfg
    fingerprint: str
    image_pass: ImagePass = field(default=ImagePass(), compare=False)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.logit_scale.device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the frozen forward passes."""
        return self.text_tower.transformer.resblocks[0].mlp.c_fc.weight.dtype

    @property
    def precision(self) -> str:
        """Precision of the frozen forward passes: "fp32", "bf16" or "fp16"; "fp64" of a converted model."""
        return next((name for name, dtype in _DTYPES.items() if dtype == self.dtype), "fp64")

    @property
    def text_tower(self) -> Any:
        """The module with `token_embedding`, `transformer`, `ln_final` and `text_projection`."""
        return getattr(self.model, "text", self.model)

    @property
    def text_width(self) -> int:
        """Width of the text tower and of a context vector."""
        return int(self.text_tower.token_embedding.weight.shape[1])

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a text."""
        return int(self.text_tower.context_length)

    @property
    def embed_dim(self) -> int:
        """Length of an image or text feature, found by encoding a text: no attribute says it for all towers."""
        return int(self.encode_texts(["a"]).shape[1])

    @property
    def image_width(self) -> int:
        """Width of the rows of the image tower, which must be one that takes prompts."""
        return len(self.image_tower.class_embedding)

    @property
    def image_tower(self) -> Any:
        """The image tower, if rows can be put before its blocks; otherwise an `InputError`."""
        if not reads_class_token(self.model.visual):
            raise InputError(
                f"the image tower of {self.name} takes no prompts: it must be a vision transformer of open_clip whose feature is "
                "read at the class token, as in ViT-B-16; the text tower takes prompts"
            )
        return self.model.visual

    @property
    def frozen(self) -> Backbone:
        """The model without what `image_pass` changes."""
        return self if self.image_pass.base is None else self.image_pass.base

    def with_image_rows(self, first: int, rows: Tensor) -> Backbone:
        """This model with prompts of the image tower: rows (n_blocks, n_rows, width) before block `first` and those after it.

        It has a fingerprint of its own, so that its features are never mixed with others.
        """
        rows = rows.detach().to(self.device, self.dtype)
        digest = hashlib.sha256(f"{self.fingerprint} rows from block {first} {tuple(rows.shape)}".encode())
        digest.update(rows.float().cpu().contiguous().numpy().tobytes())
        return replace(self, image_pass=ImagePass(self.frozen, first, rows), fingerprint=digest.hexdigest())

    def up_to_block(self, block: int) -> Backbone:
        """This model, whose `encode_images` stops at the input of a block of the image tower: (n, n_tokens · width)."""
        digest = hashlib.sha256(f"{self.fingerprint} input of block {block}".encode())
        return replace(self, image_pass=ImagePass(self.frozen, block), fingerprint=digest.hexdigest())

    @property
    def activation(self) -> str:
        """Activation of the text tower, "gelu" or "quickgelu"."""
        return "quickgelu" if _text_activation(self.model) == "QuickGELU" else "gelu"

    @property
    def title(self) -> str:
        """Name, weights and activation: `ViT-B-16 (openai, QuickGELU)`."""
        return f"{self.name} ({', '.join(filter(None, (self.pretrained, ACTIVATIONS[self.activation])))})"

    @property
    def location(self) -> tuple[str, str | None]:
        """Name and weights, with absolute paths of files and folders: the same model from any working directory."""
        if self.name.startswith(LOCAL_FOLDER):
            return LOCAL_FOLDER + absolute_weights(self.name.removeprefix(LOCAL_FOLDER)), self.pretrained
        return self.name, self.pretrained and absolute_weights(self.pretrained)

    @property
    def logit_scale(self) -> float:
        """The factor on cosine similarities, the exponential of the model's `logit_scale` parameter."""
        return float(self.model.logit_scale.detach().float().exp())

    @property
    def logit_bias(self) -> float:
        """The constant that a model trained with a sigmoid loss (SigLIP) adds to every logit; 0.0 for other models."""
        bias = getattr(self.model, "logit_bias", None)
        return 0.0 if bias is None else float(bias.detach().float())

    def class_bias(self, n_classes: int) -> Tensor | None:
        """`logit_bias` as the bias (n_classes,) of a linear head on cosine similarities; None if it is 0."""
        return torch.full((n_classes,), self.logit_bias) if self.logit_bias else None

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, with start and end-of-text tokens, without padding and without truncation."""
        max_length = 4 * (len(text.encode()) + 8)
        ids = self.tokenizer([text], context_length=max_length)[0].tolist()
        end = end_of_text(self.text_tower, ids)
        if end is None:
            # Some tokenizers have no end-of-text token but the padding.
            end = _last_token(ids) + (0 if _has_end_token(self.tokenizer) else 1)
        return ids[: end + 1]

    def tokenize_within_limit(self, text: str) -> list[int]:
        """`tokenize`, with an error for a text that the model cannot read as a whole."""
        ids = self.tokenize(text)
        if len(ids) > self.context_length:
            raise InputError(
                f"the text {shown(text)} has more than the {self.context_length} tokens that {self.name} reads; shorten it"
            )
        return ids

    @torch.inference_mode()
    def encode_images(self, pixels: Tensor) -> Tensor:
        """Pixels (n, 3, height, width) → unit-length features (n, embed_dim), fp32, or what `image_pass` says."""
        changed = self.image_pass.base is not None
        compute = self.image_pass.compute if changed else image_features
        features = image_features_in_parts(self.model.visual, pixels.to(self.device, self.dtype), compute).float()
        return features.flatten(1) if changed and self.image_pass.rows is None else F.normalize(features, dim=-1)

    def features_from_block(self, inputs: Tensor, first: int, rows: Tensor | None) -> Tensor:
        """Inputs of block `first` (n, n_tokens · width) → unit-length features (n, embed_dim), with the gradient of the rows."""
        x = inputs.to(self.device, self.dtype).unflatten(1, (-1, self.image_width))  # (n, n_tokens, width)
        rows = None if rows is None else rows.to(self.dtype)
        features = features_from_block(self.image_tower, x, first, rows, differentiable_linear)
        return F.normalize(features.float(), dim=-1)

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str], *, unit_length: bool = True) -> Tensor:
        """Texts → features (n, embed_dim), fp32; of unit length unless `unit_length` is False. No text is truncated."""
        for text in texts:
            self.tokenize_within_limit(text)
        ids = self.tokenizer(list(texts), context_length=self.context_length)  # (n, context_length)
        parts = [self.model.encode_text(part.to(self.device)).float() for part in ids.split(256)]
        return F.normalize(torch.cat(parts), dim=-1) if unit_length else torch.cat(parts)

    def eval_view(self, image: Image.Image) -> Tensor:
        """RGB image → pixels (3, height, width) by the model's own deterministic preprocessing."""
        return image_transform_v2(self.preprocess, is_train=False)(image)

    def with_preprocessing(self, preprocess: PreprocessCfg) -> Backbone:
        """This model with another preprocessing of images; the weights are shared."""
        return self if preprocess == self.preprocess else replace(self, preprocess=preprocess)

    def __copy__(self) -> Backbone:
        return self  # frozen, and too large to copy unasked

    def __deepcopy__(self, _: dict[int, Any]) -> Backbone:
        return self  # scikit-learn's `clone` shares it

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the model is loaded by, not its weights."""
        device = str(self.device) if self.device.type == "cuda" else self.device.type  # the number of a GPU counts
        if self.image_pass.rows is not None:
            return Backbone.with_image_rows, (self.frozen, self.image_pass.first, self.image_pass.rows)
        loaded_by = (*self.location, self.activation, device, self.precision)
        return _load_again, (*loaded_by, self.fingerprint, json.dumps(asdict(self.preprocess)))

    def __repr__(self) -> str:
        return f"Backbone({self.name!r}, pretrained={self.pretrained!r}, {self.device.type} {self.precision}, {self.fingerprint[:8]})"


def load_backbone(
    name: str,
    pretrained: str | Path | None = None,
    *,
    seed: int | None = None,
    device: str | torch.device = "auto",
    precision: str = "fp32",
    activation: str | None = None,
) -> Backbone:
    """Load a CLIP model and freeze it.

    Parameters
    ----------
    name
        An embedded model ("pocket"), any open_clip architecture ("ViT-B-16", "RN50"), "hf-hub:org/model" or
        "local-dir:folder".
    pretrained
        An open_clip tag ("openai", "laion2b_s34b_b88k"), whose weights are downloaded once, by default OpenAI's where OpenAI published
        weights of the architecture; a weight file (OpenAI's .pt archive,
        open_clip's .pt or .safetensors); or the folder or file of a `CLIPModel` of transformers, for example in the Hugging Face
        cache. A file gets the image preprocessing on which all tags of the architecture agree, and OpenAI's if they differ; mean
        and standard deviation are those of a `preprocessor_config.json` beside it.
    seed
        Seed of random weights, for tests and benchmarks, if `pretrained` is None. `pretrained="random:0"` is equivalent
        to `seed=0`.
    device
        "auto", "cpu", "cuda", "mps" or one of several GPUs, "cuda:1".
    precision
        Precision of the frozen forward passes: "fp32", "bf16", which is faster on GPUs and on processors with bf16 instructions, or
        "fp16", which is for GPUs. Prompts are always trained in fp32.
    activation
        "gelu" or "quickgelu". None or "auto" is the one that the weights were trained with: by the tag, the form of OpenAI's
        archives, the `config.json` of a `CLIPModel`, a name that ends in "-quickgelu", or the configuration of a hub or local
        model. Random weights get the activation of the configuration.

    Returns
    -------
    Backbone
        The frozen model in eval mode.

    Raises
    ------
    InputError
        If an argument is unknown, weights are missing or damaged, the activation of a weight file is not known, or the
        model has no usable text tower.
    """
    pretrained = None if pretrained is None else str(pretrained)
    if activation == "auto":
        activation = None
    if activation is not None and activation not in ACTIVATIONS:
        raise unknown("activation", activation, ["auto", *ACTIVATIONS])
    if pretrained is not None and pretrained.startswith("random:"):
        number = pretrained.removeprefix("random:")
        if not number.isdecimal():
            raise InputError(f"pretrained {pretrained!r}: expected a seed after 'random:', as in random:0")
        seed, pretrained = int(number), None
    if precision not in _DTYPES:
        raise unknown("precision", precision, _DTYPES)
    torch_device = _device(str(device))
    if precision == "fp16" and torch_device.type == "cpu":
        warnings.warn("fp16 is for GPUs: on a CPU it is many times slower than fp32 and bf16", stacklevel=2)
    fingerprint = None
    if ":" in name and not name.startswith((HUB, LOCAL_FOLDER)):
        raise InputError(f"backbone {name!r}: the part before ':' must be hf-hub or local-dir")
    if name.startswith((HUB, LOCAL_FOLDER)) or name in EMBEDDED:
        if pretrained is not None or seed is not None:
            raise InputError(f"the model {name!r} has its own weights: pass neither pretrained nor seed with it")
        if name in EMBEDDED:
            model, fingerprint = load_embedded(name)
        else:
            model = load_hub(name)
    else:
        name = name.replace("/", "-")
        if pretrained is None and seed is None:
            pretrained = default_pretrained(name)
        model = load_architecture(name, pretrained, seed, activation)
        pretrained = pretrained or f"random:{seed}"

    model.requires_grad_(False).eval()
    fingerprint = fingerprint or _fingerprint(model)
    _lower_precision(model, precision)
    model.to(torch_device)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = _tokenizer(name)
    backbone = Backbone(
        name=name,
        pretrained=pretrained,
        model=model,
        tokenizer=tokenizer,
        preprocess=read_preprocessing(model.visual.preprocess_cfg),
        fingerprint=fingerprint,
    )
    if activation not in (None, backbone.activation):
        raise InputError(
            f"the model {name!r} uses {ACTIVATIONS[backbone.activation]}, not {activation}: leave the activation out"
        )
    return backbone


def read_preprocessing(entries: Mapping[str, Any]) -> PreprocessCfg:
    """The preprocessing that `entries` describe, as a model's configuration or JSON holds them: lists become tuples."""
    return PreprocessCfg(**{key: tuple(value) if isinstance(value, list) else value for key, value in entries.items()})


@lru_cache(maxsize=1)  # the tasks of a worker process share it
def _load_again(
    name: str,
    pretrained: str | None,
    activation: str,
    device: str,
    precision: str,
    fingerprint: str,
    preprocess: str,
) -> Backbone:
    """The backbone of a pickle."""
    if not _available(device):
        warnings.warn(
            f"device {device!r} is not available on this machine: {name} is loaded with device='auto'", stacklevel=2
        )
        device = "auto"
    backbone = load_backbone(name, pretrained, activation=activation, device=device, precision=precision)
    if backbone.fingerprint != fingerprint:
        raise InputError(
            f"the weights of {backbone.title} differ from those of the pickled backbone (other fingerprint)"
        )
    return backbone.with_preprocessing(read_preprocessing(json.loads(preprocess)))


def _device(device: str) -> torch.device:
    if device not in _DEVICES and not device.startswith("cuda:"):
        raise unknown("device", device, _DEVICES)
    if device == "auto":
        device = next(kind for kind in ("cuda", "mps", "cpu") if _available(kind))
    if not _available(device):
        raise InputError(f"device {device!r} is not available on this machine; use auto or cpu")
    return torch.device(device)


def _available(device: str) -> bool:
    kind, _, number = device.partition(":")
    if kind == "cuda" and number:
        return number.isdecimal() and int(number) < torch.cuda.device_count()
    if kind == "cuda":
        return torch.cuda.is_available()
    return torch.backends.mps.is_available() if kind == "mps" else kind == "cpu"


def _tokenizer(name: str) -> Any:
    try:
        return open_clip.get_tokenizer(name)
    except ImportError as error:
        raise InputError(
            f"the tokenizer of {name} needs another package ({error}): pip install 'slimprompt[{TOKENIZER_EXTRA}]'"
        ) from None
    except Exception as error:
        raise InputError(f"the tokenizer of {name} cannot be loaded: {str(error).splitlines()[0]}") from None


@lru_cache(maxsize=4)
def _has_end_token(tokenizer: Any) -> bool:
    """Whether every text ends with the same token before the padding."""
    texts = [ids.tolist() for ids in tokenizer(["a", "the"], context_length=32)]
    one, other = (ids[_last_token(ids)] for ids in texts)
    return one == other


def _last_token(ids: Sequence[int]) -> int:
    """Index of the last token before the padding; -1 if there is only padding."""
    return max((index for index, token in enumerate(ids) if token != ids[-1]), default=-1)


def _fingerprint(model: Any) -> str:
    """SHA-256 of names, shapes and fp32 bytes of all weights and of the text activation, which changes features too."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(f"{key}{tuple(value.shape)}".encode())
        digest.update(
            value.detach().cpu().contiguous().view(torch.uint8).numpy() if value.ndim else value.cpu().numpy().tobytes()
        )
    digest.update(_text_activation(model).encode())
    return digest.hexdigest()


def _text_activation(model: Any) -> str:
    """Class name of the activation."""
    return type(getattr(model, "text", model).transformer.resblocks[0].mlp.gelu).__name__


def _lower_precision(model: Any, precision: str) -> None:
    """Convert as open_clip does: matrices to low precision, layer norms stay in fp32."""
    if precision == "fp32":
        return
    for module in model.modules():
        if isinstance(module, LayerNorm):
            module.__class__ = LayerNormFp32
    if hasattr(model.visual, "trunk"):  # the norms of a timm tower run in the precision of their input
        model.visual.to(_DTYPES[precision])
    convert_weights_to_lp(model, _DTYPES[precision])
