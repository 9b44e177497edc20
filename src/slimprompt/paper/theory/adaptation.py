"""Trained dense prompts in the place of P*: is real adaptation distributed as the surrogate assumes?

A dense run starts at P0 and ends at P*. The shares of P* and of the displacement P* − P0 that the bases in use keep are
compared with r/m and r/d, the shares kept by a uniformly random basis. The share held by the r largest singular
directions of the displacement is compared with that of a normal matrix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.paper.theory.asymmetry import SYMBOLS, Side, top_share
from slimprompt.paper.theory.bases import KeptShares, shares_of, start_bases, start_coefficients
from slimprompt.paper.theory.statement import Statement, expected
from slimprompt.seeds import stream_seed

ADAPTATION = "Trained prompts"

PROMPT, DISPLACEMENT = "trained prompt P*", "displacement P* − P0"
#: Normal matrices behind the reference share of the r largest directions.
_REFERENCE_DRAWS = 50
#: Confidence level over training seeds. At 99.9 % the usual three seeds could not decide anything.
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class TrainedPrompt:
    """One dense run.

    Attributes
    ----------
    seed
        Seed of the run.
    p0, final
        Initial and final prompt (m, d).
    learned
        Final factors B (m, r) and A (r, d) of the joint run with the same settings, if there is one.
    """

    seed: int
    p0: np.ndarray
    final: np.ndarray
    learned: tuple[np.ndarray, np.ndarray] | None

    def target(self, which: str) -> np.ndarray:
        """P* or P* − P0."""
        return self.final if which == PROMPT else self.final - self.p0


@dataclass(frozen=True)
class Adaptation:
    """Dense runs of one backbone."""

    backbone: str
    runs: tuple[TrainedPrompt, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(m, d)."""
        m, d = self.runs[0].p0.shape
        return int(m), int(d)


def trained_prompts(records: Iterable[Record], m: int, rank: int) -> list[Adaptation]:
    """Read the complete dense runs with m context tokens.

    Parameters
    ----------
    records
        Run records.
    m
        Number of context tokens.
    rank
        Rank of the joint runs whose factors are the learned bases.

    Returns
    -------
    list of Adaptation
        One entry per backbone.

    Raises
    ------
    InputError
        If there is no such dense run.
    """
    complete = [record for record in records if record.complete and record.spec.depth == 1 and not record.spec.anchored]
    dense = [record for record in complete if record.spec.variant == "dense"]
    chosen = [record for record in dense if record.spec.n_ctx == m]
    if not chosen:
        lengths = sorted({record.spec.n_ctx for record in dense})
        have = f"dense runs have m = {', '.join(map(str, lengths))}" if lengths else "none of the runs is dense"
        raise InputError(
            f"no complete dense run with m = {m} among {len(complete)} complete runs: {have}. "
            "Give another --m, or a folder with dense runs (`slimprompt study` writes them)."
        )
    joint = {
        _settings(record.spec): record
        for record in complete
        if record.spec.variant == "joint" and record.spec.rank == rank and record.spec.n_ctx == m
    }
    groups: dict[str, list[TrainedPrompt]] = defaultdict(list)
    for record in chosen:
        factors = record.factors()
        counterpart = joint.get(_settings(record.spec))
        learned = None
        if counterpart is not None:
            other = counterpart.factors()
            learned = (other["B"], other["A"])
        start, end = factors["B0"] @ factors["A0"], factors["B"] @ factors["A"]
        name = record.spec.backbone + (f" {record.spec.pretrained}" if record.spec.pretrained else "")
        groups[name].append(TrainedPrompt(record.spec.seed, start, end, learned))
    return [Adaptation(name, tuple(runs)) for name, runs in sorted(groups.items())]


def _settings(spec: RunSpec) -> str:
    """Everything that a dense run and the corresponding joint run have in common."""
    return repr(sorted(spec.model_dump(mode="json", exclude={"variant", "rank", "basis", "source"}).items()))


def kept_by_bases(adaptation: Adaptation, rank: int) -> list[KeptShares]:
    """Shares of P* and of P* − P0 kept by each basis in use, one value per seed.

    Runs of a seed share P0 and the random bases, so only seeds are independent: the value of a seed is the mean over
    its runs.
    """
    m, d = adaptation.shape
    shares: dict[tuple[str, Side, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in adaptation.runs:
        token = start_bases(run.p0, rank, run.seed)
        embedding = {"svd": start_coefficients(run.p0, rank)}
        if run.learned is not None:
            token["learned"], embedding["learned"] = run.learned
        for which in (PROMPT, DISPLACEMENT):
            target = run.target(which)
            if not np.any(target):
                raise InputError(
                    f"a dense run of seed {run.seed} ends exactly at its initial prompt: it was not trained"
                )
            for (basis, side), share in shares_of(token, embedding, target).items():
                shares[basis, side, which][run.seed].append(share)
    return [
        KeptShares(basis, side, which, np.array(_seed_means(by_seed)), rank / (m if side == "token" else d))
        for (basis, side, which), by_seed in shares.items()
    ]


def _seed_means(by_seed: dict[int, list[float]]) -> list[float]:
    return [float(np.mean(values)) for _, values in sorted(by_seed.items())]


def adaptation_statements(adaptation: Adaptation, kept: Sequence[KeptShares], rank: int, seed: int) -> list[Statement]:
    """Each basis in use against r/m or r/d, and the concentration of the displacement against a normal matrix."""
    of = f"{adaptation.backbone}, {len(adaptation.runs)} dense runs"
    rows = []
    for shares in kept:
        letter, size = SYMBOLS[shares.side]
        rows.append(
            expected(
                ADAPTATION,
                f"{shares.basis} {letter}, {shares.target} ({adaptation.backbone})",
                f"The {shares.basis} {letter} keeps the share r/{size} of the {shares.target}, like a random one.",
                shares.predicted,
                shares.values,
                confidence=_CONFIDENCE,
                detail=f"{of}; means of {shares.values.size} seeds, 95 % interval",
            )
        )
    return [*rows, _concentration(adaptation, of, rank, seed)]


def _concentration(adaptation: Adaptation, of: str, rank: int, seed: int) -> Statement:
    """Σ_{k≤r} σ_k² / Σ σ_k² of the displacement, against the mean over normal matrices."""
    generator = np.random.default_rng(stream_seed(seed, "theory", "reference"))
    reference = [top_share(generator.standard_normal(adaptation.shape), rank) for _ in range(_REFERENCE_DRAWS)]
    by_seed: dict[int, list[float]] = defaultdict(list)
    for run in adaptation.runs:
        by_seed[run.seed].append(top_share(run.target(DISPLACEMENT), rank))
    return expected(
        ADAPTATION,
        f"Displacement without preferred directions ({adaptation.backbone})",
        "The r largest directions of P* − P0 hold the same share as in a normal matrix: there are no preferred ones.",
        float(np.mean(reference)),
        _seed_means(by_seed),
        confidence=_CONFIDENCE,
        detail=f"{of}; the measured share is the most that any B or A of rank {rank} could keep, 95 % interval",
    )
