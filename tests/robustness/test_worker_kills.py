"""Studies with worker processes and with Ray, in which workers, the study itself or a raylet are killed at file operations.

A seeded sample of the operations is taken; `SLIMPROMPT_KILLS=10 pytest tests/robustness/test_worker_kills.py` takes more of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slimprompt.paper.studies import Grid
from tests.conftest import QUICK_HEALTH_CHECKS
from tests.robustness.kills import run_campaign

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").exists(), reason="whether workers have ended is looked up in /proc"),
]
_KILLS = int(os.environ.get("SLIMPROMPT_KILLS", "0"))
_needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="the package ray is not installed: pip install 'slimprompt[ray]'",
)


@pytest.mark.parametrize(
    ("executor", "victim", "kills"),
    [
        ("processes", "worker", 6),
        ("processes", "study", 6),
        pytest.param("ray", "worker", 1, marks=_needs_ray),
        pytest.param("ray", "study", 1, marks=_needs_ray),
        pytest.param("ray", "raylet", 1, marks=_needs_ray),
    ],
)
def test_the_runs_are_those_of_an_undisturbed_study(
    executor: str,
    victim: str,
    kills: int,
    small_grid: Callable[..., Grid],
    collections: dict[str, str],
    tmp_path: Path,
) -> None:
    # A worker outlives its raylet until that is missed, and can make some short runs meanwhile.
    long = victim == "raylet"
    recipe = {"epochs": 60 if long else 2, "views": 2, "batch_size": 4}
    axes = {"datasets": [collections["warm"]], "shots": [2], "ranks": [1, 2, 3, 4], "seeds": [1] if long else [1, 2]}
    grid = small_grid(study="rank-sweep", recipe=recipe, **axes)
    (tmp_path / "grid.json").write_text(grid.model_dump_json())
    variables = {"PYTHONPATH": os.pathsep.join(sys.path)}
    variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    variables |= {"RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 2})}  # two workers on any machine
    places = (tmp_path / "grid.json", tmp_path)
    chosen = (executor, victim, _KILLS or kills)
    told = run_campaign(
        "tests.robustness.kill_workers", *places, *chosen, environment=os.environ | variables | QUICK_HEALTH_CHECKS
    )
    assert len(told["kills"]) == (_KILLS or kills)
    assert told["wrong"] == {}
    if victim == "raylet":
        # 0: its worker finished the runs before the raylet was missed; they were compared like all others.
        assert set(told["codes"]) <= {0, 1}
