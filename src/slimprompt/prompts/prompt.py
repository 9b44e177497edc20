"""The prompt: P = B A, and which factor trains."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn

from slimprompt.errors import InputError
from slimprompt.prompts.variants import Trainable


class Prompt(nn.Module):
    """context = B A: basis B (n_ctx, rank), coefficients A (rank, width) → (n_ctx, width).

    B mixes `rank` components over the context tokens; A places them in the text tower's embedding space. Dense CoOp is the
    fixed basis B = I. The factors are always fp32, whatever the precision of the backbone.

    Parameters
    ----------
    basis
        B, (n_ctx, rank).
    coefficients
        A, (rank, width).
    trainable
        "A" (fixed token basis), "B" (fixed coefficients) or "AB" (both).

    Examples
    --------
    >>> prompt = Prompt(torch.eye(16), torch.zeros(16, 512), trainable="A")
    >>> prompt.trainable_parameters, tuple(prompt().shape)
    (8192, (16, 512))
    """

    def __init__(self, basis: Tensor, coefficients: Tensor, trainable: Trainable) -> None:
        super().__init__()
        if trainable not in get_args(Trainable):
            raise InputError(f"trainable must be 'A', 'B' or 'AB', not {trainable!r}")
        if basis.ndim != 2 or coefficients.ndim != 2 or basis.shape[1] != coefficients.shape[0]:
            raise InputError(
                f"B {tuple(basis.shape)} and A {tuple(coefficients.shape)} do not multiply: B is (n_ctx, rank), A is (rank, width)"
            )
        self.trainable: Trainable = trainable
        self.B = nn.Parameter(_fp32_copy(basis), requires_grad="B" in trainable)
        self.A = nn.Parameter(_fp32_copy(coefficients), requires_grad="A" in trainable)

    def forward(self) -> Tensor:
        """The context vectors, (n_ctx, width)."""
        return self.B @ self.A

    @property
    def n_ctx(self) -> int:
        """Number of context tokens m."""
        return self.B.shape[0]

    @property
    def rank(self) -> int:
        """Number of components r."""
        return self.B.shape[1]

    @property
    def width(self) -> int:
        """Width d of a context vector."""
        return self.A.shape[1]

    @property
    def trainable_factors(self) -> list[Tensor]:
        """The factors that train."""
        return [factor for factor in self.parameters() if factor.requires_grad]

    @property
    def trainable_parameters(self) -> int:
        """Number of parameters that train; `variants.count_parameters` is the formula."""
        return sum(factor.numel() for factor in self.trainable_factors)

    def extra_repr(self) -> str:
        """Shapes for `print(prompt)`."""
        return f"n_ctx={self.n_ctx}, rank={self.rank}, width={self.width}, trainable={self.trainable}"


def _fp32_copy(factor: Tensor) -> Tensor:
    return factor.detach().float().clone(memory_format=torch.contiguous_format)
