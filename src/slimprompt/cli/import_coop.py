"""`slimprompt import-coop`: use a prompt that was trained with CoOp's own code."""

from __future__ import annotations

from pathlib import Path

import typer

from slimprompt.cli.options import ModelOptions, Overwrite, model_options, parse_class_names
from slimprompt.cli.printing import say


@model_options("backbone", "pretrained", "activation")
def import_coop(
    checkpoint: Path = typer.Argument(..., help="A CoOp checkpoint, prompt_learner/model.pth.tar-N."),
    out: Path = typer.Option(Path("prompt"), "--out", "-o", help="Folder for the prompt."),
    classes: str | None = typer.Option(
        None,
        help="Class names in the order of training: a comma-separated list, a text file with one name per line, "
        "or a split file of the benchmark (split_zhou_*.json); default: read from the tokens in the file.",
    ),
    position: str = typer.Option("end", help="Position of the class name in training: end, middle or front."),
    overwrite: Overwrite = False,
    *,
    model_options: ModelOptions,
) -> None:
    """Turn a checkpoint of the original CoOp code into a saved prompt.

    Only the context vectors are read; nothing in the file is executed.

    Example: slimprompt import-coop output/prompt_learner/model.pth.tar-50 --out my-prompt
    """
    from slimprompt.coop import import_coop as import_checkpoint
    from slimprompt.coop import read_coop_checkpoint
    from slimprompt.saved import check_free

    check_free(out, overwrite=overwrite)
    content = read_coop_checkpoint(checkpoint)
    names = None if classes is None else _class_names(classes)
    model = model_options.load_backbone()
    classifier = import_checkpoint(checkpoint, model, names, position)  # type: ignore[arg-type]
    saved = classifier.save(out, overwrite=overwrite)
    say(
        f"{len(content.context)} context vectors for {len(classifier.classes_)} classes on {model.title}; saved to {saved}"
    )


def _class_names(text: str) -> list[str]:
    if not text.lower().endswith(".json"):
        return parse_class_names(text)
    from slimprompt.data.readers import read_split_file

    return list(read_split_file(Path(text)).class_names)
