"""The page of `slimprompt quickstart`: results, curves, one image per class, and predictions of the saved prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slimprompt.analysis.observations import observe
from slimprompt.analysis.results import Results
from slimprompt.analysis.selection import chance_levels
from slimprompt.data import Benchmark, Item
from slimprompt.files import new_file
from slimprompt.images.decode import open_image
from slimprompt.paper.figures import learning_curves, shots_curve
from slimprompt.quickstart.job import Quickstart
from slimprompt.quickstart.table import results_table
from slimprompt.report.html import data_url, render, thumbnail, write_page
from slimprompt.report.runs import runs_section

if TYPE_CHECKING:
    from PIL.Image import Image

PAGE = "quickstart.html"
_TILE, _GAP, _LABEL = 96, 12, 44


def contact_sheet(images: Benchmark, columns: int = 8) -> Image:
    """One training image of every class with its name, in label order.

    Parameters
    ----------
    images
        The benchmark.
    columns
        Maximum number of images per row.
    """
    import textwrap

    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 10)
    first: dict[int, Item] = {}
    for item in images.train:
        first.setdefault(item.label, item)
    columns = min(columns, len(first))
    rows = -(-len(first) // columns)
    sheet = Image.new("RGB", (columns * (_TILE + _GAP) + _GAP, rows * (_TILE + _LABEL + _GAP) + _GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for index, label in enumerate(sorted(first)):
        row, column = divmod(index, columns)
        x, y = _GAP + column * (_TILE + _GAP), _GAP + row * (_TILE + _LABEL + _GAP)
        sheet.paste(open_image(images.path(first[label])).resize((_TILE, _TILE), Image.Resampling.LANCZOS), (x, y))
        lines = textwrap.wrap(images.class_names[label], 16)[:3]
        pen.multiline_text((x, y + _TILE + 3), "\n".join(lines), fill="black", font=font, spacing=2)
    return sheet


def render_quickstart(result: Quickstart, sheet: Image) -> str:
    """The HTML page.

    Parameters
    ----------
    result
        Result of `slimprompt.quickstart.job.run_quickstart`.
    sheet
        Result of `contact_sheet`.
    """
    results, records = Results.of(observe(result.records)), result.records
    contents = {
        "result": "Result",
        "curves": "Curves",
        "images": "Images",
        "predictions": "Predictions",
        "next": "Next steps",
        "runs": "Runs",
    }
    return render(
        "quickstart.html.j2",
        {
            "title": "Quickstart: low-rank prompts",
            "contents": list(contents.items()),
            "result": result,
            "recipe": result.recipe.describe(),
            "table": results_table(result),
            "figures": [shots_curve(results, chance_levels(records)), learning_curves(records)],
            "sheet": data_url(sheet),
            "sheet_size": sheet.size,
            "thumbnails": [thumbnail(open_image(one.image)) for one in result.predictions],
            "right": sum(one.right for one in result.predictions),
            **runs_section(records),
        },
    )


def write_quickstart(result: Quickstart, out: Path) -> Path:
    """Write `quickstart.html` and `classes.png` to the folder `out`; returns the page."""
    sheet = contact_sheet(result.benchmark)
    with new_file(out / "classes.png") as draft:
        sheet.save(draft, "PNG", optimize=True)
    return write_page(out / PAGE, render_quickstart(result, sheet))
