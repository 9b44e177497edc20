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
from slimprompt.hub import hub_error, parse_repository
from slimprompt.saved import FILE, read_model, write_model

_CARD = "README.md"
#: Files that may be in a repository to which a model is pushed for the first time.
_NEW = frozenset({".gitattributes", _CARD})


class HubFiles(NamedTuple):
    """What is pushed, or would be."""

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
    """Write the files that `push` uploads to a new folder, which is itself a saved model."""
    parse_repository(repository)
    check_licence(licence)
    folder = Path(folder)
    check_folder(folder)
    if folder.exists():
        raise InputError(f"{folder} exists; choose another name for the folder")
    with draft_folder(folder) as draft:
        found = _write(model, repository, draft, licence, image_hashes=image_hashes)
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
    """Push a saved model and its model card to the repository `user/name` of the Hugging Face hub, in one commit.

    A repository that does not exist is created, with `private` as a private one; one that exists is left alone if it is public then, or
    holds something other than a saved model. The token is that of `hf auth login` or of the environment (HF_TOKEN). `licence` is an
    identifier of the hub, such as "mit". The uploaded description holds no paths of this machine and, unless asked for, no hashes of
    training images, by which `slimprompt evaluate` notices them: whoever has an image can tell by its hash whether it was one.
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


def _write(model: str | Path, repository: str, draft: Path, licence: str | None, *, image_hashes: bool) -> HubFiles:
    saved = read_model(model)
    described, backbone = saved.description, public_backbone(saved.entries["backbone"])
    public = described.model_copy(update={"backbone": described.backbone.model_copy(update=backbone)})
    kept = described.training_images if image_hashes else ""
    write_model(draft / FILE, {**saved.entries, "backbone": backbone, "training_images": kept}, saved.model)
    write_file(draft / _CARD, model_card(public, repository, licence))
    sizes = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
    n_pushed = len(kept.split())
    n_left_out = len(described.training_images.split()) - n_pushed
    return HubFiles(sizes, n_pushed, n_left_out, is_local_backbone(backbone))


def _upload(folder: Path, repository: str, *, private: bool) -> str:
    """Create the repository if needed, and replace the model in it by one commit; returns its address."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(library_name="slimprompt", library_version=__version__)
    api.create_repo(repository, private=private or None, exist_ok=True)
    there = api.model_info(repository)
    if private and not there.private:
        raise InputError(
            f"{repository} exists and is public, so nothing was pushed: make it private on the hub, or choose another name"
        )
    old = {file.rfilename for file in there.siblings or ()}
    if old - _NEW and FILE not in old:
        raise InputError(f"{repository} exists and holds no saved model, so it is left alone; choose another name")
    operations = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
    message = f"Saved model of slimprompt {__version__}"
    return str(api.create_commit(repository, operations, commit_message=message).commit_url)
