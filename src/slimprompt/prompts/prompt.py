"""The prompt: P = B A or P = W + B A, and which factor trains."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn

from slimprompt.errors import InputError
from slimprompt.prompts.spec import Trainable


class Prompt(nn.Module):
    """context = B A: basis B (n_ctx, rank), coefficients A (rank, width) → (n_ctx, width).

    B mixes `rank` components over the context tokens; A places them in the text tower's embedding space. Dense CoOp is the
    fixed basis B = I. The factors are always fp32, whatever the precision of the backbone.

    An anchored prompt adds fixed word embeddings: context = W + B A. A deep prompt has coefficients A_l for each of the
    first `depth` layers of the text tower and one basis for all of them: context_l = B A_l, (depth, n_ctx, width).

    Parameters
    ----------
    basis
        B, (n_ctx, rank).
    coefficients
        A, (rank, width); of a deep prompt (depth, rank, width).
    trainable
        "A" (fixed token basis), "B" (fixed coefficients), "AB" (both) or "none", where only the rows of the image tower train.
    words
        W, (n_ctx, width), of an anchored prompt; never trained.
    image
        The rows of the image tower that belong to the prompt: an `ImagePrompt`, or None.

    Examples
    --------
    >>> prompt = Prompt(torch.eye(16), torch.zeros(16, 512), trainable="A")
    >>> prompt.trainable_parameters, tuple(prompt().shape)
    (8192, (16, 512))
    """

    W: Tensor | None

    def __init__(
        self,
        basis: Tensor,
        coefficients: Tensor,
        trainable: Trainable,
        words: Tensor | None = None,
        image: ImagePrompt | None = None,
    ) -> None:
        super().__init__()
        if trainable not in get_args(Trainable):
            raise InputError(f"trainable must be 'A', 'B', 'AB' or 'none', not {trainable!r}")
        if basis.ndim != 2 or coefficients.ndim not in (2, 3) or basis.shape[1] != coefficients.shape[-2]:
            raise InputError(
                f"B {tuple(basis.shape)} and A {tuple(coefficients.shape)} do not multiply: B is (n_ctx, rank), "
                "A is (rank, width) or (depth, rank, width)"
            )
        if words is not None and words.shape != (basis.shape[0], *coefficients.shape[1:]):
            raise InputError(
                f"W {tuple(words.shape)} cannot be added to B A: it must have the shape (n_ctx, width), and a deep prompt "
                "has no words"
            )
        self.trainable: Trainable = trainable
        self.B = nn.Parameter(_fp32_copy(basis), requires_grad="B" in trainable)
        self.A = nn.Parameter(_fp32_copy(coefficients), requires_grad="A" in trainable)
        self.register_buffer("W", None if words is None else _fp32_copy(words))
        self.image = image

    def forward(self) -> Tensor:
        """The context vectors, (n_ctx, width); of a deep prompt (depth, n_ctx, width)."""
        context = self.B @ self.A
        return context if self.W is None else self.W + context

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all that makes the prompt, for storing it: B, A, if it is anchored W, and of the image tower `image.B`, `image.A`."""
        named: dict[str, Tensor | None] = {"B": self.B, "A": self.A, "W": self.W}
        if self.image is not None:
            named |= {"image.B": self.image.B, "image.A": self.image.A}
        return {name: value.detach().clone() for name, value in named.items() if value is not None}

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
        return self.A.shape[-1]

    @property
    def depth(self) -> int:
        """Number of layers of the text tower that receive a context of their own."""
        return len(self.A) if self.A.ndim == 3 else 1

    @property
    def trainable_factors(self) -> list[Tensor]:
        """The factors that train."""
        return [factor for factor in self.parameters() if factor.requires_grad]

    @property
    def trainable_parameters(self) -> int:
        """Number of parameters that train; `prompts.spec.count_parameters` is the formula of one site."""
        return sum(factor.numel() for factor in self.trainable_factors)

    @property
    def trains_text(self) -> bool:
        """Whether the text features change in training."""
        return self.B.requires_grad or self.A.requires_grad

    def extra_repr(self) -> str:
        """Shapes for `print(prompt)`."""
        sizes = f"n_ctx={self.n_ctx}, rank={self.rank}, width={self.width}"
        sizes += f", depth={self.depth}" if self.depth > 1 else ""
        return f"{sizes}, trainable={self.trainable}{', anchored' if self.W is not None else ''}"


class ImagePrompt(Prompt):
    """Rows of the image tower before each of its blocks J, J + 1, …: B A_l, (n_blocks, n_rows, width).

    A is (n_blocks, rank, width); `first` is J. With `share`, B is that parameter itself: one basis for both towers.
    """

    def __init__(
        self, basis: Tensor, coefficients: Tensor, trainable: Trainable, first: int, share: nn.Parameter | None = None
    ) -> None:
        super().__init__(basis, coefficients, trainable)
        self.first = first
        if share is not None:
            self.B = share


def _fp32_copy(factor: Tensor) -> Tensor:
    return factor.detach().float().clone(memory_format=torch.contiguous_format)
