from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from slimprompt import Classifier, quickstart
from slimprompt.cli.quickstart import quickstart as command
from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.quickstart import METRICS, PROMPTS, Quickstart, best_on_validation, quickstart_specs, run_quickstart
from slimprompt.saved import read_model
from slimprompt.training.recipe import Recipe

TINY = Recipe(epochs=2, batch_size=None, views=0, lr=0.05)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[Quickstart]:
    """The real job with few shots, two seeds and next to no training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickstart, "SHOTS", (1, 2))
        patch.setattr(quickstart, "SEEDS", (1, 2))
        patch.setenv("SLIMPROMPT_CACHE", str(shared_cache))
        out = tmp_path_factory.mktemp("out") / "quickstart"
        yield run_quickstart(out, "pocket-negative", recipe=TINY, workers=1)


def test_the_comparison_is_complete_and_fair() -> None:
    specs = quickstart_specs("pocket-sketch", TINY)
    assert len({spec.fingerprint for spec in specs}) == 3 * 3 * 3 * 2
    assert {spec.label for spec in specs} == {"dense m16", "joint r4", "fixed-B orthogonal r4"}
    assert {(spec.shots, spec.seed) for spec in specs} == {(k, seed) for k in (1, 4, 16) for seed in (1, 2, 3)}
    assert {spec.recipe for spec in specs} == {TINY} and {spec.backbone for spec in specs} == {"pocket"}


def test_the_table_is_the_mean_over_seeds(result: Quickstart) -> None:
    assert len(result.records) == 24 and all(record.complete for record in result.records)
    assert [line.method for line in result.lines] == ["zero-shot", *(name for name in PROMPTS for _ in (1, 2))]
    line = result.lines[1]
    mine = [r for r in result.records if r.spec.variant == "dense" and r.spec.shots == 1]
    for metric in METRICS:
        values = [r.metrics[metric] for r in mine if metric in r.metrics]
        assert len(values) == 2
        mean, sd = line.scores[metric]
        assert mean == pytest.approx(sum(values) / 2)
        assert sd == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert [one.parameters for one in result.lines[::2]] == [0, 16 * 128, 4 * (16 + 128), 4 * 128]


def test_the_saved_prompt_is_the_one_that_validation_chose(result: Quickstart) -> None:
    saved = Classifier.load(result.model)
    images = result.benchmark
    assert tuple(saved.classes_) == images.class_names
    score = saved.score([images.path(item) for item in images.test], [item.class_name for item in images.test])
    assert 100 * score == pytest.approx(result.best.metrics["accuracy"])
    entries = read_model(result.model).entries
    assert entries["run"] == result.best.spec.fingerprint
    assert entries["validation_accuracy"] == result.validation_accuracy
    for one in result.predictions:
        assert saved.predict([one.image])[0] == one.predicted


def test_test_accuracies_choose_nothing(result: Quickstart) -> None:
    def turned(record: Record) -> Record:
        return replace(record, metrics={name: 100 - value for name, value in record.metrics.items()})

    best, score, _ = best_on_validation([turned(record) for record in result.records], result.benchmark)
    assert best.spec == result.best.spec and score == result.validation_accuracy


def test_made_again_it_uses_what_is_there(
    result: Quickstart, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(shared_cache))
    monkeypatch.setattr(quickstart, "SHOTS", (1, 2))
    monkeypatch.setattr(quickstart, "SEEDS", (1, 2))
    times = {record.folder: (record.folder / "record.json").stat().st_mtime_ns for record in result.records}
    again = run_quickstart(result.model.parent, "pocket-negative", recipe=TINY, workers=1)
    assert again.lines == result.lines and again.predictions == result.predictions
    assert times == {folder: (folder / "record.json").stat().st_mtime_ns for folder in times}


def test_errors_say_what_to_do(tmp_path: Path, result: Quickstart) -> None:
    with pytest.raises(InputError, match="did you mean 'pocket-sketch'.*slimprompt study"):
        run_quickstart(tmp_path / "a", "pocket-scetch")
    mine = Classifier.load(result.model).save(tmp_path / "c")
    content = mine.read_bytes()
    with pytest.raises(InputError, match="not written by quickstart.*another --out"):
        run_quickstart(tmp_path / "c")
    assert mine.read_bytes() == content and not (tmp_path / "c" / "runs").exists()


def test_the_command_prints_a_table_and_writes_the_page(
    monkeypatch: pytest.MonkeyPatch, shared_cache: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(shared_cache))
    for name, value in (("SHOTS", (1,)), ("SEEDS", (1,)), ("RECIPE", TINY)):
        monkeypatch.setattr(quickstart, name, value)
    app = Typer()
    app.command()(command)
    arguments = ["--out", str(tmp_path / "quickstart"), "--benchmark", "pocket-negative", "--workers", "1"]
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0
    assert all(part in outcome.output for part in ("not the paper's results", "zero-shot", *PROMPTS, "params"))
    assert (tmp_path / "quickstart" / "report" / "index.html").is_file()
