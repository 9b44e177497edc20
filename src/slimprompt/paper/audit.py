"""Consistency checks of the paper's tables: repeated numbers, and recomputed averages and differences.

Numbers are printed with two decimals. An average or difference of printed numbers may therefore deviate from the
printed result by 0.01 without an error; such cells are counted separately.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from slimprompt.analysis.arms import BEST_DENSE, TRANSFER_MODES, Arm, dense, fixed_basis, joint, transfer
from slimprompt.analysis.results import CellKey
from slimprompt.analysis.subspaces import random_overlaps
from slimprompt.paper.claims import check_claims
from slimprompt.paper.claims.claim import ROUNDING, Claim, Finding, Measured, Outcome
from slimprompt.paper.claims.evidence import Evidence, ParameterCount
from slimprompt.paper.published import (
    MEASURED,
    N_CTX,
    WIDTH,
    PrintedKey,
    printed_numbers,
    published_geometry,
    published_pairs,
    published_results,
    published_rows,
)
from slimprompt.paper.tables import printed_value, published_tables
from slimprompt.prompts.spec import count_parameters
from slimprompt.training.metrics import harmonic_mean


def published_evidence() -> Evidence:
    """The published tables as evidence for the claims."""
    settings = (("dense", 4, 0), ("dense", N_CTX, 0), *((name, N_CTX, 4) for name in ("joint", "fixed-B", "fixed-A")))
    counts = tuple(
        ParameterCount(variant, m, WIDTH, rank, count_parameters(variant, n_ctx=m, width=WIDTH, rank=rank))
        for variant, m, rank in settings
    )
    return Evidence(
        published_results(),
        geometry=published_geometry(),
        parameters=counts,
        main_pairs=tuple(published_pairs()),
    )


def _printed(table: str, backbone: str, dataset: str, arm: Arm, shots: int, source: str = "") -> float:
    """One printed accuracy."""
    return printed_numbers()[PrintedKey(table, CellKey(backbone, dataset, *arm, shots, source=source))].mean


def _agreement(checks: Iterable[tuple[str, float, float]]) -> Measured:
    """Count the (name, printed, recomputed) cells that agree exactly, agree within rounding, or differ."""
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
    """A cell that appears in several tables has the same value in all of them."""
    printed: dict[CellKey, list[tuple[str, float]]] = defaultdict(list)
    for (table, cell), number in printed_numbers().items():
        if cell.metric in MEASURED and cell.dataset != "Average":
            printed[cell.canonical].append((table, number.mean))
    repeated = {cell: found for cell, found in printed.items() if len(found) > 1}
    differing = {cell: found for cell, found in repeated.items() if len({mean for _, mean in found}) > 1}
    lines = tuple(f"{cell}: {found}" for cell, found in differing.items())
    value = f"{len(repeated) - len(differing)} of {len(repeated)} repeated cells are the same"
    return [Measured(value, not differing, len(repeated), lines).outcome("")]


def base2new_averages(e: Evidence) -> list[Outcome]:
    """The average rows of the base-to-new table are the means over the seven datasets."""
    return [_agreement(_averages(e, "base2new")).outcome("")]


def fixed_basis_averages(e: Evidence) -> list[Outcome]:
    """The fixed-basis table averages the per-dataset ablation tables."""
    return [_agreement(_averages(e, "fixedB")).outcome("")]


def headline_averages(e: Evidence) -> list[Outcome]:
    """The headline table averages the rank sweep and, on ViT-B/16, the dense accuracies implied by the best-delta table."""
    return [_agreement(_averages(e, "headline")).outcome("")]


def _averages(e: Evidence, table: str) -> Iterable[tuple[str, float, float]]:
    for (name, cell), number in printed_numbers().items():
        if name == table and cell.dataset == "Average" and cell.metric in MEASURED:
            found = e.results.macro(cell.backbone, e.datasets(cell.backbone), cell.arm, cell.shots, cell.metric)
            if found and not found.printed:
                arm = f"{cell.method} {cell.basis} {cell.rank}"
                yield f"{cell.backbone}, {cell.shots}-shot, {arm}, {cell.metric}", number.mean, found.mean


def same_average_in_two_tables(_: Evidence) -> list[Outcome]:
    """The headline table and the fixed-basis table print the same rank-4 averages."""
    printed = printed_numbers()
    lines, n = [], 0
    for (table, cell), number in printed.items():
        other = printed.get(PrintedKey("fixedB", cell))
        if table == "headline" and other:
            n += 1
            if other.mean != number.mean:
                values = f"{number.mean:.2f} in headline, {other.mean:.2f} in fixedB"
                lines.append(f"{cell.backbone}, {cell.shots}-shot: {values}")
    return [Measured(f"{n - len(lines)} of {n} the same", not lines, n, tuple(lines), "; ".join(lines)).outcome("")]


def transfer_averages(e: Evidence) -> list[Outcome]:
    """The average row of the transfer table is the mean of its twelve rows."""
    checks = []
    for arm in (*(transfer(mode, 4) for mode in TRANSFER_MODES), BEST_DENSE, joint(4)):
        printed = _printed("transfer_pairs", "ViT-B/16", "Average", arm, 16)
        cells = [e.results.cell("ViT-B/16", target, arm, 16, source=source) for target, source in e.main_pairs]
        values = [cell.mean for cell in cells if cell]
        assert len(values) == len(cells)  # published.csv has all of them
        checks.append((arm.basis, printed, sum(values) / len(values)))
    return [_agreement(checks).outcome("")]


def transfer_pairs_shown(e: Evidence) -> list[Outcome]:
    """The main transfer table lists every pair."""
    pairs = {(key.dataset, key.source) for key in e.results.cells if key.basis == "source-B"}
    left_out = sorted(pairs - set(e.main_pairs))
    lines = tuple(f"{target} from {source}" for target, source in left_out)
    note = "left out: " + "; ".join(lines)
    value = f"{len(pairs) - len(left_out)} of {len(pairs)} pairs"
    return [Measured(value, not left_out, len(pairs), lines, note).outcome("all four modes for every pair")]


def transfer_dense_reference(e: Evidence) -> list[Outcome]:
    """The dense reference of the transfer table is the dense prompt of 16 tokens."""
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


def headline_deltas(e: Evidence) -> list[Outcome]:
    """Δ of the headline table is factorised minus Dense-4."""
    checks = []
    for (_, cell), number in published_rows():
        if cell.metric == "delta_fact_dense4":
            low, four = (
                _printed("headline", cell.backbone, "Average", arm, cell.shots) for arm in (joint(4), dense(4))
            )
            checks.append((f"{cell.backbone}, {cell.shots}-shot", number.mean, low - four))
    return [_agreement(checks).outcome("")]


def best_factorized(e: Evidence) -> list[Outcome]:
    """The best rank and backbone per dataset and shots, and the gap to rank 4, follow from the rank sweep."""
    checks, lines = [], []
    for (table, printed), number in published_rows():
        if table != "best_delta" or printed.metric not in ("best_accuracy", "delta_rank4_best"):
            continue
        candidates = {
            (backbone, rank): cell.mean
            for backbone in e.backbones()
            for rank in e.ranks(backbone)
            if (cell := e.results.cell(backbone, printed.dataset, joint(rank), printed.shots))
        }
        best = max(candidates, key=lambda key: candidates[key])
        name = f"{printed.dataset}, {printed.shots}-shot"
        if printed.metric == "best_accuracy":
            checks.append((f"{name}, best", number.mean, candidates[best]))
            if best != (printed.backbone, printed.rank):
                lines.append(f"{name}: printed {printed.backbone} r={printed.rank}, the best is {best[0]} r={best[1]}")
        else:
            recomputed = candidates[printed.backbone, 4] - candidates[best]
            checks.append((f"{name}, rank 4 − best", number.mean, recomputed))
    found = _agreement(checks)
    return [found._replace(holds=found.holds and not lines, cells=(*lines, *found.cells)).outcome("")]


def best_dense(e: Evidence) -> list[Outcome]:
    """The column "Dense CoOp Best" of the ablation tables is the better of 4 and 16 tokens (checked on ViT-B/16)."""
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
    """The best mode per pair and its differences follow from the four modes, the dense and the best low-rank prompt."""
    checks, frozen_a = [], []
    for (table, cell), number in published_rows():
        if table != "transfer_best_delta":
            continue

        def accuracy(arm: Arm, key: CellKey = cell) -> float:
            found = e.results.cell(key.backbone, key.dataset, arm, key.shots, source=key.source)
            return found.mean if found else -math.inf

        means = {mode: accuracy(transfer(mode, 4)) for mode in TRANSFER_MODES}
        best = max(means, key=lambda mode: means[mode])
        assert best == cell.basis
        recomputed = {
            "best_accuracy": means[best],
            "delta_rand_freeze": means["random-B"] - means["source-B"],
            "delta_best_dense": means[best] - accuracy(BEST_DENSE),
            "delta_best_factorized": means[best] - max(accuracy(joint(rank)) for rank in e.ranks(cell.backbone)),
        }[cell.metric]
        pair = f"{cell.dataset} from {cell.source}"
        checks.append((f"{pair}, {cell.metric}", number.mean, recomputed))
        if cell.metric == "delta_rand_freeze" and best.endswith("A"):
            frozen_a.append(pair)
    found = _agreement(checks)
    note = f"random − source refers to a frozen B even if the best mode freezes A ({', '.join(frozen_a)})"
    return [found._replace(note=note if frozen_a else "").outcome("")]


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
    """Mean cosine ≤ cosine of the mean angle, for each pair and therefore for the medians."""
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
    """The published overlap of BA across seeds is the chance level of subspaces whose rank is that of the products."""
    assert e.geometry is not None
    rows = e.geometry[(e.geometry["axis"] == "seed") & (e.geometry["factor"] == "BA")]
    printed = float(rows["overlap"].iloc[0])
    generator = np.random.default_rng(0)
    draws = 300
    overlaps, lines = {}, []
    for rank in (1, 2, 4, 8, N_CTX):
        overlap, angle = random_overlaps(WIDTH, rank, rank, draws=draws, generator=generator)
        overlaps[rank] = float(np.median(overlap))
        lines.append(f"rank {rank}: overlap {overlaps[rank]:.3f}, angle {np.median(angle):.1f}°")
    within_ranks = printed <= max(overlap for rank, overlap in overlaps.items() if rank <= 8) + 0.005
    value = f"printed {printed:.2f}; chance at rank 8 {overlaps[8]:.3f}, at rank 16 {overlaps[N_CTX]:.3f}"
    note = (
        "independent seeds should give the chance level; the printed value is that of 16-dimensional subspaces, "
        f"which include the rounding noise of the stored products ({draws} random pairs per rank)"
    )
    return [Measured(value, within_ranks, draws, tuple(lines), note).outcome("rank-r products, r ≤ 8")]


def rank_one_bases_coincide(e: Evidence) -> list[Outcome]:
    """At rank 1 the orthogonal basis is the Gaussian one up to sign, because both are scaled to the same norm."""
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
        note = f"{size}: the variation between two equal settings" if same < len(gaps) else ""
        value = f"{same} of {len(gaps)} cells the same"
        outcomes.append(Measured(value, same == len(gaps), len(gaps), note=note).outcome("", backbone))
    return outcomes


def bold_marks(_: Evidence) -> list[Outcome]:
    """The bold numbers are the best of their group: all tied numbers, but none if the whole group is tied."""
    marks, lines = 0, []
    for table in published_tables():
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                found = printed_value(cell)
                if found is None or found.bold is None:
                    continue
                marks += 1
                if found.bold != cell.bold:
                    where = f"{table.name}, {row.full_label}, {column.full_label}"
                    lines.append(f"{where}: {found.mean:.2f} is {'' if found.bold else 'not '}marked")
    value = f"{marks - len(lines)} of {marks} marked as they should be"
    return [Measured(value, not lines, marks, tuple(lines), "; ".join(lines)).outcome("")]


#: Every check with what it counts, the table that it concerns and its statement; a new check is one function and one row.
AUDIT: tuple[Claim, ...] = tuple(
    Claim(check.__name__, where, sentence, "recomputed from the printed cells", check, unit)
    for check, unit, where, sentence in (
        (repeated_cells, "cell", "all tables", "A number that appears in several tables is the same in all of them."),
        (base2new_averages, "number", "base2new", "Average rows are the means over the seven datasets."),
        (fixed_basis_averages, "number", "fixedB", "Averages are the means of the per-dataset ablation tables."),
        (headline_averages, "number", "headline", "Averages are the means of the per-dataset tables."),
        (
            same_average_in_two_tables,
            "number",
            "headline, fixedB",
            "The rank-4 average is the same number in both tables.",
        ),
        (headline_deltas, "number", "headline", "Δ is factorised minus Dense-4."),
        (transfer_averages, "number", "transfer_pairs", "The average row is the mean of the rows."),
        (transfer_pairs_shown, "pair", "transfer_pairs", "The main table lists every source–target pair."),
        (transfer_dense_reference, "target", "transfer_pairs", "The dense reference is the dense prompt of 16 tokens."),
        (best_factorized, "number", "best_delta", "The best rank and its differences follow from the rank sweep."),
        (best_dense, "number", "b_ablation", "The best dense prompt is the better of 4 and 16 tokens."),
        (
            best_transfer,
            "number",
            "transfer_best_delta",
            "The best mode and its differences follow from the four modes.",
        ),
        (harmonic_concavity, "cell", "base2new, full", "H averaged over runs is at most the H of the averages."),
        (
            overlap_below_cosine,
            "median",
            "factor_geometry",
            "Median overlap is at most the cosine of the median angle.",
        ),
        (
            product_subspace_rank,
            "random pair",
            "factor_geometry",
            "The overlap of BA is that of subspaces of rank at most 8.",
        ),
        (
            rank_one_bases_coincide,
            "cell",
            "b_ablation",
            "At rank 1 the Gaussian and the orthogonal basis are the same.",
        ),
        (
            bold_marks,
            "number",
            "all tables",
            "The best numbers are in bold: all tied numbers, but none if the whole group is tied.",
        ),
    )
)


def audit(names: Sequence[str] = ()) -> list[Finding]:
    """Run the consistency checks of the published tables, or only those named."""
    return check_claims(published_evidence(), names, AUDIT)
