"""Collections are predicted as a few images are, once each, whatever happens in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from slimprompt import load_classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.collections.inputs import open_collection
from slimprompt.collections.parts import FinishedPart, Part, PartsFolder
from slimprompt.collections.predict import Advance, LocalPredictor, PredictionSpec, Summary, predict_collection
from slimprompt.errors import InputError
from tests.robustness.kills import count_operations, kill_before, run_campaign, run_in_child


def predict(
    spec: PredictionSpec, given: object, target: Path, *, overwrite: bool = False, stop_after: int | None = None
) -> Summary:
    """Predict in parts of four images; with `stop_after`, as if stopped after that many parts."""
    made = Stopping(spec, stop_after) if stop_after is not None else LocalPredictor(spec)
    return predict_collection(open_collection([str(given)]), target, lambda: made, overwrite=overwrite, part_size=4)


class Stopping(LocalPredictor):
    """Is interrupted after some parts."""

    def __init__(self, spec: PredictionSpec, after: int) -> None:
        super().__init__(spec)
        self._after = after

    def predict_parts(self, parts: Iterator[Part], advance: Advance) -> Iterator[FinishedPart]:
        for number, part in enumerate(super().predict_parts(parts, advance)):
            if number == self._after:
                raise KeyboardInterrupt
            yield part


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that were encoded."""
    sizes: list[int] = []
    real = Backbone.encode_images
    monkeypatch.setattr(
        Backbone, "encode_images", lambda self, pixels: (sizes.append(len(pixels)), real(self, pixels))[1]
    )
    return sizes


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["prompt", "head"])
def test_probabilities_are_those_of_the_classifier(
    kind: str, models: Path, images: Path, paths: list[Path], tmp_path: Path
) -> None:
    """Up to 5e-5: batches of other sizes differ by float rounding, and rows are rounded to six digits."""
    spec = PredictionSpec(str(models / kind), top=3, device="cpu", batch_size=4)
    predict(spec, images, tmp_path / "p.jsonl")
    classifier = load_classifier(models / kind, device="cpu")
    features = classifier.encode(paths)
    expected, matches = classifier.probabilities(features), classifier.concept_match(features)
    found = rows(tmp_path / "p.jsonl")
    assert [row["image"] for row in found] == [str(path) for path in paths]
    for row, probabilities, match in zip(found, expected, matches, strict=True):
        by_name = {one["name"]: one["probability"] for one in row["classes"]}
        mine = [by_name[str(name)] for name in classifier.classes_]
        assert np.abs(np.array(mine) - probabilities).max() < 5e-5 and abs(row["concept_match"] - match) < 5e-5
        assert row["answer"] == row["classes"][0]["name"] == classifier.classes_[probabilities.argmax()]


def test_a_row_does_not_depend_on_the_other_images(spec: PredictionSpec, images: Path, tmp_path: Path) -> None:
    predict(spec, images, tmp_path / "all.jsonl")
    predict(spec, sorted(images.iterdir())[1], tmp_path / "some.jsonl")
    assert rows(tmp_path / "some.jsonl") == rows(tmp_path / "all.jsonl")[6:12]


def test_unreadable_images_are_rows(
    spec: PredictionSpec, images: Path, paths: list[Path], tmp_path: Path, encoded: list[int]
) -> None:
    mixed = shutil.copytree(images, tmp_path / "mixed")
    good = sorted(mixed.rglob("*.png"))
    good[1].write_bytes(paths[1].read_bytes()[:100])
    (mixed / "a text.jpg").write_text("hello")
    (mixed / "gone.png").symlink_to("nothing")
    Image.new("RGB", (40_000, 1)).save(mixed / "strip.png")
    summary = predict(spec, mixed, tmp_path / "p.jsonl")
    assert (summary.answers.total(), summary.answers[None], summary.predicted, summary.failed) == (21, 4, 17, 4)
    bad = {Path(row["image"]).name: row for row in rows(tmp_path / "p.jsonl") if row["error"]}
    assert set(bad) == {"a text.jpg", "gone.png", "strip.png", good[1].name}
    assert "it is not an image" in bad["a text.jpg"]["error"]
    assert "no such image" in bad["gone.png"]["error"] and "too narrow" in bad["strip.png"]["error"]
    assert all(row["answer"] is None and row["classes"] == [] for row in bad.values())
    assert predict(spec, images, tmp_path / "q.jsonl").failed == 0
    clean = [row for row in rows(tmp_path / "q.jsonl") if row["image"] != str(paths[1])]
    found = [row for row in rows(tmp_path / "p.jsonl") if not row["error"]]
    for row, expected in zip(found, clean, strict=True):  # on some processors, rounding depends on the place in a batch
        assert row["answer"] == expected["answer"]
        assert [one["name"] for one in row["classes"]] == [one["name"] for one in expected["classes"]]
        numbers, right = (
            [one["concept_match"], *(each["probability"] for each in one["classes"])] for one in (row, expected)
        )
        assert numbers == pytest.approx(right, abs=2e-6)
    assert set(encoded) == {4}


def test_a_folder_and_a_file_hold_the_same_rows(spec: PredictionSpec, images: Path, tmp_path: Path) -> None:
    in_folder, in_file = predict(spec, images, tmp_path / "p"), predict(spec, images, tmp_path / "p.parquet")
    assert in_folder.answers == in_file.answers and in_folder.predicted == in_file.predicted == 18
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "p"), pd.read_parquet(tmp_path / "p.parquet"))


def test_finished_parts_are_not_repeated(
    spec: PredictionSpec, images: Path, tmp_path: Path, encoded: list[int]
) -> None:
    undisturbed = predict(spec, images, tmp_path / "undisturbed")
    assert encoded == [4] * 5  # the last of five parts has two images
    target = tmp_path / "p"
    with pytest.raises(KeyboardInterrupt):
        predict(spec, images, target, stop_after=3)
    assert PartsFolder(target).numbers() == [0, 1, 2] and not (target / "_SUCCESS").exists()
    encoded.clear()
    summary = predict(spec, images, target)
    assert encoded == [4] * 2 and summary.predicted == 6 and summary.answers == undisturbed.answers
    assert files(target) == files(tmp_path / "undisturbed")
    again = predict(spec, images, target)  # complete: nothing is left to do
    assert encoded == [4] * 2 and again.predicted == 0 and again.answers == undisturbed.answers
    assert files(target) == files(tmp_path / "undisturbed")


@pytest.mark.parametrize("change", ["added last", "added first", "changed", "removed"])
@pytest.mark.parametrize("finished", [True, False])
def test_images_that_change_in_between_are_predicted_again(
    change: str, finished: bool, spec: PredictionSpec, images: Path, tmp_path: Path
) -> None:
    folder, target = shutil.copytree(images, tmp_path / "images"), tmp_path / "p"
    if finished:
        predict(spec, folder, target)
    else:
        with pytest.raises(KeyboardInterrupt):
            predict(spec, folder, target, stop_after=3)
    some = sorted(folder.rglob("*.png"))
    if change.startswith("added"):
        shutil.copy(some[8], folder / ("zz.png" if change == "added last" else "a.png"))
    elif change == "changed":
        shutil.copy(some[17], some[5])
    else:
        some[9].unlink()
    if change == "added first":  # nothing can be used
        before = files(target)
        with pytest.raises(InputError, match=r"predictions of other images, or all images have changed.*--overwrite"):
            predict(spec, folder, target)
        assert set(files(target)) == set(before) - {"_SUCCESS"}
        summary = predict(spec, folder, target, overwrite=True)
    else:
        summary = predict(spec, folder, target)
    reused = {"added last": 16 if finished else 12, "added first": 0, "changed": 14 if finished else 8, "removed": 8}
    assert summary.predicted == summary.answers.total() - reused[change]
    predict(spec, folder, tmp_path / "undisturbed")
    assert files(target) == files(tmp_path / "undisturbed")


def test_another_model_or_option_is_refused(spec: PredictionSpec, models: Path, images: Path, tmp_path: Path) -> None:
    target = tmp_path / "p"
    with pytest.raises(KeyboardInterrupt):
        predict(spec, images, target, stop_after=2)
    with pytest.raises(InputError, match="another top: "):
        predict(replace(spec, top=2), images, target)
    with pytest.raises(InputError, match="another lowest confidence: "):
        predict(replace(spec, min_confidence=0.9), images, target)
    with pytest.raises(InputError, match="another classes: "):
        predict(replace(spec, classes=("red circle", "blue star")), images, target)
    with pytest.raises(InputError, match="another model"):
        predict(replace(spec, model=str(models / "head")), images, target)
    assert PartsFolder(target).numbers() == [0, 1]
    assert predict(replace(spec, top=2), images, target, overwrite=True).predicted == 18


def test_an_existing_file_is_only_overwritten_on_request(
    spec: PredictionSpec, images: Path, tmp_path: Path, encoded: list[int]
) -> None:
    target = tmp_path / "p.csv"
    target.write_text("mine")
    with pytest.raises(InputError, match=r"p\.csv exists already; .*--overwrite"):
        predict(spec, images, target)
    assert not encoded
    with pytest.raises(KeyboardInterrupt):
        predict(spec, images, target, overwrite=True, stop_after=2)
    assert target.read_text() == "mine" and [path.name for path in tmp_path.iterdir()] == ["p.csv"]
    assert predict(spec, images, target, overwrite=True).predicted == 18
    assert target.read_text() != "mine"


def test_inputs_and_other_files_are_never_overwritten(
    spec: PredictionSpec, images: Path, paths: list[Path], tmp_path: Path
) -> None:
    table = tmp_path / "list.csv"
    table.write_text(f"path\n{paths[0]}\n")
    with pytest.raises(InputError, match=r"list\.csv is one of the inputs"):
        predict(spec, table, table, overwrite=True)
    assert table.read_text().startswith("path")
    before = sorted(images.rglob("*"))
    with pytest.raises(InputError, match="which `slimprompt predict` has not written"):
        predict(spec, images, images, overwrite=True)
    assert sorted(images.rglob("*")) == before


def test_a_second_command_with_the_same_folder_is_refused(spec: PredictionSpec, images: Path, tmp_path: Path) -> None:
    target = tmp_path / "p"

    def while_another_runs() -> LocalPredictor:
        with pytest.raises(InputError, match=r"another command is writing .*p"):
            predict(spec, images, target)
        return LocalPredictor(spec)

    assert predict_collection(open_collection([images]), target, while_another_runs).predicted == 18


def test_parts_that_finish_in_another_order_are_written_in_order(
    spec: PredictionSpec, images: Path, tmp_path: Path
) -> None:
    class Reversing(LocalPredictor):
        def predict_parts(self, parts: Iterator[Part], advance: Advance) -> Iterator[FinishedPart]:
            yield from reversed(list(super().predict_parts(parts, advance)))

    predict(spec, images, tmp_path / "p.csv")
    collection = open_collection([images])
    predict_collection(collection, tmp_path / "reversed.csv", lambda: Reversing(spec), part_size=4)
    assert (tmp_path / "reversed.csv").read_bytes() == (tmp_path / "p.csv").read_bytes()


def visible(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name[0] != "."}


def kill_predict(model: str, images: Path, folder: Path, old: bool) -> tuple[int, list[int], list[int]]:
    """Kill the prediction of five parts before each of its file operations, and resume it.

    With `old`, the folder has the parts of a command with other options, which are discarded. Returns the number of operations, how
    many parts were finished after each kill, and the kills after which other parts than the unfinished ones were encoded, or the files
    are not those of an undisturbed command.
    """
    spec = PredictionSpec(model, device="cpu", batch_size=4)
    predictor, other = LocalPredictor(spec, workers=1), LocalPredictor(replace(spec, top=2), workers=1)
    collection = open_collection([images])

    def new_place(number: int) -> Path:
        return Path(shutil.copytree(folder / "before", folder / str(number)))

    def predict(place: Path, overwrite: bool = old) -> None:
        predict_collection(collection, place / "p", lambda: predictor, overwrite=overwrite, part_size=4)

    def resume(place: Path, unfinished: int, overwrite: bool) -> None:
        calls: list[int] = []
        predictor._backbone.model.visual.conv1.register_forward_pre_hook(lambda *_: calls.append(1))
        predict(place, overwrite)
        assert len(calls) == unfinished, (len(calls), unfinished)

    (folder / "before").mkdir()
    if old:
        predict_collection(collection, folder / "before" / "p", lambda: other, part_size=4)
    undisturbed = new_place(0)
    total = count_operations(partial(predict, undisturbed), undisturbed)
    expected, finished, wrong = visible(undisturbed), [], []
    for number in range(1, total + 1):
        place = new_place(number)
        assert kill_before(number, partial(predict, place), place)
        left = visible(place)
        finished.append(sum(file.startswith("part-") and left[file] == expected.get(file) for file in left))
        asked = old and left["_manifest.json"] != expected["_manifest.json"]  # nothing was done yet
        assert not run_in_child(partial(resume, place, 5 - finished[-1], asked))
        if visible(place) != expected or [path.name for path in place.iterdir()] != ["p"]:
            wrong.append(number)
    return total, finished, wrong


@pytest.mark.slow
@pytest.mark.parametrize("old", [False, True])
def test_a_kill_before_any_file_operation_changes_nothing(
    old: bool, models: Path, images: Path, tmp_path: Path
) -> None:
    operations, finished, wrong = run_campaign(kill_predict, str(models / "prompt"), images, tmp_path, old)
    assert operations > 20 and wrong == []
    assert set(finished) == set(range(6))
