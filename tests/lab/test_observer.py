from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slimprompt.lab.observer import study_observer
from slimprompt.lab.records import COMPLETE, Record
from slimprompt.lab.spec import RunSpec

MakeSpec = Callable[..., RunSpec]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_time_left_counts_batches_not_runs(
    workers: int, run_spec: MakeSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four batches of four runs of 10 s each, the share of a run in the 40 s of its batch."""
    batches = [[run_spec(seed=seed, rank=rank) for rank in (1, 2, 3, 4)] for seed in range(4)]
    observer = study_observer("a study")
    observer.begin([spec for batch in batches for spec in batch], [])
    for batch in batches[:workers]:
        observer.started(batch)
    for spec in batches[0]:
        times = {"setup": 5.0, "total": 15.0}
        observer.ended(
            Record(spec, COMPLETE, Path(), {"accuracy": 1.0, "zero_shot_accuracy": 1.0}, facts={"times": times})
        )
    observer.end()
    left = re.findall(r"  (\d+) min (\d+) s left", capsys.readouterr().err)
    assert [60 * int(minutes) + int(seconds) for minutes, seconds in left] == [
        work // workers for work in (150, 140, 130, 120)
    ]
