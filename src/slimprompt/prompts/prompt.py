"""The prompt: P = B A, and which factor trains."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from slimprompt.errors import InputError

Trains = Literal["A", "B", "AB"]


class Prompt(nn.Module):
    """context = B A: basis B (n_ctx, rank), coefficients A (rank, width) → (n_ctx, width).

    B mixes `rank` components over the context tokens, A places them in the text tower's embedding space.
    trains: "A" (fixed token basis), "B" (fixed coefficients) or "AB" (both). Dense CoOp is the fixed basis B = identity.
    The factors are always fp32, whatever the precision of the backbone.

    >>> prompt = Prompt(torch.eye(16), torch.zeros(16, 512), trains="A")
    >>> prompt.trainable_parameters, tuple(prompt().shape)
    (8192, (16, 512))
    """

    def __init__(self, basis: Tensor, coefficients: Tensor, trains: Trains) -> None:
        super().__init__()
        if trains not in ("A", "B", "AB"):
            raise InputError(f"trains must be 'A', 'B' or 'AB', not {trains!r}")
        if basis.ndim != 2 or coefficients.ndim != 2 or basis.shape[1] != coefficients.shape[0]:
            raise InputError(
                f"B {tuple(basis.shape)} and A {tuple(coefficients.shape)} do not multiply: B is (n_ctx, rank), A is (rank, width)"
            )
        self.trains: Trains = trains
        self.B = nn.Parameter(
            basis.detach().float().clone(memory_format=torch.contiguous_format), requires_grad="B" in trains
        )
        self.A = nn.Parameter(
            coefficients.detach().float().clone(memory_format=torch.contiguous_format), requires_grad="A" in trains
        )

    def forward(self) -> Tensor:
        """The context vectors, (n_ctx, width)."""
        return self.B @ self.A

    @property
    def n_ctx(self) -> int:
        """m, the number of context tokens."""
        return self.B.shape[0]

    @property
    def rank(self) -> int:
        """r, the number of components."""
        return self.B.shape[1]

    @property
    def width(self) -> int:
        """d, the width of a context vector."""
        return self.A.shape[1]

    @property
    def trainable_parameters(self) -> int:
        """m·d (dense), r(m+d) (both), r·d (fixed B) or m·r (fixed A)."""
        return sum(factor.numel() for factor in self.parameters() if factor.requires_grad)

    @property
    def is_dense(self) -> bool:
        """Whether B is the identity, so that P itself trains."""
        return (
            self.trains == "A" and self.rank == self.n_ctx and torch.equal(self.B.detach().cpu(), torch.eye(self.n_ctx))
        )

    def extra_repr(self) -> str:
        """Shapes for `print(prompt)`."""
        return f"n_ctx={self.n_ctx}, rank={self.rank}, width={self.width}, trains={self.trains}"
