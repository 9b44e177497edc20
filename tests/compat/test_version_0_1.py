"""Run folders and saved prompts that version 0.1 wrote are read, and the same specs give the same results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slimprompt import PromptClassifier
from slimprompt.analysis.arms import joint
from slimprompt.analysis.observations import observe
from slimprompt.analysis.results import Results
from slimprompt.data import load_benchmark, read_manifest
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.records import Record, load_records
from slimprompt.lab.run import make_run
from slimprompt.lab.run_cache import RunCache
from tests.conftest import PILLOW

HERE = Path(__file__).parent
RECORDS = load_records(HERE / "runs")


@pytest.fixture(autouse=True)
def _rendered_benchmarks(_own_cache: None, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of the benchmarks are rendered and encoded once for all tests."""
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(shared_cache))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.spec.label)
def test_a_run_is_found_under_its_fingerprint(record: Record) -> None:
    assert record.complete
    assert record.spec.fingerprint == record.folder.name
    assert set(record.factors()) == {"B0", "A0", "B", "A"}
    assert len(record.curve()) == record.spec.recipe.epochs
    assert read_manifest(record.folder / "manifest.json").benchmark == record.spec.dataset


def test_runs_are_analysed() -> None:
    results = Results.of(observe(RECORDS))
    cell = results.cell("pocket", "pocket-sketch", joint(2), 1)
    (old,) = (
        one
        for one in RECORDS
        if one.spec.label == "joint r2" and one.spec.dataset == "pocket-sketch" and one.spec.split == "all"
    )
    assert cell is not None
    assert cell.mean == old.metrics["accuracy"]


@pytest.mark.parametrize("label", ["joint r2", "dense m16", "fixed-B orthogonal r2"])
def test_the_same_spec_gives_the_same_results(label: str, tmp_path: Path) -> None:
    old = next(record for record in RECORDS if record.spec.label == label)
    new = make_run(old.spec, RunCache(RunEnvironment(runs=tmp_path, device="cpu")))
    assert new.error is None
    assert new.spec.fingerprint == old.spec.fingerprint
    if PILLOW < 13:
        # It resizes some crops to other pixels than the version of the old run; the lowest versions also render other images.
        assert new.metrics == pytest.approx(old.metrics, abs=2)
        return
    assert new.metrics == pytest.approx(old.metrics, abs=0.5)  # another processor may round one image differently
    assert new.folder.joinpath("manifest.json").read_text() == old.folder.joinpath("manifest.json").read_text()
    for name, factor in new.factors().items():
        np.testing.assert_allclose(factor, old.factors()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["fixed-B", "dense"])
def test_a_saved_prompt_loads_and_predicts(name: str) -> None:
    folder = HERE / "prompts" / name
    description = json.loads((folder / "prompt.json").read_text(encoding="utf-8"))
    classifier = PromptClassifier.load(folder, device="cpu")
    assert classifier.classes_.tolist() == description["class_names"]
    assert (classifier.variant, classifier.prompt_.rank) == (description["variant"], description["rank"])
    benchmark = load_benchmark("pocket-sketch")
    paths, names = [benchmark.path(item) for item in benchmark.test], [item.class_name for item in benchmark.test]
    assert 100 * classifier.score(paths, names) == pytest.approx(description["held_out"]["prompt"], abs=0.5)
