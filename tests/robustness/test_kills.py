"""Commands are killed before each of their file operations; what they leave is complete, and running them again ends well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slimprompt.paper.studies import Grid

pytestmark = pytest.mark.slow


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
