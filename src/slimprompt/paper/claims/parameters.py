"""How many numbers each variant trains."""

from __future__ import annotations

from collections.abc import Iterable

from slimprompt.lab.records import Record
from slimprompt.paper.claims.evidence import Claim, Evidence, Outcome, ParameterCount, missing, verdict_of


def count_parameters(records: Iterable[Record]) -> tuple[ParameterCount, ...]:
    """From the records, with the width read off one run's factors per backbone."""
    widths: dict[str, int] = {}
    found = set()
    for record in records:
        spec, count = record.spec, record.facts.get("trainable_parameters")
        if count is None or not record.complete:
            continue
        if spec.backbone not in widths:
            widths[spec.backbone] = int(record.factors()["A"].shape[1])
        found.add(ParameterCount(spec.variant, spec.n_ctx, widths[spec.backbone], spec.rank or 0, int(count)))
    return tuple(sorted(found, key=lambda one: (one.width, one.variant, one.n_ctx, one.rank)))


def _counts(e: Evidence, variant: str) -> dict[tuple[int, int, int], int]:
    """(m, d, r) → trained numbers."""
    return {(one.n_ctx, one.width, one.rank): one.count for one in e.parameters if one.variant == variant}


def parameter_counts(e: Evidence) -> list[Outcome]:
    """Trained numbers are md, r(m+d), rd, mr."""
    paper = "8192 / 2112 / 2048 / 64 (dense, joint, fixed-B, fixed-A at m=16, d=512, r=4)"
    if not e.parameters:
        return missing(paper, "records with trainable_parameters")
    lines = tuple(
        f"{one.variant}, m={one.n_ctx}, d={one.width}, r={one.rank or '—'}: {one.count}, formula {one.formula}"
        for one in e.parameters
    )
    right = sum(one.count == one.formula for one in e.parameters)
    value, holds = f"{right} of {len(e.parameters)} kinds of runs as by formula", right == len(e.parameters)
    if e.published:
        at_four = [_counts(e, variant).get((16, 512, rank)) for variant, rank in _PRINTED_ORDER]
        value = " / ".join(str(count) for count in at_four)
        holds = holds and paper.startswith(value)
    return [Outcome(value, verdict_of(holds), paper, "", len(e.parameters), lines)]


_PRINTED_ORDER = (("dense", 0), ("joint", 4), ("fixed-B", 4), ("fixed-A", 4))


def parameter_share(e: Evidence) -> list[Outcome]:
    """Joint low rank trains about a quarter of the full dense prompt."""
    paper = "roughly a quarter (2112 of 8192; dense about four times larger)"
    full = _counts(e, "dense")
    shares = {
        f"m={m}, d={d}, r={r}": count / full[m, d, 0]
        for (m, d, r), count in _counts(e, "joint").items()
        if r == 4 and (m, d, 0) in full
    }
    if not shares:
        return missing(paper, "dense and joint rank-4 runs of one length")
    value = ", ".join(f"{share:.3f} ({1 / share:.2f} times)" for share in shares.values())
    holds = all(0.2 <= share <= 0.3 for share in shares.values())
    lines = tuple(f"{name}: {share:.4f}" for name, share in shares.items())
    return [Outcome(value, verdict_of(holds), paper, "", len(shares), lines)]


def matched_parameters(e: Evidence) -> list[Outcome]:
    """A dense prompt of r tokens trains nearly as many numbers as the joint prompt of rank r: rd against r(m+d)."""
    paper = "2048 against 2112"
    short = {(m, d): count for (m, d, _), count in _counts(e, "dense").items()}
    pairs = {(m, d, r): (short[r, d], count) for (m, d, r), count in _counts(e, "joint").items() if (r, d) in short}
    if not pairs:
        return missing(paper, "joint runs of rank r and dense runs of r tokens")
    value = ", ".join(f"{one} against {other}" for one, other in pairs.values())
    holds = all(one / other >= 0.95 for one, other in pairs.values())
    lines = tuple(f"m={m}, d={d}, r={r}: {one / other:.3f}" for (m, d, r), (one, other) in pairs.items())
    return [Outcome(value, verdict_of(holds), paper, "", len(pairs), lines)]


def dimension_gap(e: Evidence) -> list[Outcome]:
    """Training A over fixed B has d/m times the directions of training B over fixed A."""
    paper = "d/m = 32"
    other = _counts(e, "fixed-A")
    ratios = {key: count / other[key] for key, count in _counts(e, "fixed-B").items() if key in other}
    if not ratios:
        return missing(paper, "fixed-B and fixed-A runs of one rank")
    holds = all(ratio == d / m for (m, d, _), ratio in ratios.items())
    value = ", ".join(sorted({f"{ratio:g}" for ratio in ratios.values()}))
    lines = tuple(f"m={m}, d={d}, r={r}: {ratio:g}, d/m = {d / m:g}" for (m, d, r), ratio in ratios.items())
    return [Outcome(value, verdict_of(holds), paper, "", len(ratios), lines)]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "parameter_counts",
        "§4.1, App. B.2",
        "Dense, joint, fixed-B and fixed-A prompts train md, r(m+d), rd and mr numbers.",
        "every run's count follows its formula",
        parameter_counts,
    ),
    Claim(
        "parameter_share",
        "§6 few-shot",
        "The joint rank-4 prompt trains about a quarter of the full dense prompt.",
        "between 0.2 and 0.3 of the full dense prompt",
        parameter_share,
    ),
    Claim(
        "matched_parameters",
        "§6 few-shot",
        "A dense prompt of 4 tokens trains nearly as many numbers as the joint prompt of rank 4.",
        "at least 0.95 of the joint prompt's",
        matched_parameters,
    ),
    Claim(
        "dimension_gap",
        "§1, §4.3",
        "Training A over a fixed B has d/m times as many directions as training B over a fixed A.",
        "trained numbers of fixed-B over those of fixed-A equal d/m",
        dimension_gap,
    ),
)
