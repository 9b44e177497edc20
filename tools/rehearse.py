"""Rehearse the paper's studies with full-size models and real benchmark files, without real CLIP weights.

    python tools/rehearse.py --data-root DATA --out rehearsal

Generates random ViT-B/16 and RN50 weights in the file format of OpenAI's releases (fp16 TorchScript archives), and then runs what
a user with the real files would run, from an empty cache directory, with two workers: one cell of each study on Oxford Pets, and one transfer from Oxford Flowers. The first study is killed with
SIGKILL after its first runs and resumed. At the end it writes the report with the published numbers beside the measured ones,
prints the cells that have both, and fails unless every run is complete.

The accuracies are those of random weights and mean nothing. Needs the images and split files of Oxford Pets and Oxford Flowers;
takes about a quarter of an hour on two cores with the default of two test images per class.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

#: Benchmark folder → (images folder, split file).
BENCHMARKS = {
    "oxford_pets": ("images", "split_zhou_OxfordPets.json"),
    "oxford_flowers": ("jpg", "split_zhou_OxfordFlowers.json"),
}
AXES = ["--ranks", "4", "--bases", "orthogonal,learned", "--seeds", "1", "--set", "epochs=2", "--set", "views=1"]


def save_openai_archive(name: str, path: Path) -> None:
    """Random weights of an open_clip architecture as OpenAI publishes them: an fp16 TorchScript archive with three sizes."""
    import open_clip
    import torch

    torch.manual_seed(0)
    model = open_clip.create_model(f"{name}-quickgelu", pretrained=None)
    size = model.visual.image_size[0] if isinstance(model.visual.image_size, tuple) else model.visual.image_size
    for key, value in {"input_resolution": size, "context_length": 77, "vocab_size": model.vocab_size}.items():
        if hasattr(model, key):
            delattr(model, key)
        model.register_buffer(key, torch.tensor(value))
    inputs = {"encode_image": torch.zeros(1, 3, size, size), "encode_text": torch.zeros(1, 77, dtype=torch.long)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace_module(model.eval(), inputs, check_trace=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.jit.save(traced.half(), str(path))


def reduced_benchmark(source: Path, target: Path, name: str, test_images: int) -> None:
    """The benchmark with its own images and training list, and with the first test images of each class."""
    images, split_name = BENCHMARKS[name]
    split = json.loads((source / name / split_name).read_text())
    kept: dict[int, int] = {}
    test = []
    for item in split["test"]:
        kept[item[1]] = kept.get(item[1], 0) + 1
        if kept[item[1]] <= test_images:
            test.append(item)
    (target / name).mkdir(parents=True)
    (target / name / split_name).write_text(json.dumps({**split, "test": test}))
    (target / name / images).symlink_to((source / name / images).resolve())


def start(arguments: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    print("$ slimprompt", " ".join(arguments), flush=True)
    command = [sys.executable, "-c", "from slimprompt.cli import main; main()", *arguments]
    return subprocess.Popen(command, env=variables, start_new_session=True)


def run(arguments: list[str], variables: dict[str, str]) -> None:
    if (code := start(arguments, variables).wait()) != 0:
        sys.exit(f"the command ended with code {code}")


def complete_runs(runs: Path) -> int:
    return sum('"status": "complete"' in path.read_text() for path in runs.glob("[!.]*/record.json"))


def kill_after(n_runs: int, arguments: list[str], variables: dict[str, str], runs: Path) -> None:
    process = start(arguments, variables)
    while complete_runs(runs) < n_runs:
        if process.poll() is not None:
            sys.exit("the study ended before it could be killed")
        time.sleep(0.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    print(f"killed after {complete_runs(runs)} complete runs", flush=True)


def compared_cells(report: Path) -> list[dict[str, Any]]:
    """The table cells of the report that have a measured and a published number."""
    import pandas as pd

    cells = pd.read_csv(report / "tables" / "cells.csv")
    return cells[cells["value"].notna() & cells["published"].notna()].to_dict("records")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data-root", type=Path, default=os.environ.get("SLIMPROMPT_DATA"), help="folder of the benchmarks"
    )
    parser.add_argument("--out", type=Path, default=Path("rehearsal"), help="new folder for everything that is written")
    parser.add_argument("--test-images", type=int, default=2, help="test images per class")
    options = parser.parse_args()
    if options.data_root is None:
        parser.error("give --data-root, or set SLIMPROMPT_DATA")
    out = options.out.absolute()
    out.mkdir(parents=True)
    for name in BENCHMARKS:
        reduced_benchmark(options.data_root, out / "data", name, options.test_images)
    for name in ("ViT-B-16", "RN50"):
        print(f"generating {name} weights", flush=True)
        save_openai_archive(name, out / f"{name}.pt")

    runs = out / "runs"
    variables = os.environ | {"SLIMPROMPT_CACHE": str(out / "cache"), "SLIMPROMPT_DATA": str(out / "data")}
    grid = out / "few-shot.yaml"
    grid.write_text(
        "study: [headline, rank-sweep, fixed-basis, base-to-new, geometry]\ndatasets: oxford_pets\nshots: 1\n"
        f"backbones: [RN50={out}/RN50.pt, ViT-B-16={out}/ViT-B-16.pt]\n"
    )
    few_shot = ["study", str(grid), *AXES, "--runs", str(runs), "--workers", "2"]
    kill_after(2, few_shot, variables, runs)
    run(few_shot, variables)
    transfer = out / "transfer.yaml"
    transfer.write_text(
        f"study: transfer\nbackbones: ViT-B-16={out}/ViT-B-16.pt\ndatasets: [oxford_flowers, oxford_pets]\n"
        "pairs: [[oxford_flowers, oxford_pets]]\nshots: 16\n"
    )
    run(["study", str(transfer), *AXES, "--runs", str(runs), "--workers", "2"], variables)
    run(["report", str(runs), "--out", str(out / "report"), "--compare-published"], variables)
    cells = compared_cells(out / "report")
    for cell in cells:
        value = float(cell["value"])  # other columns of the file hold text
        print(f"  {cell['table']}: {cell['row']}, {cell['column']}: {value:.2f} (published {cell['published']:.2f})")
    compared = {run for cell in cells for run in str(cell["runs"]).split()}
    n_runs = len(list(runs.glob("[!.]*/record.json")))
    print(
        f"{complete_runs(runs)} of {n_runs} runs complete; {len(compared)} of them in {len(cells)} cells with a published number"
    )
    if complete_runs(runs) < n_runs:
        sys.exit("some runs failed")


if __name__ == "__main__":
    main()
