"""How a prompt starts: the sampled dense prompt P0 and the rules that turn it into factors.

Each rule is a plain function of P0 and the rank that returns one or both factors. All arithmetic is in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slimprompt.errors import InputError
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.variants import BASES_FROM_A_RUN, TRANSFER_BASES, check_rank, check_variant
from slimprompt.seeds import stream_seed

P0_STD = 0.02


def initial_context(n_ctx: int, width: int, seed: int, stream: str = "start") -> Tensor:
    """P0 ~ N(0, 0.02²), (n_ctx, width). All variants of a seed share it."""
    generator = torch.Generator().manual_seed(stream_seed(seed, stream))
    return P0_STD * torch.randn(n_ctx, width, generator=generator)


def balanced_svd(p0: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """P0 = U Σ Vᵀ → B = U_r Σ_r^½ (n_ctx, rank), A = Σ_r^½ V_rᵀ (rank, width)."""
    check_rank(rank, min(p0.shape))
    u, sigma, vt = torch.linalg.svd(p0.float(), full_matrices=False)
    root = sigma[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * vt[:rank]


def gaussian_basis(p0: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """Gaussian matrix with the Frobenius norm of the SVD basis, (n_ctx, rank)."""
    basis, _ = balanced_svd(p0, rank)
    sample = torch.randn(p0.shape[0], rank, generator=generator)
    return sample * (basis.norm() / sample.norm())


def orthogonal_basis(p0: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """Reduced QR of a Gaussian matrix, scaled to the Frobenius norm of the SVD basis, (n_ctx, rank)."""
    basis, _ = balanced_svd(p0, rank)
    q, _ = torch.linalg.qr(torch.randn(p0.shape[0], rank, generator=generator))
    return q * (basis.norm() / q.norm())


def least_squares(basis: Tensor, p0: Tensor) -> Tensor:
    """A0 = B† P0, so that B A0 is the projection of P0 onto the columns of B, (rank, width)."""
    return torch.linalg.pinv(basis.float()) @ p0.float()


def start_prompt(
    variant: str,
    *,
    width: int,
    seed: int,
    n_ctx: int = 16,
    rank: int | None = None,
    basis: str | None = None,
    trained: tuple[Tensor, Tensor] | None = None,
) -> Prompt:
    """The prompt before the first training step.

    dense: B = I, A = P0. joint: balanced SVD of P0. fixed-B: the basis and A0 = B† P0. fixed-A with basis "svd":
    balanced SVD. With basis "source" or "random" (transfer): balanced SVD, in which the frozen factor is replaced by
    the source's final factor, or by the same factor of an independent P0; nothing is fitted.

    Parameters
    ----------
    variant
        A name in `VARIANTS`.
    width
        Width d of a context vector, which is the text width of the backbone.
    seed
        Seed of P0 and of random bases.
    n_ctx
        Number of context tokens m.
    rank
        Rank r of the factorisation; None for "dense".
    basis
        Where the frozen factor comes from; None for "dense" and "joint".
    trained
        Final (B, A) of the run that a "learned" or "source" basis comes from.

    Returns
    -------
    Prompt
    """
    row = check_variant(variant, rank=rank, basis=basis, n_ctx=n_ctx)
    p0 = initial_context(n_ctx, width, seed)
    if rank is None:
        return Prompt(torch.eye(n_ctx), p0, row.trainable)
    b0, a0 = balanced_svd(p0, rank)
    if basis in BASES_FROM_A_RUN:
        trained = _check_factors(trained, basis, b0, a0)
    if basis in TRANSFER_BASES:
        control = balanced_svd(initial_context(n_ctx, width, seed, "random control"), rank)
        frozen_b, frozen_a = trained if basis == "source" and trained else control
        return Prompt(frozen_b, a0, "A") if variant == "fixed-B" else Prompt(b0, frozen_a, "B")
    if variant != "fixed-B":
        return Prompt(b0, a0, row.trainable)
    generator = torch.Generator().manual_seed(stream_seed(seed, "basis"))
    if basis == "gaussian":
        b0 = gaussian_basis(p0, rank, generator)
    elif basis == "orthogonal":
        b0 = orthogonal_basis(p0, rank, generator)
    elif basis == "learned" and trained:
        b0 = trained[0].float()
    return Prompt(b0, least_squares(b0, p0), row.trainable)


def _check_factors(
    trained: tuple[Tensor, Tensor] | None, basis: str | None, b0: Tensor, a0: Tensor
) -> tuple[Tensor, Tensor]:
    """The factors of a finished run, if they have the shapes of this prompt's."""
    if trained is None:
        raise InputError(f"basis {basis!r} needs the final factors of a finished joint run")
    if (trained[0].shape, trained[1].shape) != (b0.shape, a0.shape):
        raise InputError(
            f"the source factors have shapes {tuple(trained[0].shape)} and {tuple(trained[1].shape)}; "
            f"this prompt needs {tuple(b0.shape)} and {tuple(a0.shape)}"
        )
    return trained
