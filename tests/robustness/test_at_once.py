"""Several commands at once on the same files: every one of them ends well, and the results are those of a single one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slimprompt.files import cache_dir
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.paper.studies import Grid, read_grid, study_specs
from slimprompt.saved import read_model
from tests.conftest import complete_study, fingerprints, run_folders
from tests.fork_server import start_command

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


def study(grid_file: Path, runs: Path) -> list[object]:
    return ["study", grid_file, "--runs", runs, "--workers", "1", "--device", "cpu"]


def at_once(commands: Sequence[Sequence[object]], meanwhile: Sequence[object] = (), wait_for: str = "") -> list[str]:
    """Outputs of commands that run at the same time, all of which must end well.

    As long as they run, `meanwhile` is repeated, beginning when there is a file `wait_for`; its outputs come last.
    """
    started = [start_command(command, one_stream=True) for command in commands]
    others = []
    while meanwhile and any(one.poll() is None for one in started):
        if any(Path("/").glob(wait_for.lstrip("/"))):
            others.append(start_command(meanwhile, one_stream=True))
            others[-1].wait(timeout=300)
        time.sleep(0.01)
    outputs = [one.communicate(timeout=300)[0] for one in (*started, *others)]
    assert {one.returncode for one in (*started, *others)} == {0}, outputs
    assert bool(meanwhile) == bool(others)
    return outputs


@pytest.mark.parametrize("writers", [2, 4])
def test_the_same_study_several_times_at_once_while_others_read(
    writers: int, grid_file: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """There is a first run, so that readers find something from the beginning."""
    first, runs = run_folders(undisturbed)[0], tmp_path / "runs"
    shutil.copytree(undisturbed / first, runs / first)
    readers = [["runs", "list", "--runs", runs], ["report", runs, "--out", tmp_path / "report"]]
    outputs = at_once([*[study(grid_file, runs)] * writers, *readers], readers[0], str(runs))
    total = len(run_folders(undisturbed))
    assert sum(f"{total} of {total} runs complete" in output for output in outputs) == writers
    assert not any("damaged" in output or "left out" in output for output in outputs)
    assert fingerprints(runs) == fingerprints(undisturbed)
    assert run_folders(runs) == run_folders(undisturbed)


def test_the_cache_is_cleared_during_a_study(grid_file: Path, undisturbed: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    banks = str(cache_dir() / "features" / "*-*.sqlite")
    at_once([study(grid_file, runs)] * 2, ["cache", "clear", "--yes"], banks)
    assert fingerprints(runs) == fingerprints(undisturbed)


@pytest.mark.parametrize(("views", "fits"), [("2", "ab"), ("4", "abcd")])
def test_fits_share_one_feature_cache(views: str, fits: str, photos: Path, tiny_folder: str, tmp_path: Path) -> None:
    few = ("--shots", "2", "--set", "epochs=2", "--n-ctx", "4", "--rank", "2", "--set", f"views={views}")

    def fit(name: str, *more: str) -> list[object]:
        return ["fit", photos, "--out", tmp_path / name, "--backbone", tiny_folder, "--device", "cpu", *few, *more]

    at_once([fit("alone", "--no-cache")])
    at_once([fit(name) for name in fits])
    assert len({read_model(tmp_path / name).entries["checksum"] for name in ("alone", *fits)}) == 1
