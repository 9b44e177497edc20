"""Models of open_clip, of the Hugging Face hub and of this package: build the architecture and load its weights."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model
from torch import Tensor
from torch.overrides import TorchFunctionMode

from slimprompt.clip.checkpoints import read_state_dict, refusal
from slimprompt.clip.towers import config_support
from slimprompt.clip.weights import find_weights, recognise_activation
from slimprompt.errors import InputError, unknown

_MODELS = Path(__file__).parent / "models"
EMBEDDED = tuple(sorted(path.stem for path in _MODELS.glob("*.safetensors")))
"""Models whose weights are part of this package."""
LOCAL_FOLDER = "local-dir:"
"""Begins the name of a model that is a folder, with its configuration and weights."""


def model_config(name: str) -> dict[str, Any] | None:
    """Open_clip's configuration of an embedded model or an architecture; None for hub ids, folders and unknown names."""
    if name in EMBEDDED:
        return json.loads((_MODELS / f"{name}.json").read_text(encoding="utf-8"))
    return open_clip.get_model_config(name) if name in open_clip.list_models() else None


def default_pretrained(name: str) -> str | None:
    """OpenAI's tag for an architecture that OpenAI published weights of, else None.

    >>> default_pretrained("ViT-B/16"), default_pretrained("pocket")
    ('openai', None)
    """
    return "openai" if get_pretrained_cfg(name.replace("/", "-"), "openai") else None


def load_architecture(name: str, pretrained: str | None, seed: int | None, activation: str | None, cache: Path) -> Any:
    """A model of open_clip with the weights of a tag, of a file, or random ones of a seed."""
    known = [*open_clip.list_models(), *EMBEDDED]
    if name not in known:
        raise unknown("backbone", name, known, next_step="`slimprompt backbones` lists them all.")
    config_support(open_clip.get_model_config(name)).require(name)  # before weights are downloaded
    if pretrained is not None:
        return _load_pretrained(name, pretrained, activation, cache)
    if seed is None:
        tags = ", ".join(list_pretrained_tags_by_model(name)) or "none published"
        raise InputError(
            f"which weights for {name}? Set pretrained to a tag ({tags}) or a checkpoint file; "
            "random weights, for tests and benchmarks, need an explicit seed."
        )
    return _build(name, activation, seed)


def _build(name: str, activation: str | None, seed: int | None = None) -> Any:
    """A model with random weights of a seed; without a seed its weights are arbitrary and must be loaded afterwards.

    Activation None keeps the activation of the configuration.
    """
    options = {} if activation is None else {"quick_gelu": activation == "quickgelu"}
    with quiet(), torch.random.fork_rng(devices=[]), _NoInitialisation() if seed is None else nullcontext():
        torch.default_generator.manual_seed(seed or 0)  # models are built on the CPU
        return open_clip.create_model(name, pretrained=None, **options)


class _NoInitialisation(TorchFunctionMode):
    """Leaves out the functions of `torch.nn.init`: random numbers take most of the time of building a large model."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _load_pretrained(name: str, pretrained: str, activation: str | None, cache: Path) -> Any:
    tag = get_pretrained_cfg(name, pretrained)
    if not tag and not Path(pretrained).exists():
        tags = list_pretrained_tags_by_model(name)
        if Path(pretrained).suffix or "/" in pretrained:
            raise InputError(f"no checkpoint file at {pretrained}; tags known for {name}: {', '.join(tags) or 'none'}")
        raise unknown(
            f"weights tag for {name}", pretrained, tags, next_step="A checkpoint file can be used instead of a tag."
        )
    with quiet():
        path = find_weights(name, pretrained, tag, cache) if tag else Path(pretrained)
    state, is_openai = read_state_dict(path)
    model = _build(name, activation or recognise_activation(name, path, tag, is_openai=is_openai))
    model.visual.preprocess_cfg.update(_preprocessing(name, tag))
    _load_weights(model, state, str(path), name)
    return model


def _preprocessing(name: str, tag: dict[str, Any]) -> dict[str, Any]:
    """Normalisation and resizing of a tag; of a file, those on which all tags of its architecture agree, if they do."""
    tags = [tag] if tag else [get_pretrained_cfg(name, one) for one in list_pretrained_tags_by_model(name)]
    found = [{key: one[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in one} for one in tags]
    return found[0] if found and all(one == found[0] for one in found) else {}


def _load_weights(model: Any, state: dict[str, Tensor], path: str, name: str) -> None:
    state = convert_state_dict(model, state)
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    expected = model.state_dict()
    for key in ("logit_scale", "logit_bias"):  # some files store them as vectors of one number
        if key in state and key in expected and state[key].numel() == 1:
            state[key] = state[key].reshape(expected[key].shape)
    # Converted files often lack the counters of batch norm, which are not used by a frozen model.
    state = {key: value for key, value in expected.items() if key.endswith("num_batches_tracked")} | state
    wrong = [
        f"{key} has shape {tuple(state[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in expected
        if key in state and state[key].shape != expected[key].shape
    ]
    missing = [f"{key} is missing" for key in expected if key not in state]
    unexpected = [f"{key} is unexpected" for key in state if key not in expected]
    problems = wrong + missing + unexpected
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InputError(
            f"{path} does not fit {name}: {'; '.join(problems[:3])}{more}. Does the checkpoint belong to another architecture?"
        )
    model.load_state_dict(state)


def load_hub(name: str) -> Any:
    """A model of the hub (`hf-hub:…`) or of a folder (`local-dir:…`) with its own weights."""
    try:
        with quiet():
            config_support(open_clip.get_model_config(name)).require(name)  # before weights are downloaded
            with _NoInitialisation():
                return open_clip.create_model(name, require_pretrained=True)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise refusal(name, error) from None
    except Exception as error:
        reason = str(error).splitlines()[0]
        hint = (
            "Check the id and the network connection."
            if name.startswith("hf-hub:")
            else "The folder must contain open_clip_config.json and the weights; if it was moved, a saved model takes --pretrained FOLDER."
        )
        raise InputError(f"cannot load {name}: {reason}. {hint}") from None


def load_embedded(name: str) -> tuple[Any, str]:
    """A model of this package, and the fingerprint of its weights.

    Its file contains only the token embeddings that were trained. The others are random numbers whose last digits depend on the
    processor, so the fingerprint is recorded beside the file instead of computed.
    """
    from safetensors.torch import load_file

    path = _MODELS / f"{name}.safetensors"
    facts = json.loads((_MODELS / f"{name}.facts.json").read_text(encoding="utf-8"))
    if hashlib.sha256(path.read_bytes()).hexdigest() != facts["sha256"]:
        raise InputError(f"{path} is damaged (its hash differs from the published one); reinstall slimprompt")
    if open_clip.get_model_config(name) != model_config(name):  # it reads all of its configurations when one is added
        open_clip.add_model_config(_MODELS / f"{name}.json")
    model = _build(name, None)
    state = {key: value.float() if value.is_floating_point() else value for key, value in load_file(path).items()}
    rows, stored = state.pop("token_embedding.rows"), state["token_embedding.weight"]
    # Untrained tokens get random embeddings of the same scale, from a fixed seed, so that they differ from each other.
    table = model.token_embedding.weight.detach()  # filled in place: it is most of the model
    table.normal_(generator=torch.Generator().manual_seed(0)).mul_(stored.std())
    table[rows] = stored
    state["token_embedding.weight"] = table
    _load_weights(model, state, str(path), name)
    model.visual.preprocess_cfg.update(mean=tuple(facts["mean"]), std=tuple(facts["std"]))
    return model, facts["fingerprint"]


class quiet:
    """Silences logging: open_clip logs each step of building a model to the root logger.

    One thread at a time is inside: two that leave in another order than they entered would leave logging silenced for good.
    """

    _lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        logging.disable(self._level)
        self._lock.release()
