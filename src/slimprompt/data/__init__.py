"""Labelled images: published benchmarks, rendered benchmarks and your own folders.

| module | contents |
|---|---|
| `benchmark` | `Benchmark` and `Item`, the form that every source of images is read into; missing images |
| `benchmarks` | `BENCHMARKS`, the table of known benchmarks: to add one, add a row |
| `catalogue` | look up a benchmark by name and load it |
| `readers` | readers of the annotation files, one per format |
| `folder` | your own images: class folders, train/val/test folders, CSV files |
| `few_shot` | few-shot sampling; base and new classes |
| `manifest` | the images of a run as a portable JSON file |
| `check` | decode and hash every image |
| `download` | download benchmarks; extract video frames |
"""

from slimprompt.data.benchmark import Benchmark, Item, check_images
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.catalogue import load_benchmark
from slimprompt.data.check import CheckReport, check_benchmark
from slimprompt.data.few_shot import base_new, few_shot, held_out, short_classes
from slimprompt.data.folder import FolderBenchmark, load_eval_folder, load_folder
from slimprompt.data.manifest import Manifest, apply_manifest, make_manifest, read_manifest, write_manifest

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "CheckReport",
    "FolderBenchmark",
    "Item",
    "Manifest",
    "apply_manifest",
    "base_new",
    "check_benchmark",
    "check_images",
    "few_shot",
    "held_out",
    "load_benchmark",
    "load_eval_folder",
    "load_folder",
    "make_manifest",
    "read_manifest",
    "short_classes",
    "write_manifest",
]
