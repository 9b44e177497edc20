"""Where a prompt starts: the sampled dense prompt P0 and the rules that turn it into factors.

Each rule is a plain function P0, rank, … → (B, A). All arithmetic is in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slimprompt.errors import InputError, unknown
from slimprompt.prompts.prompt import Prompt
from slimprompt.seeds import stream_seed

VARIANTS = ("dense", "joint", "fixed-B", "fixed-A")
#: Fixed token bases that take their coefficients by least squares, A0 = B† P0.
LEAST_SQUARES_BASES = ("svd", "gaussian", "orthogonal", "learned")
#: Frozen factors of the transfer study; the trained factor keeps its own start.
TRANSFER_BASES = ("source", "random")

P0_STD = 0.02


def initial_context(n_ctx: int, width: int, seed: int, stream: str = "start") -> Tensor:
    """P0 ~ N(0, 0.02²), (n_ctx, width). The same for every variant of a seed."""
    generator = torch.Generator().manual_seed(stream_seed(seed, stream))
    return P0_STD * torch.randn(n_ctx, width, generator=generator)


def balanced_svd(p0: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """P0 = U Σ Vᵀ → B = U_r Σ_r^½ (n_ctx, rank), A = Σ_r^½ V_rᵀ (rank, width)."""
    if not 1 <= rank <= min(p0.shape):
        raise InputError(
            f"rank {rank} does not fit a context of {p0.shape[0]} tokens: it must be between 1 and {min(p0.shape)}"
        )
    u, sigma, vt = torch.linalg.svd(p0.float(), full_matrices=False)
    root = sigma[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * vt[:rank]


def gaussian_basis(p0: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """A normal matrix with the Frobenius norm of the SVD basis, (n_ctx, rank)."""
    basis, _ = balanced_svd(p0, rank)
    sample = torch.randn(p0.shape[0], rank, generator=generator)
    return sample * (basis.norm() / sample.norm())


def orthogonal_basis(p0: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """Reduced QR of a normal matrix, scaled to the Frobenius norm of the SVD basis, (n_ctx, rank)."""
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
    """The prompt at the start of training.

    dense: B = I, A = P0. joint: balanced SVD of P0, both train. fixed-B with svd, gaussian, orthogonal or learned: that B and
    A0 = B† P0. fixed-A with svd: balanced SVD, B trains. With source or random (transfer): balanced SVD, and the frozen factor
    replaced by the source's final one or by that factor of another random P0; nothing is fitted.
    trained: final (B, A) of the run that a learned basis or a source comes from.
    """
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    p0 = initial_context(n_ctx, width, seed)
    if variant == "dense":
        return Prompt(torch.eye(n_ctx), p0, trains="A")
    if rank is None:
        raise InputError(f"variant {variant} needs a rank between 1 and n_ctx={n_ctx}")
    b0, a0 = balanced_svd(p0, rank)
    if variant == "joint":
        return Prompt(b0, a0, trains="AB")
    allowed = LEAST_SQUARES_BASES + TRANSFER_BASES if variant == "fixed-B" else ("svd", *TRANSFER_BASES)
    if basis not in allowed:
        raise unknown(f"basis for {variant}", str(basis), allowed)
    if basis in ("learned", "source"):
        if trained is None:
            raise InputError(f"basis {basis!r} needs the final factors of a finished joint run")
        if (trained[0].shape, trained[1].shape) != (b0.shape, a0.shape):
            raise InputError(
                f"the factors taken over have shapes {tuple(trained[0].shape)} and {tuple(trained[1].shape)}; "
                f"this prompt needs {tuple(b0.shape)} and {tuple(a0.shape)}"
            )
    frozen = {"source": trained, "random": balanced_svd(initial_context(n_ctx, width, seed, "random control"), rank)}
    if variant == "fixed-A":
        return Prompt(b0, a0 if basis == "svd" else frozen[basis][1], trains="B")  # type: ignore[index]
    if basis in TRANSFER_BASES:
        return Prompt(frozen[basis][0], a0, trains="A")  # type: ignore[index]
    generator = torch.Generator().manual_seed(stream_seed(seed, "basis"))
    if basis == "svd":
        fixed = b0
    elif basis == "gaussian":
        fixed = gaussian_basis(p0, rank, generator)
    elif basis == "orthogonal":
        fixed = orthogonal_basis(p0, rank, generator)
    else:
        assert trained is not None
        fixed = trained[0].float()
    return Prompt(fixed, least_squares(fixed, p0), trains="A")
