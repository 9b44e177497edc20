"""Checks of all statements: on the linear surrogate, and on the loss of a text encoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.paper.theory.adaptation import adaptation_statements, trained_cases
from slimprompt.paper.theory.asymmetry import (
    SIDES,
    ResidualCurve,
    asymmetry_statements,
    corollary_statements,
    haar_frames,
    ideal_prompts,
    lemma_statements,
    mean_projector,
    residual_curve,
)
from slimprompt.paper.theory.bases import kept_shares, start_cases, start_context, start_factors, start_statements
from slimprompt.paper.theory.convergence import (
    FIXED_A,
    FIXED_B,
    check_descent,
    check_rate,
    descent_statements,
    rate_statements,
)
from slimprompt.paper.theory.figures import Series, descent_series, local_series, residual_series, share_series
from slimprompt.paper.theory.local_model import LOCAL_MODEL, check_local_model, local_model_statements
from slimprompt.paper.theory.objective import Objective, Transposed
from slimprompt.paper.theory.statement import Check, Statement
from slimprompt.paper.theory.update_space import dimension_statements
from slimprompt.seeds import stream_seed

#: Seeds whose initial bases are measured.
_SEEDS = 200
#: Random bases per side for the local model.
_DRAWS = 16
#: Examples per batch, and stochastic runs per number of steps.
_BATCHES = {"batch_size": 32, "replicates": 3}


class Theory(NamedTuple):
    """All statements with the data of the figures, and what they were measured on."""

    setting: str
    statements: list[Statement]
    series: list[Series]


def check_sizes(m: int, d: int, rank: int) -> None:
    """Raise an `InputError` unless 1 ≤ r ≤ m < d, as the theory assumes."""
    if not 1 <= rank <= m < d:
        raise InputError(f"the statements need 1 ≤ r ≤ m < d; given: r = {rank}, m = {m}, d = {d}")


def check_theory(
    *,
    m: int = 16,
    d: int = 512,
    rank: int = 4,
    trials: int = 1000,
    seed: int = 1,
    records: Iterable[Record] = (),
    objective: Objective | None = None,
    steps: int = 30,
    relative_damping: float | None = None,
) -> Theory:
    """Check all statements on a surrogate with m context tokens of width d, with `trials` random bases of this rank per side.

    The trained dense prompts of `records` serve as P*, and their learned factors as bases. Without F(P) as `objective`, the statements
    on the loss are not applicable. `relative_damping` is that of the local model over the largest curvature; None chooses it.
    """
    check_sizes(m, d, rank)
    generator = np.random.default_rng(stream_seed(seed, "theory", "bases"))
    ideals = ideal_prompts(m, d, seed)
    statements = lemma_statements(ideals["spread"], rank, generator)
    statements.append(mean_projector(haar_frames(m, rank, trials, generator)))
    curves: list[ResidualCurve] = []
    for name, ideal in ideals.items():
        token, embedding = (residual_curve(side, name, ideal, trials, generator) for side in SIDES)
        statements += asymmetry_statements(token, embedding, rank)
        curves += [token, embedding]
    statements += corollary_statements(curves[0], curves[1], rank)

    shares = kept_shares(start_cases(m, d, [stream_seed(seed, "theory", i) for i in range(_SEEDS)]), rank)
    statements += start_statements(shares)
    series = share_series(shares)
    records = list(records)
    trained = trained_cases(records, m, rank) if records else {}
    for backbone, cases in trained.items():
        shares = kept_shares(cases, rank)
        statements += adaptation_statements(backbone, cases, shares, rank, seed)
        series += share_series(shares, f", {backbone}")
    series += residual_series(curves, trained)
    statements += dimension_statements(m, d, rank, seed)

    setting = f"Surrogate: m = {m}, d = {d}, r = {rank}."
    if objective is None:
        return Theory(setting, [*statements, *_without_encoder()], series)
    loss = check_loss(objective, rank=rank, seed=seed, steps=steps, relative_damping=relative_damping)
    return Theory(f"{setting} {loss.setting}", statements + loss.statements, series + loss.series)


def _without_encoder() -> list[Statement]:
    """Placeholders for the statements on the loss."""
    checks = [Check(LOCAL_MODEL, "Shares of the possible decrease", "S_A(B0) keeps more than S_B(A0).")]
    for of in (FIXED_B, FIXED_A):
        claim = f"Gradient descent on {of.trained} converges at the stated rates."
        checks.append(Check(of.part, "Descent and rates", claim))
    return [check.not_applicable("needs a text encoder: give a backbone") for check in checks]


def check_loss(
    objective: Objective, *, rank: int, seed: int, steps: int = 30, relative_damping: float | None = None
) -> Theory:
    """Check the local model at P0 = B0 A0, descent on A with the orthogonal B fixed, and on B with the svd A fixed.

    The arguments are those of `check_theory`; stochastic runs have 1/10, 2/10, 4/10 and 8/10 of the steps.
    """
    m, d = objective.shape
    check_sizes(m, d, rank)  # of the text encoder
    generator = np.random.default_rng(stream_seed(seed, "theory", "loss"))
    p0 = start_context(m, d, seed)
    bases, coefficients = start_factors(p0, rank, seed)
    # The gaussian basis of a seed spans the same space as the orthogonal one, its QR factor.
    in_use = {name: bases[name] for name in ("orthogonal", "svd")}
    local = check_local_model(
        objective, in_use, coefficients, draws=_DRAWS, generator=generator, relative_damping=relative_damping
    )
    statements, series = local_model_statements(local, objective.title), local_series(local)
    lowest, horizons = objective.lower_bound, sorted({max(1, steps * tenths // 10) for tenths in (1, 2, 4, 8)})
    orthogonal = bases["orthogonal"]
    for name, of, problem, basis, start in (
        ("theory-descent", FIXED_B, objective, orthogonal, np.linalg.pinv(orthogonal) @ p0),
        # As the variant fixed-A starts: both factors are those of the SVD of P0.
        ("theory-descent-fixed-a", FIXED_A, Transposed(objective), coefficients.T, bases["svd"].T),
    ):
        descent = check_descent(problem, basis, start, steps=steps, places=3)
        rate = check_rate(problem, basis, start, descent.constant, horizons=horizons, generator=generator, **_BATCHES)
        statements += [*descent_statements(descent, lowest, of), *rate_statements(rate, of)]
        series += descent_series(name, of, descent, rate, lowest)
    return Theory(f"Loss: {objective.title}.", statements, series)
