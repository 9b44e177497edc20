"""Engine of the self-contained HTML pages: one style sheet, one script, no network access.

The templates escape all text, such as class names, paths and error messages. A content security policy forbids
connections and allows no script but the page's own, identified by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any

from slimprompt import __version__
from slimprompt.calibration import probability_text
from slimprompt.errors import count

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from PIL.Image import Image

    from slimprompt.clip.backbone import Backbone
    from slimprompt.report.plotting import Figure
    from slimprompt.report.table import Column

#: In escaped text: a command in backticks, an option of the command line, a minus sign of a number.
_COMMAND, _OPTION, _MINUS = (
    re.compile(r"`([^`]+)`"),
    re.compile(r"(?<![\w-])--[a-z][\w-]*"),
    re.compile(r"(?<![\w.)-])-(?=\d)"),
)


@cache
def asset(name: str) -> str:
    """A file of `report/templates` as text."""
    return files("slimprompt.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")


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
        "signed": signed,
        "prose": prose,
        "count": count,
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


def render(template: str, values: Mapping[str, Any]) -> str:
    """The HTML page of a template in `report/templates`; a missing variable is an error."""
    return _environment().get_template(template).render(values)


# --- filters -----------------------------------------------------------------------------------------------------------


def _probability(value: float, decimals: int = 0) -> str:
    return probability_text(value, decimals).replace(" ", "\xa0")


def signed(value: float, decimals: int = 1) -> str:
    """A number with its sign.

    >>> signed(0.25), signed(-1.5), signed(-0.01)
    ('+0.2', '−1.5', '+0.0')
    """
    return f"{round(value, decimals) + 0.0:+.{decimals}f}".replace(
        "-", "−"
    )  # + 0.0 turns a negative zero into a positive one


def prose(text: str) -> Markup:
    """A sentence with commands in backticks as code, options of the command line that do not break, and minus signs.

    >>> print(prose("see `slimprompt report --where shots=1`: -0.5 <points>"))
    see <code>slimprompt report <span class="option">--where</span> shots=1</code>: −0.5 &lt;points&gt;
    """
    from markupsafe import Markup, escape

    parts = _COMMAND.split(str(escape(text)))  # what stands in backticks has odd places
    parts[::2] = [_MINUS.sub("−", part) for part in parts[::2]]
    parts[1::2] = [f"<code>{part}</code>" for part in parts[1::2]]
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', "".join(parts)))


def _inline(figure: Figure) -> Markup:
    from markupsafe import Markup

    return Markup(figure.inline())  # matplotlib escapes all text in an SVG


def _groups(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Title and width of each group of neighbouring columns."""
    grouped = groupby(columns, key=lambda column: column.group)
    return [{"title": title, "width": len(list(members))} for title, members in grouped]


def _run_numbers(runs: Sequence[str], run_index: Mapping[str, int]) -> str:
    """Row numbers of run folders in the page's table of runs, separated by spaces."""
    return " ".join(str(number) for number in sorted({run_index[run] for run in runs if run in run_index}))


# --- parts of pages ------------------------------------------------------------------------------------------------------------


def thumbnail(image: Image, size: int = 96) -> str:
    """A copy of at most `size` × `size` pixels as a `data:` URL, in the smaller of PNG (for flat graphics) and JPEG (for photographs)."""
    small = image.convert("RGB")
    small.thumbnail((size, size))
    encoded = []
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 85})):
        stream = io.BytesIO()
        small.save(stream, kind, **options)
        encoded.append((len(stream.getvalue()), kind, stream.getvalue()))
    _, kind, content = min(encoded)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def weights_of(backbone: Backbone) -> str:
    """Name and weights of a backbone."""
    weights = f" ({backbone.pretrained})" if backbone.pretrained else ""
    return f"{backbone.name}{weights}, weights {backbone.fingerprint[:12]}"
