"""Trained dense prompts in the place of P*: is real adaptation distributed as the surrogate assumes?

A dense run starts at P0 and ends at P*. The shares of P* and of the displacement P* − P0 that the bases in use keep are
compared with r/m and r/d, the shares kept by a uniformly random basis. The share held by the r largest singular
directions of the displacement is compared with that of a normal matrix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.paper.theory.asymmetry import SYMBOLS, top_share
from slimprompt.paper.theory.bases import Case, KeptShares, seed_means
from slimprompt.paper.theory.statement import Check, Statement
from slimprompt.seeds import stream_seed

ADAPTATION = "Trained prompts"
PROMPT, DISPLACEMENT = "trained prompt P*", "displacement P* − P0"
#: Normal matrices behind the reference share of the r largest directions.
_REFERENCE_DRAWS = 50
#: Confidence level over training seeds. At 99.9 % the usual three seeds could not decide anything.
_CONFIDENCE = 0.95


def trained_cases(records: Iterable[Record], m: int, rank: int) -> dict[str, list[Case]]:
    """By backbone, the complete dense runs with m context tokens, with the factors of their joint counterparts of this rank."""
    complete = [record for record in records if record.complete and record.spec.depth == 1 and not record.spec.anchored]
    dense = [record for record in complete if record.spec.variant == "dense"]
    chosen = [record for record in dense if record.spec.n_ctx == m]
    if not chosen:
        lengths = sorted({str(record.spec.n_ctx) for record in dense}, key=int)
        have = f"dense runs have m = {', '.join(lengths)}" if lengths else "none of the runs is dense"
        raise InputError(
            f"no complete dense run with m = {m} among {len(complete)} complete runs: {have}. "
            "Give another --m, or a folder with dense runs (`slimprompt study` writes them)."
        )
    joint = {
        _settings(record.spec): record
        for record in complete
        if record.spec.variant == "joint" and record.spec.rank == rank and record.spec.n_ctx == m
    }
    cases: dict[str, list[Case]] = defaultdict(list)
    for record in chosen:
        factors, learned = record.factors(), None
        if counterpart := joint.get(_settings(record.spec)):
            trained = counterpart.factors()
            learned = (trained["B"], trained["A"])
        p0, final = factors["B0"] @ factors["A0"], factors["B"] @ factors["A"]
        if np.array_equal(p0, final):
            raise InputError(f"the dense run {record.folder} ends exactly at its initial prompt: it was not trained")
        name = " ".join(filter(None, (record.spec.backbone, record.spec.pretrained)))
        cases[name].append(Case(record.spec.seed, p0, {PROMPT: final, DISPLACEMENT: final - p0}, learned))
    return dict(sorted(cases.items()))


def _settings(spec: RunSpec) -> str:
    """Everything that a dense run and the corresponding joint run have in common."""
    return repr(sorted(spec.model_dump(mode="json", exclude={"variant", "rank", "basis", "source"}).items()))


def adaptation_statements(
    backbone: str, cases: Sequence[Case], shares: Iterable[KeptShares], rank: int, seed: int
) -> list[Statement]:
    """Each basis in use against r/m or r/d, and Σ_{k≤r} σ_k² / Σ σ_k² of the displacement against normal matrices."""
    of = f"{backbone}, {len(cases)} dense runs"
    rows = []
    for kept in shares:
        letter, size = SYMBOLS[kept.side]
        claim = f"The {kept.basis} {letter} keeps the share r/{size} of the {kept.target}, like a random one."
        check = Check(ADAPTATION, f"{kept.basis} {letter}, {kept.target} ({backbone})", claim)
        detail = f"{of}; means of {kept.values.size} seeds, 95 % interval"
        rows.append(check.mean("=", kept.predicted, kept.values, detail, confidence=_CONFIDENCE))

    generator = np.random.default_rng(stream_seed(seed, "theory", "reference"))
    reference = [top_share(generator.standard_normal(cases[0].p0.shape), rank) for _ in range(_REFERENCE_DRAWS)]
    by_seed: dict[int, list[float]] = defaultdict(list)
    for case in cases:
        by_seed[case.seed].append(top_share(case.targets[DISPLACEMENT], rank))
    claim = (
        "The r largest directions of P* − P0 hold the same share as in a normal matrix: there are no preferred ones."
    )
    check = Check(ADAPTATION, f"Displacement without preferred directions ({backbone})", claim)
    detail = f"{of}; the measured share is the most that any B or A of rank {rank} could keep, 95 % interval"
    rows.append(check.mean("=", float(np.mean(reference)), seed_means(by_seed), detail, confidence=_CONFIDENCE))
    return rows
