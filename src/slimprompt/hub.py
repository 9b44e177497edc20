"""Saved models on the Hugging Face hub, which are named `hf:user/name` or `hf:user/name@revision`.

A downloaded model is untrusted: only its two files are downloaded, both from one commit and only if they are not too large, and
they are read and checked like those of a local folder. They stay in the cache of huggingface_hub and can be used offline.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from slimprompt.errors import InputError, shown
from slimprompt.saved.files import SavedFiles
from slimprompt.saved.head import HEAD_FILES
from slimprompt.saved.prompt import PROMPT_FILES

_PREFIX = "hf:"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[\w][\w./-]*", re.ASCII)
#: Largest files that are downloaded, in bytes. A description lists class names; a head has one row per class or image.
_LARGEST_DESCRIPTION, _LARGEST_TENSORS = 16 * 10**6, 512 * 10**6
#: Packages whose errors say that a server cannot be reached; which of them is used depends on the version of huggingface_hub.
_NETWORK = ("httpx", "httpx2", "httpcore", "requests", "urllib3")


class HubModel(NamedTuple):
    """A saved model on the hub."""

    repository: str
    """`user/name`"""
    revision: str | None = None
    """A branch, a tag or a commit; None: the main branch."""

    def __str__(self) -> str:
        return f"{_PREFIX}{self.repository}" + (f"@{self.revision}" if self.revision else "")


def parse_repository(text: str) -> str:
    """`user/name`, if it can be the name of a repository on the hub; otherwise an `InputError`."""
    if not _REPOSITORY.fullmatch(text) or len(text) > 96 or "--" in text or ".." in text:
        raise InputError(
            f"{shown(text)} is not the name of a repository on the hub: expected user/name, of letters, digits, '-', '_' and '.'"
        )
    return text


def model_folder(model: str | Path) -> Path:
    """The folder of a saved model; `hf:user/name` or `hf:user/name@revision` is downloaded, unless it is in the cache.

    Parameters
    ----------
    model
        A folder, or the name of a model on the hub.

    Returns
    -------
    Path
        The folder itself, or the folder of the downloaded files in the cache of huggingface_hub.

    Raises
    ------
    InputError
        If there is no such model on the hub, access is refused, a file is too large, or the hub cannot be reached and the
        model was not downloaded before.
    """
    text = model.as_posix() if isinstance(model, Path) else str(model)
    if not text.startswith(_PREFIX):
        return Path(model)
    name, at, revision = text.removeprefix(_PREFIX).partition("@")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise InputError(f"{shown(text)}: expected a branch, a tag or a commit after '@', as in hf:user/name@main")
    wanted = HubModel(parse_repository(name), revision or None)
    from huggingface_hub.utils import EntryNotFoundError

    for files in (PROMPT_FILES, HEAD_FILES):
        try:
            return _download(wanted, files)
        except EntryNotFoundError:
            continue  # the other kind of model
        except InputError:
            raise
        except Exception as error:
            if not is_unreachable(error):
                raise hub_error(str(wanted), error) from None
            return _downloaded_before(wanted, error)
    raise InputError(
        f"{wanted} holds no saved model: expected {PROMPT_FILES.description} or {HEAD_FILES.description} in the repository"
    )


def _download(wanted: HubModel, files: SavedFiles) -> Path:
    """Download the two files of a kind of model; an `EntryNotFoundError` if the repository has no such description."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import EntryNotFoundError

    commit = _check_size(wanted, files.description, _LARGEST_DESCRIPTION)
    pinned = wanted._replace(revision=commit)  # both files come from one commit
    try:
        _check_size(pinned, files.tensors, _LARGEST_TENSORS)
    except EntryNotFoundError:
        raise InputError(f"{wanted} holds {files.description} but no {files.tensors}: it is incomplete") from None
    # The given revision is downloaded, so that the cache knows which commit it was.
    description = Path(hf_hub_download(wanted.repository, files.description, revision=wanted.revision))
    if description.parent.name != commit:
        raise InputError(f"{wanted} changed while it was downloaded: run the command again")
    hf_hub_download(wanted.repository, files.tensors, revision=commit)
    return description.parent


def _check_size(wanted: HubModel, name: str, most: int) -> str:
    """The commit of a file on the hub; an error if the file is too large."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    facts = get_hf_file_metadata(hf_hub_url(wanted.repository, name, revision=wanted.revision))
    if facts.size is None or facts.commit_hash is None:
        raise InputError(f"{wanted}: the hub tells neither size nor commit of {name}, so it is not downloaded")
    if facts.size > most:
        raise InputError(
            f"{wanted}: {name} has {facts.size / 1e6:,.0f} MB and is not downloaded: the limit for such a file is {most / 1e6:,.0f} MB"
        )
    return str(facts.commit_hash)


def _downloaded_before(wanted: HubModel, error: Exception) -> Path:
    """The files in the cache, with a note that they may not be the newest ones."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils import OfflineModeIsEnabled

    for files in (PROMPT_FILES, HEAD_FILES):
        names = (files.description, files.tensors)
        paths = [try_to_load_from_cache(wanted.repository, name, revision=wanted.revision) for name in names]
        if all(isinstance(path, str) for path in paths):
            if not isinstance(error, OfflineModeIsEnabled):
                warnings.warn(f"the hub cannot be reached: using {wanted} as it was downloaded before", stacklevel=2)
            return Path(str(paths[0])).parent
    raise InputError(
        f"{wanted} was not downloaded before and the hub cannot be reached ({_reason(error)}): check the connection"
    ) from None


def is_unreachable(error: Exception) -> bool:
    """Whether an error of huggingface_hub says that the hub cannot be reached, or does not work at the moment."""
    from huggingface_hub.utils import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return _status(error) >= 500
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _NETWORK


def hub_error(what: str, error: Exception) -> Exception:
    """The `InputError` for an error of huggingface_hub; an error of another kind is returned as it is.

    Parameters
    ----------
    what
        The model or repository that was asked for.
    error
        What huggingface_hub raised.
    """
    from huggingface_hub.utils import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    login = "log in with `hf auth login`, or set HF_TOKEN to your token"
    if isinstance(error, GatedRepoError):
        return InputError(f"no access to {what}: ask for access on its page on the hub, and {login}")
    if isinstance(error, RevisionNotFoundError):
        return InputError(f"{what}: the repository has no such branch, tag or commit")
    if isinstance(error, RepositoryNotFoundError):
        return InputError(f"{what} is not on the hub, or it is private: check the name, and {login}")
    if isinstance(error, HfHubHTTPError) and _status(error) in (401, 403):
        return InputError(
            f"the hub refuses access to {what} ({_reason(error)}): {login}; it needs the right to do this"
        )
    if is_unreachable(error):
        return InputError(f"{what}: the hub cannot be reached ({_reason(error)}): check the connection and try again")
    if isinstance(error, HfHubHTTPError):
        return InputError(f"{what}: {_reason(error)}")
    if isinstance(error, ValueError):  # a name or a model card that the hub does not accept
        return InputError(f"{what}: {error}")
    return error


def _status(error: Any) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
