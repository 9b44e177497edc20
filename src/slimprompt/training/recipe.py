"""How a prompt is trained, as a value: every number of the training protocol by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from slimprompt.errors import choose, validate


class Recipe(BaseModel):
    """SGD or AdamW with a cosine schedule after a constant warm-up, over image features.

    The defaults are the paper's protocol. Learning rate of epoch e (from 0) of E, with W warm-up epochs:
    e < W: `warmup_lr`; otherwise `lr`/2 · (1 + cos(π (e − W) / E)), so the last epoch is not at zero.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(200, ge=1, le=1_000_000, description="passes over the training images")
    batch_size: int | None = Field(
        32,
        ge=1,
        le=2**31,
        description="image views per step, or all if there are fewer; none = all views",
    )
    drop_last: bool = Field(
        True,
        description="drop the views of a last partial batch (the paper), instead of spreading them over the full batches",
    )
    optimizer: Literal["sgd", "adamw"] = Field(
        "sgd", description="optimizer: sgd (the paper), or adamw, whose steps do not depend on the scale of the loss"
    )
    lr: float = Field(0.002, gt=0, le=1e30, description="learning rate after the warm-up")
    warmup_lr: float = Field(1e-5, ge=0, le=1e30, description="constant learning rate of the warm-up epochs")
    warmup_epochs: int = Field(1, ge=0, le=1_000_000, description="epochs at the warm-up learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD; β₁ of AdamW")
    beta2: float = Field(0.95, ge=0, lt=1, description="decay rate β₂ of AdamW; not used by SGD")
    weight_decay: float = Field(
        5e-4, ge=0, le=1e30, description="weight decay of the trained factor: an L2 penalty in SGD, decoupled in AdamW"
    )
    views: int | None = Field(
        None,
        ge=0,
        le=10_000,
        description="train views per image, which are random crops, beside the eval view, the centre crop that predictions use: "
        "none = a new one every epoch (the paper), N = N views, 0 = the eval view only",
    )
    all_views: bool = Field(
        False, description="with N views: each epoch uses all of them and the eval view, instead of one in turn"
    )
    backtrack: float = Field(
        0.0,
        ge=0,
        description="if an epoch's training loss exceeds the best by more than this fraction, return to the best factors "
        "and halve the learning rate; 0 = never",
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="stop when the training loss changes by less than this fraction over `patience` epochs; 0 = never",
    )
    patience: int = Field(
        5,
        ge=2,
        le=1_000_000,
        description="epochs over which `tolerance` is measured, and after which training stops if a validation set does not improve",
    )
    anchor: float = Field(
        0.0,
        ge=0,
        description="weight λ of the loss λ · mean(1 − cos) between class features and zero-shot ones (KgCoOp; 8 there); 0 = none",
    )
    prograd: bool = Field(
        False,
        description="remove the part of each gradient that moves predictions away from the zero-shot ones (ProGrad)",
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none",
        description="none, or balanced: weight each image by 1 / images of its class, so that all classes count equally",
    )

    @property
    def uses_zero_shot(self) -> bool:
        """Whether a training step needs the zero-shot class features."""
        return self.anchor > 0 or self.prograd

    def lr_at(self, epoch: int) -> float:
        """Learning rate of a 0-based epoch."""
        if epoch < self.warmup_epochs:
            return self.warmup_lr
        return 0.5 * self.lr * (1 + math.cos(math.pi * (epoch - self.warmup_epochs) / self.epochs))

    def steps_per_epoch(self, n_images: int) -> int:
        """Optimizer steps in one epoch over `n_images` images."""
        return max(1, n_images * len(self.views_at(0)) // self.batch_size) if self.batch_size else 1

    def steps(self, n_images: int) -> int:
        """Optimizer steps of a whole training on `n_images` images; with `tolerance`, it may take fewer."""
        return self.epochs * self.steps_per_epoch(n_images)

    def all_view_numbers(self) -> Sequence[int | None]:
        """Numbers of all train views that the recipe uses, in order of first use; None is the eval view."""
        if self.views is None:
            return range(self.epochs)
        if self.views == 0 or self.all_views:
            return self.views_at(0)
        return range(min(self.views, self.epochs))

    def views_at(self, epoch: int) -> list[int | None]:
        """Numbers of the train views that `epoch` uses; None is the eval view."""
        if self.views is None:
            return [epoch]
        if self.views == 0:
            return [None]
        return [None, *range(self.views)] if self.all_views else [epoch % self.views]

    def describe(self) -> str:
        """The recipe in one line: `40 epochs of SGD, batches of 32, learning rate 0.002, 4 train views per image in turn`."""
        parts = [
            f"{self.epochs} epochs of {'SGD' if self.optimizer == 'sgd' else 'AdamW'}",
            f"batches of {self.batch_size}{'' if self.drop_last else ' or more'}"
            if self.batch_size
            else "all images in one step",
            f"learning rate {self.lr:g}",
        ]
        if self.views is None:
            parts.append("a new train view of each image every epoch")
        elif self.views == 0:
            parts.append("the eval view of each image")
        elif self.all_views:
            parts.append(f"the eval view and {self.views} train views of each image")
        else:
            parts.append(f"{self.views} train views per image in turn")
        if self.backtrack:
            parts.append(f"returns to the best factors if the loss rises by {100 * self.backtrack:g} %")
        if self.tolerance:
            change = f"{100 * self.tolerance:g} % over {self.patience} epochs"
            parts.append(f"stops when the loss changes by less than {change}")
        if self.anchor:
            parts.append(f"class features kept close to zero-shot (weight {self.anchor:g})")
        if self.prograd:
            parts.append("gradients that conflict with zero-shot predictions projected (ProGrad)")
        if self.class_weights == "balanced":
            parts.append("classes weighted equally")
        return ", ".join(parts)


#: The recipes that have a name. "paper" is the published protocol. "fast" takes few steps on large batches of several views
#: per image: with the image features stored, the text pass is the cost of a step, regardless of the batch size.
#: "paper-10x" follows "paper" in a tenth of the steps. Each of them is ten times as long: with momentum 0.9, ten steps of
#: "paper" at 0.002 move the factors as far as one at 0.2 without momentum. A batch has 33 views of 32 images on average. No view
#: is dropped: with few steps per epoch, the loss of an epoch would depend on the views that it drops, and `backtrack` would return
#: to earlier factors by chance.
RECIPES: dict[str, Recipe] = {
    "paper": Recipe(),
    "fast": Recipe(
        epochs=20,
        batch_size=256,
        optimizer="adamw",
        lr=0.005,
        warmup_epochs=0,
        momentum=0.8,
        views=2,
        all_views=True,
        backtrack=0.1,
        tolerance=0.005,
    ),
    "paper-10x": Recipe(
        epochs=20,
        batch_size=33 * 32,
        drop_last=False,
        lr=0.2,
        warmup_epochs=0,
        momentum=0.0,
        views=32,
        all_views=True,
        backtrack=0.1,
    ),
}

#: How a recipe is given: by name, "auto", as a value, or as a dictionary of fields that replace those of "auto".
RecipeLike = str | Recipe | Mapping[str, Any]

#: Images per class from which "auto" takes a single train view of each image.
MANY_IMAGES = 16


def auto_recipe(images_per_class: float, views: int | None = None) -> Recipe:
    """The recipe for so many images per class: "paper-10x" with fewer train views of each image.

    There are 32 / images_per_class of them, and one from 16 images on, unless `views` is given. The number of steps is that of
    "paper-10x" in any case.
    """
    if views is None:
        views = 1 if images_per_class >= MANY_IMAGES else round(32 / max(1.0, images_per_class))
    return RECIPES["paper-10x"].model_copy(update={"views": views, "batch_size": 32 * (1 + views)})


def auto_image_recipe(images_per_class: float) -> Recipe:
    """The recipe of prompts of the image tower, where each view of a batch is a pass through the adapted blocks: small batches of the
    eval view and one train view, and few epochs, from 40 at one image per class to 5 from eight on."""
    epochs = min(40, max(5, round(40 / max(1.0, images_per_class))))
    return RECIPES["fast"].model_copy(
        update={"epochs": epochs, "batch_size": 32, "drop_last": False, "momentum": 0.9, "views": 1, "tolerance": 0.0}
    )


def make_recipe(
    recipe: RecipeLike, images_per_class: float, overrides: Mapping[str, Any] | None = None, *, tower: str = "text"
) -> Recipe:
    """The recipe for a training set and the tower of a prompt, with some of its fields replaced."""
    if isinstance(recipe, Mapping):
        return make_recipe("auto", images_per_class, {**recipe, **(overrides or {})}, tower=tower)
    overrides = overrides or {}
    if recipe == "auto" and tower != "text":
        return replace_fields(auto_image_recipe(images_per_class), overrides)
    if recipe == "auto":
        checked = replace_fields(RECIPES["paper-10x"], overrides)
        return replace_fields(auto_recipe(images_per_class, checked.views if "views" in overrides else None), overrides)
    base: Recipe = recipe if isinstance(recipe, Recipe) else choose("recipe", recipe, {"auto": None, **RECIPES})
    return replace_fields(base, overrides)


def replace_fields(recipe: Recipe, fields: Mapping[str, Any]) -> Recipe:
    """The recipe with some of its fields replaced; an `InputError` if a field is unknown or a value is not allowed."""
    return validate(Recipe, {**recipe.model_dump(), **fields}, "recipe") if fields else recipe
