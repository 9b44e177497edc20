"""Kills a study before each of its file operations in the runs folder, resumes it and compares it with an undisturbed one.

    python -m tests.robustness.kill_study <grid.json> <folder> <prompt batch> <most kills>

Prints one JSON object: the number of file operations, of kills, and for each kill after which a run differs, its number.
"""

from __future__ import annotations

import json
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import slimprompt.clip.backbone
import slimprompt.images.bank
import slimprompt.lab.plan
import slimprompt.training.evaluation
import slimprompt.training.loop
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.paper.studies import make_grid, study_specs
from tests.conftest import complete_study, fingerprints
from tests.robustness.kills import chosen_operations, count_operations, kill_before


def contents(runs: Path) -> dict[str, dict[str, Any]]:
    """Run → hashes of its files, and the prompts it was trained with: whether those change the bytes depends on the machine."""
    found: dict[str, dict[str, Any]] = {}
    for name, hashes in fingerprints(runs).items():
        record = json.loads((runs / name / "record.json").read_text())
        found[name] = {**hashes, **{fact: record[fact] for fact in ("prompt_batch", "trained_together")}}
    return found


def main() -> None:
    grid_file, folder, prompt_batch, most = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    specs = study_specs(make_grid(json.loads(grid_file.read_text())))
    # Children begin with a loaded backbone: reading it writes nothing, and takes as long as the rest of this study.
    load_once = cache(slimprompt.clip.backbone.load_backbone)
    slimprompt.clip.backbone.load_backbone = load_once

    def study(runs: Path) -> None:
        # One cache for all, filled by the undisturbed study: the kills concern the runs folder.
        environment = RunEnvironment(runs=runs, cache=folder / "cache", device="cpu")
        outcome = complete_study(specs, runs, InlineExecutor(environment), prompt_batch=prompt_batch)
        assert outcome.failed == [], outcome.failed[0].error

    load_once(specs[0].backbone, specs[0].pretrained, device="cpu", precision="fp32")
    undisturbed = folder / "undisturbed"
    total = count_operations(lambda: study(undisturbed), undisturbed)
    expected = contents(undisturbed)
    differs, kills = {}, 0
    for number in chosen_operations(total, most, seed=0):
        runs = folder / f"killed-{number}"
        kills += kill_before(number, lambda runs=runs: study(runs), runs)
        count_operations(lambda runs=runs: study(runs), runs)
        found = contents(runs)
        other = [name for name in expected if found.get(name) != expected[name]]
        left = [path.name for path in runs.iterdir() if path.name.startswith(".") and path.name != ".lock"]
        if other or left:
            differs[number] = other + left
        else:
            shutil.rmtree(runs)
    print(json.dumps({"runs": len(expected), "operations": total, "kills": kills, "differs": differs}))


if __name__ == "__main__":
    main()
