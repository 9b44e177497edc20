from __future__ import annotations

import json
import shutil
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


@pytest.fixture(autouse=True)
def _environment(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(shared_cache))  # with rendered benchmarks
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)


@pytest.fixture
def folder(collections: dict[str, str], tmp_path: Path) -> Path:
    """45 images, train|test/<class>/<image>."""
    return shutil.copytree(collections["warm"], tmp_path / "images")


def test_pocket_writes_an_ordinary_image_folder(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    run("pocket", "pocket-negative", "--out", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["test", "train"]
    benchmark, rendered = load_folder(folder), load_benchmark("pocket-negative")
    assert len(benchmark.class_names) == len(rendered.class_names)
    assert (len(benchmark.train), len(benchmark.test)) == (len(rendered.train), len(rendered.test))
    assert {name.replace("_", " ") for name in benchmark.class_names} == set(rendered.class_names)
    assert [path.name for path in folder.parent.iterdir()] == ["images"], "no temporary files are left"


def test_pocket_does_not_overwrite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="already exists"):
        run("pocket", "pocket-negative", "--out", folder)
    with pytest.raises(InputError, match="dtd is not a rendered benchmark; the rendered ones are pocket-"):
        run("pocket", "dtd", "--out", folder.parent / "other")
    (folder.parent / "empty").mkdir()
    monkeypatch.chdir(folder.parent / "empty")
    with pytest.raises(InputError, match="is the current folder; give the name of a new one"):
        run("pocket", "pocket-negative", "--out", ".")


def test_list_fits_80_columns() -> None:
    lines = run("list").output.splitlines()
    table = lines[: lines.index("")]
    assert all(len(line) <= 80 for line in table)
    assert any(line.startswith("oxford_pets") and "no data root" in line and "CC BY-SA 4.0" in line for line in table)
    assert any(line.startswith("pocket-sketch") for line in table)
    rows = {row["benchmark"]: row for row in json.loads(run("list", "--format", "json").output)}
    assert rows["oxford_pets"]["images"] == 7349 and rows["oxford_pets"]["state"] == "no data root"


def test_list_shows_the_state(data_root: Path) -> None:
    states = {line.split()[0]: line for line in run("list", "--data-root", data_root).output.splitlines() if line}
    assert "complete" in states["oxford_pets"]
    assert "8,189" in states["oxford_flowers"]


def test_list_shows_incomplete_benchmarks(tmp_path: Path) -> None:
    entries = {
        split: [[f"{label}/{split}.jpg", label, f"c{label}"] for label in range(47)]
        for split in ("train", "val", "test")
    }
    (tmp_path / "dtd" / "images" / "0").mkdir(parents=True)
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(entries))
    assert "no images" in run("list", "--data-root", tmp_path).output
    (tmp_path / "dtd" / "images" / "0" / "train.jpg").touch()
    assert "1/141" in run("list", "--data-root", tmp_path).output
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text("{")
    assert "damaged" in run("list", "--data-root", tmp_path).output


def test_check_a_rendered_benchmark_and_a_folder(folder: Path) -> None:
    output = run("check", "pocket-negative").output
    assert "20 classes" in output
    assert "1,040 images: train 480, val 80, test 480" in output
    assert "all images exist and are readable" in output
    (folder / "train" / "readme.txt").touch()
    output = run("check", folder, "-v").output
    assert "1 other files ignored" in output
    assert "train  val  test" in output


def test_check_lists_unreadable_images(folder: Path) -> None:
    first = sorted(folder.glob("train/*/*.png"))[0]
    run("check", folder, "--hashes", folder.parent / "hashes.json")
    assert "the files match" in run("check", folder, "--against", folder.parent / "hashes.json").output
    first.write_bytes(first.read_bytes()[:100])
    result = run("check", folder, fails=1)
    assert "1 unreadable:" in result.stderr
    assert str(first) in result.stderr
    assert "all images exist" not in result.output


def test_check_compares_with_hashes(folder: Path) -> None:
    one, two = sorted(folder.glob("train/*/*.png"))[:2]
    run("check", folder, "--hashes", folder.parent / "hashes.json")
    one.write_bytes(two.read_bytes())
    with pytest.raises(InputError, match=r"1 of 45 images .* differ from those of the manifest"):
        run("check", folder, "--against", folder.parent / "hashes.json")


def test_check_finds_images_that_were_added(folder: Path, tmp_path: Path) -> None:
    run("check", folder, "--hashes", tmp_path / "hashes.json")
    run("sample", folder, "--shots", 1, "--out", tmp_path / "sample.json")
    one = sorted(folder.glob("train/*/*.png"))[0]
    one.with_name("added.png").write_bytes(one.read_bytes())
    with pytest.raises(InputError, match=r"1 of 46 images in .* are not in the manifest: train/.*/added\.png"):
        run("check", folder, "--against", tmp_path / "hashes.json")
    output = run("check", folder, "--against", tmp_path / "sample.json").output
    assert "sample.json match; the others were not compared" in " ".join(output.split())


def test_sample_writes_a_manifest(tmp_path: Path) -> None:
    output = run("sample", "pocket-negative", "--shots", 25, "--seed", 2, "--out", tmp_path / "sample.json").output
    assert "25 shots, seed 2: 480 train and 80 val images of 20 classes" in output
    assert "only 24 images, all are used" in output
    manifest = read_manifest(tmp_path / "sample.json")
    sample = few_shot(load_benchmark("pocket-negative"), 25, seed=2)
    assert [item.path for item in manifest.train] == [item.path for item in sample.train]
    assert (manifest.shots, manifest.seed) == (25, 2)


def test_sample_without_images(tmp_path: Path, data_root: Path) -> None:
    arguments = ("sample", "fgvc_aircraft", "--data-root", data_root, "--shots", 1, "--out", tmp_path / "sample.json")
    if not (data_root / "fgvc_aircraft" / "images").exists():
        with pytest.raises(InputError, match=r"200 of 200 images .*--no-hashes"):
            run(*arguments)
    run(*arguments, "--no-hashes")
    assert len(read_manifest(tmp_path / "sample.json").train) == 100


def test_download_prints_the_manual_steps(tmp_path: Path) -> None:
    result = run("download", "ucf101", "--data-root", tmp_path / "new", fails=1)
    assert "licence: none stated" in result.output
    assert "failed: the images of UCF101 cannot be downloaded automatically" in result.stderr
    assert "by hand: Download the videos" in result.stderr
    assert "pocket-negative is rendered, not downloaded" in run("download", "pocket-negative").output


def test_extract_midframes_needs_videos(tmp_path: Path) -> None:
    pytest.importorskip("av")
    with pytest.raises(InputError, match="no videos in"):
        run("extract-midframes", tmp_path, "--out", tmp_path / "frames")


def test_unknown_benchmark_or_folder() -> None:
    with pytest.raises(InputError, match="unknown benchmark 'oxford_pest'; did you mean 'oxford_pets'"):
        run("check", "oxford_pest")
