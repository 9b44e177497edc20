"""A few-shot task: what every method gets to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from slimprompt.images.bank import EVAL_VIEW, FeatureBank, ImageSource, train_view_name
from slimprompt.images.files import Decode
from slimprompt.training.recipe import Recipe


@dataclass(frozen=True)
class Task:
    """Labelled training images of named classes, seen through the frozen backbone of a feature bank.

    Parameters
    ----------
    bank
        Encodes and stores image features; `bank.backbone` is the model.
    images
        Training images.
    labels
        Index into `class_names` for each image.
    class_names
        Names of the classes.
    seed
        Seed of the order of the images and of their train views.
    decode
        How the images are read; see `slimprompt.images.files.open_image`.
    templates
        Zero-shot prompts of the task, such as "a photo of a {}."; several are averaged.
    """

    bank: FeatureBank
    images: Sequence[ImageSource]
    labels: Sequence[int]
    class_names: tuple[str, ...]
    seed: int
    decode: Decode = "upright"
    templates: tuple[str, ...] = ("a photo of a {}.",)

    def view_names(self, recipe: Recipe) -> list[tuple[str, ...]]:
        """The views that each epoch of the recipe uses, as the feature bank names them."""
        return [
            tuple(EVAL_VIEW if view is None else train_view_name(self.seed, view) for view in recipe.views_at(epoch))
            for epoch in range(recipe.epochs)
        ]

    def encode(self, recipe: Recipe) -> None:
        """Encode every view that the recipe uses and the bank does not have."""
        names = dict.fromkeys(name for epoch in self.view_names(recipe) for name in epoch)
        self.bank.build(self.images, list(names), decode=self.decode)

    def features_by_epoch(self, recipe: Recipe) -> Callable[[int], Tensor]:
        """A function from an epoch to the features (n_views · n_images, embed_dim) that it trains on."""
        names = self.view_names(recipe)
        read = lru_cache(maxsize=recipe.views or 1)(  # views that several epochs use are kept in memory
            lambda views: torch.cat([self.bank.features(self.images, view, decode=self.decode) for view in views])
        )
        return lambda epoch: read(names[epoch])
