"""How a prompt is trained, as a value: every number of the training protocol by name."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field


class Recipe(BaseModel):
    """SGD with a cosine schedule after a constant warm-up, over image features.

    The defaults are the paper's protocol. Learning rate of epoch e (from 0) of E:
    e < W: `warmup_lr`; else `lr`/2 · (1 + cos(π (e − W) / E)), so the last epoch is not at zero.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(200, ge=1, description="passes over the training images")
    batch_size: int | None = Field(
        32,
        ge=1,
        description="images per step; the last partial batch is dropped if the set has at least this many; empty = all images in all views",
    )
    lr: float = Field(0.002, gt=0, description="learning rate after the warm-up")
    warmup_lr: float = Field(1e-5, ge=0, description="constant learning rate of the warm-up epochs")
    warmup_epochs: int = Field(1, ge=0, description="epochs at the warm-up learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD momentum")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty on the trained factor")
    views: int | None = Field(
        None,
        ge=0,
        description="random views per image: empty = a fresh one every epoch (the paper), N = N views taken in turn, 0 = the test view only",
    )
    backtrack: float = Field(
        0.0,
        ge=0,
        description="full batch only: when the training loss rises by more than this share over its best, go back there with half the learning rate; 0 = never",
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
        return max(1, n_images // self.batch_size) if self.batch_size else 1

    def views_of(self, epoch: int) -> list[int | None]:
        """Numbers of the random views that `epoch` trains on; None is the plain test view."""
        if self.views is None:
            return [epoch]
        if self.views == 0:
            return [None]
        return [epoch % self.views] if self.batch_size else list(range(self.views))


#: The recipes that have a name. "paper" is the protocol to the letter. "fast" takes few steps, each over all images in
#: several views at once: with the image features at hand the text pass is the cost of a step, however many images see it.
RECIPES: dict[str, Recipe] = {
    "paper": Recipe(),
    "fast": Recipe(epochs=20, batch_size=None, lr=0.06, views=3, backtrack=0.1, tolerance=0.005),
}
