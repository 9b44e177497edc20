"""A few-shot task: what every method gets to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from slimprompt.errors import InputError
from slimprompt.images.bank import EVAL_VIEW, FeatureBank, train_view_name
from slimprompt.images.files import Decode, ImageSource
from slimprompt.training.recipe import Recipe

#: Image features that one recipe may use; the bank checks each of them before the first step.
_MOST_FEATURES = 20_000_000


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

    def encode(self, recipe: Recipe) -> None:
        """Encode every view that the recipe uses and the bank does not have."""
        names = [self._view_name(number) for number in recipe.all_view_numbers()]
        if len(names) * len(self.images) > _MOST_FEATURES:
            raise InputError(
                f"this recipe trains on {len(names):,} views of {len(self.images):,} images: {len(names) * len(self.images):,} "
                f"images to encode, more than {_MOST_FEATURES:,}. Lower epochs, or set views to reuse views (--views 2)"
            )
        self.bank.build(self.images, names, decode=self.decode)

    def _view_name(self, number: int | None) -> str:
        return EVAL_VIEW if number is None else train_view_name(self.seed, number)

    def features_by_epoch(self, recipe: Recipe) -> Callable[[int], Tensor]:
        """A function from an epoch to the features (n_views · n_images, embed_dim) that it trains on."""
        read = lru_cache(maxsize=recipe.views or 1)(  # views that several epochs use are kept in memory
            lambda views: torch.cat([self.bank.features(self.images, view, decode=self.decode) for view in views])
        )
        return lambda epoch: read(tuple(self._view_name(number) for number in recipe.views_at(epoch)))
