"""A few-shot task: what every method gets to see, and the only place where a sample becomes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slimprompt.errors import InputError, first_few
from slimprompt.images.bank import EVAL_VIEW, FeatureBank, StoredViews, train_view_name
from slimprompt.images.decode import Decode, ImageSource
from slimprompt.methods.zero_shot import check_templates, template_texts, zero_shot_features
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import Position
from slimprompt.text.encoder import SharedPrefixTextEncoder, encode_texts
from slimprompt.training.recipe import Recipe

#: Train views of each image that the methods on image features use beside the eval view, unless another number is given.
DEFAULT_VIEWS = 2
#: The zero-shot template of images that bring none.
DEFAULT_TEMPLATE = "a photo of a {}."
#: Image features that one recipe may use; the bank checks each of them before the first step.
_MOST_FEATURES = 20_000_000


class LabelledImages(NamedTuple):
    """A sample: training images with their labels, and what is known about them."""

    images: Sequence[ImageSource]
    labels: Sequence[int]
    """Index into `class_names` for each image."""
    class_names: tuple[str, ...]
    """Those of a benchmark may be equal: its classes are told apart by their labels."""
    decode: Decode = "upright"
    templates: tuple[str, ...] = (DEFAULT_TEMPLATE,)


def make_task(
    bank: FeatureBank, sample: LabelledImages, seed: int, templates: Sequence[str] = (), views: int = DEFAULT_VIEWS
) -> Task:
    """The task of a sample: the command line, Python and the laboratory all make theirs here, with the same defaults.

    The default of `templates` is the first template of the sample, which is the published one of a benchmark.
    """
    check_templates(templates)
    images, labels, class_names, decode, own = sample
    return Task(bank, images, labels, class_names, seed, decode, tuple(templates) or own[:1], views)


@dataclass(frozen=True)
class Task:
    """Labelled training images of named classes, seen through the frozen backbone of a feature bank."""

    bank: FeatureBank
    """Encodes and stores image features; `bank.backbone` is the model."""
    images: Sequence[ImageSource]
    labels: Sequence[int]
    """Index into `class_names` for each image."""
    class_names: tuple[str, ...]
    seed: int
    """Seed of the order of the images and of their train views."""
    decode: Decode = "upright"
    """How the images are read; see `slimprompt.images.decode.open_image`."""
    templates: tuple[str, ...] = (DEFAULT_TEMPLATE,)
    """Zero-shot prompts, averaged, which the losses `anchor` and `prograd` keep to; each has one `{}` for the class name."""
    views: int = DEFAULT_VIEWS
    """Train views of each image for the methods on image features; prompt learning uses those of its recipe."""
    sample_weight: Sequence[float] | None = None
    """Weight of each image in the loss of prompt learning; default: all count equally."""
    encoders: dict[Any, SharedPrefixTextEncoder] = field(default_factory=dict, repr=False, compare=False)
    """Text encoders that were built, which tasks of the same backbone may share."""

    @cached_property
    def hashes(self) -> list[str]:
        """Hexadecimal sha256 of each training image's content, found once and not for every view."""
        return self.bank.hashes(self.images, decode=self.decode)

    @property
    def short_hashes(self) -> list[str]:
        """The first 8 bytes of each hash, as 16 digits."""
        return short_hashes(self.hashes)

    @cached_property
    def eval_features(self) -> Tensor:
        """Unit-length features of the eval views, (n_images, embed_dim)."""
        return self._features(EVAL_VIEW)

    def adapted_features(self, prompt: Prompt | None) -> Tensor:
        """`eval_features` with the rows that a prompt puts into the image tower, if it does."""
        if prompt is None or prompt.image is None:
            return self.eval_features
        first, rows = prompt.image.first, prompt.image().detach()
        return self.bank.features_with_rows(self.images, first, rows, decode=self.decode, hashes=self.hashes)

    @cached_property
    def view_features(self) -> Tensor:
        """Unit-length features of the eval view and the train views, (1 + views, n_images, embed_dim)."""
        self._check_number(1 + self.views)
        names = [train_view_name(self.seed, number) for number in range(self.views)]
        if names:
            self.bank.build(self.images, names, decode=self.decode)  # an image is opened once for all its views
        return torch.stack([self.eval_features, *(self._features(name) for name in names)])

    @cached_property
    def targets(self) -> Tensor:
        """The labels as a tensor, (n_images,)."""
        return torch.tensor(list(self.labels), device=self.bank.backbone.device)

    @cached_property
    def class_features(self) -> Tensor:
        """T: unit-length zero-shot features of the classes, averaged over the templates, (n_classes, embed_dim)."""
        return zero_shot_features(self.bank.backbone, self.class_names, self.templates).clone()

    @cached_property
    def template_features(self) -> Tensor:
        """Features of each class in each template, not of unit length, (n_templates, n_classes, embed_dim)."""
        texts = template_texts(self.class_names, self.templates)
        features = encode_texts(self.bank.backbone, texts, unit_length=False).clone()
        return features.view(len(self.templates), len(self.class_names), -1)

    def text_encoder(
        self, class_names: Sequence[str], n_ctx: int, position: Position = "end", depth: int = 1
    ) -> SharedPrefixTextEncoder:
        """The text encoder of these class names for contexts of this shape, built once."""
        key = (tuple(class_names), n_ctx, position, depth)
        if key not in self.encoders:
            self.encoders[key] = SharedPrefixTextEncoder(self.bank.backbone, class_names, n_ctx, position, depth=depth)
        return self.encoders[key]

    @property
    def shots(self) -> int:
        """Number of images of the class that has most."""
        return int(self.targets.bincount().max())

    def of_images(self, indices: Sequence[int]) -> Task:
        """The same task with only these training images."""
        images, labels = [self.images[i] for i in indices], [self.labels[i] for i in indices]
        weights = self.sample_weight and [self.sample_weight[i] for i in indices]
        return replace(self, images=images, labels=labels, sample_weight=weights)

    def copy(self) -> Task:
        """The same task with tensors of its own: changing them in place does not change those of this one."""
        copied = replace(self)
        copied.__dict__.update({name: value.clone() for name, value in vars(self).items() if isinstance(value, Tensor)})
        return copied

    def require_every_class(self, method: str) -> None:
        """Raise an error if a class has no training image."""
        present = set(self.labels)
        missing = [name for label, name in enumerate(self.class_names) if label not in present]
        if missing:
            raise InputError(
                f"{method} needs at least one training image of every class, and there is none of {first_few(missing)}. "
                "Add images, remove the classes, or use zero-shot or a prompt, which need only their names"
            )

    def _features(self, view: str) -> Tensor:
        # A copy in aligned memory: the order of summation, and so the rounding, depends on the alignment.
        features = self.bank.features(self.images, view, decode=self.decode, hashes=self.hashes).clone()
        return features.to(self.bank.backbone.device)

    def encode(self, recipe: Recipe, block: int | None = None) -> None:
        """Encode every view that the recipe uses and the bank does not have: features, or the inputs of a block of the image tower."""
        numbers = recipe.all_view_numbers()
        self._check_number(len(numbers))
        names = [self._view_name(number) for number in numbers]
        bank = self.bank if block is None else self.bank.at_block(block)
        bank.build(self.images, names, decode=self.decode)

    def encode_all(self) -> None:
        """Encode the images and the texts that the methods on image features read."""
        _ = self.view_features, self.class_features, self.template_features

    def _check_number(self, n_views: int) -> None:
        if n_views * len(self.images) > _MOST_FEATURES:
            raise InputError(
                f"this trains on {n_views:,} views of {len(self.images):,} images: {n_views * len(self.images):,} "
                f"images to encode, more than {_MOST_FEATURES:,}. Lower epochs, or set views to reuse views (--set views=2)"
            )

    def _view_name(self, number: int | None) -> str:
        return EVAL_VIEW if number is None else train_view_name(self.seed, number)

    def features_by_epoch(self, recipe: Recipe) -> Callable[[int], Tensor]:
        """A function from an epoch to the features (n_views · n_images, embed_dim) that it trains on."""

        @lru_cache(maxsize=recipe.views or 1)  # views that several epochs use are kept in memory
        def read(views: tuple[str, ...]) -> Tensor:
            features = torch.cat(
                [self.bank.features(self.images, view, decode=self.decode, hashes=self.hashes) for view in views]
            )
            return features.to(self.bank.backbone.device)

        return lambda epoch: read(tuple(self._view_name(number) for number in recipe.views_at(epoch)))

    def eval_inputs(self, block: int) -> StoredViews:
        """The inputs of a block of the image tower for the eval views."""
        bank = self.bank.at_block(block)
        bank.build(self.images, decode=self.decode)
        return StoredViews(bank, self.hashes, [EVAL_VIEW], self.decode)

    def inputs_by_epoch(self, recipe: Recipe, block: int) -> Callable[[int], StoredViews]:
        """A function from an epoch to the inputs of a block of the image tower that it trains on, read batch by batch."""
        bank = self.bank.at_block(block)

        def read(epoch: int) -> StoredViews:
            views = [self._view_name(number) for number in recipe.views_at(epoch)]
            return StoredViews(bank, self.hashes, views, self.decode)

        return read


def short_hashes(hashes: Iterable[str]) -> list[str]:
    """The first 8 bytes of each hexadecimal sha256, as 16 digits."""
    return [digest[:16] for digest in hashes]
