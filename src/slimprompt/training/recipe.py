"""How a prompt is trained, as a value: every number of the training protocol by name."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Recipe(BaseModel):
    """SGD or Adam with a cosine schedule after a constant warm-up, over image features.

    The defaults are the paper's protocol. Learning rate of epoch e (from 0) of E:
    e < W: `warmup_lr`; else `lr`/2 · (1 + cos(π (e − W) / E)), so the last epoch is not at zero.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(200, ge=1, description="passes over the training images")
    batch_size: int | None = Field(
        32,
        ge=1,
        description="image views per step; the last partial batch is dropped if there are at least this many; empty = all",
    )
    optimizer: Literal["sgd", "adam"] = Field(
        "sgd", description="sgd (the paper), or adam, whose steps do not depend on the scale of the loss"
    )
    lr: float = Field(0.002, gt=0, description="learning rate after the warm-up")
    warmup_lr: float = Field(1e-5, ge=0, description="constant learning rate of the warm-up epochs")
    warmup_epochs: int = Field(1, ge=0, description="epochs at the warm-up learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="of SGD; of Adam's mean of gradients")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty on the trained factor")
    views: int | None = Field(
        None,
        ge=0,
        description="random views per image: empty = a fresh one every epoch (the paper), N = N views, 0 = the test view only",
    )
    all_views: bool = Field(
        False, description="with N views: an epoch goes over all of them and the test view, instead of one in turn"
    )
    backtrack: float = Field(
        0.0,
        ge=0,
        description="when an epoch's training loss is above the best by more than this share, go back there with half the learning rate; 0 = never",
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="stop when the training loss stayed within this share for five epochs; 0 = never",
    )

    def lr_at(self, epoch: int) -> float:
        """Learning rate of a 0-based epoch."""
        if epoch < self.warmup_epochs:
            return self.warmup_lr
        return 0.5 * self.lr * (1 + math.cos(math.pi * (epoch - self.warmup_epochs) / self.epochs))

    def steps_per_epoch(self, n_images: int) -> int:
        """Optimiser steps in one epoch over `n_images` images."""
        return max(1, n_images * len(self.views_of(0)) // self.batch_size) if self.batch_size else 1

    def views_of(self, epoch: int) -> list[int | None]:
        """Numbers of the random views that `epoch` trains on; None is the plain test view."""
        if self.views is None:
            return [epoch]
        if self.views == 0:
            return [None]
        return [None, *range(self.views)] if self.all_views else [epoch % self.views]


#: The recipes that have a name. "paper" is the protocol to the letter. "fast" takes few steps, each over many images in
#: several views: with the image features at hand the text pass is the cost of a step, however many images see it.
RECIPES: dict[str, Recipe] = {
    "paper": Recipe(),
    "fast": Recipe(
        epochs=20,
        batch_size=256,
        optimizer="adam",
        lr=0.005,
        warmup_epochs=0,
        momentum=0.8,
        views=2,
        all_views=True,
        backtrack=0.1,
        tolerance=0.005,
    ),
}
