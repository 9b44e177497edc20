"""A synthetic study that several files of tests read."""

from __future__ import annotations

import pytest

from slimprompt.analysis.observations import observe
from slimprompt.analysis.results import Results
from slimprompt.lab.records import Record, load_records
from tests.synthetic_runs import write_study


@pytest.fixture(scope="session")
def study_records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Two backbones, three datasets, three seeds."""
    return load_records(write_study(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="session")
def study_results(study_records: list[Record]) -> Results:
    return Results.of(observe(study_records))
