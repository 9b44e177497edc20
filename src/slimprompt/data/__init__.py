"""Labelled images: published benchmarks, drawn ones, and your own."""

from slimprompt.data.benchmark import Benchmark, Item
from slimprompt.data.catalogue import CATALOGUE, load_benchmark
from slimprompt.data.few_shot import base_new, few_shot, held_out, short_classes

__all__ = [
    "CATALOGUE",
    "Benchmark",
    "Item",
    "base_new",
    "few_shot",
    "held_out",
    "load_benchmark",
    "short_classes",
]
