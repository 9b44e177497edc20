"""Every command reads the images of a published benchmark as CoOp does, and those of a folder upright."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from slimprompt.cli import app
from slimprompt.data import BENCHMARKS, base_new, few_shot, load_benchmark, load_folder
from slimprompt.images.store import cached_banks
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.run import LoadedInputs, make_run
from slimprompt.lab.spec import RunSpec
from tests.conftest import draw

# The split is smaller than the published one, which is a warning.
pytestmark = pytest.mark.filterwarnings("ignore:EuroSAT")


@pytest.fixture
def eurosat(tmp_path: Path) -> Path:
    """A data root with a small EuroSAT: 10 classes of 2 train, 1 val and 2 test images, each rotated by EXIF."""
    folder = tmp_path / "root" / "eurosat"
    split: dict[str, list[list[object]]] = {"train": [], "val": [], "test": []}
    for label in range(10):
        for number, name in enumerate(["train", "train", "val", "test", "test"]):
            path = f"{label}/{number}.jpg"
            with Image.open(draw(folder / "2750" / path, "red", 5 * label + number)) as image:
                exif = image.getexif()
                exif[0x0112] = 6
                image.save(folder / "2750" / path, exif=exif)
            split[name].append([path, label, f"land {label}"])
    (folder / "split_zhou_EuroSAT.json").write_text(json.dumps(split))
    return folder.parent


def stored_views() -> set[str]:
    """Names of the views in the only bank of the cache, with how their images were read."""
    (bank,) = cached_banks()
    with closing(sqlite3.connect(bank.path)) as database:
        return {row[0] for row in database.execute("SELECT DISTINCT view FROM features")}


def run_command(*arguments: object) -> None:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


def test_published_benchmarks_are_plain_and_all_others_upright(eurosat: Path, photos: Path) -> None:
    assert {info.decode for info in BENCHMARKS.values() if not info.rendered} == {"plain"}
    assert {info.decode for info in BENCHMARKS.values() if info.rendered} == {"upright"}
    benchmark = load_benchmark("eurosat", eurosat)
    sample = few_shot(benchmark, 1, 1)
    assert {part.decode for part in (benchmark, sample, *base_new(sample))} == {"plain"}
    assert load_folder(photos).decode == "upright"


def test_fit_and_evaluate(eurosat: Path, photos: Path, tmp_path: Path) -> None:
    out, where = tmp_path / "prompt", ("--benchmark", "eurosat", "--data-root", eurosat, "--device", "cpu")
    run_command(
        "fit", *where, "--backbone", "pocket", "--out", out, "--shots", 1, "--set", "epochs=2", "--set", "views=2"
    )
    names = stored_views()
    assert names > {"plain:"}
    assert all(name.startswith("plain:") for name in names)
    run_command("evaluate", out, *where)
    assert stored_views() == names
    run_command("evaluate", out, photos, "--device", "cpu")
    assert stored_views() == names | {"upright:"}


def test_a_run(eurosat: Path, run_spec: Callable[..., RunSpec], tmp_path: Path) -> None:
    environment = RunEnvironment(runs=tmp_path / "runs", device="cpu", data_root=eurosat)
    record = make_run(run_spec(dataset="eurosat", class_subset="base", shots=1), LoadedInputs(environment))
    assert record.error is None
    names = stored_views()
    assert names == {"plain:", "plain:1/0", "plain:1/1"}
