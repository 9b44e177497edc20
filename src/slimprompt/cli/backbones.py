"""`slimprompt backbones`: list the models that can be adapted."""

from __future__ import annotations

from typing import Annotated

import typer

from slimprompt.cli.printing import print_table
from slimprompt.errors import InputError


def backbones(search: Annotated[str, typer.Argument(help="Show only names that contain this.")] = "") -> None:
    """List the models that can be adapted and the tags of their published weights."""
    from open_clip import list_models
    from open_clip.pretrained import list_pretrained_tags_by_model

    from slimprompt.clip.backbone import EMBEDDED

    rows = [(name, "embedded, no weights needed") for name in EMBEDDED]
    rows += [
        (name, ", ".join(list_pretrained_tags_by_model(name)) or "none published")
        for name in list_models()
        if name not in EMBEDDED
    ]
    found = [row for row in rows if search.lower() in row[0].lower()]
    if not found:
        raise InputError(f"no backbone has {search!r} in its name; `slimprompt backbones` lists all")
    print_table(("backbone", "weights (--pretrained)"), found)
