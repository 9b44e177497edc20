"""`slimprompt tables`, `claims`, `compare` and `geometry`: analyses of a folder of runs, from run records only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.cli.options import OutputFormat, Where
from slimprompt.cli.printing import Format, emit, say
from slimprompt.errors import InputError, choose, count

if TYPE_CHECKING:
    import pandas as pd

    from slimprompt.analysis.claims import Finding
    from slimprompt.lab.records import Record
    from slimprompt.report.paper import MeasuredRuns, Paper

Runs = Annotated[Path, typer.Argument(metavar="RUNS", help="Folder of runs, as `slimprompt study` writes it.")]
MaybeRuns = Annotated[Path | None, typer.Argument(metavar="RUNS", help="Folder of runs; omit it with --published.")]
Published = Annotated[bool, typer.Option("--published", help="Use the paper's published tables instead of runs.")]


def complete_records(runs: Path, where: Sequence[str] | None = None) -> list[Record]:
    """The complete runs that meet the conditions; failed runs and settings that differ are reported on standard error."""
    from slimprompt.analysis.frame import mixed_settings
    from slimprompt.lab.records import load_records, runs_command, select_records, unmet_conditions

    everything = load_records(runs, complete_only=False, show=True)
    found = [record for record in everything if record.complete]
    records = select_records(found, where or ())
    if not records:
        conditions = f" that meet {' and '.join(where)}" if where else ""
        total = "; ".join([f"{len(found)} complete runs in total", *unmet_conditions(found, where or ())])
        raise InputError(
            f"no complete runs{conditions} in {runs} ({total}); "
            f"make some with `slimprompt study`, or list them with `{runs_command('list', runs)}`"
        )
    if n_failed := len(everything) - len(found):
        say(f"note: {count(n_failed, 'failed run')} left out; `{runs_command('list', runs)}` shows them", err=True)
    for line in mixed_settings(records):
        say(f"note: {line}", err=True)
    return records


def _measured(runs: Path, where: Sequence[str] | None, draws: int = 500) -> MeasuredRuns:
    """The runs of `complete_records` and what is computed from them."""
    from slimprompt.analysis.geometry import class_subset_of
    from slimprompt.report.paper import MeasuredRuns

    return MeasuredRuns(complete_records(runs, where), class_subset_of(where or ()), draws, show=True)


def _check_source(runs: Path | None, published: bool, paper: Paper, **of_runs: object) -> None:
    """Either runs or the published tables; the options `of_runs` would be ignored with the latter."""
    if published and paper.published is None:
        raise InputError("this paper has no published numbers: give a folder of runs")
    if (runs is None) != published:
        raise InputError("give either a folder of runs or --published for the paper's own tables")
    for name in (name for name, value in of_runs.items() if published and value):
        raise InputError(f"--{name.replace('_', '-')} is for runs: leave it out with --published")


# -- geometry -----------------------------------------------------------------------------------------------------------

_GROUPS = ("backbone", "class_subset", "rank", "shots", "dataset")
_GROUP_NAMES = ", ".join(_GROUPS)


def geometry(
    runs: Runs,
    variant: str = typer.Option("joint", help="Variant of the compared runs: joint, fixed-B or fixed-A."),
    by: list[str] | None = typer.Option(None, help=f"Group the medians also by {_GROUP_NAMES}. Repeatable."),
    draws: int = typer.Option(2000, min=10, max=1_000_000, help="Random pairs of subspaces per chance level."),
    seed: int = typer.Option(0, min=0, help="Seed of the random subspaces."),
    out: Path | None = typer.Option(None, help="Folder for pairs.csv, displacement.csv and chance.csv."),
    where: Where = None,
    format: OutputFormat = Format.table,
) -> None:
    """Compare the subspaces of trained factors between runs, with their initial values and with chance.

    Runs on all classes are measured, as in the paper; --where class_subset=base measures the runs on the base classes.
    """
    from slimprompt.analysis.geometry import class_subset_of, measure
    from slimprompt.prompts.spec import VARIANTS
    from slimprompt.report.folder import check_result_folder, write_result_folder

    for name in by or ():
        choose("column to group by", name, dict.fromkeys(_GROUPS))
    choose("variant", variant, {name: row for name, row in VARIANTS.items() if name != "dense"})
    if out is not None:
        check_result_folder(out)
    records, class_subset = complete_records(runs, where), class_subset_of(where or ())
    found = measure(records, variant=variant, class_subset=class_subset, draws=draws, seed=seed, show=True)
    medians, displacement = found.medians(("axis", *dict.fromkeys(by or ()))), found.displacement_medians()
    if out is not None:
        write_result_folder(out, found.files())
    if format is not Format.table:
        facts = {"displacement": _plain(displacement), "draws": draws, "notes": list(found.notes)}
        emit(_plain(medians), format, facts=facts, key="medians")
        return
    for note in found.notes:
        say(f"note: {note}", err=True)
    if medians.empty:
        say(f"no two {variant} runs differ in exactly one of seed, dataset, shots and rank")
    else:
        say(f"Median overlap and mean principal angle of pairs of {variant} runs that differ in one field")
        _print_frame(medians)
        say(f"start: the same pairs before training. chance: {draws} random pairs of subspaces per shape.")
        say("B: column space, A and BA: row space. In exact arithmetic, BA equals A.\n")
    say("Displacement from the initial factors, medians over runs (relative norm: ‖X−X₀‖/‖X₀‖)")
    _print_frame(displacement)
    if out is not None:
        say(f"wrote {', '.join(found.files())} in {out}")


def _print_frame(frame: pd.DataFrame) -> None:
    columns: dict[str, Callable[[Any], str]] = dict.fromkeys(map(str, frame.columns), str)
    for name in map(str, frame.select_dtypes("float").columns):
        columns[name] = ("{:.1f}" if "angle" in name else "{:.3f}").format
    emit(_plain(frame), columns=columns)


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain Python values, with None for NaN."""
    return json.loads(frame.to_json(orient="records", force_ascii=False))


# -- claims -------------------------------------------------------------------------------------------------------------


def claims(
    runs: MaybeRuns = None,
    published: Published = False,
    name: list[str] | None = typer.Option(None, help="Check only this claim. Repeatable."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show what is compared, and every observation."),
    where: Where = None,
    format: OutputFormat = Format.table,
    *,
    paper: Paper,
) -> None:
    """Check each empirical claim of the paper on runs, or with --published on the paper's own tables."""
    from slimprompt.analysis.claims import check, geometry_table

    _check_source(runs, published, paper, where=where)
    known = {claim.name: claim for claim in paper.claims}
    chosen = [choose("claim", one, known) for one in name] if name else list(paper.claims)
    geometry = None
    if runs is None:
        assert paper.published is not None
        printed = paper.published()
        observed, geometry = printed.observed, geometry_table(printed.medians)
    else:
        measured = _measured(runs, where)
        observed = measured.observed
        if any(claim.table == "geometry" for claim in chosen):  # reads the factors of all runs
            geometry = geometry_table(measured.geometry.medians(), measured.geometry.displacement)
    found = check(chosen, observed, geometry)
    if format is not Format.table:
        emit([finding.as_dict() for finding in found], format)
        return
    say("The paper's claims " + ("on its own tables" if runs is None else f"on the runs in {runs}"))
    _print_findings(found, verbose)


def _print_findings(findings: Sequence[Finding], verbose: bool) -> None:
    """Print each claim, followed by verdict, value, interval, paper's value and note of each scope."""
    from slimprompt.analysis.verdict import VERDICTS, count_verdicts

    width = max(map(len, VERDICTS)) + 2
    for name, group in groupby(findings, key=lambda one: one.name):
        scopes = list(group)
        claim = scopes[0]
        place = " · ".join(filter(None, (claim.where, name)))
        say(f"\n{typer.style(claim.sentence, bold=True)} [{place}]")
        if verbose:
            say(f"compared: {claim.bound}")
        for one in scopes:
            verdict = typer.style(one.verdict.ljust(width), fg=VERDICTS[one.verdict].color)
            value = " ".join(filter(None, (one.scope and f"{one.scope}:", one.value, one.interval)))
            say(f"{verdict}{value}" + (f" (n = {count(one.n, one.unit)})" if one.n else ""))
            remarks = [f"paper: {one.paper}"] if one.paper else []
            remarks += [one.note] if one.note else []
            for line in (*remarks, *(one.cells if verbose else ())):
                say(" " * width + line)
    say("\n" + count_verdicts(one.verdict for one in findings))


# -- compare ------------------------------------------------------------------------------------------------------------


def compare(
    runs: Runs,
    first: str = typer.Argument(
        ..., help="A method or prompt as `runs list` names it, such as `joint r4` or `tip-adapter`."
    ),
    second: str = typer.Argument(..., help="The method or prompt to compare it with."),
    metric: str = typer.Option("accuracy", help="accuracy, seen, unseen, harmonic or cross_dataset."),
    unit: str = typer.Option("dataset", help="One observation per dataset, run or seed."),
    margin: float = typer.Option(0.5, help="Equivalence margin in points."),
    where: Where = None,
    format: OutputFormat = Format.table,
) -> None:
    """Compare two methods or prompts: difference, interval, tests of difference and of equivalence.

    Only runs with the same backbone, dataset, shots and seed are compared, and the same source dataset if both have one. A name that
    is not in the runs is answered with the list of their names. A transfer is compared from one source (`fixed-B source from dtd r4`)
    or from all (`fixed-B source r4`).

    Example: slimprompt compare runs "fixed-B orthogonal r4" "joint r4"
    Example: slimprompt compare runs gda "joint r4" --unit run --where shots=16
    """
    from slimprompt.analysis.comparisons import compare_labels
    from slimprompt.analysis.frame import UNITS, axis, cells, observations

    if not 0 < margin <= 100:
        raise InputError(f"the equivalence margin must be above 0 and at most 100 points (given: {margin})")
    choose("unit of comparison", unit, UNITS)
    records = complete_records(runs, where)
    frame = cells(observations(records))
    metrics = [name for name in axis(frame, "metric") if not name.startswith("chance_")]
    choose("metric of these runs", metric, dict.fromkeys(metrics))
    names = _names(records)
    labels, sources = zip(
        *(choose("method of these runs", _unquoted(one), names) for one in (first, second)), strict=True
    )
    found = compare_labels(_of_sources(frame, labels, sources), [labels], metric=metric, unit=unit, margin=margin)
    if found.empty:
        raise InputError(f"no cell of these runs has both {first!r} and {second!r} with metric {metric!r}")
    rows = found.to_dict("records")
    if format is not Format.table:
        emit([{str(name): value for name, value in row.items()} for row in rows], format)
        return
    say(f"{first} − {second}, {metric} in points; {UNITS[unit]}")
    emit([_comparison_row(row) for row in rows], columns=_COMPARISON)
    family = f"Holm-corrected over the {len(found)} rows" if len(found) > 1 else "a single test, not corrected"
    say(f"two-sided p-values, {family}; equivalence: two one-sided tests within ±{margin} points.")


def _names(records: Sequence[Record]) -> dict[str, tuple[str, str]]:
    """Name of a method or prompt, with or without its source → label in the frame, and title of the source or ""."""
    from slimprompt.analysis.frame import dataset_title, how

    names: dict[str, tuple[str, str]] = {}
    for spec in (record.spec for record in records):
        label = how(spec)[0]
        names[_unquoted(label)] = (label, "")
        if spec.source:
            names[_unquoted(spec.label)] = (label, dataset_title(spec.source))
    return names


def _of_sources(frame: pd.DataFrame, labels: Sequence[str], sources: Sequence[str]) -> pd.DataFrame:
    """The cells without those of a label from other sources than the chosen one; "" chooses all."""
    for label, chosen in zip(labels, sources, strict=True):
        own, source = (frame.index.get_level_values(name) for name in ("label", "source"))
        if chosen:
            frame = frame[(own != label) | (source == chosen)]
    return frame


def _unquoted(label: str) -> str:
    """The label without quotation marks, which are hard to type: `joint r4 from a photo of a`."""
    return label.translate({ord(mark): None for mark in "“”\"'"})


def _points(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # + 0.0 makes a negative zero positive


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


_COMPARISON: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("backbone", "shots", "n"), str),
    "difference": _points,
    **dict.fromkeys(("95 % interval", "+/=/−"), str),
    **dict.fromkeys(("t", "Wilcoxon", "equivalence"), _p),
    "": str,
}


def _comparison_row(test: Mapping[Any, Any]) -> dict[str, Any]:
    low, high = test["low"], test["high"]
    return {
        **{name: test[name] for name in ("backbone", "shots", "n")},
        "difference": test["mean"],
        "95 % interval": None if low is None or high is None else f"[{_points(low)}, {_points(high)}]",
        "+/=/−": f"{test['wins']}/{test['ties']}/{test['losses']}",
        "t": test["holm_t"],
        "Wilcoxon": test["holm_wilcoxon"],
        "equivalence": test["holm_equivalence"],
        "": test["note"],
    }


# -- tables -------------------------------------------------------------------------------------------------------------


def tables(
    runs: MaybeRuns = None,
    out: Path | None = typer.Option(None, help="Folder for the files; without it the tables are printed."),
    formats: list[str] | None = typer.Option(
        None, "--format", help="markdown, latex, csv, xlsx; comma-separated or repeated."
    ),
    published: Published = False,
    compare_published: bool = typer.Option(
        False, "--compare-published", help="Add the published number and the difference to each number."
    ),
    only: list[str] | None = typer.Option(None, help="Only this table, as headline. Repeatable."),
    where: Where = None,
    *,
    paper: Paper,
) -> None:
    """Make the paper's tables from these runs in the paper's layout, tables of paired tests and averages, and of methods.

    An earlier result in the output folder is replaced; a folder with other files is refused.
    """
    from slimprompt.report.folder import check_result_folder, write_result_folder
    from slimprompt.report.table_formats import FORMATS, table_files, to_markdown

    _check_source(runs, published, paper, where=where, compare_published=compare_published)
    chosen = [name.strip() for text in formats or () for name in text.split(",")] or list(FORMATS)
    for one in chosen:
        choose("table format", one, dict.fromkeys(FORMATS))
    if out is not None:
        check_result_folder(out)
    elif formats and chosen != ["markdown"]:
        raise InputError(f"--format {', '.join(chosen)} needs --out FOLDER; without it tables are printed as Markdown")
    if runs is None:
        assert paper.published is not None
        makers = paper.published().tables
    else:  # the paper's table shows no chance level, so few random subspaces are enough
        makers = paper.tables(_measured(runs, where, draws=10), compare_published)
    built = [choose("table", name, makers)() for name in only or makers]
    if out is None:
        say("\n".join(to_markdown(table) for table in built if not table.empty))
        return
    files = table_files(built, chosen)
    write_result_folder(out, files)
    say(f"{count(len(built), 'table')} in {count(len(files), 'file')} in {out}")
    if empty := [table.name for table in built if table.empty]:
        say(f"no runs yet for: {', '.join(empty)}")
