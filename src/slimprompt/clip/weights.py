"""Where published weights are found on this machine, and which activation the weights in a file were trained with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import open_clip
from huggingface_hub import try_to_load_from_cache
from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME
from open_clip.pretrained import download_pretrained

from slimprompt.errors import InputError

ACTIVATIONS = {"gelu": "GELU", "quickgelu": "QuickGELU"}
"""Activations of CLIP's towers and their titles."""


class UnknownActivationError(InputError):
    """The activation of a weight file is not known, and a wrong one gives wrong features."""


def recognise_activation(name: str, path: Path, tag: dict[str, Any], *, is_openai: bool) -> str:
    """Activation that the weights in a file were trained with.

    Parameters
    ----------
    name
        Architecture; that of a `-quickgelu` name is QuickGELU.
    path
        The weight file, for the message.
    tag
        open_clip's row for these weights; empty for a file that was given by its path.
    is_openai
        Whether the file has the form of OpenAI's.

    Raises
    ------
    UnknownActivationError
        If nothing tells.
    """
    config = open_clip.get_model_config(name)
    if is_openai or tag.get("quick_gelu") or config.get("quick_gelu"):
        return "quickgelu"
    if tag or "timm_model_name" in config["vision_cfg"]:  # open_clip builds timm towers with their own activation only
        return "gelu"
    quick = f"{name}-quickgelu"
    study = f"NAME=WEIGHTS as {quick}={path} for QuickGELU, or " if quick in open_clip.list_models() else ""
    raise UnknownActivationError(
        f"the activation of the weights in {path} is not known: OpenAI's use QuickGELU, most others GELU, and the wrong one "
        "gives wrong features. Say which with --activation quickgelu or --activation gelu (Python: activation=…); in a study, "
        f"write {study}local-dir:FOLDER with the weights and their open_clip_config.json"
    )


def find_weights(name: str, tag_name: str, tag: dict[str, Any], cache: Path) -> Path:
    """The weight file of a tag: from the cache directory, from where other tools keep it, or downloaded.

    Parameters
    ----------
    name
        Architecture.
    tag_name
        Name of the tag.
    tag
        open_clip's row for the tag.
    cache
        Cache directory; `<cache>/weights/<name>/<tag>.{pt,safetensors}` comes first.

    Raises
    ------
    InputError
        If the file is not on this machine and cannot be downloaded.
    """
    if found := files_of_tag(name, tag_name, tag, cache):
        return found[0]
    print(f"downloading the weights {tag_name!r} of {name} …", file=sys.stderr)
    try:
        return Path(download_pretrained(tag))
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rpartition("Last error: ")[2].rstrip(".")
    repository, _, filename = (tag.get("hf_hub") or "").rpartition("/")
    address = f"https://huggingface.co/{repository}/resolve/main/{filename or HF_SAFE_WEIGHTS_NAME}"
    own = _own_files(name, tag_name, cache)
    sources = [(tag.get("url"), own[0])]
    if repository:
        sources.append((address, own["safetensors" in address]))
    choices = " or ".join(f"{source} as {target}" for source, target in sources if source)
    raise InputError(
        f"the weights {tag_name!r} of {name} were not found on this machine and could not be downloaded ({reason}). "
        f"Save {choices}. To try slimprompt without a download, use the embedded toy model: --backbone pocket"
    )


def absolute_weights(pretrained: str) -> str:
    """The absolute path of a weight file or of a `local-dir:` folder; a tag as it is."""
    path = Path(pretrained)
    # A name without a folder and a suffix is a tag, even if there is a file of that name.
    is_file = path.is_file() and (path.suffix or path.name != pretrained)
    return str(path.absolute()) if is_file or (path / "open_clip_config.json").is_file() else pretrained


def files_of_tag(name: str, tag_name: str, tag: dict[str, Any], cache: Path) -> list[Path]:
    """The weight files of a tag that are on this machine, in the order in which they are looked for."""
    return [path for path in [*_own_files(name, tag_name, cache), *_files_of_other_tools(tag)] if path.is_file()]


def _own_files(name: str, tag_name: str, cache: Path) -> list[Path]:
    return [cache / "weights" / name / f"{tag_name}{suffix}" for suffix in (".pt", ".safetensors")]


def _files_of_other_tools(tag: dict[str, Any]) -> list[Path]:
    """Where OpenAI's package and open_clip (by address), and the Hugging Face hub (by repository) keep the weights of a tag."""
    files = []
    if tag.get("url"):
        files.append(Path("~/.cache/clip").expanduser() / tag["url"].rpartition("/")[2])
    repository, _, filename = (tag.get("hf_hub") or "").rpartition("/")
    if repository:
        names = [filename] if filename else [HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME]
        cached = (try_to_load_from_cache(repository, name) for name in names)
        files += [Path(path) for path in cached if isinstance(path, str)]
    return files
