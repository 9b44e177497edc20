"""Kills the prediction of a collection before each of its file operations, and resumes it.

    python -m tests.collections.kill_predict <model> <images> <folder>

Prints one JSON object: the number of file operations; how many parts were finished after the kills; and the kills after which
the resumed command encoded other parts than the unfinished ones, or did not give the files of an undisturbed one.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from slimprompt.collections.inputs import open_collection
from slimprompt.collections.predict import LocalPredictor, PredictionSpec, predict_collection
from tests.robustness.kills import count_operations, kill_before, run_in_child

_PART = 4


def main() -> None:
    """Kill and resume."""
    model, images, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    predictor = LocalPredictor(PredictionSpec(model, device="cpu", batch_size=_PART), workers=1)
    collection = open_collection([images])
    n_parts = math.ceil(sum(1 for _ in collection) / _PART)

    def predict(place: Path) -> None:
        predict_collection(collection, place / "p", lambda: predictor, part_size=_PART)

    def resume(place: Path, unfinished: int) -> None:
        calls = []
        predictor._backbone.model.visual.conv1.register_forward_pre_hook(lambda *_: calls.append(1))
        predict(place)
        assert len(calls) == unfinished, (len(calls), unfinished)

    def visible(place: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name[0] != "."}

    undisturbed = folder / "0"
    undisturbed.mkdir()
    total = count_operations(lambda: predict(undisturbed), undisturbed)
    finished, wrong = [], []
    for number in range(1, total + 1):
        place = folder / str(number)
        place.mkdir()
        assert kill_before(number, lambda place=place: predict(place), place)
        finished.append(len(list(place.glob("p/part-*"))))
        assert not run_in_child(lambda place=place, done=finished[-1]: resume(place, n_parts - done))
        if visible(place) != visible(undisturbed) or [path.name for path in place.iterdir()] != ["p"]:
            wrong.append(number)
    print(json.dumps({"operations": total, "finished": finished, "wrong": wrong}))


if __name__ == "__main__":
    main()
