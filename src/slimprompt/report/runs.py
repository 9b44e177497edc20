"""The table of runs and the provenance that pages about run records share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from slimprompt.analysis.frame import backbone_title, dataset_title
from slimprompt.errors import count
from slimprompt.lab.records import Record
from slimprompt.report.table import Cell, Column, Table, make_table
from slimprompt.spreadsheet import csv_text

_METRICS = {"accuracy": "Accuracy", "seen": "Base", "unseen": "New", "harmonic": "H"}
_MACHINE = {
    "host": "Host",
    "processor": "Processor",
    "cores": "Cores",
    "memory_gb": "Memory (GB)",
    "system": "System",
}
#: Distinct values of one fact that are listed before "and … more".
_MAX_VALUES = 6


#: File with one row per run, beside a report's page.
RUNS_CSV = "runs.csv"
#: Most runs that a page lists; beyond, its table of runs would be slow to open and to search, and `RUNS_CSV` replaces it.
MAX_LISTED = 5000


def runs_section(records: Sequence[Record]) -> dict[str, Any]:
    """Template values of the section about the runs: `runs`, `run_titles`, `run_index` and `provenance`.

    `runs` is None if there are more than `MAX_LISTED`. `run_index` maps a run folder to its row number in the table, so that numbers
    on the page can link to their runs.
    """
    listed = len(records) <= MAX_LISTED
    return {
        "runs": runs_table(records) if listed else None,
        "run_titles": [f"{record.spec.title} · {record.folder.name}" for record in records] if listed else [],
        "run_index": {str(record.folder): number for number, record in enumerate(records)},
        "provenance": provenance(records),
    }


_HEADERS = ("Run folder", "Backbone", "Dataset", "Class subset", "Shots", "Seed", "Method")
#: Titles of the columns after those of the metrics, and their decimals in the table.
_COSTS = {"Parameters": 0, "Training (s)": 1, "Memory (MB)": 0}


def _measured(records: Sequence[Record]) -> list[str]:
    """The metrics of `_METRICS` that some run has."""
    return [name for name in _METRICS if any(name in record.metrics for record in records)]


def _labels(record: Record) -> tuple[str, ...]:
    """The texts of one run, in the order of `_HEADERS`."""
    spec = record.spec
    place = backbone_title(spec), dataset_title(spec.dataset), spec.class_subset
    return (record.folder.name, *place, f"{spec.shots}", f"{spec.seed}", spec.label)


def _numbers(record: Record, metrics: Sequence[str]) -> list[int | float | None]:
    """The metrics of one run, and its costs in the order of `_COSTS`."""
    facts = record.facts
    costs = facts.get("trainable_parameters"), facts.get("times", {}).get("training"), facts.get("peak_memory_mb")
    return [value if _is_number(value) else None for value in (*map(record.metrics.get, metrics), *costs)]


def runs_table(records: Sequence[Record]) -> Table:
    """One row per run, in the order of `records`."""
    metrics = _measured(records)
    decimals = [*(2 for _ in metrics), *_COSTS.values()]
    rows = []
    for record in records:
        numbers = zip(_numbers(record, metrics), decimals, strict=True)
        rows.append((_labels(record), [Cell(_float(value), decimals=digits) for value, digits in numbers]))
    titles = (*(_METRICS[name] for name in metrics), *_COSTS)
    return make_table("runs", "All complete runs", _HEADERS, [Column(title) for title in titles], rows)


def runs_csv(records: Sequence[Record]) -> str:
    """The content of `RUNS_CSV`: the rows of `runs_table` with all digits, numbered from 0 as on the page."""
    metrics = _measured(records)
    headings = ("Run", *_HEADERS, *(_METRICS[name] for name in metrics), *_COSTS)
    rows = ((number, *_labels(one), *_numbers(one, metrics)) for number, one in enumerate(records))
    return csv_text(headings, rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def provenance(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the runs recorded about their origin: (label, distinct values), with counts if there are several values."""
    facts = [record.facts for record in records]

    def of(section: str, name: str) -> Iterable[Any]:
        return ((fact.get(section) or {}).get(name) for fact in facts)

    libraries = sorted({name for fact in facts for name in fact.get("versions") or {}})
    days = sorted(str(fact["finished"])[:10] for fact in facts if fact.get("finished"))
    entries = [
        ("Finished", [f"{days[0]} to {days[-1]}" if days[0] != days[-1] else days[0]] if days else []),
        ("Command", _distinct(" ".join(fact.get("invocation") or ()) for fact in facts)),
        ("Recipe", _distinct(record.spec.recipe.describe() for record in records if record.spec.is_prompt)),
        ("Source code", _distinct(_commit(fact.get("git")) for fact in facts)),
        *((label, _distinct(of("machine", name))) for name, label in _MACHINE.items()),
        ("Device", _distinct(fact.get("device") for fact in facts)),
        ("Threads", _distinct(fact.get("threads") for fact in facts)),
        ("Executor", _distinct(fact.get("executor") for fact in facts)),
        ("Weights", _distinct(_weights(record) for record in records)),
        *((name, _distinct(of("versions", name))) for name in libraries),
    ]
    return [(label, "; ".join(values)) for label, values in entries if values]


def _distinct(values: Iterable[Any]) -> list[str]:
    counts = Counter(str(value) for value in values if value not in (None, ""))
    if len(counts) == 1:
        return list(counts)
    shown = [f"{value} ({count(number, 'run')})" for value, number in counts.most_common(_MAX_VALUES)]
    return [*shown, f"and {len(counts) - _MAX_VALUES} more"] if len(counts) > _MAX_VALUES else shown


def _commit(git: dict[str, Any] | None) -> str | None:
    return git["commit"][:12] + (" with uncommitted changes" if git["changed"] else "") if git else None


def _weights(record: Record) -> str | None:
    fingerprint = record.facts.get("backbone_fingerprint")
    return f"{backbone_title(record.spec)} {fingerprint[:12]}" if fingerprint else None
