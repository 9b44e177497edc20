"""Commands are killed before each of their file operations; what they leave is complete, and running them again ends well.

Where a command is slow, a seeded sample of its operations is taken: `SLIMPROMPT_KILLS=1000 pytest tests/robustness/test_kills.py`
takes all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from slimprompt import files
from slimprompt.cli import main
from slimprompt.clip import backbone
from slimprompt.data.folder import load_folder, write_folder
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.paper.contents import PAPER
from slimprompt.paper.studies import Grid, study_specs
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS, PocketBenchmark, render_benchmark
from slimprompt.report.page import build_report, render_report, write_report
from slimprompt.report.table_formats import table_files
from slimprompt.saved import check_free, model_file, read_model, write_model
from tests.conftest import complete_study, draw, fingerprints, run_folders
from tests.robustness.kills import chosen_operations, count_operations, kill_before, run_campaign, run_in_child
from tests.synthetic_runs import write_run
from tests.test_saved import ENTRIES, prompt

#: Most kills of a slow command.
_MOST = int(os.environ.get("SLIMPROMPT_KILLS", "0"))


def contents(runs: Path) -> dict[str, dict[str, Any]]:
    """Run → hashes of its files, and the prompts it was trained with: whether those change the bytes depends on the machine."""
    found: dict[str, dict[str, Any]] = {}
    for name, hashes in fingerprints(runs).items():
        record = json.loads((runs / name / "record.json").read_text())
        found[name] = {**hashes, **{fact: record[fact] for fact in ("prompt_batch", "trained_together")}}
    return found


def kill_study(grid: Grid, folder: Path, prompt_batch: int, most: int) -> tuple[int, int, dict[int, list[str]]]:
    """Kill a study before file operations in its runs folder, resume it and compare it with an undisturbed one.

    Returns the numbers of file operations and of kills, and what differs by kill.
    """
    specs = study_specs(grid)
    # Children begin with a loaded backbone: reading it writes nothing, and takes as long as the rest of this study.
    backbone.load_backbone = cache(backbone.load_backbone)
    backbone.load_backbone(specs[0].backbone, specs[0].pretrained, device="cpu", precision="fp32")

    def study(runs: Path) -> None:
        # One cache for all, filled by the undisturbed study: the kills concern the runs folder.
        environment = RunEnvironment(runs=runs, cache=folder / "cache", device="cpu")
        outcome = complete_study(specs, runs, InlineExecutor(environment), prompt_batch=prompt_batch)
        assert outcome.failed == [], outcome.failed[0].error

    undisturbed = folder / "undisturbed"
    total = count_operations(lambda: study(undisturbed), undisturbed)
    expected = contents(undisturbed)
    differs, kills = {}, 0
    for number in chosen_operations(total, most, seed=0):
        runs = folder / f"killed-{number}"
        kills += kill_before(number, lambda runs=runs: study(runs), runs)
        assert not run_in_child(lambda runs=runs: study(runs))
        found = contents(runs)
        other = [name for name in expected if found.get(name) != expected[name]]
        if left := other + [name for name in run_folders(runs) if name.startswith(".")]:
            differs[number] = left
        shutil.rmtree(runs)
    return total, kills, differs


@pytest.mark.slow
@pytest.mark.parametrize("prompt_batch", [4, 1])
def test_a_study_killed_at_any_file_operation_gives_equal_bytes(
    small_grid: Callable[..., Grid], collections: dict[str, str], tmp_path: Path, prompt_batch: int
) -> None:
    """Also with prompts that converge, and then leave their batch, at different times."""
    recipe = {"epochs": 6, "views": 2, "batch_size": 4, "lr": 0.05, "tolerance": 0.3, "patience": 2}
    grid = small_grid(study="rank-sweep", datasets=[collections["warm"]], shots=[2], ranks=[1, 2, 3], recipe=recipe)
    most = 1000 if prompt_batch > 1 else _MOST or 20
    operations, kills, differs = run_campaign(kill_study, grid, tmp_path, prompt_batch, most)
    assert kills == min(operations, most) > 10
    assert differs == {}


def tree(folder: Path) -> dict[str, bytes]:
    """Files below a folder, without temporary ones; a workbook without the time at which it was made."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    shown = {str(name): path for name, path in found.items() if not any(part.startswith(".") for part in name.parts)}
    return {name: _cells(path) if path.suffix == ".xlsx" else path.read_bytes() for name, path in shown.items()}


def _cells(workbook: Path) -> bytes:
    with ZipFile(workbook) as parts:
        return b"".join(parts.read(name) for name in parts.namelist() if name != "docProps/core.xml")


Files = dict[str, bytes]
Write = Callable[[Path], object]


def kill_everywhere(
    write: Write, folder: Path, *, old: Write | None = None, most: int = 1000
) -> tuple[Files, Files, list[Files]]:
    """Kill `write` before its file operations, each time in a new folder, to which `old` has written before.

    Repeated, it must give the files of an undisturbed one, and leave no others. Returns the files before, those of an undisturbed
    `write`, and those after each kill.
    """

    def prepare(name: object) -> Path:
        place = folder / str(name)
        place.mkdir(parents=True)
        if old:
            assert not run_in_child(lambda: old(place))
        return place

    before, undisturbed, found = tree(prepare("before")), prepare("undisturbed"), []
    total = count_operations(lambda: write(undisturbed), folder)
    assert total >= 3
    expected = tree(undisturbed)
    for number in chosen_operations(total, most, seed=0):
        place = prepare(number)
        kill_before(number, lambda place=place: write(place), folder)
        found.append(tree(place))
        assert not run_in_child(lambda place=place: write(place))
        assert tree(place) == expected
        assert not [path.name for path in place.rglob(".*") if path.name != ".contents"]
    return before, expected, found


def run_command(*arguments: object) -> None:
    """`slimprompt …`, in a forked child."""
    sys.argv = ["slimprompt", *map(str, arguments)]
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0


def kill_fit(folder: Path, old: Path | None, most: int, arguments: list[str]) -> tuple[Files, Files, list[Files]]:
    """Kill `fit` before file operations beside its prompt and in the cache, and repeat it."""

    def fit(place: Path) -> None:
        os.environ["SLIMPROMPT_CACHE"] = str(folder / f"cache-{place.name}")  # whose files have random names
        run_command("fit", *arguments, "--out", place / "prompt", "--overwrite")

    return kill_everywhere(fit, folder, old=old and (lambda place: shutil.copytree(old, place / "prompt")), most=most)


@pytest.mark.slow
@pytest.mark.parametrize("has_old", [False, True])
def test_fit_killed_at_any_file_operation_leaves_the_old_prompt_or_none(
    tiny_folder: str, tmp_path: Path, has_old: bool
) -> None:
    for colour in ("red", "blue"):
        for number in range(3):
            draw(tmp_path / "images" / colour / f"{number}.png", colour, number)
    if has_old:
        write_model(model_file(tmp_path / "old"), ENTRIES, prompt())
    where = [str(tmp_path / "images"), "--backbone", tiny_folder, "--device", "cpu"]
    few = ["--shots", "2", "--set", "epochs=1", "--set", "views=1", "--n-ctx", "4", "--rank", "2", "--seed", "7"]
    folders = (tmp_path / "kills", tmp_path / "old" if has_old else None)
    before, expected, found = run_campaign(kill_fit, *folders, _MOST or 6, [*where, *few])
    assert len(found) >= 5 and before in found and all(one in (before, expected) for one in found)


@pytest.mark.parametrize("target", ["new", "empty", "old", "linked"])
def test_a_save_killed_at_any_file_operation_leaves_the_old_or_the_new_prompt(tmp_path: Path, target: str) -> None:
    """Everything runs in children, because a process removes the leftovers of others in a folder once."""

    def prepare(folder: Path) -> Path:
        real = folder / "real"
        if target == "new":
            return folder / "prompt"
        real.mkdir(parents=True)
        if target != "empty":
            assert not run_in_child(lambda: write_model(model_file(real), ENTRIES, prompt()))
            (real / "notes.txt").write_text("mine")
        if target == "linked":
            (folder / "prompt").symlink_to("real")
        return folder / ("prompt" if target == "linked" else "real")

    def save(folder: Path) -> None:
        write_model(check_free(folder, overwrite=True), ENTRIES | {"seed": 2}, prompt(1))

    undisturbed = prepare(tmp_path / "0")
    total = count_operations(lambda: save(undisturbed), tmp_path)
    assert total >= 3
    seen = set()
    for number in range(1, total + 1):
        out = prepare(tmp_path / str(number))
        assert kill_before(number, lambda out=out: save(out), tmp_path)
        if target in ("old", "linked") or model_file(out).exists():
            seen.add(read_model(out).description.seed)
        else:
            with pytest.raises(InputError, match="no saved model"):
                read_model(out)
        assert not run_in_child(lambda out=out: save(out))  # the same command again
        assert read_model(out).description.seed == 2
        kept = ["notes.txt"] if target in ("old", "linked") else []
        assert sorted(path.name for path in out.iterdir()) == sorted([*kept, "model.safetensors"])
        expected = {"linked": ["prompt", "real"], "new": ["prompt"]}.get(target, ["real"])
        assert sorted(path.name for path in out.parent.iterdir()) == expected
    assert seen == ({1, 2} if target in ("old", "linked") else {2})


def test_a_killed_rendering_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(iter(POCKET_BENCHMARKS.values()))
    small = PocketBenchmark("pocket-small", "two classes", first.style, n_classes=2, train=1, val=1, test=1)
    monkeypatch.setitem(POCKET_BENCHMARKS, small.name, small)
    _, expected, _ = kill_everywhere(lambda place: render_benchmark(small.name, place), tmp_path)
    assert sum(name.endswith(".png") for name in expected) == 6


def test_an_image_folder_killed_at_any_file_operation_is_not_there(tmp_path: Path) -> None:
    """What `data pocket` writes."""
    for name in ("red disc", "blue disc"):
        for number in range(2):
            draw(tmp_path / "images" / name / f"{number}.png", name.split()[0], number)
    images = load_folder(tmp_path / "images")
    _, _, found = kill_everywhere(lambda place: write_folder(images, place / "out"), tmp_path / "kills")
    assert len(found) > len(images.items) and not any(found)


@pytest.mark.parametrize("has_old", [False, True])
def test_data_sample_killed_at_any_file_operation_leaves_the_old_manifest_or_none(
    photos: Path, tmp_path: Path, has_old: bool
) -> None:
    def sample(place: Path, seed: int = 2) -> None:
        run_command("data", "sample", photos, "--shots", 2, "--seed", seed, "--out", place / "m.json")

    old = partial(sample, seed=1) if has_old else None
    before, expected, found = kill_everywhere(sample, tmp_path, old=old)
    assert before in found and all(one in (before, expected) for one in found)


@pytest.mark.slow
def test_a_report_killed_at_any_file_operation_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    """Or, between the two renames, there is none; a second call makes the new one."""
    base = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "n_ctx": 8}
    reports = []
    for fields in ({"variant": "dense"}, {"variant": "joint", "rank": 4}):
        for seed in (1, 2):
            write_run(tmp_path / "runs", base | fields | {"seed": seed})
        reports.append(build_report(tmp_path / "runs", PAPER))
    old, new = reports
    table_files(new.tables), render_report(new)  # children begin with loaded libraries and compiled templates
    before, expected, kills = kill_everywhere(
        partial(write_report, new), tmp_path / "kills", old=partial(write_report, old), most=_MOST or 6
    )
    assert before["index.html"] != expected["index.html"]
    assert all(found in ({}, before, expected) for found in kills)


def test_a_file_killed_at_any_operation_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    target = files.write_file(tmp_path / "page.html", "old")
    total = count_operations(lambda: files.write_file(tmp_path / "other" / "page.html", "new"), tmp_path)
    assert total >= 3
    for number in range(1, total + 1):
        kill_before(number, lambda: files.write_file(target, "new"), tmp_path)
        assert target.read_text() in ("old", "new")
    files.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "page.html"]
