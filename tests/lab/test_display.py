from __future__ import annotations

import re
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from slimprompt.lab.display import shown
from slimprompt.lab.records import COMPLETE, FAILED, Record
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.study import Ended, Event, Started, open_study, outcome_of

MakeSpec = Callable[..., RunSpec]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_time_left_counts_batches_not_runs(
    workers: int, run_spec: MakeSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four batches of four runs of 10 s each, the share of a run in the 40 s of its batch."""
    batches = [[run_spec(seed=seed, rank=rank) for rank in (1, 2, 3, 4)] for seed in range(4)]

    def events() -> Generator[Event, None, None]:
        for batch in batches[:workers]:
            yield Started(batch)
        for spec in batches[0]:
            facts = {"times": {"setup": 5.0, "total": 15.0}}
            yield Ended(Record(spec, COMPLETE, Path(), {"accuracy": 1.0, "zero_shot_accuracy": 1.0}, facts=facts))

    study = open_study([spec for batch in batches for spec in batch], tmp_path)
    assert len(outcome_of(study, shown("a study", study, events())).complete) == 4
    found = capsys.readouterr().err
    assert found.startswith("a study: 16 runs, 0 already complete\n[ 1/16] ")
    left = [60 * int(minutes) + int(seconds) for minutes, seconds in re.findall(r"(\d+) min (\d+) s left", found)]
    assert left == [work // workers for work in (150, 140, 130, 120)]


def test_a_failed_run_is_one_line(run_spec: MakeSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = run_spec()
    study = open_study([spec], tmp_path)
    failed = Record(spec, FAILED, tmp_path, error="KeyError: 'no such entry'")
    outcome_of(study, shown("a study", study, (event for event in [Started([spec]), Ended(failed)])))
    assert capsys.readouterr().err.splitlines()[1:] == [f"[1/1] {spec.title}  FAILED: KeyError: 'no such entry'"]
