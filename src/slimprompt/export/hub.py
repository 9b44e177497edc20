"""Saved models on the Hugging Face hub: the files of a repository, and their upload in one commit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from slimprompt import __version__
from slimprompt.errors import InputError
from slimprompt.export.card import check_licence, model_card
from slimprompt.export.contents import is_local_backbone, public_backbone
from slimprompt.files import check_folder, draft_folder, publish, write_file
from slimprompt.hub import hub_error, model_folder, parse_repository
from slimprompt.saved.head import HEAD_FILES
from slimprompt.saved.models import read_description, saved_files
from slimprompt.saved.prompt import PROMPT_FILES

_CARD = "README.md"
#: Files that may be in a repository to which a model is pushed for the first time.
_NEW = frozenset({".gitattributes", _CARD})


class HubFiles(NamedTuple):
    """What is pushed, or would be."""

    kind: str
    """ "prompt" or "head" """
    sizes: dict[str, int]
    """Bytes of each file."""
    n_hashes: int
    """Hashes of training images that are among the pushed entries."""
    n_left_out: int
    """Hashes of training images that are left out."""
    is_local_backbone: bool
    """Whether the backbone is a file or folder of this machine, which others do not have."""
    address: str = ""
    """Of the commit on the hub; empty if nothing was pushed."""


def write_hub_folder(
    model: str | Path,
    repository: str,
    folder: str | Path,
    *,
    licence: str | None = None,
    image_hashes: bool = False,
) -> HubFiles:
    """Write the files that `push` uploads to a new folder, which is itself a saved model.

    Parameters
    ----------
    model
        Folder of a saved prompt or head.
    repository
        `user/name` on the hub, for the model card.
    folder
        The folder to write, completely or not at all.
    licence, image_hashes
        As in `push`.
    """
    parse_repository(repository)
    check_licence(licence)
    folder = Path(folder)
    check_folder(folder)
    if folder.exists():
        raise InputError(f"{folder} exists; choose another name for the folder")
    with draft_folder(folder) as draft:
        found = _write(model_folder(model), repository, draft, licence, image_hashes=image_hashes)
        publish(draft, folder)
    return found


def push(
    model: str | Path,
    repository: str,
    *,
    private: bool = False,
    licence: str | None = None,
    image_hashes: bool = False,
) -> HubFiles:
    """Push a saved model and its model card to the Hugging Face hub, in one commit.

    A repository that does not exist is created. The token is that of `hf auth login` or of the environment (HF_TOKEN). The
    uploaded description holds no paths of this machine and, unless asked for, no hashes of training images: whoever has an
    image can tell by its hash whether it was a training image.

    Parameters
    ----------
    model
        Folder of a saved prompt or head.
    repository
        `user/name` on the hub; one that holds something other than a saved model is left alone.
    private
        Create the repository as a private one; a public repository that exists is refused.
    licence
        Identifier of the licence of the model's files, such as "mit" or "cc-by-4.0", for the card.
    image_hashes
        Also push the short hashes of the training images, with which `slimprompt evaluate` notices training images.

    Raises
    ------
    InputError
        If the model is damaged, access is refused, the hub cannot be reached, or the repository holds something else.
    """
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        found = write_hub_folder(model, repository, folder, licence=licence, image_hashes=image_hashes)
        try:
            return found._replace(address=_upload(folder, repository, private=private))
        except InputError:
            raise
        except Exception as error:
            raise hub_error(repository, error) from None


def _write(folder: Path, repository: str, draft: Path, licence: str | None, *, image_hashes: bool) -> HubFiles:
    files, saved = saved_files(folder), read_description(folder)
    _, entries, tensors = files.read(folder, type(saved))
    backbone = public_backbone(entries["backbone"])
    hashes = saved.training_images.split()
    kept = saved.training_images if image_hashes else ""
    public = saved.model_copy(update={"backbone": saved.backbone.model_copy(update=backbone)})
    files.write(draft, type(saved), {**entries, "backbone": backbone, "training_images": kept}, tensors)
    write_file(draft / _CARD, model_card(public, repository, licence))
    sizes = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
    n_pushed = len(hashes) if image_hashes else 0
    return HubFiles(files.name, sizes, n_pushed, len(hashes) - n_pushed, is_local_backbone(backbone))


def _upload(folder: Path, repository: str, *, private: bool) -> str:
    """Create the repository if needed, and replace the model in it by one commit; returns its address."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi(library_name="slimprompt", library_version=__version__)
    api.create_repo(repository, private=private or None, exist_ok=True)
    there = api.model_info(repository)
    if private and not there.private:
        raise InputError(
            f"{repository} exists and is public, so nothing was pushed: make it private on the hub, or choose another name"
        )
    old = {file.rfilename for file in there.siblings or ()}
    ours = {name for files in (PROMPT_FILES, HEAD_FILES) for name in (files.description, files.tensors)}
    if old - _NEW and not old & {PROMPT_FILES.description, HEAD_FILES.description}:
        raise InputError(
            f"{repository} exists and holds no saved prompt or head, so it is left alone; choose another name"
        )
    new = {path.name: path for path in folder.iterdir()}
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationDelete(name) for name in sorted((old & ours) - new.keys())
    ]
    operations += [CommitOperationAdd(name, path) for name, path in sorted(new.items())]
    message = f"Saved {'head' if HEAD_FILES.description in new else 'prompt'} of slimprompt {__version__}"
    return str(api.create_commit(repository, operations, commit_message=message).commit_url)
