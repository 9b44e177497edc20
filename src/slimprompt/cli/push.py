"""`slimprompt push`: a saved model on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import typer

from slimprompt.cli.printing import note, say
from slimprompt.errors import count


def push(
    model: Path = typer.Argument(..., help="Folder of a saved model."),
    repository: str = typer.Argument(..., help="user/name on the hub; it is created if it does not exist."),
    private: bool = typer.Option(False, "--private", help="Create the repository as a private one."),
    licence: str | None = typer.Option(
        None,
        "--licence",
        "--license",
        help="Licence of the pushed files, by its identifier on the hub: mit, cc-by-4.0, …",
    ),
    image_hashes: bool = typer.Option(
        False,
        "--image-hashes",
        help="Also push short hashes of the training images, with which evaluate notices them. Whoever has an image can "
        "then tell whether it was a training image.",
    ),
    dry_run: Path | None = typer.Option(
        None, help="Only write the folder that would be pushed, to this new folder; nothing is sent."
    ),
) -> None:
    """Push a saved model with a model card to the Hugging Face hub.

    Log in once with `hf auth login`, or set HF_TOKEN to a token with the right to write. Pushed are the model, usually a few KB, and a generated README.md: classes, backbone and its fingerprint, held-out accuracy, recipe. Images and the weights of
    the backbone are not pushed. It can then be used by its name: predict, evaluate, export, suggest and serve take hf:user/name.

    Example: slimprompt push my-prompt user/name --private --licence cc-by-4.0
    Example: slimprompt push my-prompt user/name --dry-run to-push
    Example: slimprompt predict hf:user/name a.jpg
    """
    from slimprompt.export.hub import push as push_model
    from slimprompt.export.hub import write_hub_folder

    if dry_run is not None:
        found = write_hub_folder(model, repository, dry_run, licence=licence, image_hashes=image_hashes)
    else:
        found = push_model(model, repository, private=private, licence=licence, image_hashes=image_hashes)
    files = ", ".join(f"{name} ({n_bytes / 1000:.1f} KB)" for name, n_bytes in found.sizes.items())
    say(f"{'would be pushed' if dry_run else 'pushed'}: {files}")
    if found.n_hashes:
        note(
            f"with short hashes of {count(found.n_hashes, 'training image')}:",
            "they tell whether an image was among them",
        )
    elif found.n_left_out:
        say(f"left out: short hashes of {count(found.n_left_out, 'training image')} (--image-hashes pushes them too)")
    if found.is_local_backbone:
        note(
            "the backbone is a file or folder of this machine:",
            "others need the same weights (--pretrained with their file or folder, or backbone=… in Python)",
        )
    say(f"folder: {dry_run}" if dry_run else f"{found.address}\nuse: slimprompt predict hf:{repository} a.jpg")
