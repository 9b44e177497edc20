"""The paper's tables against each other: what is printed twice, averages and differences, recomputed.

Numbers are printed with two decimals, so an average or difference of printed numbers may miss the printed result by
0.01 without an error; such cells are counted apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from slimprompt.analysis.geometry import random_overlaps
from slimprompt.analysis.observations import BEST_DENSE, KEY, Arm, dense, fixed_basis, joint, transfer
from slimprompt.paper.claims import check_claims
from slimprompt.paper.claims.claim import ROUNDING, Claim, Finding, Measured, Outcome
from slimprompt.paper.claims.evidence import Evidence, ParameterCount
from slimprompt.paper.published import (
    MEASURED,
    N_CTX,
    WIDTH,
    printed_numbers,
    published_geometry,
    published_pairs,
    published_results,
    published_rows,
)
from slimprompt.paper.tables import published_tables
from slimprompt.training.metrics import harmonic_mean

_SOURCES = ("source-B", "random-B", "source-A", "random-A")


def published_evidence() -> Evidence:
    """The published tables as evidence for the claims."""
    counts = (
        ParameterCount("dense", 4, WIDTH, 0, 4 * WIDTH),
        ParameterCount("dense", N_CTX, WIDTH, 0, N_CTX * WIDTH),
        ParameterCount("joint", N_CTX, WIDTH, 4, 4 * (N_CTX + WIDTH)),
        ParameterCount("fixed-B", N_CTX, WIDTH, 4, 4 * WIDTH),
        ParameterCount("fixed-A", N_CTX, WIDTH, 4, N_CTX * 4),
    )
    return Evidence(
        published_results(),
        geometry=published_geometry(),
        parameters=counts,
        main_pairs=tuple(published_pairs()),
    )


def _printed(table: str, backbone: str, dataset: str, arm: Arm, shots: int, source: str = "") -> float:
    """One printed accuracy."""
    place = (table, backbone, dataset, *arm, shots, "accuracy", source)
    return printed_numbers()[place].mean


def _agreement(checks: Iterable[tuple[str, float, float]]) -> Measured:
    """(name, printed, recomputed) of many cells: how many agree exactly, within rounding, or not."""
    exact, rounded, wrong = 0, [], []
    for name, printed, recomputed in checks:
        line = f"{name}: printed {printed:.2f}, recomputed {recomputed:.3f}"
        if abs(printed - recomputed) <= 0.005 + 1e-9:
            exact += 1
        elif abs(printed - recomputed) <= ROUNDING:
            rounded.append(line)
        else:
            wrong.append(line)
    n = exact + len(rounded) + len(wrong)
    value = f"{exact} of {n} as printed"
    value += f", {len(rounded)} within rounding" if rounded else ""
    value += f", {len(wrong)} different" if wrong else ""
    return Measured(value, not wrong, n, (*wrong, *rounded))


def repeated_cells(_: Evidence) -> list[Outcome]:
    """A cell that stands in several tables is the same in all of them."""
    places: dict[tuple[object, ...], list[tuple[str, float]]] = defaultdict(list)
    for (table, *key), number in printed_numbers().items():
        if key[KEY.index("metric")] in MEASURED and key[KEY.index("dataset")] != "Average":
            basis, source = key[KEY.index("basis")], key[-1]
            cell = (*key[:-1], source if str(basis).startswith("source") else "")
            places[cell].append((table, number.mean))
    repeated = {key: found for key, found in places.items() if len(found) > 1}
    differing = {key: found for key, found in repeated.items() if len({mean for _, mean in found}) > 1}
    lines = tuple(f"{key}: {found}" for key, found in differing.items())
    value = f"{len(repeated) - len(differing)} of {len(repeated)} repeated cells are the same"
    return [Measured(value, not differing, len(repeated), lines).outcome("")]


def base2new_averages(e: Evidence) -> list[Outcome]:
    """Average rows of the base-to-new table are the means of their seven cells."""
    return [_agreement(_averages(e, "base2new")).outcome("")]


def fixed_basis_averages(e: Evidence) -> list[Outcome]:
    """The fixed-basis table averages the per-dataset ablation tables."""
    return [_agreement(_averages(e, "fixedB")).outcome("")]


def headline_averages(e: Evidence) -> list[Outcome]:
    """The headline table averages the rank sweep and, on ViT-B/16, the dense accuracies behind the best-delta table."""
    return [_agreement(_averages(e, "headline")).outcome("")]


def _averages(e: Evidence, table: str) -> Iterable[tuple[str, float, float]]:
    for (name, backbone, dataset, method, basis, rank, shots, metric, _), number in printed_numbers().items():
        if name == table and dataset == "Average" and metric in MEASURED:
            arm = Arm(method, basis, rank)
            found = e.results.macro(backbone, e.datasets(backbone), arm, shots, metric)
            if found and not found.printed:
                yield f"{backbone}, {shots}-shot, {method} {basis} {rank}, {metric}", number.mean, found.mean


def same_average_in_two_tables(_: Evidence) -> list[Outcome]:
    """The rank-4 averages of the headline and of the fixed-basis table are the same numbers."""
    printed = printed_numbers()
    lines, n = [], 0
    for (table, *key), number in printed.items():
        other = printed.get(("fixedB", *key))
        if table == "headline" and other:
            n += 1
            if other.mean != number.mean:
                backbone, shots = key[0], key[KEY.index("shots")]
                lines.append(f"{backbone}, {shots}-shot: {number.mean:.2f} in headline, {other.mean:.2f} in fixedB")
    return [Measured(f"{n - len(lines)} of {n} the same", not lines, n, tuple(lines), "; ".join(lines)).outcome("")]


def transfer_averages(e: Evidence) -> list[Outcome]:
    """The average row of the transfer table is the mean of its twelve rows."""
    arms: list[Arm] = [*(transfer(mode, 4) for mode in _SOURCES), BEST_DENSE, joint(4)]
    checks = []
    for arm in arms:
        printed = _printed("transfer_pairs", "ViT-B/16", "Average", arm, 16)
        values = []
        for target, source in e.main_pairs:
            cell = e.results.cell("ViT-B/16", target, arm, 16, source=source if arm.basis.startswith("source") else "")
            assert cell is not None  # published.csv has all of them
            values.append(cell.mean)
        checks.append((f"{arm.basis}", printed, sum(values) / len(values)))
    return [_agreement(checks).outcome("")]


def transfer_pairs_shown(e: Evidence) -> list[Outcome]:
    """The main transfer table shows every pair."""
    pairs = {(key.dataset, key.source) for key in e.results.cells if key.basis == "source-B"}
    left_out = sorted(pairs - set(e.main_pairs))
    lines = tuple(f"{target} from {source}" for target, source in left_out)
    note = "left out: " + "; ".join(lines)
    value = f"{len(pairs) - len(left_out)} of {len(pairs)} pairs"
    return [Measured(value, not left_out, len(pairs), lines, note).outcome("all four modes for every pair")]


def transfer_dense_reference(e: Evidence) -> list[Outcome]:
    """The dense reference of the transfer table is the prompt of 16 tokens."""
    targets = dict(e.main_pairs)
    lines = []
    for target, source in targets.items():
        printed = _printed("transfer_pairs", "ViT-B/16", target, BEST_DENSE, 16, source)
        full = e.results.cell("ViT-B/16", target, dense(N_CTX), 16)
        if full and abs(full.mean - printed) > ROUNDING:
            lines.append(f"{target}: printed {printed:.2f}, 16 tokens {full.mean:.2f}")
    note = "elsewhere it is the better of 4 and 16 tokens" if lines else ""
    value = f"{len(targets) - len(lines)} of {len(targets)} targets"
    return [Measured(value, not lines, len(targets), tuple(lines), note).outcome("dense CoOp")]


def headline_deltas(_: Evidence) -> list[Outcome]:
    """Δ of the headline table is factorised minus Dense-4."""
    checks = []
    for row in published_rows():
        if row["metric"] == "delta_fact_dense4":
            backbone, shots = row["backbone"], row["shots"]
            low, four = (_printed("headline", backbone, "Average", arm, shots) for arm in (joint(4), dense(4)))
            checks.append((f"{backbone}, {shots}-shot", row["mean"], low - four))
    return [_agreement(checks).outcome("")]


def best_factorized(e: Evidence) -> list[Outcome]:
    """Best rank and backbone per dataset and shots, and its distance to rank 4, follow from the rank sweep."""
    checks, lines = [], []
    for row in published_rows():
        backbone, dataset, rank, shots, metric = (row[n] for n in ("backbone", "dataset", "rank", "shots", "metric"))
        if row["table"] != "best_delta" or metric not in ("best_accuracy", "delta_rank4_best"):
            continue
        candidates = {
            (b, r): cell.mean
            for b in e.backbones()
            for r in e.ranks(b)
            if (cell := e.results.cell(b, dataset, joint(r), shots))
        }
        best = max(candidates, key=lambda key: candidates[key])
        if metric == "best_accuracy":
            checks.append((f"{dataset}, {shots}-shot, best", row["mean"], candidates[best]))
            if best != (backbone, rank):
                lines.append(f"{dataset}, {shots}-shot: printed {backbone} r={rank}, the best is {best[0]} r={best[1]}")
        else:
            recomputed = candidates[backbone, 4] - candidates[best]
            checks.append((f"{dataset}, {shots}-shot, rank 4 − best", row["mean"], recomputed))
    found = _agreement(checks)
    return [found._replace(holds=found.holds and not lines, cells=(*lines, *found.cells)).outcome("")]


def best_dense(e: Evidence) -> list[Outcome]:
    """ "Dense CoOp best" of the ablation tables is the better of 4 and 16 tokens, where both are known (ViT-B/16)."""
    checks = []
    for dataset in e.datasets("ViT-B/16"):
        for shots in e.shots("ViT-B/16"):
            best = e.results.cell("ViT-B/16", dataset, BEST_DENSE, shots)
            lengths = [e.results.cell("ViT-B/16", dataset, dense(m), shots) for m in (4, N_CTX)]
            known = [cell.mean for cell in lengths if cell]
            if best and known:
                checks.append((f"{dataset}, {shots}-shot", best.mean, max(known)))
    return [_agreement(checks).outcome("")]


def best_transfer(e: Evidence) -> list[Outcome]:
    """Best mode per pair and its three differences follow from the four modes, the dense and the best low-rank prompt."""
    checks, notes = [], []
    for row in published_rows():
        if row["table"] != "transfer_best_delta":
            continue
        names = ("backbone", "dataset", "basis", "shots", "metric", "source")
        backbone, target, basis, shots, metric, source = (row[name] for name in names)
        cells = {
            mode: e.results.cell(
                backbone, target, transfer(mode, 4), shots, source=source if mode.startswith("source") else ""
            )
            for mode in _SOURCES
        }
        means = {mode: cell.mean for mode, cell in cells.items() if cell}
        best = max(means, key=lambda mode: means[mode])
        full = e.results.cell(backbone, target, BEST_DENSE, shots)
        low = [cell.mean for r in e.ranks(backbone) if (cell := e.results.cell(backbone, target, joint(r), shots))]
        assert full is not None and best == basis
        recomputed = {
            "best_accuracy": means[best],
            "delta_rand_freeze": means["random-B"] - means["source-B"],
            "delta_best_dense": means[best] - full.mean,
            "delta_best_factorized": means[best] - max(low),
        }[metric]
        checks.append((f"{target} from {source}, {metric}", row["mean"], recomputed))
        if metric == "delta_rand_freeze" and best.endswith("A"):
            notes.append(f"{target} from {source}")
    found = _agreement(checks)
    note = (
        f"random − source is that of frozen B also where the best mode freezes A ({', '.join(notes)})" if notes else ""
    )
    return [found._replace(note=note).outcome("")]


def harmonic_concavity(e: Evidence) -> list[Outcome]:
    """H averaged over runs cannot exceed the H of the averaged S and U."""
    lines, n = [], 0
    for key, cell in e.results.cells.items():
        if key.metric != "harmonic":
            continue
        seen, unseen = (e.results.cells.get(key._replace(metric=metric)) for metric in ("seen", "unseen"))
        if seen and unseen:
            n += 1
            limit = harmonic_mean(seen.mean, unseen.mean)
            if cell.mean > limit + ROUNDING:
                lines.append(f"{key}: H {cell.mean:.2f}, H of the averages {limit:.3f}")
    return [Measured(f"{n - len(lines)} of {n} cells", not lines, n, tuple(lines)).outcome("")]


def overlap_below_cosine(e: Evidence) -> list[Outcome]:
    """Mean cosine ≤ cosine of the mean angle, for each pair and so for the medians."""
    assert e.geometry is not None
    rows = e.geometry.to_dict("records")
    lines = []
    for row in rows:
        limit = math.cos(math.radians(row["angle"] - 0.05))
        if row["overlap"] - 0.005 > limit:
            lines.append(f"{row['axis']}, {row['factor']}: overlap {row['overlap']}, cos(angle) {limit:.4f}")
    return [
        Measured(f"{len(rows) - len(lines)} of {len(rows)} medians", not lines, len(rows), tuple(lines)).outcome("")
    ]


def product_subspace_rank(e: Evidence) -> list[Outcome]:
    """What the published overlap of BA across seeds can be: chance for subspaces of the product's true rank?"""
    assert e.geometry is not None
    rows = e.geometry[(e.geometry["axis"] == "seed") & (e.geometry["factor"] == "BA")]
    printed = float(rows["overlap"].iloc[0])
    generator = np.random.default_rng(0)
    draws = 300
    chance = {}
    for rank in (1, 2, 4, 8, N_CTX):
        overlap, angle = random_overlaps(WIDTH, rank, rank, draws=draws, generator=generator)
        chance[rank] = (float(np.median(overlap)), float(np.median(angle)))
    lines = tuple(f"rank {rank}: overlap {o:.3f}, angle {a:.1f}°" for rank, (o, a) in chance.items())
    within_ranks = printed <= max(overlap for rank, (overlap, _) in chance.items() if rank <= 8) + 0.005
    value = f"printed {printed:.2f}; chance at rank 8 {chance[8][0]:.3f}, at rank 16 {chance[N_CTX][0]:.3f}"
    note = (
        "seeds share nothing, so chance is what they should give; the printed value is that of 16-dimensional subspaces: "
        f"the rounding noise of the stored products ({draws} draws each)"
    )
    return [Measured(value, within_ranks, draws, lines, note).outcome("rank-r products, r ≤ 8")]


def rank_one_bases_coincide(e: Evidence) -> list[Outcome]:
    """At rank 1 an orthogonal basis is a normalised Gaussian one, rescaled to the same norm: the same basis up to sign."""
    outcomes = []
    for backbone in e.backbones():
        gaps = []
        for dataset in e.datasets(backbone):
            for shots in e.shots(backbone):
                pair = [
                    e.results.cell(backbone, dataset, fixed_basis(basis, 1), shots)
                    for basis in ("gaussian", "orthogonal")
                ]
                if pair[0] and pair[1]:
                    gaps.append(abs(pair[0].mean - pair[1].mean))
        same = sum(gap == 0 for gap in gaps)
        size = f"mean |difference| {sum(gaps) / len(gaps):.2f}, largest {max(gaps):.2f}"
        note = f"{size}: what two equal settings differ by" if same < len(gaps) else ""
        value = f"{same} of {len(gaps)} cells the same"
        outcomes.append(Measured(value, same == len(gaps), len(gaps), note=note).outcome("", backbone))
    return outcomes


def bold_marks(_: Evidence) -> list[Outcome]:
    """The bold numbers are the best of their group: all of the tied, none where all are tied."""
    marks, lines = 0, []
    for table in published_tables():
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                found = printed_numbers().get(cell.key) if cell.key else None
                if found is None or found.bold is None:
                    continue
                marks += 1
                if found.bold != cell.bold:
                    where = ", ".join(part for part in (row.section, *row.labels, column.flat) if part)
                    lines.append(f"{table.name}, {where}: {found.mean:.2f} is {'' if found.bold else 'not '}marked")
    value = f"{marks - len(lines)} of {marks} marked as they should be"
    return [Measured(value, not lines, marks, tuple(lines), "; ".join(lines)).outcome("")]


AUDIT: tuple[Claim, ...] = tuple(
    Claim(check.__name__, where, sentence, "recomputed from the printed cells", check)
    for check, where, sentence in (
        (repeated_cells, "all tables", "A number that stands in several tables is the same in all of them."),
        (base2new_averages, "base2new", "Average rows are the means of the seven datasets."),
        (fixed_basis_averages, "fixedB", "Averages are the means of the per-dataset ablation tables."),
        (headline_averages, "headline", "Averages are the means of the per-dataset tables."),
        (same_average_in_two_tables, "headline, fixedB", "The rank-4 average is the same number in both tables."),
        (headline_deltas, "headline", "Δ is factorised minus Dense-4."),
        (transfer_averages, "transfer_pairs", "The average row is the mean of the rows."),
        (transfer_pairs_shown, "transfer_pairs", "The main table reports every source–target pair."),
        (transfer_dense_reference, "transfer_pairs", "The dense reference is the prompt of 16 tokens."),
        (best_factorized, "best_delta", "The best rank and its differences follow from the rank sweep."),
        (best_dense, "b_ablation", "The best dense prompt is the better of 4 and 16 tokens."),
        (best_transfer, "transfer_best_delta", "The best mode and its differences follow from the four modes."),
        (harmonic_concavity, "base2new, full", "H averaged over runs is at most the H of the averages."),
        (overlap_below_cosine, "factor_geometry", "Median overlap is at most the cosine of the median angle."),
        (product_subspace_rank, "factor_geometry", "The overlap of BA is that of subspaces of rank at most 8."),
        (rank_one_bases_coincide, "b_ablation", "At rank 1 the Gaussian and the orthogonal basis are the same."),
        (bold_marks, "all tables", "The best numbers are in bold: all that are tied, none where all are."),
    )
)


def audit(names: Sequence[str] = ()) -> list[Finding]:
    """The checks of the published tables against each other, or those named."""
    return check_claims(published_evidence(), names, AUDIT)
