"""Kills the prediction of a collection before each of its file operations, and resumes it.

    python -m tests.collections.kill_predict <model> <images> <folder>

Prints one JSON object with an entry for a new folder, and one for a folder with the parts of a command with other options, which are
discarded: the number of file operations; how many parts were finished after the kills; and the kills after which the resumed command
encoded other parts than the unfinished ones, or did not give the files of an undisturbed one.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from slimprompt.collections.inputs import open_collection
from slimprompt.collections.predict import LocalPredictor, PredictionSpec, predict_collection
from tests.robustness.kills import count_operations, kill_before, run_in_child

_PART = 4


def main() -> None:
    """Kill and resume."""
    model, images, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spec = PredictionSpec(model, device="cpu", batch_size=_PART)
    predictor, other = LocalPredictor(spec, workers=1), LocalPredictor(replace(spec, top=2), workers=1)
    collection = open_collection([images])
    n_parts = math.ceil(sum(1 for _ in collection) / _PART)

    def predict(place: Path, *, overwrite: bool) -> None:
        predict_collection(collection, place / "p", lambda: predictor, overwrite=overwrite, part_size=_PART)

    def resume(place: Path, unfinished: int, *, overwrite: bool) -> None:
        calls = []
        predictor._backbone.model.visual.conv1.register_forward_pre_hook(lambda *_: calls.append(1))
        predict(place, overwrite=overwrite)
        assert len(calls) == unfinished, (len(calls), unfinished)

    def visible(place: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name[0] != "."}

    def campaign(name: str, old: Path | None) -> dict[str, Any]:
        def new_place(number: int) -> Path:
            place = folder / name / str(number)
            shutil.copytree(old, place) if old else place.mkdir(parents=True)
            return place

        undisturbed = new_place(0)
        total = count_operations(lambda: predict(undisturbed, overwrite=bool(old)), undisturbed)
        expected = visible(undisturbed)
        finished, wrong = [], []
        for number in range(1, total + 1):
            place = new_place(number)
            assert kill_before(number, partial(predict, place, overwrite=bool(old)), place)
            left = visible(place)
            finished.append(sum(file.startswith("part-") for file in left.keys() & expected.keys()))
            asked = bool(old) and left["_manifest.json"] != expected["_manifest.json"]  # nothing was done yet
            assert not run_in_child(partial(resume, place, n_parts - finished[-1], overwrite=asked))
            if visible(place) != expected or [path.name for path in place.iterdir()] != ["p"]:
                wrong.append(number)
        return {"operations": total, "finished": finished, "wrong": wrong}

    old = folder / "old"
    old.mkdir()
    predict_collection(collection, old / "p", lambda: other, part_size=_PART)
    print(json.dumps({"new": campaign("new", None), "other": campaign("other", old)}))


if __name__ == "__main__":
    main()
