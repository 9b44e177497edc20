"""Saved models on the Hugging Face hub, which are named `hf:user/name` or `hf:user/name@revision`.

A downloaded model is untrusted: only its one file is downloaded, if it is not too large, and it is read and checked like a local
one. It stays in the cache of huggingface_hub and can be used offline.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from slimprompt.errors import InputError, shown

#: The file of a saved model.
FILE = "model.safetensors"
_PREFIX = "hf:"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[\w][\w./-]*", re.ASCII)
#: Bytes of the largest file that is downloaded; a head has one row per class or image.
_LARGEST = 512 * 10**6
#: Packages whose errors say that a server cannot be reached; which of them is used depends on the version of huggingface_hub.
_NETWORK = ("httpx", "httpx2", "httpcore", "requests", "urllib3")


def parse_repository(text: str) -> str:
    """`user/name`, if it can be the name of a repository on the hub; otherwise an `InputError`."""
    if not _REPOSITORY.fullmatch(text) or len(text) > 96 or "--" in text or ".." in text:
        raise InputError(
            f"{shown(text)} is not the name of a repository on the hub: expected user/name, of letters, digits, '-', '_' and '.'"
        )
    return text


def model_folder(model: str | Path) -> Path:
    """The folder of a saved model; that of `hf:user/name[@revision]` is in the cache of huggingface_hub, after a download if needed.

    If the hub cannot be reached, the copy in the cache is used; an `InputError` if there is none, or for any other problem.
    """
    text = model.as_posix() if isinstance(model, Path) else str(model)
    if not text.startswith(_PREFIX):
        return Path(model)
    name, at, revision = text.removeprefix(_PREFIX).partition("@")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise InputError(f"{shown(text)}: expected a branch, a tag or a commit after '@', as in hf:user/name@main")
    return _download(text, parse_repository(name), revision or None)


def _download(wanted: str, repository: str, revision: str | None) -> Path:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.utils import OfflineModeIsEnabled

    # Looked up first: a download that breaks off leaves the branch at the new commit, without the file.
    cached = try_to_load_from_cache(repository, FILE, revision=revision)
    try:
        size = get_hf_file_metadata(hf_hub_url(repository, FILE, revision=revision)).size
        if size is None or size > _LARGEST:
            found = "an unknown size" if size is None else f"{size / 1e6:,.0f} MB"
            raise InputError(
                f"{wanted}: {FILE} has {found} and is not downloaded: the limit is {_LARGEST / 1e6:,.0f} MB"
            )
        return Path(hf_hub_download(repository, FILE, revision=revision)).parent
    except InputError:
        raise
    except Exception as error:
        if not is_unreachable(error):
            raise hub_error(wanted, error) from None
        if not isinstance(cached, str):
            raise InputError(
                f"{wanted} was not downloaded before and the hub cannot be reached ({_reason(error)}): check the connection"
            ) from None
        if not isinstance(error, OfflineModeIsEnabled):
            warnings.warn(f"the hub cannot be reached: using {wanted} as it was downloaded before", stacklevel=3)
        return Path(cached).parent


def is_unreachable(error: Exception) -> bool:
    """Whether an error of huggingface_hub says that the hub cannot be reached, does not work at the moment, or was cut off."""
    from huggingface_hub.utils import HfHubHTTPError, LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError):  # a lost connection, and the file is not in the cache
        return True
    if isinstance(error, HfHubHTTPError):
        return _status(error) >= 500
    if isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.partition(".")[0] in _NETWORK:
        return True
    return isinstance(error, OSError) and error.errno is None  # fewer bytes than announced; a full disk has a number


def hub_error(what: str, error: Exception) -> Exception:
    """The `InputError` for an error of huggingface_hub about the model or repository `what`; other errors are returned as they are."""
    from huggingface_hub.utils import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    login = "log in with `hf auth login`, or set HF_TOKEN to your token"
    if is_unreachable(error):
        return InputError(f"{what}: the hub cannot be reached ({_reason(error)}): check the connection and try again")
    if isinstance(error, GatedRepoError):
        return InputError(f"no access to {what}: ask for access on its page on the hub, and {login}")
    if isinstance(error, RevisionNotFoundError):
        return InputError(f"{what}: the repository has no such branch, tag or commit")
    if isinstance(error, RepositoryNotFoundError):
        return InputError(f"{what} is not on the hub, or it is private: check the name, and {login}")
    if isinstance(error, EntryNotFoundError):
        return InputError(f"{what} holds no saved model: expected {FILE} in the repository")
    if isinstance(error, HfHubHTTPError) and _status(error) in (401, 403):
        return InputError(
            f"the hub refuses access to {what} ({_reason(error)}): {login}; it needs the right to do this"
        )
    if isinstance(error, HfHubHTTPError):
        return InputError(f"{what}: {_reason(error)}")
    if isinstance(error, ValueError):  # a name or a model card that the hub does not accept
        return InputError(f"{what}: {error}")
    return error


def _status(error: Any) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
