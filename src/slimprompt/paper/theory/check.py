"""Checks of all statements: on the linear surrogate, and on the loss of a text encoder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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
    start_context,
)
from slimprompt.paper.theory.convergence import (
    FIXED_A,
    FIXED_B,
    Descent,
    FixedFactor,
    check_descent,
    descent_statements,
)
from slimprompt.paper.theory.local_model import LocalCheck, check_local_model
from slimprompt.paper.theory.local_statements import LOCAL_MODEL, local_model_statements
from slimprompt.paper.theory.objective import Objective, Transposed
from slimprompt.paper.theory.statement import Statement, not_testable
from slimprompt.paper.theory.stochastic import Rate, check_rate, rate_statements
from slimprompt.paper.theory.update_space import update_space_statements
from slimprompt.seeds import stream_seed

#: Seeds whose initial bases are measured.
_SEEDS = 200


@dataclass(frozen=True)
class SurrogateCheck:
    """Measurements without a text encoder.

    Attributes
    ----------
    m, d, rank
        Context tokens, text width and rank.
    curves
        Residual curves, token and embedding side of each P*.
    start_shares
        Shares kept by the bases of the start rules.
    trained
        Trained prompts of each backbone, with the shares kept by the bases in use.
    statements
        Statements with verdicts.
    """

    m: int
    d: int
    rank: int
    curves: tuple[ResidualCurve, ...]
    start_shares: tuple[KeptShares, ...]
    trained: tuple[tuple[Adaptation, tuple[KeptShares, ...]], ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Convergence:
    """Full-gradient and stochastic descent on one factor with the other one fixed.

    Attributes
    ----------
    of
        Which factor is fixed.
    basis
        Name of the fixed factor, such as "orthogonal".
    descent, rate
        Full-gradient and stochastic descent.
    statements
        Statements with verdicts.
    """

    of: FixedFactor
    basis: str
    descent: Descent
    rate: Rate
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class LossCheck:
    """Measurements on the loss of a text encoder.

    Attributes
    ----------
    title
        Backbone, classes and images.
    rank
        Rank.
    lowest
        φ_inf in the bounds.
    local
        Local quadratic model.
    fixed_b, fixed_a
        Descent on A with B fixed, and on B with A fixed.
    statements
        Statements with verdicts.
    """

    title: str
    rank: int
    lowest: float
    local: LocalCheck
    fixed_b: Convergence
    fixed_a: Convergence
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Theory:
    """All statements and the measurements behind the figures; `loss` is None without a text encoder."""

    surrogate: SurrogateCheck
    loss: LossCheck | None
    statements: tuple[Statement, ...]


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
    title: str = "",
    steps: int = 30,
    relative_damping: float | None = None,
) -> Theory:
    """Check all statements.

    Parameters
    ----------
    m, d, rank
        Context tokens, text width and rank of the surrogate; the loss has the width of the objective.
    trials
        Random bases per side.
    seed
        Seed of P0 and of the random bases.
    records
        Run records whose trained dense prompts serve as P* and whose learned factors serve as bases.
    objective
        F(P); without it the statements on the loss are not testable.
    title
        Description of the objective.
    steps
        Steps of gradient descent.
    relative_damping
        Damping of the local model over the largest curvature; chosen automatically if None.

    Returns
    -------
    Theory

    Raises
    ------
    InputError
        If the sizes do not fit the theory or the objective, or if the records contain no suitable dense run.
    """
    surrogate = check_surrogate(m=m, d=d, rank=rank, trials=trials, seed=seed, records=records)
    if objective is None:
        return Theory(surrogate, None, (*surrogate.statements, *_without_encoder()))
    if objective.shape[0] != m:
        raise InputError(f"the objective takes prompts of {objective.shape[0]} tokens, but m = {m}")
    loss = check_loss(objective, rank=rank, seed=seed, title=title, steps=steps, relative_damping=relative_damping)
    return Theory(surrogate, loss, (*surrogate.statements, *loss.statements))


def _without_encoder() -> list[Statement]:
    """Placeholders for the statements on the loss."""
    reason = "needs a text encoder: give a backbone"
    rows = [not_testable(LOCAL_MODEL, "Shares of the possible decrease", "S_A(B0) keeps more than S_B(A0).", reason)]
    for of in (FIXED_B, FIXED_A):
        claim = f"Gradient descent on {of.trained} converges at the stated rates."
        rows.append(not_testable(of.part, "Descent and rates", claim, reason))
    return rows


def check_surrogate(
    *, m: int, d: int, rank: int, trials: int, seed: int, records: Iterable[Record] = ()
) -> SurrogateCheck:
    """Check the statements that need no text encoder; parameters as in `check_theory`."""
    check_sizes(m, d, rank)
    if trials < 10:
        raise InputError(f"{trials} trials are too few for an interval; give at least 10 (1000 is usual)")
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
    p0 = start_context(m, d, seed)
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
    """Check the local model at P0 = B0 A0, descent on A with the orthogonal B fixed, and on B with the svd A fixed.

    Parameters
    ----------
    objective
        F(P).
    rank, seed, title, steps, relative_damping
        As in `check_theory`. The stochastic runs take 1/10, 2/10, 4/10 and 8/10 of the steps.
    draws
        Random bases per side for the local model.
    replicates
        Stochastic runs per number of steps.
    batch_size
        Examples per batch.

    Returns
    -------
    LossCheck
    """
    m, d = objective.shape
    check_sizes(m, d, rank)
    if steps < 2:
        raise InputError(f"{steps} steps are too few to measure a descent; give at least 2")
    generator = np.random.default_rng(stream_seed(seed, "theory", "loss"))
    p0 = start_context(m, d, seed)
    bases = start_bases(p0, rank, seed)
    # The gaussian basis of a seed spans the same space as the orthogonal one, its QR factor.
    token_bases = {name: bases[name] for name in ("orthogonal", "svd")}
    local = check_local_model(
        objective,
        token_bases,
        start_coefficients(p0, rank),
        draws=draws,
        generator=generator,
        relative_damping=relative_damping,
    )
    measured: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch_size,
        "replicates": replicates,
        "generator": generator,
    }
    basis = bases["orthogonal"]
    fixed_b = _check_convergence(FIXED_B, "orthogonal", objective, basis, np.linalg.pinv(basis) @ p0, **measured)
    # As the variant fixed-A starts: both factors are those of the SVD of P0.
    fixed_a = _check_convergence(
        FIXED_A, "svd", Transposed(objective), start_coefficients(p0, rank).T, bases["svd"].T, **measured
    )
    statements = (*local_model_statements(local, rank), *fixed_b.statements, *fixed_a.statements)
    return LossCheck(title, rank, objective.lower_bound, local, fixed_b, fixed_a, statements)


def _check_convergence(
    of: FixedFactor,
    name: str,
    objective: Objective,
    basis: np.ndarray,
    start: np.ndarray,
    *,
    steps: int,
    batch_size: int,
    replicates: int,
    generator: np.random.Generator,
) -> Convergence:
    """Both theorems with `basis` fixed; with A fixed, the arguments are those of the transposed problem."""
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
    statements = (*descent_statements(descent, objective, of), *rate_statements(rate, of))
    return Convergence(of, name, descent, rate, statements)
