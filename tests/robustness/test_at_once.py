"""Several commands at once on the same files: every one of them ends well, and the results are those of a single one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slimprompt.files import cache_dir
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.paper.studies import Grid, read_grid, study_specs
from slimprompt.saved import read_model
from tests.conftest import complete_study, fingerprints, run_folders
from tests.robustness.commands import Step, run_job

pytestmark = pytest.mark.slow


@pytest.fixture
def grid_file(small_grid: Callable[..., Grid], tmp_path: Path) -> Path:
    recipe = {"epochs": 4, "views": 2, "batch_size": 4}
    grid = small_grid(study="rank-sweep", shots=[1], ranks=[1, 2], recipe=recipe)
    path = tmp_path / "grid.yaml"
    path.write_text(grid.model_dump_json())
    return path


@pytest.fixture
def undisturbed(grid_file: Path, tmp_path: Path) -> Path:
    """The runs of the grid."""
    environment = RunEnvironment(runs=tmp_path / "undisturbed", cache=tmp_path / "other cache", device="cpu")
    specs = study_specs(read_grid(grid_file))
    complete_study(specs, environment.runs, InlineExecutor(environment), prompt_batch=8)
    return environment.runs


def study(grid_file: Path, runs: Path) -> list[str]:
    return ["study", str(grid_file), "--runs", str(runs), "--workers", "1", "--device", "cpu"]


def test_the_same_study_two_and_four_times_at_once_while_others_read(
    grid_file: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """There is a first run, so that readers find something from the beginning."""
    first = run_folders(undisturbed)[0]
    steps: list[Step] = []
    for writers in (2, 4):
        runs = tmp_path / f"runs-{writers}"
        shutil.copytree(undisturbed / first, runs / first)
        readers = [["runs", "list", "--runs", str(runs)], ["report", str(runs), "--out", str(tmp_path / "report")]]
        commands = [study(grid_file, runs)] * writers
        steps.append({"commands": commands, "readers": readers, "meanwhile": readers[:1], "wait_for": str(runs)})
    done, read = run_job(steps, tmp_path)
    assert {one.code for one in (*done, *read)} == {0}, (done, read)
    total = len(run_folders(undisturbed))
    assert sum(f"{total} of {total} runs complete" in one.output for one in done) == 6
    assert len(read) >= 2
    assert not any("damaged" in one.output or "left out" in one.output for one in (*done, *read))
    for writers in (2, 4):
        assert fingerprints(tmp_path / f"runs-{writers}") == fingerprints(undisturbed)
        assert run_folders(tmp_path / f"runs-{writers}") == run_folders(undisturbed)


def test_the_cache_is_cleared_during_a_study(grid_file: Path, undisturbed: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    clear = ["cache", "clear", "--yes"]
    wait_for = str(cache_dir() / "features" / "*-*.sqlite")
    step: Step = {"commands": [study(grid_file, runs)] * 2, "meanwhile": [clear], "wait_for": wait_for}
    done, cleared = run_job([step], tmp_path)
    assert {one.code for one in (*done, *cleared)} == {0}, (done, cleared)
    assert cleared
    assert fingerprints(runs) == fingerprints(undisturbed)


def test_two_and_four_fits_share_one_feature_cache(photos: Path, tiny_folder: str, tmp_path: Path) -> None:
    where = ("--backbone", tiny_folder, "--device", "cpu")
    few = ("--shots", "2", "--set", "epochs=2", "--n-ctx", "4", "--rank", "2")

    def fit(name: str, *more: str) -> list[str]:
        return ["fit", str(photos), "--out", str(tmp_path / name), *where, *few, *more]

    names = {"2": ["a", "b"], "4": ["c", "d", "e", "f"]}  # by number of views
    steps: list[Step] = []
    for views, some in names.items():
        steps.append({"commands": [fit(f"alone-{views}", "--no-cache", "--set", f"views={views}")]})
        steps.append({"commands": [fit(name, "--set", f"views={views}") for name in some]})
    done, _ = run_job(steps, tmp_path)
    assert {one.code for one in done} == {0}, done
    for views, some in names.items():
        saved = [read_model(tmp_path / name).entries for name in (f"alone-{views}", *some)]
        assert len({entries["checksum"] for entries in saved}) == 1
