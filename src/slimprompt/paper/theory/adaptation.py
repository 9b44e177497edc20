"""Is real adaptation distributed like the surrogate assumes? Trained dense prompts in the place of P*.

A dense run starts at P0 and ends at P*. Against the shares r/m and r/d of a uniformly random basis stand the shares that
the bases in use keep of P* and of the displacement P* − P0, and how much of it its own r largest directions hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.paper.theory.asymmetry import Side, kept_share, top_share
from slimprompt.paper.theory.bases import KeptShares, start_bases, start_coefficients
from slimprompt.paper.theory.statement import Statement, expected
from slimprompt.seeds import stream_seed

ADAPTATION = "Trained prompts"

PROMPT, DISPLACEMENT = "trained prompt P*", "displacement P* − P0"
#: Normal matrices behind the reference for the r largest directions.
_REFERENCE_DRAWS = 50


@dataclass(frozen=True)
class Adaptation:
    """Dense runs of one backbone, and the matching joint runs' final factors where there are some."""

    backbone: str
    runs: tuple[TrainedPrompt, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(m, d)."""
        m, d = self.runs[0].p0.shape
        return int(m), int(d)


@dataclass(frozen=True)
class TrainedPrompt:
    """One dense run: start and end (m, d), and the learned factors B (m, r), A (r, d) of its joint counterpart."""

    seed: int
    p0: np.ndarray
    final: np.ndarray
    learned: tuple[np.ndarray, np.ndarray] | None

    def target(self, which: str) -> np.ndarray:
        """P* or P* − P0."""
        return self.final if which == PROMPT else self.final - self.p0


def trained_prompts(records: Iterable[Record], m: int, rank: int) -> list[Adaptation]:
    """The complete dense runs with m context tokens, by backbone; joint runs of `rank` give the learned factors."""
    complete = [record for record in records if record.complete]
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
        _cell(record.spec): record
        for record in complete
        if record.spec.variant == "joint" and record.spec.rank == rank and record.spec.n_ctx == m
    }
    groups: dict[str, list[TrainedPrompt]] = defaultdict(list)
    for record in chosen:
        factors = record.factors()
        counterpart = joint.get(_cell(record.spec))
        learned = None
        if counterpart is not None:
            other = counterpart.factors()
            learned = (other["B"], other["A"])
        start, end = factors["B0"] @ factors["A0"], factors["B"] @ factors["A"]
        name = record.spec.backbone + (f" {record.spec.pretrained}" if record.spec.pretrained else "")
        groups[name].append(TrainedPrompt(record.spec.seed, start, end, learned))
    return [Adaptation(name, tuple(runs)) for name, runs in sorted(groups.items())]


def _cell(spec: RunSpec) -> str:
    """All that a dense run and its joint counterpart have in common."""
    return repr(sorted(spec.model_dump(mode="json", exclude={"variant", "rank", "basis", "source"}).items()))


def kept_by_bases(adaptation: Adaptation, rank: int) -> list[KeptShares]:
    """Share of P* and of P* − P0 that each basis in use keeps: one value per seed, the mean over its runs.

    Runs of a seed share P0 and the drawn bases, so only seeds are independent of each other.
    """
    m, d = adaptation.shape
    shares: dict[tuple[str, Side, str], dict[int, list[float]]] = {}

    def add(basis: str, side: Side, target: str, seed: int, share: float) -> None:
        shares.setdefault((basis, side, target), defaultdict(list))[seed].append(share)

    for run in adaptation.runs:
        token = start_bases(run.p0, rank, run.seed)
        embedding = {"svd": start_coefficients(run.p0, rank)}
        if run.learned is not None:
            token["learned"], embedding["learned"] = run.learned
        for which in (PROMPT, DISPLACEMENT):
            target = run.target(which)
            if not np.any(target):
                raise InputError(f"a dense run of seed {run.seed} ends exactly where it started: it was not trained")
            for name, basis in token.items():
                add(name, "token", which, run.seed, kept_share(basis, target))
            for name, coefficients in embedding.items():
                add(name, "embedding", which, run.seed, kept_share(coefficients.T, target.T))
    return [
        KeptShares(
            basis,
            side,
            which,
            np.array([np.mean(values) for _, values in sorted(by_seed.items())]),
            rank / (m if side == "token" else d),
        )
        for (basis, side, which), by_seed in shares.items()
    ]


def adaptation_statements(adaptation: Adaptation, kept: Sequence[KeptShares], rank: int, seed: int) -> list[Statement]:
    """Each basis in use against r/m or r/d, and the concentration of the displacement against a normal matrix."""
    of = f"{adaptation.backbone}, {len(adaptation.runs)} dense runs"
    rows = []
    for shares in kept:
        letter, size = ("B", "m") if shares.side == "token" else ("A", "d")
        rows.append(
            expected(
                ADAPTATION,
                f"{shares.basis} {letter}, {shares.target} ({adaptation.backbone})",
                f"The {shares.basis} {letter} keeps the share r/{size} of the {shares.target}, as a random one would.",
                shares.predicted,
                shares.values,
                confidence=0.95,  # three seeds are usual: at 99.9 % nothing could ever be told
                detail=f"{of}; means of {shares.values.size} seeds, 95 % interval",
            )
        )
    m, d = adaptation.shape
    generator = np.random.default_rng(stream_seed(seed, "theory", "reference"))
    reference = [top_share(generator.standard_normal((m, d)), rank) for _ in range(_REFERENCE_DRAWS)]
    by_seed: dict[int, list[float]] = defaultdict(list)
    for run in adaptation.runs:
        by_seed[run.seed].append(top_share(run.target(DISPLACEMENT), rank))
    rows.append(
        expected(
            ADAPTATION,
            f"Displacement without preferred directions ({adaptation.backbone})",
            "The r largest directions of P* − P0 hold what they hold in a normal matrix: adaptation has no preferred ones.",
            float(np.mean(reference)),
            [float(np.mean(values)) for _, values in sorted(by_seed.items())],
            confidence=0.95,
            detail=f"{of}; the measured share is the most that any B or A of rank {rank} could keep, 95 % interval",
        )
    )
    return rows
