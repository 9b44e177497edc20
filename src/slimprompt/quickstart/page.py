"""The page of `slimprompt quickstart`: results, curves, one image per class, and predictions of the saved prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slimprompt.analysis.observations import Results, observe
from slimprompt.analysis.selection import chance_levels
from slimprompt.data import Benchmark, Item
from slimprompt.images.files import open_image
from slimprompt.paper.figures import learning_curves, shots_curve
from slimprompt.quickstart.job import METRICS, Line, Quickstart
from slimprompt.report.html import data_url, render, thumbnail, write_page
from slimprompt.report.runs import runs_section
from slimprompt.report.table import Cell, Column, Row, Table
from slimprompt.storage import new_file

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


def results_table(result: Quickstart) -> Table:
    """Accuracy, base, new, H, trainable parameters and time of every method and shot count."""
    rows = [
        _row(line, rule=index == 0 or line.method != result.lines[index - 1].method)
        for index, line in enumerate(result.lines)
    ]
    levels = [result.chance[metric] for metric in METRICS]
    rows.append(Row(("chance", "—"), (*(Cell(level, decimals=1) for level in levels), Cell(), Cell()), rule=True))
    columns = (
        Column("Accuracy", "All classes (%)"),
        *(Column(label, "Base-to-new (%)") for label in ("Base", "New", "H")),
        Column("Trainable parameters"),
        Column("Time (s)"),
    )
    notes = (
        "Mean ± standard deviation over three seeds of the few-shot sample, the start, the image order and the train views. "
        "Zero-shot and chance do not depend on a seed.",
        "Base-to-new: trained on the first half of the classes (base), tested on it and on the other half (new). "
        "H is the harmonic mean of the two.",
        "Time: training one prompt for all classes on one thread, with the image features already computed.",
    )
    return Table("quickstart", "Few-shot prompts in the pocket world", ("Method", "Shots"), columns, tuple(rows), notes)


def _row(line: Line, *, rule: bool) -> Row:
    scores = [
        Cell(mean, sd, 1 if sd is None else 3, line.runs, decimals=1, show_sd=True)
        for mean, sd in (line.scores[metric] for metric in METRICS)
    ]
    cells = (*scores, Cell(float(line.parameters), decimals=0), Cell(line.seconds, decimals=1))
    return Row((line.method, "0" if line.shots is None else str(line.shots)), cells, rule=rule)


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
