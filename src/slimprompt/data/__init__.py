"""Labelled images: published benchmarks, drawn ones, and your own."""

from slimprompt.data.benchmark import Benchmark, Item
from slimprompt.data.catalogue import CATALOGUE, load_benchmark
from slimprompt.data.check import CheckReport, check_benchmark, check_images
from slimprompt.data.few_shot import base_new, few_shot, held_out, short_classes
from slimprompt.data.folder import FolderBenchmark, load_folder, load_test_folder
from slimprompt.data.manifest import Manifest, apply_manifest, make_manifest, read_manifest, write_manifest

__all__ = [
    "CATALOGUE",
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
    "load_folder",
    "load_test_folder",
    "make_manifest",
    "read_manifest",
    "short_classes",
    "write_manifest",
]
