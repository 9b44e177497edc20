from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from slimprompt.images.store import cached_banks
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.plan import Plan, Speed, measure_speed, plan_study, weight
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.study import open_study
from slimprompt.methods.task import DEFAULT_VIEWS
from slimprompt.paper.studies import Grid, study_specs
from tests.conftest import complete_study


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds need not be precise here."""
    monkeypatch.setattr("slimprompt.lab.plan.measure_speed", partial(measure_speed, seconds=0.01))


@pytest.fixture
def environment(environment: RunEnvironment, tmp_path: Path) -> RunEnvironment:
    return replace(environment, cache=tmp_path / "cache")


def plan(specs: Sequence[RunSpec], environment: RunEnvironment, workers: int = 1) -> Plan:
    return plan_study(open_study(specs, environment.runs), environment, workers)


def stored(environment: RunEnvironment) -> SimpleNamespace:
    """Number and bytes of the stored image features."""
    (bank,) = cached_banks(environment.cache / "features")
    return SimpleNamespace(features=bank.features, size=bank.size)


def test_the_plan_is_what_happens(small_grid: Callable[..., Grid], environment: RunEnvironment) -> None:
    specs = study_specs(small_grid(study="all", shots=[1, 2], seeds=[1, 2]))
    found = plan(specs, environment, workers=2)
    records = complete_study(specs, environment.runs, InlineExecutor(environment), prompt_batch=16).complete
    assert found.steps == sum(record.facts["steps"] for record in records)
    assert found.tokens == sum(record.facts["steps"] * record.facts["tokens_per_step"] for record in records)
    assert found.images == stored(environment).features
    assert found.missing == [] and found.seconds is not None and found.seconds > 0
    on_disk = sum(path.stat().st_blocks * 512 for path in environment.runs.rglob("*")) + stored(environment).size
    assert on_disk / 2 < found.disk_bytes < on_disk * 2
    assert plan(specs, environment, workers=2) == Plan(workers=2, seconds=0.0)  # nothing is left to do


def test_the_cost_by_hand(
    small_grid: Callable[..., Grid], environment: RunEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slimprompt.lab.plan.measure_speed", lambda *_, **__: Speed(step=1.0, token=0.1, image=10.0))
    grid = small_grid(study="headline", shots=[2], seeds=[1])
    warm = grid.datasets[0]
    found = plan([spec for spec in study_specs(grid) if spec.dataset == warm], environment, workers=2)
    # 3 epochs of 10 images in two batches; start, context of 2 or 4, and per class: colour, disc, full stop, end
    assert found.steps == 3 * 6
    assert found.tokens == 6 * ((1 + 2 + 20) + 2 * (1 + 4 + 20))
    assert found.images == 20 + 10 * 2
    training = 7 * (1 + 0.1 * 23) + 2 * 7 * (1 + 0.1 * 25)  # one step more for the evaluation
    assert found.seconds == pytest.approx((training + 10 * 40) / 2)


def test_several_weights_of_one_architecture_are_counted_each(environment: RunEnvironment) -> None:
    one, three = (
        plan(
            [RunSpec(backbone="RN50", pretrained=tag, dataset="pocket-sketch", shots=1, seed=1) for tag in tags],
            environment,
        )
        for tags in (("openai",), ("openai", "cc12m", "yfcc15m"))
    )
    assert (three.images, three.disk_bytes) == (3 * one.images, 3 * one.disk_bytes)


def test_what_is_missing_is_said(
    small_grid: Callable[..., Grid], environment: RunEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)
    datasets = [*small_grid().datasets, "dtd"]
    found = plan(study_specs(small_grid(study="headline", datasets=datasets)), environment)
    (missing,) = found.missing
    assert missing.startswith("dtd: no data root for dtd")
    assert found.seconds is None and found.steps > 0
    nowhere = plan(study_specs(small_grid(study="headline", backbones=["local-dir:/nowhere"])), environment)
    assert nowhere.missing[0].startswith("local-dir:/nowhere: cannot load")


def test_methods_and_other_datasets_are_counted(
    tiny_folder: str, collections: dict[str, str], environment: RunEnvironment
) -> None:
    sample = {"backbone": tiny_folder, "dataset": collections["warm"], "shots": 2, "seed": 1}
    methods = [{"method": "gda"}, {"method": "linear-probe"}]
    specs = [RunSpec(**sample, **method) for method in methods]
    specs.append(RunSpec(**sample, method="zero-shot", evaluate_on=[collections["cold"]]))
    found = plan(specs, environment)
    assert (found.fitted, found.steps, found.missing) == (3, 0, [])
    assert found.images == 16 + 20 + 10 * (1 + DEFAULT_VIEWS)
    complete_study(specs, environment.runs, InlineExecutor(environment))
    assert found.images == stored(environment).features


def test_relative_cost_of_runs(run_spec: Callable[..., RunSpec]) -> None:
    """More shots, more epochs and more classes cost more; a method costs next to nothing."""
    plain = weight(run_spec())
    assert weight(run_spec(shots=4)) == pytest.approx(2 * plain, rel=0.01)
    assert weight(run_spec(recipe={"epochs": 6, "views": 2, "batch_size": 4})) == pytest.approx(2 * plain, rel=0.01)
    assert weight(run_spec(class_subset="base")) == pytest.approx(plain / 4, rel=0.05)
    method = RunSpec(backbone="pocket", dataset="dtd", shots=16, seed=1, method="gda")
    assert weight(method) < plain
