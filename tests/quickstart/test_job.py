from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from slimprompt.classifiers.prompt import PromptClassifier
from slimprompt.quickstart.job import (
    ARMS,
    METRICS,
    Quickstart,
    best_on_validation,
    quickstart_specs,
    run_quickstart,
)
from slimprompt.quickstart.page import contact_sheet, write_quickstart
from slimprompt.quickstart.table import results_table
from tests.html_page import Page
from typer import Typer
from typer.testing import CliRunner

from slimprompt.cli.quickstart import quickstart as command
from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.quickstart import job as module
from slimprompt.training.recipe import Recipe

TINY = Recipe(epochs=2, batch_size=None, views=0, lr=0.05)


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> str:
    return str(shared_cache)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Iterator[Quickstart]:
    """The real job with few shots, two seeds and next to no training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHOTS", (1, 2))
        patch.setattr(module, "SEEDS", (1, 2))
        patch.setenv("SLIMPROMPT_CACHE", cache)
        out = tmp_path_factory.mktemp("out") / "quickstart"
        made = run_quickstart(out, "pocket-negative", recipe=TINY, workers=1, n_images=4)
        write_quickstart(made, out)
        yield made


def test_the_comparison_is_complete_and_fair():
    specs = quickstart_specs("pocket-sketch")
    assert len({spec.fingerprint for spec in specs}) == 3 * 3 * 3 * 2
    assert {spec.label for spec in specs} == {"dense m16", "joint r4", "fixed-B orthogonal r4"}
    assert {(spec.shots, spec.seed) for spec in specs} == {(k, seed) for k in (1, 4, 16) for seed in (1, 2, 3)}
    assert len({spec.recipe for spec in specs}) == 1 and {spec.backbone for spec in specs} == {"pocket"}


def test_the_table_is_the_mean_over_seeds(result: Quickstart):
    assert len(result.records) == 24 and all(record.complete for record in result.records)
    assert [line.method for line in result.lines] == ["zero-shot", *(name for name in ARMS for _ in (1, 2))]
    line = result.lines[1]
    mine = [r for r in result.records if r.spec.variant == "dense" and r.spec.shots == 1]
    for metric in METRICS:
        values = [r.metrics[metric] for r in mine if metric in r.metrics]
        assert len(values) == 2
        mean, sd = line.scores[metric]
        assert mean == pytest.approx(sum(values) / 2)
        assert sd == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert [one.parameters for one in result.lines[::2]] == [0, 16 * 128, 4 * (16 + 128), 4 * 128]
    assert result.chance["accuracy"] == 5.0 and result.chance["harmonic"] == 10.0
    table = results_table(result)
    assert table.rows[-1].labels[0] == "chance" and table.rows[1].cells[0].value == line.scores["accuracy"][0]


def test_the_saved_prompt_is_the_one_that_validation_chose(result: Quickstart):
    saved = PromptClassifier.load(result.prompt)
    images = result.benchmark
    assert tuple(saved.classes_) == images.class_names
    predicted = saved.predict([images.path(item) for item in images.test])
    right = sum(name == item.class_name for name, item in zip(predicted, images.test, strict=True))
    assert 100 * right / len(images.test) == pytest.approx(result.best.metrics["accuracy"])
    description = json.loads((result.prompt / "prompt.json").read_text())
    assert description["run"] == result.best.spec.fingerprint
    assert description["validation_accuracy"] == result.best_validation


def test_test_accuracies_choose_nothing(result: Quickstart):
    def turned(record: Record) -> Record:
        return replace(record, metrics={name: 100 - value for name, value in record.metrics.items()})

    best, score, _ = best_on_validation([turned(record) for record in result.records], result.benchmark)
    assert best.spec == result.best.spec and score == result.best_validation


def test_predictions_are_of_test_pictures_and_true_to_the_prompt(result: Quickstart):
    assert len({one.image for one in result.predictions}) == 4
    tested = {result.benchmark.path(item): item.class_name for item in result.benchmark.test}
    saved = PromptClassifier.load(result.prompt)
    for one in result.predictions:
        assert tested[one.image] == one.true
        assert saved.predict([one.image])[0] == one.best[0][0]
        shares = [share for _, share in one.best]
        assert shares == sorted(shares, reverse=True) and one.right == (one.best[0][0] == one.true)


def test_the_page_shows_banner_table_images_and_figures(result: Quickstart):
    out = result.prompt.parent
    page = Page((out / "quickstart.html").read_text(encoding="utf-8"))
    text = page.text
    assert "This is the pocket world: a stand-in, not the paper's results." in text
    assert "2 epochs of SGD, all images in one step" in text and "chance" in text
    assert all(name in str(page.all("img")[0]["alt"]) for name in result.benchmark.class_names)
    assert len(page.all("img")) == 1 + 4 and all(str(one["src"]).startswith("data:") for one in page.all("img"))
    assert len(page.all("svg", role="img")) == 2
    rows = {str(row["id"]) for row in page.all("tr") if row.get("id")}
    links = page.all("a", class_="n")
    assert len(links) == 6 * 4
    assert all(f"run-{number}" in rows for link in links for number in str(link["data-runs"]).split())
    assert (out / "classes.png").is_file()


def test_the_contact_sheet_shows_every_class(result: Quickstart):
    sheet = contact_sheet(result.benchmark, columns=6)
    assert sheet.width == 6 * (96 + 12) + 12 and sheet.height > 4 * 96
    assert len(set(sheet.resize((60, 40)).getdata())) > 50


def test_made_again_it_uses_what_is_there_unless_the_weights_are_others(
    result: Quickstart, cache: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLIMPROMPT_CACHE", cache)
    monkeypatch.setattr(module, "SHOTS", (1, 2))
    monkeypatch.setattr(module, "SEEDS", (1, 2))
    out = result.prompt.parent
    times = {record.folder: (record.folder / "record.json").stat().st_mtime_ns for record in result.records}

    again = run_quickstart(out, "pocket-negative", recipe=TINY, workers=1, n_images=4)
    assert again.lines == result.lines and again.predictions == result.predictions
    assert times == {folder: (folder / "record.json").stat().st_mtime_ns for folder in times}
    (out / "runs" / ".weights").write_text("those of another version")
    assert not any(module._runs_folder(out).glob("*/record.json"))


def test_errors_say_what_to_do(tmp_path: Path, result: Quickstart):
    with pytest.raises(InputError, match="did you mean 'pocket-sketch'.*slimprompt study"):
        run_quickstart(tmp_path / "a", "pocket-scetch")
    (tmp_path / "b" / "runs" / "mine").mkdir(parents=True)
    with pytest.raises(InputError, match="not written by quickstart.*another --out"):
        run_quickstart(tmp_path / "b")
    assert (tmp_path / "b" / "runs" / "mine").is_dir()
    mine = PromptClassifier.load(result.prompt).save(tmp_path / "c" / "prompt")
    content = (mine / "prompt.json").read_bytes()
    with pytest.raises(InputError, match="not written by quickstart.*another --out"):
        run_quickstart(tmp_path / "c")
    assert (mine / "prompt.json").read_bytes() == content and not (tmp_path / "c" / "runs").exists()


def test_the_command_prints_one_table(monkeypatch: pytest.MonkeyPatch, cache: str, tmp_path: Path):
    monkeypatch.setenv("SLIMPROMPT_CACHE", cache)
    monkeypatch.setattr(module, "SHOTS", (1,))
    monkeypatch.setattr(module, "SEEDS", (1,))
    monkeypatch.setattr(module, "RECIPE", TINY)
    app = Typer()
    app.command()(command)
    arguments = ["--out", str(tmp_path / "quickstart"), "--benchmark", "pocket-negative", "--workers", "1"]
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0
    for part in (
        "not the paper's results",
        "zero-shot",
        "dense CoOp",
        "joint rank 4",
        "fixed orthogonal B",
        "chance",
        "params",
    ):
        assert part in outcome.output
    assert "quickstart.html" in outcome.output and (tmp_path / "quickstart" / "quickstart.html").is_file()
