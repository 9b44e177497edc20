from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from slimprompt.errors import InputError
from slimprompt.images.store import cached_banks
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.plan import Plan, check_disk, count_runs, plan_runs
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.speed import measure_speed
from slimprompt.lab.study import run_study
from slimprompt.paper.studies import Grid, make_grid, studies_of, study_specs


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds need not be precise here."""
    monkeypatch.setattr("slimprompt.lab.plan.measure_speed", partial(measure_speed, seconds=0.01))


@pytest.fixture
def small_plan(small_grid: Callable[..., Grid], environment: RunEnvironment) -> tuple[Grid, RunEnvironment, Plan]:
    grid = small_grid(study="all", shots=[1, 2], seeds=[1, 2])
    return grid, environment, plan_runs(studies_of(grid), environment, workers=2)


def test_the_plan_is_what_happens(small_plan: tuple[Grid, RunEnvironment, Plan], tmp_path: Path) -> None:
    grid, environment, plan = small_plan
    environment = replace(environment, cache=tmp_path / "cache")
    outcome = run_study(study_specs(grid), environment.runs, InlineExecutor(environment), prompt_batch=16)
    records = outcome.complete
    assert plan.runs == len(records)
    assert plan.steps == sum(record.facts["steps"] for record in records)
    assert plan.tokens == sum(record.facts["steps"] * record.facts["tokens_per_step"] for record in records)
    (bank,) = cached_banks(tmp_path / "cache" / "features")
    assert sum(bank.test + bank.train for bank in plan.banks) == bank.features
    on_disk = sum(path.stat().st_blocks * 512 for path in environment.runs.rglob("*")) + bank.size
    assert on_disk / 2 < plan.disk_bytes < on_disk * 2

    after = plan_runs(studies_of(grid), environment, workers=2)
    assert (after.runs, after.complete, after.steps) == (plan.runs, plan.runs, plan.steps)
    assert after.seconds == 0 and after.disk_bytes == 0  # nothing is left to do


def test_counts_by_hand(small_plan: tuple[Grid, RunEnvironment, Plan]) -> None:
    _, _, plan = small_plan
    # per dataset, shot and seed: 2 dense, 1 joint, 2 fixed; 3 base-to-new; 16 shots are not in the grid, so both shots
    # have transfers: 2 with a source, 2 random
    assert plan.studies == {
        "headline": 3 * 8,
        "rank-sweep": 8,
        "fixed-basis": 2 * 8,
        "base-to-new": 3 * 8,
        "transfer": 4 * 8,
        "geometry": 8,
    }
    assert plan.runs == (5 + 3 + 4) * 8
    assert (plan.sources, plan.complete) == (0, 0)
    warm = next(task for task in plan.tasks if task.dataset.endswith("warm") and task.split == "all")
    assert (warm.classes, warm.runs) == (5, 9 * 4)
    # 3 epochs of 5 images in one batch of 4 (1 shot), or of 10 images in two
    assert warm.steps == 9 * 2 * 3 * (1 + 2)
    # start + context of 2 or 4 + per class: colour, disc, full stop, end
    assert warm.tokens_per_step == (1 + 2 + 5 * 4, 1 + 4 + 5 * 4)
    assert plan.seconds is not None and plan.seconds > 0
    assert plan.seconds == pytest.approx((plan.training_seconds + plan.encoding_seconds) / 2)
    assert plan.missing == []


def test_sources_are_counted(small_grid: Callable[..., Grid], environment: RunEnvironment) -> None:
    plan = count_runs(studies_of(small_grid(study="transfer", shots=[2])), environment, workers=1)
    assert (plan.studies, plan.runs, plan.sources) == ({"transfer": 8}, 10, 2)


def test_what_is_missing_is_said(
    small_grid: Callable[..., Grid], environment: RunEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)
    datasets = [*small_grid().datasets, "dtd"]
    plan = plan_runs(studies_of(small_grid(study="headline", datasets=datasets)), environment, workers=1)
    assert plan.runs == 3 * 2 * 3
    assert len(plan.tasks) == 2
    (missing,) = plan.missing
    assert missing.startswith("dtd: no data root for dtd")
    assert plan.seconds is None
    nowhere = plan_runs(
        studies_of(small_grid(study="headline", backbones=["local-dir:/nowhere"])), environment, workers=1
    )
    assert nowhere.missing[0].startswith("local-dir:/nowhere: cannot load")
    assert nowhere.tasks[0].tokens_per_step is None
    assert nowhere.steps > 0


def test_rendered_benchmarks_are_not_rendered_for_a_plan(environment: RunEnvironment, tmp_path: Path) -> None:
    grid = make_grid({"study": "headline", "backbones": "pocket", "shots": [1, 24], "seeds": 1}, pocket=True)
    plan = plan_runs(studies_of(grid), replace(environment, data_root=tmp_path / "data"), workers=1)
    assert not (tmp_path / "data").exists()
    sketch = next(task for task in plan.tasks if task.dataset == "pocket-sketch")
    assert sketch.classes == 24
    epochs = grid.recipe.epochs
    assert sketch.steps == 3 * epochs * (grid.recipe.steps_per_epoch(24) + grid.recipe.steps_per_epoch(24 * 24))
    bank = next(bank for bank in plan.banks if bank.dataset == "pocket-sketch")
    assert (bank.test, bank.train) == (24 * 24, 24 * 24 * len(grid.recipe.views_at(0)))


def disk_of(free: float) -> Callable[[Path], SimpleNamespace]:
    return lambda folder: SimpleNamespace(free=free)


def test_a_study_that_does_not_fit_on_the_disk_is_refused(
    environment: RunEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = study_specs(make_grid({"study": "headline"}, pocket=True))
    plan = plan_runs({"headline": specs}, environment, workers=1)
    for free, warns in ((2 * plan.disk_bytes, False), (1.1 * plan.disk_bytes, True)):
        monkeypatch.setattr(shutil, "disk_usage", disk_of(free))
        assert bool(check_disk(specs, environment)) == warns
    monkeypatch.setattr(shutil, "disk_usage", disk_of(0.9 * plan.disk_bytes))
    with pytest.raises(InputError, match=r"the missing runs need about 0\.\d GB at .*, where 0\.\d GB are free"):
        check_disk(specs, environment)


def test_features_on_disk_are_not_needed_again(
    environment: RunEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = study_specs(make_grid({"study": "headline"}, pocket=True))
    environment = replace(environment, cache=tmp_path / "cache")
    plan = plan_runs({"headline": specs}, environment, workers=1)
    (tmp_path / "cache" / "features").mkdir(parents=True)
    with (tmp_path / "cache" / "features" / "pocket-0.sqlite").open("wb") as bank:
        bank.truncate(plan.disk_bytes // 2)
    monkeypatch.setattr(shutil, "disk_usage", disk_of(0.6 * plan.disk_bytes))
    check_disk(specs, environment)


def test_disk_is_not_checked_for_what_cannot_be_counted(
    small_grid: Callable[..., Grid], environment: RunEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", disk_of(0))
    assert check_disk(study_specs(make_grid({"study": "headline"})), environment) == ""  # no annotation files
    assert check_disk(study_specs(small_grid(study="headline")), environment) == ""  # a backbone of one's own


def test_the_papers_plan(data_root: Path, environment: RunEnvironment) -> None:
    grid = make_grid(
        {"datasets": ["dtd", "fgvc_aircraft"], "backbones": ["ViT-B-16"], "seeds": [1], "study": "headline"}
    )
    plan = plan_runs(studies_of(grid), replace(environment, data_root=data_root), workers=1)
    # start, 4 or 16 context tokens, and every class's own tokens; a few more where short names are filled up
    needed = {"dtd": (191, 203), "fgvc_aircraft": (729, 741)}
    for task in plan.tasks:
        assert task.tokens_per_step is not None
        for planned, exact in zip(task.tokens_per_step, needed[task.dataset], strict=True):
            assert exact <= planned <= 1.05 * exact
    assert plan.missing == []


def test_images_that_are_held_out_are_counted(
    tiny_folder: str, collections: dict[str, str], environment: RunEnvironment, tmp_path: Path
) -> None:
    """Without a test split, runs are evaluated on the images that they do not train on."""
    environment, folder = replace(environment, cache=tmp_path / "cache"), tmp_path / "photos"
    shutil.copytree(Path(collections["warm"]) / "train", folder)
    sample = {"backbone": tiny_folder, "dataset": str(folder), "shots": 2}
    specs = [RunSpec(**sample, seed=seed, method=method) for seed in (1, 2) for method in ("gda", "zero-shot")]
    plan = plan_runs({"methods": specs}, environment, workers=1)
    run_study(specs, environment.runs, InlineExecutor(environment))
    (bank,) = cached_banks(tmp_path / "cache" / "features")
    assert sum(bank.test + bank.train for bank in plan.banks) == bank.features


def test_methods_and_other_datasets_are_counted(
    tiny_folder: str, collections: dict[str, str], environment: RunEnvironment, tmp_path: Path
) -> None:
    environment = replace(environment, cache=tmp_path / "cache")
    sample = {"backbone": tiny_folder, "dataset": collections["warm"], "shots": 2, "seed": 1}
    methods = [
        {"method": "gda"},
        {"method": "linear-probe"},
        {"method": "zero-shot", "evaluate_on": [collections["cold"]]},
    ]
    specs = [RunSpec(**sample, **method) for method in methods]
    plan = plan_runs({"methods": specs}, environment, workers=1)
    assert (plan.runs, plan.fitted, plan.steps, plan.training_seconds, plan.missing) == (3, 3, 0, 0.0, [])
    assert [(bank.test, bank.train) for bank in plan.banks] == [(16, 0), (20, 10 * (1 + 10))]
    outcome = run_study(specs, environment.runs, InlineExecutor(environment))
    assert len(outcome.complete) == 3
    (bank,) = cached_banks(tmp_path / "cache" / "features")
    assert sum(bank.test + bank.train for bank in plan.banks) == bank.features
