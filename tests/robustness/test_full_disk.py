"""A full disk is one clear line; nothing that was written before is lost, and the same command works when there is space again.

The disk is a tmpfs of 8 MB, which only root can mount; the tests are skipped otherwise.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slimprompt import FeatureBank
from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.executors.processes import ProcessExecutor
from slimprompt.lab.records import load_records
from slimprompt.lab.study import Ended, Event
from slimprompt.paper.studies import Grid, study_specs
from slimprompt.saved import model_file, read_model, write_model
from tests.cli.conftest import QUICK, failed, ok, run  # noqa: F401
from tests.conftest import complete_study, draw, fingerprints, run_folders
from tests.lab.conftest import quick_workers  # noqa: F401
from tests.test_saved import ENTRIES, prompt

pytestmark = pytest.mark.slow


class Disk:
    """A small disk that can be filled up."""

    def __init__(self, folder: Path, kilobytes: int) -> None:
        self.folder, self._filling = folder, folder / "filling"
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"no disk can be mounted here: {error}")
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")

    def fill(self, *, free: int = 0) -> None:
        """Leave so many free bytes."""
        self.empty()
        facts = os.statvfs(self.folder)
        self._filling.write_bytes(bytes(max(0, facts.f_bavail * facts.f_frsize - free)))

    def empty(self) -> None:
        """Make all space free that `fill` took."""
        self._filling.unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = Disk(folder, 8000)
    try:
        yield disk
    finally:
        disk.unmount()


def test_a_save_into_any_free_space_leaves_the_old_or_the_new_prompt(disk: Disk) -> None:
    refused = 0
    old, new = disk.folder / "old", disk.folder / "new"
    write_model(model_file(old), ENTRIES, prompt(width=3000))
    for free in range(0, 80_000, 4096):
        seed = read_model(old).description.seed
        disk.fill(free=free)
        for folder in (old, new):
            message = ""
            try:
                write_model(model_file(folder), ENTRIES | {"seed": free}, prompt(1, width=3000))
            except InputError as error:
                message = str(error)
                refused += 1
            assert message == "" or message.endswith("cannot be written: No space left on device")
            assert read_model(old).description.seed in (seed, free)
        disk.empty()
        names = sorted(path.relative_to(disk.folder).as_posix() for path in disk.folder.rglob("*.*"))
        assert names in (["new/model.safetensors", "old/model.safetensors"], ["old/model.safetensors"])
        if model_file(new).exists():
            read_model(new)
        if new.exists():
            for path in (*new.iterdir(), new):
                path.unlink() if path.is_file() else path.rmdir()
    assert 3 < refused < 30
    assert read_model(old).description.seed == 77_824


def test_fit_on_a_full_disk(disk: Disk, run, photos: Path, tmp_path: Path) -> None:  # noqa: F811
    out = disk.folder / "prompt"
    fit = ("fit", photos, "--out", out, *QUICK)
    ok(run(*fit))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    disk.fill()
    message = failed(run(*fit, "--overwrite", "--seed", 2), "cannot be written: No space left on device")
    assert message.count("error:") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    disk.empty()
    ok(run(*fit, "--overwrite", "--seed", 2))
    assert read_model(out).description.seed == 2


def test_the_feature_cache_on_a_full_disk(
    disk: Disk,
    run,  # noqa: F811
    tiny: Backbone,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(disk.folder))
    disk.fill()
    fit = ("fit", photos, "--out", tmp_path / "prompt", *QUICK)
    assert failed(run(*fit), "the feature cache", "--no-cache").count("error:") == 1
    assert not (tmp_path / "prompt").exists()

    images = [draw(tmp_path / "many" / f"{number}.png", "red", number, size=32 + number) for number in range(96)]
    expected = FeatureBank(tiny, None).features(images)
    views = [f"1/{number}" for number in range(40)]
    disk.fill(free=300_000)
    bank = FeatureBank(tiny, disk.folder / "features", show_progress=False)
    bank.build(images)
    with pytest.raises(InputError, match="cannot be written .* what was written before is intact"):
        bank.build(images, views)
    stored = len(bank)
    assert 96 <= stored < 41 * 96
    assert torch.equal(bank.features(images), expected)
    disk.empty()
    again = FeatureBank(tiny, disk.folder / "features", show_progress=False)
    assert len(again) == stored
    again.build(images, views[:4])
    assert torch.equal(again.features(images), expected)
    ok(run(*fit))


class FillAfterOne:
    """Fills the disk when the first run has ended."""

    def __init__(self, disk: Disk, free: int) -> None:
        self.disk, self.free, self.filled = disk, free, False

    def __call__(self, event: Event) -> None:
        if isinstance(event, Ended) and not self.filled:
            self.disk.fill(free=self.free)
            self.filled = True


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_study_on_a_full_disk(
    disk: Disk, executor: str, small_grid: Callable[..., Grid], environment: RunEnvironment, tmp_path: Path
) -> None:
    environment = replace(environment, cache=tmp_path / "cache")  # on another disk
    specs = study_specs(small_grid(study="rank-sweep", shots=[2], ranks=[1, 2, 3]))
    complete_study(specs, environment.runs, InlineExecutor(environment))
    full = replace(environment, runs=disk.folder / "runs")

    disturbed = InlineExecutor(full) if executor == "inline" else ProcessExecutor(full, 1)
    with pytest.raises(InputError, match=r"No space left on device; what was written before is intact$"):
        complete_study(specs, full.runs, disturbed, FillAfterOne(disk, free=30_000))
    there = load_records(full.runs)
    assert 1 <= len(there) < len(specs)
    assert run_folders(full.runs) == [record.folder.name for record in there]  # nothing half written
    disk.empty()
    outcome = complete_study(specs, full.runs, InlineExecutor(full))
    assert (len(outcome.present), outcome.failed) == (len(there), [])
    assert fingerprints(full.runs) == fingerprints(environment.runs)
