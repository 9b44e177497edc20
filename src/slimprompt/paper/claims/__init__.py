"""The paper's empirical sentences, each as one function of a set of results: what it says here, and whether it holds.

The same functions read one's own runs and the published tables. On the published tables a claim holds if the tables
give the number that the text gives; on one's own runs it holds if the sentence is true of them (see each claim's
`bound`). Bounds that the paper puts in words ("a few tenths", "little") are given a number here, and it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slimprompt.analysis.geometry import Geometry, measure
from slimprompt.analysis.observations import Results, observe
from slimprompt.errors import unknown
from slimprompt.lab.records import Record
from slimprompt.paper.claims import base_to_new, few_shot, fixed_basis, geometry, parameters, transfer
from slimprompt.paper.claims.evidence import Claim, Evidence, Finding, Outcome, ParameterCount, Verdict

__all__ = ["CLAIMS", "Claim", "Evidence", "Finding", "Outcome", "ParameterCount", "Verdict", "check_claims", "gather"]

#: Every empirical sentence of the paper with a number in it, in its order.
CLAIMS: tuple[Claim, ...] = (
    *parameters.CLAIMS,
    *base_to_new.CLAIMS,
    *few_shot.CLAIMS,
    *fixed_basis.CLAIMS,
    *transfer.CLAIMS,
    *geometry.CLAIMS,
)


def gather(
    records: Sequence[Record], *, main_pairs: Iterable[tuple[str, str]] = (), measured: Geometry | None = None
) -> Evidence:
    """The evidence in a set of runs; `measured` is their geometry, where it is already there."""
    measured = measured or measure(records, draws=500)
    return Evidence(
        Results.of(observe(records)),
        geometry=measured.medians(),
        displacement=measured.displacement,
        parameters=parameters.count_parameters(records),
        main_pairs=tuple(main_pairs),
    )


def check_claims(evidence: Evidence, names: Sequence[str] = (), claims: Sequence[Claim] = CLAIMS) -> list[Finding]:
    """Every claim (or those named) on this evidence; one finding per claim and scope."""
    known = {claim.name: claim for claim in claims}
    for name in names:
        if name not in known:
            raise unknown("claim", name, known)
    chosen = [claim for claim in claims if not names or claim.name in names]
    return [Finding.of(claim, outcome) for claim in chosen for outcome in claim.check(evidence)]
