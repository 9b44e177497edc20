"""`slimprompt import-coop`: use a prompt that was trained with CoOp's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimprompt.cli.options import DEFAULT_BACKBONE, Activation, BackboneName, Overwrite, Pretrained
from slimprompt.cli.predict import parse_class_names
from slimprompt.cli.printing import say
from slimprompt.errors import InputError
from slimprompt.files import read_text


def import_coop(
    checkpoint: Annotated[Path, typer.Argument(help="A CoOp checkpoint, prompt_learner/model.pth.tar-N.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the prompt.")] = Path("prompt"),
    backbone: BackboneName = None,
    pretrained: Pretrained = None,
    activation: Activation = "auto",
    classes: Annotated[
        str | None,
        typer.Option(
            help="Class names in the order of training: a comma-separated list, a text file with one name per line, "
            "or a split file of the benchmark (split_zhou_*.json); default: read from the tokens in the file."
        ),
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
    from slimprompt.clip.architectures import default_pretrained
    from slimprompt.clip.backbone import load_backbone
    from slimprompt.coop import import_coop as import_checkpoint
    from slimprompt.coop import read_coop_checkpoint
    from slimprompt.saved import check_free

    check_free(out, overwrite=overwrite)
    content = read_coop_checkpoint(checkpoint)
    names = _class_names(classes) if classes is not None else None
    backbone = backbone or DEFAULT_BACKBONE
    model = load_backbone(backbone, pretrained or default_pretrained(backbone), activation=activation)
    classifier = import_checkpoint(checkpoint, model, names, position)  # type: ignore[arg-type]
    saved = classifier.save(out, overwrite=overwrite)
    say(
        f"{len(content.context)} context vectors for {len(classifier.classes_)} classes on {model.title}; saved to {saved}"
    )


def _class_names(text: str) -> list[str]:
    path = Path(text)
    if path.suffix.lower() not in (".txt", ".json"):
        return parse_class_names(text)
    if not path.is_file():
        raise InputError(f"--classes {text}: no such file")
    if path.suffix.lower() == ".json":
        from slimprompt.data.readers import read_split_file

        return list(read_split_file(path).class_names)
    names = [line.strip() for line in read_text(path).splitlines()]
    if not any(names):
        raise InputError(f"--classes {text} names no class; write one name per line")
    return [name for name in names if name]
