"""The report of a folder of runs: one HTML page, and its tables and figures as files beside it. It reads records only."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from slimprompt.analysis.geometry import measure
from slimprompt.analysis.observations import (
    Results,
    arm_label,
    arm_of,
    backbone_title,
    compare_arms,
    dataset_title,
    dense,
    fixed_basis,
    joint,
    mixed_settings,
    observe,
)
from slimprompt.errors import InputError
from slimprompt.lab.records import Record, load_records, select_records
from slimprompt.paper.claims import Finding, check_claims, gather
from slimprompt.paper.extra_tables import comparisons, summaries
from slimprompt.paper.figures import all_figures, best_covered, chance_levels, main_arms, zero_shot
from slimprompt.paper.published import published_pairs
from slimprompt.paper.tables import full_length, headline_rank, paper_tables
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.report.drawing import Figure, write_figures
from slimprompt.report.html import describe_recipe, render, write_page
from slimprompt.report.table import Cell, Column, Row, Table
from slimprompt.report.table_formats import write_tables

PAGE = "index.html"
#: The tables in the body of the paper; the others fold away.
_MAIN = ("headline", "base2new", "fixedB", "transfer_pairs", "factor_geometry")


@dataclass(frozen=True)
class Report:
    """Everything that the page shows, as plain data."""

    folder: Path
    records: Sequence[Record]
    failed: Sequence[Record]
    summary_table: Table
    questions: Table
    findings: Sequence[Finding]
    figures: Sequence[Figure]
    tables: Sequence[Table]
    notes: Sequence[str]

    @property
    def pocket(self) -> bool:
        """Whether some of the runs are of the pocket world."""
        return any(is_pocket(record) for record in self.records)


def is_pocket(record: Record) -> bool:
    """Whether the run used an embedded model or a drawn benchmark."""
    return record.spec.backbone.split("-")[0] == "pocket" or record.spec.dataset in POCKET_BENCHMARKS


def build_report(runs: Path, *, where: Sequence[str] = (), compare_published: bool = False) -> Report:
    """Analyse the runs below `runs` that meet the conditions; any set of complete runs will do."""
    chosen = select_records(load_records(runs, complete_only=False), where)
    records = [record for record in chosen if record.complete]
    failed = [record for record in chosen if not record.complete]
    if not records:
        conditions = f" that meet {' and '.join(where)}" if where else ""
        broken = f" ({len(failed)} failed ones: `slimprompt runs list` shows why)" if failed else ""
        raise InputError(f"no complete runs{conditions} in {runs}{broken}; make some with `slimprompt study`")
    results = Results.of(observe(records))
    geometry = measure(records, draws=500)
    evidence = gather(records, main_pairs=published_pairs(), measured=geometry)
    tables = paper_tables(results, geometry.medians(), compare_published=compare_published)
    return Report(
        folder=runs,
        records=records,
        failed=failed,
        summary_table=summary_table(results, records),
        questions=questions(results),
        findings=check_claims(evidence),
        figures=all_figures(records, results, geometry),
        tables=[*tables, comparisons(results), summaries(results)],
        notes=[*mixed_settings(records), *geometry.notes],
    )


def write_report(report: Report, out: Path, *, theory: Path | None = None) -> Path:
    """Write `index.html`, `tables/`, `figures/` and `claims.json` below `out`; returns the page."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a folder for the report")
    page = render_report(report, theory=theory)
    write_tables([table for table in report.tables if not table.empty], out / "tables")
    write_figures(report.figures, out / "figures")
    findings = [finding.as_dict() for finding in report.findings]
    (out / "claims.json").write_text(json.dumps(findings, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return write_page(out / PAGE, page)


def render_report(report: Report, *, theory: Path | None = None) -> str:
    """The page as text."""
    places = {str(record.folder): number for number, record in enumerate(report.records)}
    filled = [table for table in report.tables if not table.empty]
    verdicts = Counter(str(finding.verdict) for finding in report.findings)
    statements, theory_figures = read_theory(theory) if theory else ([], [])
    contents = [("summary", "Summary"), ("claims", "Claims"), ("figures", "Figures"), ("tables", "Tables")]
    contents += [("theory", "Theory")] if statements else []
    contents += [("provenance", "Environment and provenance"), ("runs", "Runs")]
    return render(
        "report.html.j2",
        {
            "title": f"Low-rank prompts: {len(report.records):,} runs",
            "contents": contents,
            "report": report,
            "places": places,
            "summary_table": _without_constants(report.summary_table),
            "questions": _without_constants(report.questions),
            "cards": _cards(report, verdicts),
            "claims": [(name, list(same)) for name, same in groupby(report.findings, key=lambda one: one.name)],
            "verdicts": verdicts,
            "main_tables": [table for table in filled if table.name in _MAIN],
            "more_tables": [table for table in filled if table.name not in _MAIN],
            "empty_tables": [table for table in report.tables if table.empty],
            "statements": statements,
            "theory_figures": theory_figures,
            "provenance": provenance(report.records),
            "runs": runs_table(report.records),
            "run_titles": [f"{record.spec.title} · {record.folder.name}" for record in report.records],
        },
    )


# ---------------------------------------------------------------- summary


def _cards(report: Report, verdicts: Counter[str]) -> list[tuple[str, str]]:
    specs = [record.spec for record in report.records]
    seconds = sum(record.facts.get("times", {}).get("total", 0.0) for record in report.records)
    cards = [
        (f"complete runs{f', {len(report.failed)} failed' if report.failed else ''}", f"{len(specs):,}"),
        _named("backbone", {backbone_title(spec) for spec in specs}),
        _named("dataset", {dataset_title(spec.dataset) for spec in specs}),
        ("shots", ", ".join(str(k) for k in sorted({spec.shots for spec in specs}))),
        ("seeds", ", ".join(str(seed) for seed in sorted({spec.seed for spec in specs}))),
        (
            "claims hold · do not · undecided",
            f"{verdicts['holds']} · {verdicts['does not hold']} · {verdicts['not enough runs']}",
        ),
    ]
    return cards + ([("time in runs", _duration(seconds))] if seconds else [])


def _named(what: str, names: set[str]) -> tuple[str, str]:
    ordered = sorted(names)
    if len(ordered) == 1:
        return what, ordered[0]
    return f"{what}s: {', '.join(ordered)}", str(len(ordered))


def _duration(seconds: float) -> str:
    from slimprompt.lab.observer import duration

    return duration(seconds)


def summary_table(results: Results, records: Sequence[Record]) -> Table:
    """Chance, zero-shot and the main arms side by side, for each backbone, metric and number of shots."""
    levels = chance_levels(records)
    looks: dict[str, str] = {
        "dense": "Dense",
        "dense short": "Short dense",
        "trainable": "Joint",
        "orthogonal": "Fixed B",
    }
    metrics = {"accuracy": "accuracy", "seen": "seen classes", "unseen": "new classes", "harmonic": "H"}
    rows: list[Row] = []
    shown: dict[str, str] = {}
    for backbone in results.axis("backbone"):
        for metric, word in metrics.items():
            arms = main_arms(results, metric)
            shown |= {look: arm_label(arm) for look, arm in arms.items()}
            shots = results.axis("shots", backbone=backbone, metric=metric)
            datasets = best_covered(results, backbone, [(arm, k) for arm in arms.values() for k in shots], metric)
            for index, k in enumerate(shots):
                means = {look: results.macro(backbone, datasets, arm, k, metric) for look, arm in arms.items()}
                if not any(means.values()):
                    continue
                cells = [
                    Cell(_mean([levels.get((dataset, metric)) for dataset in datasets]), decimals=1),
                    Cell(_mean([zero_shot(results, backbone, dataset, metric) for dataset in datasets]), decimals=1),
                ]
                found = [means.get(look) for look in looks]
                best = max((one.mean for one in found if one), default=math.nan)
                cells += [
                    Cell(one.mean, one.sd, one.n, one.runs, decimals=1, show_sd=True, bold=one.mean == best)
                    if one
                    else Cell()
                    for one in found
                ]
                rows.append(Row((backbone, word, f"{k}", f"{len(datasets)}"), tuple(cells), rule=index == 0))
    columns = (
        Column("Chance"),
        Column("Zero-shot"),
        *(Column(title, remark=shown.get(look, "")) for look, title in looks.items()),
    )
    used = [index for index, _ in enumerate(columns) if any(row.cells[index].value is not None for row in rows)]
    rows = [Row(row.labels, tuple(row.cells[index] for index in used), rule=row.rule) for row in rows]
    notes = (
        "Percent: mean ± standard deviation over seeds, averaged over the datasets within each seed first. Best arm in bold, whatever the spread.",
        "Seen and new: trained on half of the classes, tested on that half and on the other. H is their harmonic mean, per run.",
        "Every number leads to the runs it is made of.",
    )
    return Table(
        "summary",
        "Summary",
        ("Backbone", "Measured", "Shots", "Datasets"),
        tuple(columns[index] for index in used),
        tuple(rows),
        notes,
    )


def _without_constants(table: Table) -> Table:
    """Label columns that say the same in every row become one sentence: the table fits a small screen better."""
    constant = [index for index, _ in enumerate(table.headers) if len({row.labels[index] for row in table.rows}) == 1]
    constant = constant if len(table.rows) > 1 else []
    if not constant:
        return table
    kept = [index for index, _ in enumerate(table.headers) if index not in constant]
    said = ", ".join(f"{table.headers[index].lower()} {table.rows[0].labels[index]}" for index in constant)
    rows = tuple(replace(row, labels=tuple(row.labels[index] for index in kept)) for row in table.rows)
    headers = tuple(table.headers[index] for index in kept)
    return replace(table, headers=headers, rows=rows, notes=(f"In every row: {said}.", *table.notes))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def questions(results: Results) -> Table:
    """The paper's two questions as paired differences, at the most shots that each backbone has."""
    rows = []
    for metric, word in (("accuracy", "accuracy"), ("harmonic", "H")):
        rank = headline_rank(results, metric)
        asked = {
            "Is low rank enough?": (joint(rank), dense(full_length(results))),
            "Must B be trained?": (fixed_basis("orthogonal", rank), joint(rank)),
        }
        for question, pair in asked.items():
            for backbone in results.axis("backbone", metric=metric):
                most = results.axis("shots", backbone=backbone, metric=metric)[-1:]
                for one in compare_arms(results, [pair], metric=metric, backbones=[backbone], shots=most):
                    labels = (
                        question,
                        f"{arm_label(one.first)} − {arm_label(one.second)}",
                        backbone,
                        word,
                        f"{one.shots}",
                    )
                    found = (one.result.mean, one.result.low, one.result.high)
                    numbers = [Cell(value, n=one.result.n, signed=True) for value in found]
                    rows.append(Row(labels, (*numbers, Cell(f"{one.result.n}"))))
    groups = ("Points", "Points", "Points", "")
    columns = tuple(
        Column(*pair) for pair in zip(("Difference", "95 % low", "95 % high", "Datasets"), groups, strict=True)
    )
    headers = ("Question", "Compared", "Backbone", "Measured", "Shots")
    notes = (
        "Paired by seed within each dataset; the interval is over datasets, and one dataset has none. Around zero: no difference seen. "
        "All shots and ranks, with tests of difference and of equivalence, are in “Paired comparisons” below.",
    )
    return Table(
        "questions",
        "The two questions, at the most shots",
        headers,
        columns,
        tuple(sorted(rows, key=lambda row: row.labels)),
        notes,
    )


# ---------------------------------------------------------------- runs and where they come from


def runs_table(records: Sequence[Record]) -> Table:
    """One row per run, in the order of the records."""
    metrics = [
        name for name in ("accuracy", "seen", "unseen", "harmonic") if any(name in record.metrics for record in records)
    ]
    titles = {"accuracy": "Accuracy", "seen": "Seen", "unseen": "New", "harmonic": "H"}
    rows = []
    for record in records:
        spec, facts = record.spec, record.facts
        labels = (
            record.folder.name,
            backbone_title(spec),
            dataset_title(spec.dataset),
            spec.split,
            str(spec.shots),
            str(spec.seed),
        )
        arm = arm_label(arm_of(spec)) + (f" from {dataset_title(spec.source)}" if spec.source else "")
        numbers = [Cell(_number(record.metrics.get(name))) for name in metrics]
        memory, seconds = _number(facts.get("peak_memory_mb")), _number(facts.get("times", {}).get("training"))
        parameters = _number(facts.get("trainable_parameters"))
        more = (Cell(parameters, decimals=0), Cell(seconds, decimals=1), Cell(memory, decimals=0))
        rows.append(Row((*labels, arm), (*numbers, *more)))
    headers = ("Run folder", "Backbone", "Dataset", "Split", "Shots", "Seed", "Arm")
    columns = (
        *(Column(titles[name]) for name in metrics),
        Column("Parameters"),
        Column("Training (s)"),
        Column("Memory (MB)"),
    )
    return Table("runs", "All complete runs", headers, columns, tuple(rows))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def provenance(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the runs recorded about where they come from: each distinct value, with the number of runs if there are several."""
    facts = [record.facts for record in records]

    def of(section: str, name: str) -> Iterable[Any]:
        return ((fact.get(section) or {}).get(name) for fact in facts)

    machine = {
        "host": "Host",
        "processor": "Processor",
        "cores": "Cores",
        "memory_gb": "Memory (GB)",
        "system": "System",
    }
    libraries = sorted({name for fact in facts for name in fact.get("versions") or {}})
    commits = (
        (git["commit"][:12] + (" with changes" if git["changed"] else "")) if (git := fact.get("git")) else None
        for fact in facts
    )
    days = sorted(str(fact["finished"])[:10] for fact in facts if fact.get("finished"))
    entries = [
        ("Finished", [f"{days[0]} to {days[-1]}" if days[0] != days[-1] else days[0]] if days else []),
        ("Command", _distinct(" ".join(fact.get("invocation") or ()) for fact in facts)),
        ("Recipe", _distinct(describe_recipe(record.spec.recipe) for record in records)),
        ("Source code", _distinct(commits)),
        *((label, _distinct(of("machine", name))) for name, label in machine.items()),
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
    shown = [f"{value} ({count} runs)" for value, count in counts.most_common(6)]
    return [*shown, f"and {len(counts) - 6} more"] if len(counts) > 6 else shown


def _weights(record: Record) -> str | None:
    fingerprint = record.facts.get("backbone_fingerprint")
    return f"{backbone_title(record.spec)} {fingerprint[:12]}" if fingerprint else None


# ---------------------------------------------------------------- theory


def read_theory(folder: Path) -> tuple[list[dict[str, str]], list[Figure]]:
    """The statements and figures that `slimprompt theory --out` has written to `folder`."""
    import csv

    try:
        with (folder / "statements.csv").open(newline="", encoding="utf-8") as file:
            statements = list(csv.DictReader(file))
        known = all({"part", "statement", "claim", "verdict"} <= set(one) for one in statements)
    except (OSError, UnicodeDecodeError, csv.Error):
        statements, known = [], False
    if not statements or not known:
        raise InputError(
            f"{folder} holds no theory result (statements.csv); make one with `slimprompt theory --out {folder}`"
        )
    figures = []
    for path in sorted(folder.glob("theory-*.svg")):
        title = path.stem.removeprefix("theory-").replace("-", " ").capitalize()
        figures.append(
            Figure(path.stem, title, "Explained in theory.html of the same result.", path.read_text(encoding="utf-8"))
        )
    return statements, figures
