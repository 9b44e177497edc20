"""`slimprompt import-coop`: use a prompt that was trained with CoOp's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimprompt.cli.options import BackboneName, Overwrite, Pretrained
from slimprompt.cli.predict import parse_class_names


def import_coop(
    checkpoint: Annotated[Path, typer.Argument(help="A CoOp checkpoint, prompt_learner/model.pth.tar-N.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the prompt.")] = Path("prompt"),
    backbone: BackboneName = "ViT-B-16",
    pretrained: Pretrained = "openai",
    classes: Annotated[
        str | None,
        typer.Option(help="Comma-separated class names in the order of training; default: read from the file."),
    ] = None,
    position: Annotated[
        str, typer.Option(help="Position of the class name in training: end, middle or front.")
    ] = "end",
    overwrite: Overwrite = False,
) -> None:
    """Turn a checkpoint of the original CoOp code into a saved prompt.

    Only the context vectors are read; nothing in the file is executed.

    Example: slimprompt import-coop output/prompt_learner/model.pth.tar-50 --out my-prompt
    """
    from slimprompt.classifier import check_free
    from slimprompt.clip.backbone import EMBEDDED, load_backbone
    from slimprompt.coop import import_coop as import_checkpoint
    from slimprompt.coop import read_coop_checkpoint

    check_free(out, overwrite=overwrite)
    content = read_coop_checkpoint(checkpoint)
    names = parse_class_names(classes) if classes is not None else None
    model = load_backbone(backbone, None if backbone in EMBEDDED and pretrained == "openai" else pretrained)
    classifier = import_checkpoint(checkpoint, model, names, position)  # type: ignore[arg-type]
    saved = classifier.save(out, overwrite=overwrite, imported_from=checkpoint.name, imported_epoch=content.epoch)
    typer.echo(
        f"{len(content.context)} context vectors for {len(classifier.classes_)} classes on {model.name}; saved to {saved}"
    )
