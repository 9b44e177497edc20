"""Commands are killed before each of their file operations; what they leave is complete, and running them again ends well.

Where a command is slow, a seeded sample of its operations is taken: `SLIMPROMPT_KILLS=1000 pytest tests/robustness/test_kills.py`
takes all of them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from slimprompt import files
from slimprompt.cli import main
from slimprompt.data.folder import load_folder, write_folder
from slimprompt.errors import InputError
from slimprompt.paper.contents import PAPER
from slimprompt.paper.studies import Grid
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS, PocketBenchmark, render_benchmark
from slimprompt.report.page import build_report, render_report, write_report
from slimprompt.report.table_formats import table_files
from slimprompt.saved import check_free, model_file, read_model, write_model
from tests.conftest import draw
from tests.robustness.kills import chosen_operations, count_operations, kill_before, run_campaign, run_in_child
from tests.robustness.system_calls import can_trace
from tests.synthetic_runs import write_run
from tests.test_saved import ENTRIES, prompt

#: Most kills of a slow command.
_MOST = int(os.environ.get("SLIMPROMPT_KILLS", "0"))
#: Images of a transaction of the feature bank.
_IMAGES = 24


@pytest.mark.slow
@pytest.mark.parametrize("prompt_batch", [4, 1])
def test_a_study_killed_at_any_file_operation_gives_equal_bytes(
    small_grid: Callable[..., Grid], collections: dict[str, str], tmp_path: Path, prompt_batch: int
) -> None:
    """Also with prompts that converge, and then leave their batch, at different times."""
    recipe = {"epochs": 6, "views": 2, "batch_size": 4, "lr": 0.05, "tolerance": 0.3, "patience": 2}
    grid = small_grid(study="rank-sweep", datasets=[collections["warm"]], shots=[2], ranks=[1, 2, 3], recipe=recipe)
    (tmp_path / "grid.json").write_text(grid.model_dump_json())
    most = 1000 if prompt_batch > 1 else _MOST or 20
    told = run_campaign("tests.robustness.kill_study", tmp_path / "grid.json", tmp_path, prompt_batch, most)
    assert told["kills"] == min(told["operations"], most) > 10
    assert told["differs"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("old", [False, True])
def test_fit_killed_at_any_file_operation_leaves_the_old_prompt_or_none(
    tiny_folder: str, tmp_path: Path, old: bool
) -> None:
    for colour in ("red", "blue"):
        for number in range(3):
            draw(tmp_path / "images" / colour / f"{number}.png", colour, number)
    if old:
        write_model(model_file(tmp_path / "old"), ENTRIES, prompt())
    kills = [tmp_path / "kills", tmp_path / "old" if old else "", _MOST or 6]
    where = [tmp_path / "images", "--backbone", tiny_folder, "--device", "cpu"]
    few = ["--shots", "2", "--epochs", "1", "--views", "1", "--n-ctx", "4", "--rank", "2", "--seed", "7"]
    told = run_campaign("tests.robustness.kill_fit", *kills, *where, *few)
    assert told["operations"] >= 5
    assert len(told["seeds"]) == min(told["operations"], _MOST or 6)
    assert set(told["seeds"]) <= ({1, 7} if old else {None})
    assert told["wrong"] == []


@pytest.mark.slow
@pytest.mark.skipif(not can_trace(), reason="system calls of children cannot be traced here")
def test_a_feature_bank_killed_inside_the_writes_of_sqlite_has_only_whole_transactions(
    tiny_folder: str, tmp_path: Path
) -> None:
    """Before any system call that changes its files, and in the middle of a page; also if another process has it open."""
    for number in range(_IMAGES):
        draw(tmp_path / "images" / "red" / f"{number}.png", ["red", "blue", "green", "pink"][number % 4], number)
    (tmp_path / "banks").mkdir()
    most = _MOST or 24
    told = run_campaign("tests.robustness.kill_bank", tmp_path / "images", tiny_folder, tmp_path / "banks", most)
    assert told["calls"] > 20
    assert told["wrong"] == []
    assert len(told["found"]) == min(most, told["calls"]) + most // 4
    assert {0, _IMAGES, 2 * _IMAGES} <= set(told["found"]) <= {0, _IMAGES, 2 * _IMAGES, 3 * _IMAGES}


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
    total = count_operations(lambda: render_benchmark(small.name, tmp_path / "0"), tmp_path)
    for number in range(1, total + 1):
        root = tmp_path / str(number)
        assert kill_before(number, lambda root=root: render_benchmark(small.name, root), tmp_path)
        assert not run_in_child(lambda root=root: render_benchmark(small.name, root))
        assert [path.name for path in root.iterdir()] == [small.name]
        assert len(list((root / small.name / "images").glob("*/*.png"))) == 6


def tree(folder: Path) -> dict[str, bytes]:
    """Files below a folder, without temporary ones; a workbook without the time at which it was made."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    shown = {str(name): path for name, path in found.items() if not any(part.startswith(".") for part in name.parts)}
    return {name: _cells(path) if path.suffix == ".xlsx" else path.read_bytes() for name, path in shown.items()}


def _cells(workbook: Path) -> bytes:
    with ZipFile(workbook) as parts:
        return b"".join(parts.read(name) for name in parts.namelist() if name != "docProps/core.xml")


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def test_an_image_folder_killed_at_any_file_operation_is_not_there(tmp_path: Path) -> None:
    """What `data pocket` writes."""
    for name in ("red disc", "blue disc"):
        for number in range(2):
            draw(tmp_path / "images" / name / f"{number}.png", name.split()[0], number)
    images = load_folder(tmp_path / "images")

    def write(number: int) -> None:
        write_folder(images, tmp_path / str(number) / "out")

    total = count_operations(lambda: write(0), tmp_path)
    assert total > len(images.items)
    expected = tree(tmp_path / "0")
    for number in range(1, total + 1):
        assert kill_before(number, lambda number=number: write(number), tmp_path)
        assert not (tmp_path / str(number) / "out").exists()
        assert not run_in_child(lambda number=number: write(number))
        assert tree(tmp_path / str(number)) == expected
        assert leftovers(tmp_path / str(number)) == []


def run_command(*arguments: object) -> None:
    """`slimprompt …`, in a forked child."""
    sys.argv = ["slimprompt", *map(str, arguments)]
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0


@pytest.mark.parametrize("old", [False, True])
def test_data_sample_killed_at_any_file_operation_leaves_the_old_manifest_or_none(
    photos: Path, tmp_path: Path, old: bool
) -> None:
    def sample(number: int, seed: int = 2) -> None:
        run_command("data", "sample", photos, "--shots", 2, "--seed", seed, "--out", tmp_path / str(number) / "m.json")

    total = count_operations(lambda: sample(0), tmp_path)
    expected = tree(tmp_path / "0")
    seen = set()
    for number in range(1, total + 1):
        (tmp_path / str(number)).mkdir()
        if old:
            assert not run_in_child(lambda number=number: sample(number, seed=1))
        before = tree(tmp_path / str(number))
        kill_before(number, lambda number=number: sample(number), tmp_path)
        after = tree(tmp_path / str(number))
        assert after in (before, expected)
        seen.add(after == before)
        assert not run_in_child(lambda number=number: sample(number))
        assert tree(tmp_path / str(number)) == expected
        assert leftovers(tmp_path / str(number)) == []
    assert True in seen


@pytest.mark.slow
def test_a_report_killed_at_any_file_operation_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    """Or, between the two renames, there is none; a second call makes the new one."""
    base = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "n_ctx": 8}
    for seed in (1, 2):
        write_run(tmp_path / "runs", base | {"variant": "dense", "seed": seed})
    old = build_report(tmp_path / "runs", PAPER)
    for seed in (1, 2):
        write_run(tmp_path / "runs", base | {"variant": "joint", "rank": 4, "seed": seed})
    new = build_report(tmp_path / "runs", PAPER)
    table_files(new.tables), render_report(new)  # children begin with loaded libraries and compiled templates
    out = tmp_path / "out"
    total = count_operations(lambda: write_report(new, out / "new"), out)
    assert not run_in_child(lambda: write_report(old, out / "old"))
    before, expected = tree(out / "old"), tree(out / "new")
    assert before["index.html"] != expected["index.html"]
    for number in [*chosen_operations(total, _MOST or 6, seed=0), total - 1, total]:
        folder = out / str(number)
        if not folder.exists():
            shutil.copytree(out / "old", folder)
        kill_before(number, lambda folder=folder: write_report(new, folder), out)
        assert not folder.exists() or tree(folder) in (before, expected)
        assert not run_in_child(lambda folder=folder: write_report(new, folder))
        assert tree(folder) == expected
        assert set(leftovers(out)) == {".contents"}


def test_a_file_killed_at_any_operation_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    target = files.write_file(tmp_path / "page.html", "old")
    total = count_operations(lambda: files.write_file(tmp_path / "other" / "page.html", "new"), tmp_path)
    assert total >= 3
    for number in range(1, total + 1):
        kill_before(number, lambda: files.write_file(target, "new"), tmp_path)
        assert target.read_text() in ("old", "new")
    files.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "page.html"]
