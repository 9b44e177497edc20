"""The table of all claims, and the functions that check them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slimprompt.analysis.geometry import Geometry, measure
from slimprompt.analysis.observations import observe
from slimprompt.analysis.results import Results
from slimprompt.errors import choose
from slimprompt.lab.records import Record
from slimprompt.paper.claims import base_to_new, few_shot, fixed_basis, geometry, parameters, transfer
from slimprompt.paper.claims.claim import Claim, Finding
from slimprompt.paper.claims.evidence import Evidence

#: Every quantitative empirical claim of the paper, grouped by topic.
CLAIMS: tuple[Claim, ...] = (
    *parameters.CLAIMS,
    *base_to_new.CLAIMS,
    *few_shot.CLAIMS,
    *fixed_basis.CLAIMS,
    *transfer.CLAIMS,
    *geometry.CLAIMS,
)


def gather(
    records: Sequence[Record],
    *,
    main_pairs: Iterable[tuple[str, str]] = (),
    measured: Geometry | None = None,
    results: Results | None = None,
) -> Evidence:
    """Collect the evidence in a set of runs.

    Parameters
    ----------
    records
        Records of complete runs.
    main_pairs
        (target, source) pairs of the paper's main transfer table.
    measured
        Geometry of these runs; if None, it is measured on the runs on all classes.
    results
        Cells of these runs; if None, they are computed.

    Returns
    -------
    Evidence
    """
    measured = measured or measure(records, draws=500)
    return Evidence(
        results or Results.of(observe(records)),
        geometry=measured.medians(),
        displacement=measured.displacement,
        parameters=parameters.recorded_parameters(records),
        main_pairs=tuple(main_pairs),
    )


def check_claims(evidence: Evidence, names: Sequence[str] = (), claims: Sequence[Claim] = CLAIMS) -> list[Finding]:
    """Check claims on the given evidence.

    Parameters
    ----------
    evidence
        Results to check the claims on.
    names
        Names of the claims to check; all of `claims` if empty.
    claims
        Claims to choose from.

    Returns
    -------
    list of Finding
        One finding per claim and scope.

    Raises
    ------
    InputError
        If a name is unknown.
    """
    known = {claim.name: claim for claim in claims}
    for name in names:
        choose("claim", name, known)
    chosen = [claim for claim in claims if not names or claim.name in names]
    return [Finding.of(claim, outcome) for claim in chosen for outcome in claim.check(evidence)]
