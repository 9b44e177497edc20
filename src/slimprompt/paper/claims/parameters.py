"""Claims about the number of trained parameters."""

from __future__ import annotations

from collections.abc import Iterable

from slimprompt.lab.records import Record
from slimprompt.paper.claims.claim import Claim, Measured, Outcome, missing
from slimprompt.paper.claims.evidence import Evidence, ParameterCount
from slimprompt.prompts.spec import count_parameters


def recorded_parameters(records: Iterable[Record]) -> tuple[ParameterCount, ...]:
    """The parameter counts in the records of complete runs, one entry per variant, length, width and rank."""
    widths: dict[str, int] = {}  # read from the factors of one run per backbone
    found = set()
    for record in records:
        spec, count = record.spec, record.facts.get("trainable_parameters")
        if count is None or not record.complete or spec.variant is None or spec.depth > 1:
            continue  # the paper has no other methods and no deep prompts
        if spec.backbone not in widths:
            widths[spec.backbone] = int(record.factors()["A"].shape[1])
        found.add(ParameterCount(spec.variant, spec.n_ctx, widths[spec.backbone], spec.rank or 0, int(count)))
    return tuple(sorted(found, key=lambda one: (one.width, one.variant, one.n_ctx, one.rank)))


def _counts(e: Evidence, variant: str) -> dict[tuple[int, int, int], int]:
    """Map (m, d, r) to the number of trained parameters."""
    return {(one.n_ctx, one.width, one.rank): one.count for one in e.parameters if one.variant == variant}


def parameter_counts(e: Evidence) -> list[Outcome]:
    """Trained parameters are md (dense), r(m+d) (joint), rd (fixed-B) and mr (fixed-A)."""
    paper = "8192 / 2112 / 2048 / 64 (dense, joint, fixed-B, fixed-A at m=16, d=512, r=4)"
    if not e.parameters:
        return missing(paper, "records with trainable_parameters")
    lines, right = [], 0
    for one in e.parameters:
        formula = count_parameters(one.variant, n_ctx=one.n_ctx, width=one.width, rank=one.rank)
        right += one.count == formula
        name = f"{one.variant}, m={one.n_ctx}, d={one.width}, r={one.rank or '—'}"
        lines.append(f"{name}: {one.count}, formula {formula}")
    n = len(e.parameters)
    value, holds = f"{right} of {n} kinds of runs match the formula", right == n
    if e.published:
        printed = (("dense", 0), ("joint", 4), ("fixed-B", 4), ("fixed-A", 4))
        value = " / ".join(str(_counts(e, variant).get((16, 512, rank))) for variant, rank in printed)
        holds = holds and paper.startswith(value)
    return [Measured(value, holds, n, tuple(lines)).outcome(paper)]


def parameter_share(e: Evidence) -> list[Outcome]:
    """r(m+d) / md at rank 4: joint low rank trains about a quarter of the parameters of the full dense prompt."""
    paper = "roughly a quarter (2112 of 8192; dense about four times larger)"
    full = _counts(e, "dense")
    shares = {
        f"m={m}, d={d}, r={r}": count / full[m, d, 0]
        for (m, d, r), count in _counts(e, "joint").items()
        if r == 4 and (m, d, 0) in full
    }
    if not shares:
        return missing(paper, "dense and joint rank-4 runs of the same length")
    value = ", ".join(f"{share:.3f} ({1 / share:.2f} times)" for share in shares.values())
    holds = all(0.2 <= share <= 0.3 for share in shares.values())
    lines = tuple(f"{name}: {share:.4f}" for name, share in shares.items())
    return [Measured(value, holds, len(shares), lines).outcome(paper)]


def matched_parameters(e: Evidence) -> list[Outcome]:
    """rd / r(m+d): a dense prompt of r tokens trains nearly as many parameters as the joint prompt of rank r."""
    paper = "2048 against 2112"
    short = {(m, d): count for (m, d, _), count in _counts(e, "dense").items()}
    pairs = {(m, d, r): (short[r, d], count) for (m, d, r), count in _counts(e, "joint").items() if (r, d) in short}
    if not pairs:
        return missing(paper, "joint runs of rank r and dense runs of r tokens")
    value = ", ".join(f"{one} against {other}" for one, other in pairs.values())
    holds = all(one / other >= 0.95 for one, other in pairs.values())
    lines = tuple(f"m={m}, d={d}, r={r}: {one / other:.3f}" for (m, d, r), (one, other) in pairs.items())
    return [Measured(value, holds, len(pairs), lines).outcome(paper)]


def dimension_gap(e: Evidence) -> list[Outcome]:
    """rd / mr = d/m: training A with B fixed has d/m times as many directions as training B with A fixed."""
    paper = "d/m = 32"
    other = _counts(e, "fixed-A")
    ratios = {key: count / other[key] for key, count in _counts(e, "fixed-B").items() if key in other}
    if not ratios:
        return missing(paper, "fixed-B and fixed-A runs of the same rank")
    holds = all(ratio == d / m for (m, d, _), ratio in ratios.items())
    value = ", ".join(sorted({f"{ratio:g}" for ratio in ratios.values()}))
    lines = tuple(f"m={m}, d={d}, r={r}: {ratio:g}, d/m = {d / m:g}" for (m, d, r), ratio in ratios.items())
    return [Measured(value, holds, len(ratios), lines).outcome(paper)]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "parameter_counts",
        "§4.1, App. B.2",
        "Dense, joint, fixed-B and fixed-A prompts train md, r(m+d), rd and mr parameters.",
        "every run's count equals its formula",
        parameter_counts,
        unit="prompt shape",
    ),
    Claim(
        "parameter_share",
        "§6 few-shot",
        "The joint rank-4 prompt trains about a quarter of the parameters of the full dense prompt.",
        "between 0.2 and 0.3 of the full dense prompt",
        parameter_share,
        unit="prompt shape",
    ),
    Claim(
        "matched_parameters",
        "§6 few-shot",
        "A dense prompt of 4 tokens trains nearly as many parameters as the joint prompt of rank 4.",
        "at least 0.95 of the joint prompt's count",
        matched_parameters,
        unit="prompt shape",
    ),
    Claim(
        "dimension_gap",
        "§1, §4.3",
        "Training A with B fixed has d/m times as many directions as training B with A fixed.",
        "parameter count of fixed-B over that of fixed-A equals d/m",
        dimension_gap,
        unit="prompt shape",
    ),
)
