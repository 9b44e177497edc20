"""Time, memory and page size of `slimprompt report`, `tables`, `claims` and `compare` on many runs.

    python benchmarks/report.py [--runs 3540 100000] [--commands report tables claims compare] [--stages] [--folder FOLDER]
        [--json FILE]

Writes synthetic run folders: 3,540 are the paper's grid, more of them the same grid with ten seeds and further weights of its
backbones. Sizes are those of real runs: records with provenance and checksum, factors of width 512, curves of 200 epochs; the
numbers in them are made up. Each command runs in a process of its own; the memory is the peak of this process or of its largest child.
With --stages it runs again without children, to note the processor time of its stages. Runs that are in --folder already are used
again.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _output import make_parser, print_results

#: Arguments of each command after the folder of runs.
COMMANDS = {
    "report": ["--out", "OUT"],
    "tables": ["--out", "OUT"],
    "claims": ["--format", "json"],
    "compare": ["joint r4", "dense m16"],
}
#: Stage → its functions, as module:name.
STAGES = {
    "read records": ["lab.records:scan_records", "lab.records:select_records"],
    "cells": ["analysis.frame:observations", "analysis.frame:cells", "analysis.frame:runs_of"],
    "settings": ["analysis.frame:mixed_settings"],
    "geometry": ["analysis.geometry:measure"],
    "claims": ["analysis.claims:check"],
    "summary": ["report.summary:summary_table", "paper.questions:questions_table"],
    "paired tests": ["paper.tables.extra:comparisons"],
    "averages": ["paper.tables.extra:summaries"],
    "figures": ["report.plotting:to_figure", "report.methods_figures:methods_figures"],
    "files of tables": ["report.table_formats:table_files"],
    "page": ["report.page:render_report"],
}
WIDTH, EPOCHS = 512, 200


def specs(count: int) -> list[Any]:
    """The first `count` runs of the paper's grid or, if it has fewer, of one with more seeds and weights."""
    from slimprompt.paper.studies import make_grid, study_specs

    found = study_specs(make_grid({}))
    if len(found) < count:
        sets = range(math.ceil(count / (len(found) // 3 * 10)))  # three seeds become ten
        backbones = [
            f"{name}={f'weights-{number}' if number else 'openai'}" for number in sets for name in ("ViT-B-16", "RN50")
        ]
        found = study_specs(make_grid({"backbones": backbones, "seeds": list(range(1, 11))}))
    return found[:count]


def metrics(spec: Any) -> dict[str, float]:
    """Made-up accuracies that depend on the spec only."""
    noise = zlib.crc32(spec.fingerprint.encode()) / 2**32
    accuracy = 40 + zlib.crc32(spec.dataset.encode()) % 40 + 2 * (spec.rank or 3) ** 0.5 + spec.shots / 4 + noise
    if spec.class_subset == "all":
        return {"accuracy": accuracy, "zero_shot_accuracy": accuracy - noise - 10}
    seen, unseen = accuracy + 5, accuracy - 5
    found = {"seen": seen, "unseen": unseen, "harmonic": 2 * seen * unseen / (seen + unseen)}
    return found | {f"zero_shot_{name}": value - noise - 3 for name, value in found.items()}


def write_runs(root: Path, count: int) -> None:
    """Write run folders as `slimprompt study` does, but without flushing them to disk."""
    import numpy as np
    from safetensors.numpy import save

    from slimprompt.files import json_checksum, json_text
    from slimprompt.prompts.spec import count_parameters

    pool = np.random.default_rng(0).standard_normal(2**22, dtype="float32")

    def matrix(offset: int, rows: int, columns: int) -> np.ndarray:
        start = offset % (pool.size - rows * columns)
        return pool[start : start + rows * columns].reshape(rows, columns)

    losses = [f"{epoch},0.002,{3 / (1 + 0.1 * epoch)},{min(99.0, 20.0 + epoch)}" for epoch in range(EPOCHS)]
    curve = "\n".join(["epoch,lr,loss,accuracy", *losses]) + "\n"
    facts = {
        "n_classes": {"train": 47, "accuracy": 47},
        "n_images": {"train": 752, "accuracy": 1692},
        "steps": 9400,
        "trained_together": 8,
        "tokens_per_step": 183,
        "backbone_fingerprint": "0" * 64,
        "logit_scale": 100.0,
        "device": "cpu",
        "notes": [],
        "times": {"setup": 0.1, "features": 6.3, "training": 43.7, "evaluation": 0.8, "total": 50.9},
        "started": "2026-01-01T10:00:00+00:00",
        "finished": "2026-01-01T10:01:00+00:00",
        "peak_memory_mb": 1414.2,
        "peak_memory_of": "run",
        "threads": 1,
        "executor": "processes",
        "invocation": ["slimprompt", "study", "all", "--runs", "runs", "--workers", "2"],
        "versions": dict.fromkeys(("python", "slimprompt", "torch", "open_clip_torch", "torchvision", "numpy"), "1.0"),
        "machine": {"host": "vm", "system": "Linux", "processor": "CPU", "cores": 2, "memory_gb": 23.5},
        "git": {"commit": "0" * 40, "changed": False},
    }
    for spec in specs(count):
        name = spec.fingerprint
        folder, mark, rank = root / name, zlib.crc32(name.encode()), spec.rank or spec.n_ctx
        if (folder / "record.json").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "spec": spec.model_dump(mode="json"),
            "status": "complete",
            "metrics": metrics(spec),
            "trainable_parameters": count_parameters(spec.variant, n_ctx=spec.n_ctx, width=WIDTH, rank=spec.rank),
            "chance": {"accuracy": 2.1} if spec.class_subset == "all" else {"seen": 4.2, "unseen": 4.2},
            "prompt_batch": [name] * 8,
            **facts,
        }
        b0, a0 = matrix(spec.seed, spec.n_ctx, rank), matrix(spec.seed + 1, rank, WIDTH)
        factors = {
            "B0": b0,
            "A0": a0,
            "B": b0 + 0.1 * matrix(mark, *b0.shape) if spec.variant in ("joint", "fixed-A") else b0,
            "A": a0 + matrix(mark + 1, *a0.shape) if spec.variant != "fixed-A" else a0,
        }
        (folder / "factors.safetensors").write_bytes(save(factors))
        (folder / "curve.csv").write_text(curve)
        (folder / "record.json").write_text(json_text({**content, "checksum": json_checksum(content)}))


def note_stages(seconds: dict[str, float]) -> None:
    """Wrap the functions of `STAGES`; the time of a stage within another counts for the inner one only."""
    inner = [0.0]

    def wrapped(stage: str, function: Callable) -> Callable:
        def timed(*arguments: Any, **options: Any) -> Any:
            inner.append(0.0)
            start = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                whole = time.process_time() - start
                seconds[stage] = seconds.get(stage, 0.0) + whole - inner.pop()
                inner[-1] += whole

        return timed

    modules = [module for name, module in sys.modules.items() if name.startswith("slimprompt")]
    for stage, functions in STAGES.items():
        for module, name in (text.split(":") for text in functions):
            owner: Any = importlib.import_module(f"slimprompt.{module}")
            if "." in name:  # a class method
                owner, name = getattr(owner, name.split(".")[0]), name.split(".")[1]
                setattr(owner, name, staticmethod(wrapped(stage, getattr(owner, name))))
                continue
            function = getattr(owner, name)
            timed = wrapped(stage, function)
            for one in modules:  # also those that imported it by its name
                if getattr(one, name, None) is function:
                    setattr(one, name, timed)


def run_here(arguments: list[str], notes: Path) -> None:
    """Run a command in this process without children, and write the processor time of its stages to `notes`."""
    started = time.process_time()
    from slimprompt import forked
    from slimprompt.cli import main as slimprompt

    importlib.import_module("slimprompt.paper.contents")
    importlib.import_module("slimprompt.report.page")
    forked.default_workers = lambda: 1
    seconds: dict[str, float] = {"imports": time.process_time() - started}
    note_stages(seconds)
    sys.argv = ["slimprompt", *arguments]
    try:
        slimprompt()
    finally:
        notes.write_text(json.dumps(seconds))


def measure(command: str, runs: Path, folder: Path, *, stages: bool) -> dict[str, Any]:
    """One command in a process of its own."""
    out, notes = folder / f"{command}-{runs.name}", folder / "stages.json"
    arguments = [command, str(runs), *(str(out) if part == "OUT" else part for part in COMMANDS[command])]
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "slimprompt", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"slimprompt {command} ended with {process.returncode}")
    page = out / "index.html"
    row = {
        "command": command,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(usage.ru_maxrss / 1024),
        "page_mb": round(page.stat().st_size / 1e6, 2) if page.exists() else None,
    }
    if stages:
        program = [sys.executable, __file__, "--here", str(notes), *arguments]
        subprocess.run(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        row["stages"] = {name: round(value, 2) for name, value in json.loads(notes.read_text()).items()}
    return row


def main() -> None:
    if sys.argv[1:2] == ["--here"]:
        run_here(sys.argv[3:], Path(sys.argv[2]))
        return
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[3540, 100_000], help="numbers of runs")
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS), help="what is run")
    parser.add_argument("--stages", action="store_true", help="also note the processor time of each stage")
    parser.add_argument("--folder", type=Path, help="keep runs and results in this folder")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for count in options.runs:
            runs = folder / f"{count}"
            write_runs(runs, count)
            for command in options.commands:
                row = {"runs": count, **measure(command, runs, folder, stages=options.stages)}
                results.append(row)
                print(
                    f"{count:7,} runs  {command:8s} {row['seconds']:7.1f} s ({row['cpu_seconds']:.1f} s of processor time)"
                    f"  {row['peak_mb']:6,} MB" + (f"  page {row['page_mb']} MB" if row["page_mb"] else ""),
                    flush=True,
                )
                for stage, seconds in sorted(row.get("stages", {}).items(), key=lambda one: -one[1]):
                    print(f"{'':17s}{seconds:8.2f} s  {stage}", flush=True)
    print_results(results, options.json)


if __name__ == "__main__":
    main()
