"""Kills `slimprompt fit` before each of its file operations beside its prompt and in the cache, and repeats it.

    python -m tests.robustness.kill_fit <folder> <old prompt or ""> <most kills> <arguments of fit, without --out>

Prints one JSON object: the number of file operations; the seeds of the prompts found after the kills, null for none; and the
kills whose repetition did not give the files of an undisturbed `fit`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from tests.robustness.commands import run_command
from tests.robustness.kills import chosen_operations, count_operations, kill_before, run_in_child


def main() -> None:
    """Kill and repeat."""
    folder, old, most, arguments = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    from slimprompt.saved import model_file, read_model

    def prepare(number: int) -> Path:
        place = folder / str(number)
        place.mkdir(parents=True)
        if old:
            shutil.copytree(old, place / "prompt")
        return place

    def fit(place: Path) -> None:
        os.environ["SLIMPROMPT_CACHE"] = str(place / "cache")
        assert run_command(["fit", *arguments, "--out", str(place / "prompt"), "--overwrite"]) == 0

    def files(place: Path) -> dict[str, bytes]:
        """Temporary files too, but not the features, whose files have random names."""
        features = place / "cache" / "features"
        found = {path.relative_to(place): path for path in place.rglob("*") if path.is_file()}
        return {
            str(name): path.read_bytes()
            for name, path in found.items()
            if path.suffix == ".tmp" or not path.is_relative_to(features)
        }

    undisturbed = prepare(0)
    total = count_operations(lambda: fit(undisturbed), undisturbed)
    expected = files(undisturbed)
    seeds, wrong = [], []
    for number in chosen_operations(total, most, seed=0):
        place = prepare(number)
        assert kill_before(number, lambda place=place: fit(place), place)
        saved = model_file(place / "prompt").exists()
        seeds.append(read_model(place / "prompt").description.seed if saved else None)
        assert not run_in_child(lambda place=place: fit(place))
        if files(place) != expected:
            wrong.append(number)
    print(json.dumps({"operations": total, "seeds": seeds, "wrong": wrong}))


if __name__ == "__main__":
    main()
