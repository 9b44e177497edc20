"""Commands are killed before each of their file operations; what they leave is complete, and running them again ends well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slimprompt import storage
from slimprompt.errors import InputError
from slimprompt.paper.studies import Grid
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS, PocketBenchmark, render_benchmark
from slimprompt.saved.prompt import PROMPT_FILES, read_prompt, write_prompt
from tests.robustness.kills import count_operations, kill_before, run_in_child
from tests.saved.test_prompt import ENTRIES, prompt


@pytest.mark.slow
@pytest.mark.parametrize("prompt_batch", [4, 1])
def test_a_study_killed_at_any_file_operation_gives_equal_bytes(
    small_grid: Callable[..., Grid], collections: dict[str, str], tmp_path: Path, prompt_batch: int
) -> None:
    """Also with prompts that converge, and then leave their batch, at different times."""
    recipe = {"epochs": 6, "views": 2, "batch_size": 4, "lr": 0.05, "tolerance": 0.3, "patience": 2}
    grid = small_grid(study="rank-sweep", datasets=[collections["warm"]], shots=[2], ranks=[1, 2, 3, 4], recipe=recipe)
    (tmp_path / "grid.json").write_text(grid.model_dump_json())
    command = [sys.executable, "-m", "tests.robustness.kill_study", str(tmp_path / "grid.json"), str(tmp_path)]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    most = 1000 if prompt_batch > 1 else 20
    done = subprocess.run(
        [*command, str(prompt_batch), str(most)], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] == min(told["operations"], most) > 10
    assert told["differs"] == {}


@pytest.mark.parametrize("target", ["new", "empty", "old", "linked"])
def test_a_save_killed_at_any_file_operation_leaves_the_old_or_the_new_prompt(tmp_path: Path, target: str) -> None:
    """Everything runs in children, because a process removes the leftovers of others in a folder once."""

    def prepare(folder: Path) -> Path:
        real = folder / "real"
        if target == "new":
            return folder / "prompt"
        real.mkdir(parents=True)
        if target != "empty":
            assert not run_in_child(lambda: write_prompt(real, ENTRIES, prompt()))
            (real / "notes.txt").write_text("mine")
        if target == "linked":
            (folder / "prompt").symlink_to("real")
        return folder / ("prompt" if target == "linked" else "real")

    def save(folder: Path) -> None:
        PROMPT_FILES.check_free(folder, overwrite=True)
        write_prompt(folder, ENTRIES | {"seed": 2}, prompt(1))

    undisturbed = prepare(tmp_path / "0")
    total = count_operations(lambda: save(undisturbed), tmp_path)
    assert total >= 5
    seen = set()
    for number in range(1, total + 1):
        out = prepare(tmp_path / str(number))
        assert kill_before(number, lambda out=out: save(out), tmp_path)
        if target in ("old", "linked") or (out / "prompt.safetensors").exists():
            seen.add(read_prompt(out).description.seed)
        else:
            with pytest.raises(InputError, match="no saved prompt"):
                read_prompt(out)
        assert not run_in_child(lambda out=out: save(out))  # the same command again
        assert read_prompt(out).description.seed == 2
        kept = ["notes.txt"] if target in ("old", "linked") else []
        assert sorted(path.name for path in out.iterdir()) == [*kept, "prompt.json", "prompt.safetensors"]
        expected = {"linked": ["prompt", "real"], "new": ["prompt"]}.get(target, ["real"])
        assert sorted(path.name for path in out.parent.iterdir()) == expected
    assert seen == {"new": set(), "empty": {2}, "old": {1, 2}, "linked": {1, 2}}[target]


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


def test_a_file_killed_at_any_operation_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    target = storage.write_file(tmp_path / "page.html", "old")
    total = count_operations(lambda: storage.write_file(tmp_path / "other" / "page.html", "new"), tmp_path)
    assert total >= 3
    for number in range(1, total + 1):
        kill_before(number, lambda: storage.write_file(target, "new"), tmp_path)
        assert target.read_text() in ("old", "new")
    storage.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "page.html"]
