"""A tiny model in a folder and two small image collections: a whole study on them takes seconds, in any process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from slimprompt.experiments.run import Execution
from slimprompt.experiments.spec import RunSpec
from slimprompt.experiments.studies import Grid, make_grid
from tests.conftest import TINY_CONFIG, draw

PREPROCESS = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}
COLOURS = {
    "warm": ("red", "orange", "yellow", "brown", "pink"),
    "cold": ("blue", "green", "cyan", "purple"),
}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a backbone that every process can load: open_clip's own folder format, with random weights."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = open_clip.CLIP(**TINY_CONFIG)
    config = {"model_cfg": TINY_CONFIG, "preprocess_cfg": PREPROCESS}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    return f"local-dir:{folder}"


@pytest.fixture(scope="session")
def collections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two folders train/<class>/<image> and test/<class>/<image>: five warm and four cold colours."""
    root = tmp_path_factory.mktemp("collections")
    for name, colours in COLOURS.items():
        for colour in colours:
            for number in range(9):
                part = "train" if number < 5 else "test"
                draw(root / name / part / f"{colour} disc" / f"{number}.png", colour, number)
    return {name: str(root / name) for name in COLOURS}


@pytest.fixture
def execution(tmp_path: Path) -> Execution:
    return Execution(runs=tmp_path / "runs", device="cpu")


@pytest.fixture
def run_spec(tiny_folder: str, collections: dict[str, str]) -> Callable[..., RunSpec]:
    """A spec on the tiny model; by default joint, rank 2, warm colours, 2 shots, seed 1, a few epochs."""

    def make(**fields: Any) -> RunSpec:
        default = {"backbone": tiny_folder, "dataset": collections["warm"], "shots": 2, "seed": 1, "n_ctx": 4}
        how = {"variant": "joint", "rank": 2, "recipe": {"epochs": 3, "views": 2, "batch_size": 4}}
        chosen = {**default, **how, **fields}
        if chosen["variant"] == "dense":
            chosen["rank"] = None
        return RunSpec(**chosen)

    return make


@pytest.fixture
def small_grid(tiny_folder: str, collections: dict[str, str]) -> Callable[..., Grid]:
    """A grid on the tiny model that has every kind of run."""

    def make(**fields: Any) -> Grid:
        axes = {
            "backbones": [tiny_folder],
            "datasets": list(collections.values()),
            "shots": [1, 2],
            "seeds": [1],
            "ranks": [2],
            "bases": ["orthogonal", "learned"],
            "n_ctx": 4,
            "short_ctx": 2,
            "recipe": {"epochs": 3, "views": 2, "batch_size": 4},
        }
        return make_grid({**axes, **fields})

    return make


def fingerprints(runs: Path) -> dict[str, dict[str, str]]:
    """Run → hash of each file that must be the same whenever and wherever a spec is run."""
    found: dict[str, dict[str, str]] = {}
    for folder in sorted(path for path in runs.iterdir() if not path.name.startswith(".")):
        record = json.loads((folder / "record.json").read_text())
        assert record["status"] == "complete", record.get("error")
        hashes = {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in ("factors.safetensors", "manifest.json", "curve.csv")
        }
        found[folder.name] = {**hashes, "metrics": json.dumps(record["metrics"], sort_keys=True)}
    return found


def run_folders(runs: Path) -> list[str]:
    """What stands in a runs folder, drafts included, but for the writers' lock."""
    return sorted(path.name for path in runs.iterdir() if path.name != ".lock")
