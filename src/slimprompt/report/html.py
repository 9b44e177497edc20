"""Self-contained HTML pages: one look, one script, no network.

Everything that comes from outside (class names, paths, errors) is escaped by the templates. A content security policy in
the page allows no connection, and no script but the page's own, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimprompt import __version__
from slimprompt.report.drawing import Figure
from slimprompt.report.table import Column
from slimprompt.storage import write_file
from slimprompt.training.recipe import Recipe

if TYPE_CHECKING:
    from jinja2 import Environment
    from PIL.Image import Image


@cache
def _asset(name: str) -> str:
    return files("slimprompt.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=FunctionLoader(lambda name: _asset(name)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"inline": _inline, "groups": _groups, "numbers": _numbers}
    environment.globals |= {
        "style": Markup(_asset("page.css")),
        "script": Markup(script),
        "script_hash": Markup(f"sha256-{digest}"),
        "version": __version__,
    }
    return environment


def _inline(figure: Figure) -> Any:
    from markupsafe import Markup

    return Markup(figure.inline())  # matplotlib escapes every text it draws


def _groups(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Neighbouring columns of one group, with how many they are."""
    return [{"title": title, "width": len(list(same))} for title, same in groupby(columns, key=lambda one: one.group)]


def _numbers(runs: Sequence[str], places: Mapping[str, int]) -> str:
    """The places of run folders in the page's list of runs."""
    return " ".join(str(place) for place in sorted({places[run] for run in runs if run in places}))


def render(template: str, values: Mapping[str, Any]) -> str:
    """The page of a template; a value that the template needs and is not given is an error."""
    return _environment().get_template(template).render(values)


def write_page(path: Path, page: str) -> Path:
    """Write a page, completely or not at all."""
    return write_file(path, page)


def thumbnail(image: Image, size: int = 96) -> str:
    """A small copy as a `data:` address."""
    small = image.convert("RGB")
    small.thumbnail((size, size))
    return image_address(small)


def image_address(image: Image) -> str:
    """The picture as a `data:` address, as PNG (better for flat drawings) or JPEG (for photographs), whichever is smaller."""
    kinds = []
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 85})):
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        kinds.append((len(stream.getvalue()), kind, stream.getvalue()))
    _, kind, content = min(kinds)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def describe_recipe(recipe: Recipe) -> str:
    """A recipe in one line: `40 epochs of SGD, batches of 32, learning rate 0.002, 4 train views per image in turn`."""
    steps = "all images in one step" if recipe.batch_size is None else f"batches of {recipe.batch_size}"
    if recipe.views is None:
        views = "a new train view of each image every epoch"
    elif recipe.views == 0:
        views = "the eval view of each image"
    elif recipe.all_views:
        views = f"the eval view and {recipe.views} train views of each image"
    else:
        views = f"{recipe.views} train views per image in turn"
    back = (
        f", returns to the best factors if the loss rises by {100 * recipe.backtrack:g} %" if recipe.backtrack else ""
    )
    stop = (
        f", stops when the loss changes by less than {100 * recipe.tolerance:g} % over {recipe.patience} epochs"
        if recipe.tolerance
        else ""
    )
    name = {"sgd": "SGD", "adamw": "AdamW"}[recipe.optimizer]
    return f"{recipe.epochs} epochs of {name}, {steps}, learning rate {recipe.lr:g}, {views}{back}{stop}"
