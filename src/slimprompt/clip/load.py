"""Build a model and load its weights.

open_clip builds models and loads tags, models of the hub and folders. Weight files are read here, because open_clip does not
read the two other formats of OpenAI's CLIP (TorchScript archives, unless their code is executed, and transformers' layout), and
resizes position embeddings of another image size without an error.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.factory import load_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model
from torch import Tensor
from torch.overrides import TorchFunctionMode

from slimprompt.clip import transformers_layout
from slimprompt.clip.architectures import EMBEDDED, HUB, MODELS, model_config, prompt_support
from slimprompt.clip.torch_files import is_torchscript, read_torchscript
from slimprompt.errors import InputError, first_few, unknown

#: Sizes of the model that OpenAI's files list among the weights.
_OPENAI_SIZES = ("input_resolution", "context_length", "vocab_size")


def load_architecture(name: str, pretrained: str | None, seed: int | None, activation: str | None) -> Any:
    """A model of open_clip with the weights of a tag, of a file or folder, or random ones of a seed."""
    known = [*open_clip.list_models(), *EMBEDDED]
    if name not in known:
        raise unknown("backbone", name, known, next_step="`slimprompt backbones` lists them all.")
    prompt_support(open_clip.get_model_config(name)).require(name)  # before weights are downloaded
    tags = list_pretrained_tags_by_model(name)
    if pretrained is None:
        if seed is None:
            raise InputError(
                f"which weights for {name}? Set pretrained to a tag ({', '.join(tags) or 'none published'}) or a weight file; "
                "random weights, for tests and benchmarks, need an explicit seed."
            )
        return _build(name, activation, seed)
    if tag := get_pretrained_cfg(name, pretrained):
        return _load_tag(name, pretrained, activation or ("quickgelu" if tag.get("quick_gelu") else None))
    if Path(pretrained).exists():
        return _load_file(name, Path(pretrained), activation)
    if Path(pretrained).suffix or "/" in pretrained:
        raise InputError(f"no weights at {pretrained}; tags known for {name}: {', '.join(tags) or 'none'}")
    raise unknown(f"weights tag for {name}", pretrained, tags, next_step="A weight file can be used instead of a tag.")


def _build(name: str, activation: str | None, seed: int | None = None, **options: Any) -> Any:
    """A model of `open_clip.create_model`, with random weights of a seed, or with arbitrary ones unless `options` load some.

    Activation None keeps the activation of the configuration.
    """
    if activation is not None:
        options |= {"force_quick_gelu": True} if activation == "quickgelu" else {"quick_gelu": False}
    with quiet(), torch.random.fork_rng(devices=[]), _NoInitialisation() if seed is None else nullcontext():
        torch.default_generator.manual_seed(seed or 0)  # models are built on the CPU
        return open_clip.create_model(name, weights_only=True, **options)


class _NoInitialisation(TorchFunctionMode):
    """Leaves out the functions of `torch.nn.init`: random numbers take nine tenths of the time of building a large model."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def load_hub(name: str) -> Any:
    """A model of the hub (`hf-hub:…`) or of a folder (`local-dir:…`) with its own weights."""
    hint = (
        "Check the id and the network connection"
        if name.startswith(HUB)
        else "The folder must contain open_clip_config.json and the weights; if it was moved, a saved model takes --pretrained FOLDER"
    )
    with _errors_of_open_clip(name, hint):
        with quiet():
            prompt_support(open_clip.get_model_config(name)).require(name)  # before weights are downloaded
        return _build(name, None, require_pretrained=True)


def _load_tag(name: str, tag: str, activation: str | None) -> Any:
    hint = (
        "The weights of a tag are downloaded once and kept in the Hugging Face cache; without a network, give a weight file instead. "
        "To try slimprompt without a download, use the embedded toy model: --backbone pocket"
    )
    with _errors_of_open_clip(f"the weights {tag!r} of {name}", hint):
        return _build(name, activation, pretrained=tag)


@contextmanager
def _errors_of_open_clip(what: str, hint: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        is_pickle = isinstance(error, pickle.UnpicklingError)
        text = _unreadable(error) if is_pickle else (str(error) or type(error).__name__).splitlines()[0]
        reason = text.rpartition("Last error: ")[2].rstrip(".")
        raise InputError(f"cannot load {what}: {reason}. {hint}") from None


def _load_file(name: str, path: Path, activation: str | None) -> Any:
    """A model with the weights of a file, or of a folder in transformers' layout.

    The pixels are normalised and resized as all tags of the architecture agree, if they do.
    """
    file = transformers_layout.weight_file(path)
    state, preprocess, config = _read_weights(file), _preprocessing(name), None
    if transformers_layout.is_clip_model(state):
        config = transformers_layout.read_config(file.parent)
        state = transformers_layout.to_open_clip(state, path)
        stated = config and transformers_layout.activation_of(config, path)
        if stated == "gelu" and open_clip.get_model_config(name).get("quick_gelu"):
            raise InputError(f"{path} does not fit {name}: its config.json states the activation gelu")
        activation = stated or activation
        preprocess |= transformers_layout.preprocessing(file.parent)
    elif _OPENAI_SIZES[0] in state:
        state = {key: value for key, value in state.items() if key not in _OPENAI_SIZES}
        activation = activation or "quickgelu"
    model = _build(name, activation or _activation_of(name, path), force_preprocess_cfg=preprocess)
    if config is not None:
        transformers_layout.check_config(config, model, name, path)
    _put_weights(model, state, f"{path} does not fit {name}")
    return model


def _activation_of(name: str, path: Path) -> str:
    """The activation of an architecture that allows only one."""
    config = open_clip.get_model_config(name)
    if config.get("quick_gelu"):
        return "quickgelu"
    if "timm_model_name" in config["vision_cfg"]:  # open_clip builds timm towers with their own activation only
        return "gelu"
    quick = f"{name}-quickgelu"
    study = f"NAME=WEIGHTS as {quick}={path} for QuickGELU, or " if quick in open_clip.list_models() else ""
    raise InputError(
        f"the activation of the weights in {path} is not known: OpenAI's use QuickGELU, most others GELU, and the wrong one "
        "gives wrong features. Say which with --activation quickgelu or --activation gelu (Python: activation=…); in a study, "
        f"write {study}local-dir:FOLDER with the weights and their open_clip_config.json"
    )


def _preprocessing(name: str) -> dict[str, Any]:
    """Normalisation and resizing on which all tags of an architecture agree; empty if they do not."""
    tags = [get_pretrained_cfg(name, tag) for tag in list_pretrained_tags_by_model(name)]
    found = [{key: tag[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in tag} for tag in tags]
    return found[0] if found and all(one == found[0] for one in found) else {}


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a safetensors file, a PyTorch file or a TorchScript archive, without executing code."""
    try:
        state = read_torchscript(path) if is_torchscript(path) else load_state_dict(str(path), weights_only=True)
        return {name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, Tensor)}
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path} cannot be loaded: {_unreadable(error)}") from None


def _unreadable(error: Exception) -> str:
    """Why a file cannot be read, without PyTorch's advice to load it unprotected."""
    if named := re.search(r"GLOBAL (\S+)", str(error)):
        return (
            f"it holds more than weights ({named[1]}), and loading that could execute code. Save it as safetensors or as a "
            "dictionary of tensors"
        )
    return "it is not a readable file of weights: damaged, cut off, or neither PyTorch nor safetensors"


def _put_weights(model: Any, state: dict[str, Tensor], failure: str) -> None:
    """Load weights in open_clip's layout; all must be there and have the model's shapes."""
    try:
        state = convert_state_dict(model, state)
        if isinstance(model, open_clip.CustomTextCLIP):
            state = convert_to_custom_text_state_dict(state)
        for key in ("logit_scale", "logit_bias"):  # some files store them as vectors of one number
            if key in state and getattr(model, key, None) is not None:
                state[key] = state[key].reshape(getattr(model, key).shape)
        model.load_state_dict(state)
    except Exception as error:
        problems = str(error).split("\n\t")[1:] or [str(error)]
        raise InputError(
            f"{failure}: {first_few(problems, 200)}. Does the checkpoint belong to another architecture?"
        ) from None


def load_embedded(name: str) -> tuple[Any, str]:
    """A model of this package, and the fingerprint of its weights.

    Its file contains only the token embeddings that were trained. The others are random numbers whose last digits depend on the
    processor, so the fingerprint is recorded beside the file instead of computed.
    """
    from safetensors.torch import load_file

    path = MODELS / f"{name}.safetensors"
    facts = json.loads((MODELS / f"{name}.facts.json").read_text(encoding="utf-8"))
    if hashlib.sha256(path.read_bytes()).hexdigest() != facts["sha256"]:
        raise InputError(f"{path} is damaged (its hash differs from the published one); reinstall slimprompt")
    if open_clip.get_model_config(name) != model_config(name):  # it reads all of its configurations when one is added
        open_clip.add_model_config(MODELS / f"{name}.json")
    model = _build(name, None, force_preprocess_cfg={"mean": tuple(facts["mean"]), "std": tuple(facts["std"])})
    state = {key: value.float() if value.is_floating_point() else value for key, value in load_file(path).items()}
    rows, stored = state.pop("token_embedding.rows"), state["token_embedding.weight"]
    # Untrained tokens get random embeddings of the same scale, from a fixed seed, so that they differ from each other.
    table = model.token_embedding.weight.detach()  # filled in place: it is most of the model
    table.normal_(generator=torch.Generator().manual_seed(0)).mul_(stored.std())
    table[rows] = stored
    state["token_embedding.weight"] = table
    _put_weights(model, state, f"{path} does not fit {name}")
    return model, facts["fingerprint"]


@contextmanager
def quiet() -> Iterator[None]:
    """Drops what this thread logs to the root logger, to which open_clip logs each step of building a model."""
    thread, handler = threading.get_ident(), logging.NullHandler()

    def of_other_threads(_: logging.LogRecord) -> bool:
        return threading.get_ident() != thread

    logging.root.addHandler(handler)  # without any, `logging.info` would add one that prints
    logging.root.addFilter(of_other_threads)
    try:
        yield
    finally:
        logging.root.removeFilter(of_other_threads)
        logging.root.removeHandler(handler)
