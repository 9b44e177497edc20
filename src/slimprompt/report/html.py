"""Engine of the self-contained HTML pages: one style sheet, one script, no network access.

The templates escape all text, such as class names, paths and error messages. A content security policy forbids
connections and allows no script but the page's own, identified by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any

from slimprompt import __version__
from slimprompt.calibration import probability_text
from slimprompt.report.plotting import Figure
from slimprompt.report.table import Column

if TYPE_CHECKING:
    from jinja2 import Environment
    from PIL.Image import Image


@cache
def asset(name: str) -> str:
    """A file of `report/templates` as text."""
    return files("slimprompt.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")


def _probability(value: float, decimals: int = 0) -> str:
    return probability_text(value, decimals).replace(" ", "\xa0")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "probability": _probability,
        "inline": _inline,
        "groups": _groups,
        "run_numbers": _run_numbers,
    }
    environment.globals |= {
        "style": Markup(asset("page.css")),
        "script": Markup(script),
        "script_hash": Markup(f"sha256-{digest}"),
        "version": __version__,
    }
    return environment


def _inline(figure: Figure) -> Any:
    from markupsafe import Markup

    return Markup(figure.inline())  # matplotlib escapes all text in an SVG


def _groups(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Title and width of each group of neighbouring columns."""
    grouped = groupby(columns, key=lambda column: column.group)
    return [{"title": title, "width": len(list(members))} for title, members in grouped]


def _run_numbers(runs: Sequence[str], run_index: Mapping[str, int]) -> str:
    """Row numbers of run folders in the page's table of runs, separated by spaces."""
    return " ".join(str(number) for number in sorted({run_index[run] for run in runs if run in run_index}))


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a template.

    Parameters
    ----------
    template
        File name in `report/templates`.
    values
        Variables of the template; a missing one is an error.

    Returns
    -------
    str
        The HTML page.
    """
    return _environment().get_template(template).render(values)


def thumbnail(image: Image, size: int = 96) -> str:
    """A copy of at most `size` × `size` pixels as a `data:` URL."""
    small = image.convert("RGB")
    small.thumbnail((size, size))
    return data_url(small)


def data_url(image: Image) -> str:
    """The image as a `data:` URL, in the smaller of PNG (for flat graphics) and JPEG (for photographs)."""
    encoded = []
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 85})):
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        encoded.append((len(stream.getvalue()), kind, stream.getvalue()))
    _, kind, content = min(encoded)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
