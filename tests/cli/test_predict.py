"""`slimprompt predict`: answers, "none of these", and the out-of-distribution score."""

import csv
import inspect
import io
import json
from pathlib import PureWindowsPath
from unittest.mock import Mock

import pytest
from PIL import Image

from slimprompt.cli.predict import predict
from slimprompt.errors import InputError
from tests.cli.conftest import QUICK, failed, ok
from tests.conftest import entries_of


@pytest.fixture(scope="module")
def models(run, photos, tmp_path_factory):
    """One prompt with calibration, one without."""
    root = tmp_path_factory.mktemp("models")
    fit = ("fit", photos, "--shots", 4, *QUICK, "--set", "epochs=20")
    out = ok(run(*fit, "--out", root / "calibrated"))
    assert "calibrated on 12 training images, held out in turn" in out and "temperature" in out
    ok(run(*fit, "--out", root / "plain", "--no-calibration"))
    return root


def predicted(run, model, photos, *options):
    return json.loads(ok(run("predict", model, photos, "--format", "json", *options)))


def test_calibration_is_stored_and_changes_no_answer(run, models, photos):
    stored = [entries_of(models / name) for name in ("calibrated", "plain")]
    assert stored[0]["temperature"] != 1.0 and len(stored[0]["confidences"]) == 12
    assert stored[1]["temperature"] == 1.0 and stored[1]["confidences"] == []
    calibrated, plain = (predicted(run, models / name, photos) for name in ("calibrated", "plain"))
    assert [row["answer"] for row in calibrated] == [row["answer"] for row in plain]
    assert [row["classes"][0]["probability"] for row in calibrated] != [
        row["classes"][0]["probability"] for row in plain
    ]


def test_an_image_below_the_confidence_is_none_of_these(run, models, photos):
    rows = predicted(run, models / "calibrated", photos)
    assert all(row["answer"] == row["classes"][0]["name"] and 0 < row["concept_match"] < 1 for row in rows)
    confidences = sorted(row["classes"][0]["probability"] for row in rows)
    middle = (confidences[8] + confidences[9]) / 2
    for row in predicted(run, models / "calibrated", photos, "--min-confidence", middle):
        best = row["classes"][0]
        assert row["answer"] == (best["name"] if best["probability"] >= middle else "none of these")
    table = ok(run("predict", models / "calibrated", photos, "--min-confidence", 1))
    assert table.count("none of these (best: ") == 18
    text = ok(run("predict", models / "calibrated", photos, "--min-confidence", 1, "--format", "csv", "--top", 2))
    parsed = list(csv.DictReader(io.StringIO(text)))
    assert len(parsed) == 36 and {row["answer"] for row in parsed} == {"none of these"}
    assert all(0 < float(row["concept_match"]) < 1 for row in parsed)


def test_coverage_takes_the_confidence_from_the_shots(run, models, photos):
    confidences = entries_of(models / "calibrated")["confidences"]
    by_coverage, by_confidence = (
        [row["answer"] for row in predicted(run, models / "calibrated", photos, *options)]
        for options in (("--coverage", 0.5), ("--min-confidence", confidences[5]))
    )
    assert by_coverage == by_confidence  # quantile 0.5 of twelve, the lower of the two in the middle
    assert "none of these" in by_coverage


def test_a_model_of_the_hub_keeps_its_name_on_windows(photos, tmp_path, monkeypatch):
    loaded = Mock(side_effect=InputError("no network"))
    monkeypatch.setattr("slimprompt.collections.predict.load_classifier", loaded)
    parameters = inspect.signature(predict).parameters.values()
    options = {one.name: getattr(one.default, "default", one.default) for one in parameters}
    for out in (None, tmp_path / "predictions.csv"):
        with pytest.raises(InputError, match="no network"):
            predict(**options | {"model": PureWindowsPath("hf:user/name"), "images": [photos], "out": out})
        assert loaded.call_args.args == ("hf:user/name",)


def test_bad_thresholds(run, models, photos):
    predict = ("predict", models / "calibrated", photos)
    failed(run(*predict, "--coverage", 0.9, "--min-confidence", 0.5), "give one of them")
    assert run(*predict, "--min-confidence", 1.5).returncode == 2
    failed(run("predict", models / "plain", photos, "--coverage", 0.9), "this model has none", "--min-confidence")
    failed(run(*predict, "--classes", "otter,badger", "--coverage", 0.9), "used on other classes")


def test_one_shot_says_that_it_is_not_calibrated(run, photos, tmp_path):
    out = ok(run("fit", photos, "--out", tmp_path / "p", "--shots", 1, *QUICK))
    assert "not calibrated: with one training image per class, none can be held out" in out


def test_a_temperature_that_does_not_help_is_not_used(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("slimprompt.calibration.useful_temperature", lambda *_: 1.0)
    out = ok(run("fit", photos, "--out", tmp_path / "p", "--shots", 4, *QUICK))
    assert "not calibrated: on the 12 training images that were held out in turn, no temperature improves" in out


def test_unreadable_images_and_those_too_narrow_are_skipped(run, models, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200_000)
    (tmp_path / "text.png").write_text("hello")
    Image.new("RGB", (2000, 1)).save(tmp_path / "strip.png")
    good = photos / "red disc" / "0.png"
    result = run("predict", models / "plain", good, tmp_path / "strip.png")
    assert result.returncode == 1 and "2000 × 1 pixels are too narrow" in result.stderr and "red disc" in result.stdout
    result = run("predict", models / "plain", good, tmp_path, "--skip-bad-images", "--format", "json")
    assert len(json.loads(ok(result))) == 1
    assert "2 unreadable images skipped" in result.stderr
    assert "strip.png" in result.stderr and "text.png" in result.stderr, "the first few are named"


def test_one_class_name_is_an_error(run, models, photos):
    for text in ("cat; dog", "otter"):
        message = (
            f"--classes {text!r} holds one class name, and a classifier needs at least two: give comma-separated names"
        )
        failed(run("predict", models / "plain", photos, "--classes", text), message)
        failed(run("export", models / "plain", "--matrix", "m.safetensors", "--classes", text), message)


@pytest.mark.parametrize("given", ["list.csv", "*.png", "{a,b}.png", "x.parquet", "x.tar"])
def test_lists_and_patterns_need_out(run, models, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    for name in ("list.csv", "x.parquet", "x.tar"):
        (tmp_path / name).touch()
    failed(run("predict", models / "plain", given), f"{given} is not an image file or a folder", "need --out,")
