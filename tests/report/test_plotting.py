from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from dataclasses import replace

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure as Canvas
from PIL import Image

from slimprompt.report.plotting import Figure, figure_files, panels, plot_style, shared_legend, to_figure


def example() -> Figure:
    with plot_style():
        canvas, axes = panels(1, 2)
        axes[0, 0].plot([0, 1], [0, 1], label="a line", marker="o")
        axes[0, 1].fill_between([0, 1], [0, 1])
        shared_legend(canvas)
        return to_figure("example", "A title", "a caption", canvas)


@pytest.fixture(scope="module")
def plain() -> Figure:
    return example()


def test_the_same_data_give_the_same_bytes_without_a_date(plain: Figure):
    assert example() == plain
    assert plain.png[:4] == b"\x89PNG"
    assert "<dc:date>" not in plain.svg


def test_the_files_are_those_of_savefig():
    """Drawing each file once gives the same bytes as `savefig`, which draws it twice."""

    def plotted() -> Canvas:
        canvas, axes = panels(1, 2, sharey=True)
        axes[0, 0].errorbar([1, 2, 4], [50, 60, 70], [1, 2, 3], label="a line", marker="o")
        axes[0, 0].set_xscale("log", base=2)
        axes[0, 1].imshow([[0, 1], [2, 3]], aspect="auto")
        axes[0, 1].set_title("a title")
        shared_legend(canvas)
        return canvas

    text, image = io.StringIO(), io.BytesIO()
    with plot_style():
        figure = to_figure("example", "A title", "a caption", plotted())
        canvas = plotted()
        canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        canvas.set_layout_engine("none")
        canvas.savefig(image, format="png", dpi=160, metadata={"Software": None})
    assert figure.svg == text.getvalue()
    assert figure.png == image.getvalue()


def test_a_figure_of_a_page_has_no_png():
    with plot_style():
        canvas, _ = panels(1, 1)
        figure = to_figure("example", "A title", "a caption", canvas, png=False)
    assert figure.svg and not figure.png
    assert [name for name, _ in figure_files([figure])] == ["example.svg"]


def test_text_stays_text_and_user_settings_are_ignored(plain: Figure):
    assert ">a line</text>" in plain.svg
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "path", "text.parse_math": True, "svg.hashsalt": None}):
        assert example() == plain


def test_text_is_shown_literally():
    labels = {"<script>alert(1)</script>", "$x^2$ costs $5", 'a "b" & c', "}{%_\\"}
    with plot_style():
        canvas, axes = panels(1, 1)
        for label in sorted(labels):
            axes[0, 0].plot([0, 1], [0, 1], label=label)
        shared_legend(canvas)
        figure = to_figure("example", "A title", "a caption", canvas, png=False)
    texts = {one.text for one in ET.fromstring(figure.inline()).iter() if one.tag.endswith("}text")}
    assert labels <= texts


def test_text_in_any_script_is_shown_without_a_warning(recwarn: pytest.WarningsRecorder):
    """The file names fonts that readers have; the plot was laid out with those of this machine."""
    names = ["猫", "قطة", "बिल्ली", "고양이"]
    with plot_style():
        canvas, axes = panels(1, 1)
        axes[0, 0].set_yticks(range(4), names)
        made = to_figure("example", "A title", "a caption", canvas)
    assert all(f">{name}</text>" in made.svg for name in names)
    assert "'DejaVu Sans'" in made.svg and "sans-serif" in made.svg
    assert not [one for one in recwarn if "Glyph" in str(one.message)]


def test_inline_figures_have_unique_ids(plain: Figure):
    ids: list[str] = []
    for figure in (plain, replace(plain, name="other")):
        root = ET.fromstring(figure.inline())
        mine = [one.get("id") for one in root.iter() if one.get("id")]
        ids += [str(one) for one in mine]
        text = figure.inline()
        references = [part.split(")")[0] for part in text.split("url(#")[1:]]
        references += [part.split('"')[0] for part in text.split('href="#')[1:]]
        assert references and set(references) <= set(map(str, mine))
        assert root.get("role") == "img" and root.get("aria-label") == "A title"
        assert "height" not in root.attrib and "viewBox" in root.attrib
        assert "<metadata" not in text and "<?xml" not in text
    assert len(ids) == len(set(ids))


def test_the_legend_has_no_repeated_entries():
    with plot_style():
        canvas, axes = panels(1, 2)
        for panel in axes[0]:
            panel.errorbar([1, 2], [1, 2], yerr=[0.1, 0.1], label="an arm")
            panel.axhline(1, label="a level")
        shared_legend(canvas)
        texts = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert texts == ["an arm", "a level"]


def test_figures_are_svg_and_png_files_unless_missing(plain: Figure):
    missing = Figure("absent", "Absent", "", missing="There are no runs.")
    files = dict(figure_files([plain, missing]))
    assert sorted(files) == ["example.png", "example.svg"]
    with Image.open(io.BytesIO(files["example.png"])) as image:
        assert image.width > 600
