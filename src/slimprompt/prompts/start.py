"""How a prompt starts: the sampled dense prompt P0 and the rules that turn it into factors.

Each rule is a plain function of P0 and the rank that returns one or both factors. All arithmetic is in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slimprompt.errors import InputError
from slimprompt.prompts.prompt import ImagePrompt, Prompt
from slimprompt.prompts.spec import (
    BASES_FROM_A_RUN,
    TRANSFER_BASES,
    PromptSpec,
    check_rank,
    make_spec,
)
from slimprompt.seeds import stream_seed
from slimprompt.user_functions import is_user_function, user_function

P0_STD = 0.02


def initial_context(n_ctx: int, width: int, seed: int, stream: str = "start", depth: int = 1) -> Tensor:
    """P0 ~ N(0, 0.02²), (n_ctx, width); with depth > 1 (depth, n_ctx, width). All variants of a seed share it.

    Layer l ≥ 1 has its own stream, "start/layer l": a prompt of depth 3 starts with the contexts of one of depth 2.
    """
    streams = [stream, *(f"{stream}/layer {layer}" for layer in range(1, depth))]
    generators = [torch.Generator().manual_seed(stream_seed(seed, name)) for name in streams]
    layers = [P0_STD * torch.randn(n_ctx, width, generator=generator) for generator in generators]
    return torch.stack(layers) if depth > 1 else layers[0]


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


def user_basis(name: str, p0: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """The basis of a function of your own, named `module:function`, (n_ctx, rank).

    The function takes P0 (n_ctx, width), the rank and a seeded generator, as `orthogonal_basis` does.
    """
    rule = user_function("basis", name)
    try:
        basis = torch.as_tensor(rule(p0, rank, generator)).detach().float()
    except Exception as error:
        raise InputError(f"the basis {name!r} failed: {type(error).__name__}: {error} (--debug shows where)") from error
    shape = (p0.shape[0], rank)
    if basis.shape != shape or not basis.isfinite().all():
        raise InputError(f"the basis {name!r} must give finite numbers of shape {shape}; it gave {tuple(basis.shape)}")
    independent = int(torch.linalg.matrix_rank(basis))
    if independent < rank:
        raise InputError(
            f"the basis {name!r} must give {rank} linearly independent columns; its numerical rank is {independent}. "
            "Change the function, or choose a lower rank"
        )
    return basis


def least_squares(basis: Tensor, p0: Tensor) -> Tensor:
    """A0 = B† P0, so that B A0 is the projection of P0 onto the columns of B: (…, n_ctx, width) → (…, rank, width)."""
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
    words: Tensor | None = None,
    anchored: bool = False,
    depth: int = 1,
) -> Prompt:
    """The prompt before the first training step.

    dense: B = I, A = P0. joint: balanced SVD of P0. fixed-B: the basis and A0 = B† P0. fixed-A with basis "svd":
    balanced SVD. With basis "source" or "random" (transfer): balanced SVD, in which the frozen factor is replaced by
    the source's final factor, or by the same factor of an independent P0; nothing is fitted.

    Word start: P0 is `words` instead of a random sample. Anchored: the context is W + B A with W = `words`; both factors
    start as from the random P0, then the trained one is set to zero (A if both train), so that the context is W.

    Deep: the basis comes from the P0 of the first layer. The coefficients of the other layers are A_l = B† P0_l, with
    the basis before a transfer replaces it. A word start replaces the P0 of the first layer only.

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
        Rank r of the factorisation; default: 4, and none for "dense".
    basis
        Where the frozen factor comes from: a name of the variant's row, or with "fixed-B" a function of your own,
        `module:function` (see `user_basis`); default: "orthogonal" and "svd". None for "dense" and "joint".
    trained
        Final (B, A) of the run that a "learned" or "source" basis comes from. B may come from a prompt of another depth.
    words
        Token embeddings of words, (n_ctx, width); see `slimprompt.text.words.word_embeddings`.
    anchored
        Keep `words` as W in the prompt, instead of starting from them.
    depth
        Number of layers of the text tower that receive a context of their own.

    Returns
    -------
    Prompt
    """
    spec = make_spec(variant=variant, rank=rank, basis=basis, n_ctx=n_ctx, depth=depth)
    if anchored and (words is None or depth > 1):
        raise InputError("an anchored prompt needs words and depth 1")
    if words is not None and words.shape != (n_ctx, width):
        raise InputError(f"the words have shape {tuple(words.shape)}; this prompt needs ({n_ctx}, {width})")
    p0 = initial_context(n_ctx, width, seed, depth=depth)  # (n_ctx, width) or (depth, n_ctx, width)
    if words is not None and not anchored:
        first = words.detach().float().cpu()
        p0 = first if depth == 1 else torch.cat([first[None], p0[1:]])
    b0, a0 = (
        (torch.eye(n_ctx), p0)
        if spec.rank is None
        else _start_factors(variant, p0, spec.rank, spec.basis, seed, trained)
    )
    if not anchored:
        return Prompt(b0, a0, spec.row.trainable)
    if "A" in spec.row.trainable:
        a0 = torch.zeros_like(a0)
    else:
        b0 = torch.zeros_like(b0)
    return Prompt(b0, a0, spec.row.trainable, words)


def start_image_prompt(spec: PromptSpec, *, width: int, seed: int, first: int, end: int, text: Prompt) -> ImagePrompt:
    """The rows of the image tower before the first training step, by the same rules as those of the text tower.

    P0_l ~ N(0, 0.02²), (n_rows, width), of each block l has a stream of its own, and the basis comes from that of block `first`. With
    `share_basis`, B is that of the text prompt, and A_l = B† P0_l unless A is the factor that stays fixed.
    """
    n_rows = spec.n_ctx_image or text.n_ctx
    streams = [
        torch.Generator().manual_seed(stream_seed(seed, f"image start/block {block}")) for block in range(first, end)
    ]
    p0 = torch.stack([P0_STD * torch.randn(n_rows, width, generator=generator) for generator in streams])
    if spec.variant == "dense":
        b0, a0 = torch.eye(n_rows), p0
    else:
        assert spec.rank is not None
        b0, a0 = _start_factors(str(spec.variant), p0, spec.rank, spec.basis, seed, None, site="image ")
    if not spec.share_basis:
        return ImagePrompt(b0, a0, spec.row.trainable, first)
    if spec.variant != "fixed-A":
        a0 = least_squares(text.B.detach(), p0)
    return ImagePrompt(text.B, a0, spec.row.trainable, first, share=text.B)


def _start_factors(
    variant: str,
    p0: Tensor,
    rank: int,
    basis: str | None,
    seed: int,
    trained: tuple[Tensor, Tensor] | None,
    site: str = "",
) -> tuple[Tensor, Tensor]:
    """(B, A) of a factorised prompt from its P0, (n_ctx, width) or (depth, n_ctx, width); `site` begins the names of its streams."""
    b0, a0 = _svd_factors(p0, rank)
    if basis in BASES_FROM_A_RUN:
        trained = _check_factors(trained, variant, basis, b0, a0)
    if basis in TRANSFER_BASES:
        depth, (n_ctx, width) = len(p0) if p0.ndim == 3 else 1, p0.shape[-2:]
        control = _svd_factors(initial_context(n_ctx, width, seed, f"{site}random control", depth), rank)
        frozen_b, frozen_a = trained if basis == "source" and trained else control
        return (frozen_b, a0) if variant == "fixed-B" else (b0, frozen_a)
    if variant != "fixed-B":
        return b0, a0
    first = p0 if p0.ndim == 2 else p0[0]
    generator = torch.Generator().manual_seed(stream_seed(seed, f"{site}basis"))
    if basis == "gaussian":
        b0 = gaussian_basis(first, rank, generator)
    elif basis == "orthogonal":
        b0 = orthogonal_basis(first, rank, generator)
    elif basis == "learned" and trained:
        b0 = trained[0].float()
    elif basis is not None and is_user_function(basis):
        b0 = user_basis(basis, first, rank, generator)
    return b0, least_squares(b0, p0)


def _svd_factors(p0: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Balanced SVD of the first layer's P0; the coefficients of the other layers are B† P0_l."""
    if p0.ndim == 2:
        return balanced_svd(p0, rank)
    b, first = balanced_svd(p0[0], rank)
    return b, torch.cat([first[None], least_squares(b, p0[1:])])


def _check_factors(
    trained: tuple[Tensor, Tensor] | None, variant: str, basis: str | None, b0: Tensor, a0: Tensor
) -> tuple[Tensor, Tensor]:
    """The factors of a finished run, if the one that this prompt freezes has the shape of its own."""
    if trained is None:
        raise InputError(f"basis {basis!r} needs the final factors of a finished joint run")
    name, given, needed = ("B", trained[0], b0) if variant == "fixed-B" else ("A", trained[1], a0)
    if given.shape != needed.shape:
        raise InputError(
            f"the source factor {name} has shape {tuple(given.shape)}; this prompt needs {tuple(needed.shape)}"
        )
    return trained
