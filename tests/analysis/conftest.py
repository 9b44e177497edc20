"""Synthetic studies that several files of tests read."""

from __future__ import annotations

import pandas as pd
import pytest

from slimprompt.analysis.frame import cells, observations
from slimprompt.lab.records import Record, load_records
from tests.synthetic_runs import write_methods, write_study


@pytest.fixture(scope="session")
def study_records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Two backbones, three datasets, three seeds."""
    return load_records(write_study(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="session")
def study_frame(study_records: list[Record]) -> pd.DataFrame:
    return cells(observations(study_records))


@pytest.fixture(scope="session")
def methods_records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Every method, joint and anchored prompts on RN50, and cross-dataset runs."""
    return load_records(write_methods(tmp_path_factory.mktemp("methods")))
