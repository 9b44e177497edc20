"""Measured speed of the backbone, and the time that a fit and the paper's grid would take on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slimprompt.calibration import calibration_folds
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.catalogue import find_source
from slimprompt.doctor.check import OK, SKIPPED, WARNING, Outcome, Subject
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import default_workers
from slimprompt.lab.plan import measure_speed, plan_study
from slimprompt.lab.study import open_study
from slimprompt.paper.studies import make_grid, study_specs
from slimprompt.progress import duration
from slimprompt.training.recipe import auto_recipe

_FIT_CLASSES, _FIT_SHOTS, _FIT_CONTEXT = 20, 16, 16


def check_speed(subject: Subject) -> Iterator[Outcome]:
    """Seconds per text step and per image, and the time of a fit that follows from them."""
    from slimprompt.text.encoder import SharedPrefixTextEncoder

    backbone = subject.backbone
    speed = measure_speed(backbone, image_size=400, seconds=0.1 if subject.quick else 0.5)
    measured = (
        f"a step takes {1000 * speed.step:.1f} ms + {1000 * speed.token:.3f} ms per text token, "
        f"an image {1000 * speed.image:.1f} ms"
    )
    recipe, n_images = auto_recipe(_FIT_SHOTS), _FIT_CLASSES * _FIT_SHOTS
    names = [f"large red square {number}" for number in range(_FIT_CLASSES)]
    tokens = SharedPrefixTextEncoder(backbone, names, _FIT_CONTEXT).n_tokens
    encoding = speed.seconds(0, 0, n_images * len(recipe.views_at(0)))
    folds = calibration_folds(list(range(_FIT_CLASSES)) * _FIT_SHOTS, seed=1)
    calibration = sum(recipe.steps(len(kept)) for kept, _ in folds)
    training = speed.seconds(recipe.steps(n_images) + calibration, tokens)
    yield Outcome(
        OK,
        f"{measured}; a fit of {_FIT_CLASSES} classes and {_FIT_SHOTS} shots takes about "
        f"{duration(encoding + training)}: {duration(encoding)} of encoding images, {duration(training)} of training and calibration",
    )


def check_grid(subject: Subject) -> Iterator[Outcome]:
    """The time and disk of all runs of the paper; their annotation files must be present."""
    grid = make_grid({"study": "all"})
    root = subject.benchmarks
    if root is None:
        yield Outcome(
            SKIPPED, "counting the paper's runs needs the annotation files of its benchmarks: give --data-root"
        )
        return
    missing = [name for name in grid.datasets if find_source(BENCHMARKS[name], root / BENCHMARKS[name].folder) is None]
    if missing or subject.quick:
        yield Outcome(
            SKIPPED, f"no annotation files of {', '.join(missing)} in {root}" if missing else "left out by --quick"
        )
        return
    environment = RunEnvironment(runs=Path("runs"), data_root=root, device=subject.device)
    workers = default_workers(environment)
    study = open_study(study_specs(grid), environment.runs)
    plan = plan_study(study, environment, workers)
    if plan.seconds is None:
        yield Outcome(WARNING, "not estimated: " + "; ".join(plan.missing))
        return
    yield Outcome(
        OK,
        f"{len(study.specs) - len(study.complete):,} runs take about {duration(plan.seconds)} with {workers} workers and "
        f"{plan.disk_bytes / 1e9:.1f} GB of disk; `slimprompt study all --plan` shows details",
    )
