"""The page of `slimprompt quickstart`: one table, the curves, the classes, and what the saved prompt says about pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slimprompt.analysis.observations import Results, observe
from slimprompt.data import Benchmark, Item
from slimprompt.images.files import open_image
from slimprompt.paper.figures import chance_levels, learning_curves, shots_curve
from slimprompt.paper.page import provenance, runs_table
from slimprompt.quickstart.job import METRICS, Line, Quickstart
from slimprompt.report.html import describe_recipe, image_address, render, thumbnail, write_page
from slimprompt.report.table import Cell, Column, Row, Table

if TYPE_CHECKING:
    from PIL.Image import Image

PAGE = "quickstart.html"
_TILE, _GAP, _LABEL = 96, 12, 44


def contact_sheet(images: Benchmark, columns: int = 8) -> Image:
    """One training picture of every class with its name, in label order."""
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
    for place, label in enumerate(sorted(first)):
        x, y = _GAP + place % columns * (_TILE + _GAP), _GAP + place // columns * (_TILE + _LABEL + _GAP)
        sheet.paste(open_image(images.path(first[label])).resize((_TILE, _TILE), Image.Resampling.LANCZOS), (x, y))
        lines = textwrap.wrap(images.class_names[label], 16)[:3]
        pen.multiline_text((x, y + _TILE + 3), "\n".join(lines), fill="black", font=font, spacing=2)
    return sheet


def results_table(result: Quickstart) -> Table:
    """The one table: accuracy, seen, new, H, trained numbers and time."""
    rows = [
        _row(line, first=index == 0 or line.method != result.lines[index - 1].method)
        for index, line in enumerate(result.lines)
    ]
    levels = [result.chance[metric] for metric in METRICS]
    rows.append(Row(("chance", "—"), (*(Cell(level, decimals=1) for level in levels), Cell(), Cell()), rule=True))
    columns = (
        Column("Accuracy", "All classes (%)"),
        Column("Seen", "Half of the classes (%)"),
        Column("New", "Half of the classes (%)"),
        Column("H", "Half of the classes (%)"),
        Column("Trained numbers"),
        Column("Time (s)"),
    )
    notes = (
        "Mean ± standard deviation over three seeds (of the draw, the start, the order and the views). Zero-shot and chance have no seeds.",
        "Half of the classes: trained on the first half, tested on it (seen) and on the other half (new); H is the harmonic mean of the two.",
        "Time: training one prompt for all classes, one thread, the image features being there.",
    )
    return Table("quickstart", "Few-shot prompts in the pocket world", ("Method", "Shots"), columns, tuple(rows), notes)


def _row(line: Line, *, first: bool) -> Row:
    scores = [
        Cell(mean, sd, 1 if sd is None else 3, line.runs, decimals=1, show_sd=True)
        for mean, sd in (line.scores[metric] for metric in METRICS)
    ]
    cells = (*scores, Cell(float(line.parameters), decimals=0), Cell(line.seconds, decimals=1))
    return Row((line.method, "0" if line.shots is None else str(line.shots)), cells, rule=first)


def render_quickstart(result: Quickstart) -> str:
    """The page as text."""
    results = Results.of(observe(result.records))
    records = result.records
    sheet = contact_sheet(result.benchmark)
    return render(
        "quickstart.html.j2",
        {
            "title": "Quickstart: prompts of low rank",
            "contents": [
                ("result", "Result"),
                ("curves", "Curves"),
                ("pictures", "Pictures"),
                ("predictions", "Predictions"),
                ("next", "What next"),
                ("runs", "Runs"),
            ],
            "result": result,
            "recipe": describe_recipe(result.recipe),
            "table": results_table(result),
            "places": {str(record.folder): number for number, record in enumerate(records)},
            "figures": [shots_curve(results, chance_levels(records)), learning_curves(records)],
            "sheet": image_address(sheet),
            "sheet_size": sheet.size,
            "thumbnails": [thumbnail(open_image(one.image)) for one in result.predictions],
            "right": sum(one.right for one in result.predictions),
            "provenance": provenance(records),
            "runs": runs_table(records),
            "run_titles": [f"{record.spec.title} · {record.folder.name}" for record in records],
        },
    )


def write_quickstart(result: Quickstart, out: Path) -> Path:
    """Write `quickstart.html` and `classes.png` below `out`; returns the page."""
    out.mkdir(parents=True, exist_ok=True)
    contact_sheet(result.benchmark).save(out / "classes.png", optimize=True)
    return write_page(out / PAGE, render_quickstart(result))
