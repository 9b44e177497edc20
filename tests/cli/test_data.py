from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from slimprompt.cli.data import app
from slimprompt.data import few_shot, load_benchmark, load_folder, read_manifest
from slimprompt.errors import InputError


def run(*arguments: object, fails: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == fails, result.output
    return result


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The data root with the published benchmarks, read before `environment` hides it."""
    root = os.environ.get("SLIMPROMPT_DATA")
    if not root:
        pytest.skip("SLIMPROMPT_DATA is not set")
    return Path(root)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of this module's own, so that a benchmark is drawn once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(cache))
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    run("pocket", "pocket-negative", "--out", tmp_path / "pictures")
    return tmp_path / "pictures"


def test_pocket_writes_an_ordinary_image_folder(pictures: Path) -> None:
    assert sorted(path.name for path in pictures.iterdir()) == ["test", "train"]
    benchmark, drawn = load_folder(pictures), load_benchmark("pocket-negative")
    assert len(benchmark.class_names) == len(drawn.class_names)
    assert (len(benchmark.train), len(benchmark.test)) == (len(drawn.train), len(drawn.test))
    assert {name.replace("_", " ") for name in benchmark.class_names} == set(drawn.class_names)
    assert [path.name for path in pictures.parent.iterdir()] == ["pictures"], "nothing half-written is left"


def test_pocket_overwrites_nothing(pictures: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        run("pocket", "pocket-negative", "--out", pictures)
    with pytest.raises(InputError, match="dtd is not a drawn benchmark; the drawn ones are pocket-"):
        run("pocket", "dtd", "--out", pictures.parent / "other")


def test_list_fits_80_columns() -> None:
    lines = run("list").output.splitlines()
    table = lines[: lines.index("")]
    assert all(len(line) <= 80 for line in table)
    assert any(line.startswith("oxford_pets") and "no data root" in line and "CC BY-SA 4.0" in line for line in table)
    assert any(line.startswith("pocket-sketch") for line in table)


def test_list_says_what_is_here(data_root: Path) -> None:
    states = {line.split()[0]: line for line in run("list", "--data-root", data_root).output.splitlines() if line}
    assert "complete" in states["oxford_pets"]
    assert "8,189" in states["oxford_flowers"]


def test_list_half_a_benchmark(tmp_path: Path) -> None:
    split = {
        part: [[f"{label}/{part}.jpg", label, f"c{label}"] for label in range(47)] for part in ("train", "val", "test")
    }
    (tmp_path / "dtd" / "images" / "0").mkdir(parents=True)
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(split))
    assert "annotations only" in run("list", "--data-root", tmp_path).output
    (tmp_path / "dtd" / "images" / "0" / "train.jpg").touch()
    assert "1/141" in run("list", "--data-root", tmp_path).output
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text("{")
    assert "damaged" in run("list", "--data-root", tmp_path).output


def test_check_a_drawn_benchmark_and_a_folder(pictures: Path) -> None:
    output = run("check", "pocket-negative").output
    assert "20 classes" in output
    assert "1,040 images: train 480, val 80, test 480" in output
    assert "all present and readable" in output
    (pictures / "train" / "readme.txt").touch()
    output = run("check", pictures, "-v").output
    assert "1 other files ignored" in output
    assert "train  val  test" in output


def test_check_names_what_is_wrong(pictures: Path) -> None:
    first = sorted(pictures.glob("train/*/*.png"))[0]
    run("check", pictures, "--hashes", pictures.parent / "hashes.json")
    assert "the files are those of" in run("check", pictures, "--against", pictures.parent / "hashes.json").output
    first.write_bytes(first.read_bytes()[:100])
    result = run("check", pictures, fails=1)
    assert "1 unreadable:" in result.stderr
    assert str(first) in result.stderr
    assert "all present" not in result.output


def test_check_compares_with_hashes(pictures: Path) -> None:
    one, two = sorted(pictures.glob("train/*/*.png"))[:2]
    run("check", pictures, "--hashes", pictures.parent / "hashes.json")
    one.write_bytes(two.read_bytes())
    with pytest.raises(InputError, match=r"1 of 960 images .* are not the ones of the manifest"):
        run("check", pictures, "--against", pictures.parent / "hashes.json")


def test_draw_writes_a_manifest(tmp_path: Path) -> None:
    output = run("draw", "pocket-negative", "--shots", 25, "--seed", 2, "--out", tmp_path / "draw.json").output
    assert "25 shots, seed 2: 480 train and 80 val images of 20 classes" in output
    assert "has 24 images only, all are taken" in output
    manifest = read_manifest(tmp_path / "draw.json")
    draw = few_shot(load_benchmark("pocket-negative"), 25, seed=2)
    assert [item.path for item in manifest.train] == [item.path for item in draw.train]
    assert (manifest.shots, manifest.seed) == (25, 2)


def test_draw_before_any_picture_is_there(tmp_path: Path, data_root: Path) -> None:
    arguments = ("draw", "fgvc_aircraft", "--data-root", data_root, "--shots", 1, "--out", tmp_path / "draw.json")
    if not (data_root / "fgvc_aircraft" / "images").exists():
        with pytest.raises(InputError, match=r"200 of 200 images .*--no-hashes"):
            run(*arguments)
    run(*arguments, "--no-hashes")
    assert len(read_manifest(tmp_path / "draw.json").train) == 100


def test_a_split_of_our_own_is_noted(tmp_path: Path) -> None:
    for label in range(47):
        for number in range(4):
            path = tmp_path / "dtd" / "images" / f"class{label:02d}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    result = run("draw", "dtd", "--data-root", tmp_path, "--shots", 1)
    assert "note: DTD: split_zhou_DescribableTextures.json is not in" in result.stderr


def test_download_says_what_is_left_to_do(tmp_path: Path) -> None:
    result = run("download", "ucf101", "--data-root", tmp_path / "new", fails=1)
    assert "licence: none stated" in result.output
    assert "not done: the images of UCF101 cannot be fetched automatically" in result.stderr
    assert "by hand: Fetch the videos" in result.stderr
    assert "pocket-negative is drawn, not fetched" in run("download", "pocket-negative").output


def test_extract_midframes_needs_videos(tmp_path: Path) -> None:
    pytest.importorskip("av")
    with pytest.raises(InputError, match="no videos in"):
        run("extract-midframes", tmp_path, "--out", tmp_path / "frames")


def test_neither_a_benchmark_nor_a_folder() -> None:
    with pytest.raises(InputError, match="unknown benchmark 'oxford_pest'; did you mean 'oxford_pets'"):
        run("check", "oxford_pest")
