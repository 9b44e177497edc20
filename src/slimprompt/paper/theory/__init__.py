"""The theory, checked by numbers: every statement on P = B A as code that computes both sides and gives a verdict.

asymmetry: the linear surrogate; bases: the bases in use; adaptation: trained prompts. update_space: dimensions. local_model:
the loss's own quadratic model. convergence, stochastic: descent with B fixed. The last three need an `objective`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.paper.theory.adaptation import Adaptation, adaptation_statements, kept_by_bases, trained_prompts
from slimprompt.paper.theory.asymmetry import (
    ResidualCurve,
    asymmetry_statements,
    corollary_wording,
    haar_frames,
    ideal_prompts,
    projection_lemmas,
    residual_curve,
    rotational_invariance,
)
from slimprompt.paper.theory.bases import (
    KeptShares,
    kept_by_start_bases,
    start_bases,
    start_basis_statements,
    start_coefficients,
)
from slimprompt.paper.theory.convergence import CONVERGENCE, Descent, check_descent, descent_statements
from slimprompt.paper.theory.local_model import LOCAL_MODEL, LocalCheck, check_local_model, local_model_statements
from slimprompt.paper.theory.objective import Objective
from slimprompt.paper.theory.statement import Statement, not_testable
from slimprompt.paper.theory.stochastic import Rate, check_rate, rate_statements
from slimprompt.paper.theory.update_space import update_space_statements
from slimprompt.seeds import stream_seed

__all__ = ["LossCheck", "Statement", "SurrogateCheck", "Theory", "check_loss", "check_surrogate", "check_theory"]

#: Seeds whose starting bases are measured.
_SEEDS = 200


@dataclass(frozen=True)
class SurrogateCheck:
    """What was measured without a text encoder."""

    m: int
    d: int
    rank: int
    curves: tuple[ResidualCurve, ...]
    start_shares: tuple[KeptShares, ...]
    trained: tuple[tuple[Adaptation, tuple[KeptShares, ...]], ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class LossCheck:
    """What was measured on the true loss."""

    title: str
    """Backbone, classes and images."""
    rank: int
    basis: str
    """The fixed B of the convergence part."""
    lowest: float
    """φ_inf in its bounds."""
    local: LocalCheck
    descent: Descent
    rate: Rate
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Theory:
    """All statements with both sides, and the measurements behind the figures."""

    surrogate: SurrogateCheck
    loss: LossCheck | None
    statements: tuple[Statement, ...]


def check_theory(
    *,
    m: int = 16,
    d: int = 512,
    rank: int = 4,
    trials: int = 1000,
    seed: int = 1,
    records: Iterable[Record] = (),
    objective: Objective | None = None,
    title: str = "",
    steps: int = 30,
    relative_damping: float | None = None,
) -> Theory:
    """Every statement: the surrogate at (m, d, rank), the loss at the objective's own width.

    records: run folders whose trained dense prompts and learned factors stand in for P* and the bases.
    objective: F(P); without one the statements on the loss are shown as not testable.
    """
    surrogate = check_surrogate(m=m, d=d, rank=rank, trials=trials, seed=seed, records=records)
    if objective is None:
        reason = "needs a text encoder: give a backbone"
        missing = (
            not_testable(LOCAL_MODEL, "Shares of the possible decrease", "S_A(B0) keeps more than S_B(A0).", reason),
            not_testable(
                CONVERGENCE, "Descent and rates", "Gradient descent on A converges at the stated rates.", reason
            ),
        )
        return Theory(surrogate, None, (*surrogate.statements, *missing))
    if objective.shape[0] != m:
        raise InputError(f"the objective takes prompts of {objective.shape[0]} tokens, but m = {m}")
    loss = check_loss(objective, rank=rank, seed=seed, title=title, steps=steps, relative_damping=relative_damping)
    return Theory(surrogate, loss, (*surrogate.statements, *loss.statements))


def check_surrogate(
    *, m: int, d: int, rank: int, trials: int, seed: int, records: Iterable[Record] = ()
) -> SurrogateCheck:
    """Lemmas, expected asymmetry, bases in use, trained prompts and update spaces; needs no model."""
    if not 1 <= rank <= m < d:
        raise InputError(f"the statements need 1 ≤ r ≤ m < d; given: r = {rank}, m = {m}, d = {d}")
    if trials < 10:
        raise InputError(f"{trials} trials are too few for an interval; at least 10 are needed, and 1000 are usual")
    generator = np.random.default_rng(stream_seed(seed, "theory", "bases"))
    ideals = ideal_prompts(m, d, seed)
    statements = projection_lemmas(ideals["spread"], rank, generator)
    statements.append(rotational_invariance(haar_frames(m, rank, trials, generator)))
    curves: list[ResidualCurve] = []
    for name, ideal in ideals.items():
        token = residual_curve("token", name, ideal, trials, generator)
        embedding = residual_curve("embedding", name, ideal, trials, generator)
        curves += [token, embedding]
        statements += asymmetry_statements(token, embedding, rank)
    statements += corollary_wording(curves[0], curves[1], rank)
    start_shares = kept_by_start_bases(m, d, rank, [stream_seed(seed, "theory", i) for i in range(_SEEDS)])
    statements += start_basis_statements(start_shares)
    records = list(records)
    trained = []
    for adaptation in trained_prompts(records, m, rank) if records else []:
        shares = kept_by_bases(adaptation, rank)
        trained.append((adaptation, tuple(shares)))
        statements += adaptation_statements(adaptation, shares, rank, seed)
    p0 = _start(m, d, seed)
    statements += update_space_statements(start_bases(p0, rank, seed)["svd"], start_coefficients(p0, rank), generator)
    return SurrogateCheck(m, d, rank, tuple(curves), tuple(start_shares), tuple(trained), tuple(statements))


def check_loss(
    objective: Objective,
    *,
    rank: int,
    seed: int,
    title: str = "",
    steps: int = 30,
    relative_damping: float | None = None,
    draws: int = 16,
    replicates: int = 3,
    batch_size: int = 32,
) -> LossCheck:
    """The local model at P0 = B0 A0 and descent over the orthogonal basis, from the start that `seed` gives.

    steps: of gradient descent; the stochastic runs take a tenth, two, four and eight tenths of it.
    """
    m, d = objective.shape
    if not 1 <= rank <= m < d:
        raise InputError(
            f"the statements need 1 ≤ r ≤ m < d; given: r = {rank}, m = {m}, and the text width is d = {d}"
        )
    if steps < 2:
        raise InputError(f"{steps} steps are too few to see a descent; give at least 2")
    generator = np.random.default_rng(stream_seed(seed, "theory", "loss"))
    p0 = _start(m, d, seed)
    bases = start_bases(p0, rank, seed)
    # A seed's Gaussian basis spans the same space as its orthogonal one, which is the QR of the same draw.
    local = check_local_model(
        objective,
        {name: bases[name] for name in ("orthogonal", "svd")},
        start_coefficients(p0, rank),
        draws=draws,
        generator=generator,
        relative_damping=relative_damping,
    )
    basis = bases["orthogonal"]
    start = np.linalg.pinv(basis) @ p0
    descent = check_descent(objective, basis, start, steps=steps, places=3)
    rate = check_rate(
        objective,
        basis,
        start,
        descent.constant,
        horizons=sorted({max(1, steps * tenths // 10) for tenths in (1, 2, 4, 8)}),
        batch_size=batch_size,
        replicates=replicates,
        generator=generator,
    )
    statements = (
        *local_model_statements(local, rank),
        *descent_statements(descent, objective),
        *rate_statements(rate),
    )
    return LossCheck(title, rank, "orthogonal", objective.lower_bound, local, descent, rate, statements)


def _start(m: int, d: int, seed: int) -> np.ndarray:
    from slimprompt.prompts.start import initial_context

    return initial_context(m, d, seed).double().numpy()
