"""The training loop, in one function that can be read in one sitting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.errors import InputError
from slimprompt.images.bank import TEST_VIEW, FeatureBank, Picture, random_view_name
from slimprompt.progress import progress
from slimprompt.prompts.prompt import Prompt
from slimprompt.seeds import stream_seed
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.training.recipe import Recipe


class EpochResult(NamedTuple):
    """One row of the learning curve: means over the epoch's images, before each step; accuracy in percent."""

    epoch: int
    lr: float
    loss: float
    accuracy: float


def train(
    prompts: Sequence[Prompt],
    encode_text: Callable[[Tensor], Tensor],
    view: Callable[[int], Tensor],
    labels: Tensor,
    logit_scale: float,
    recipe: Recipe,
    *,
    seed: int,
) -> list[list[EpochResult]]:
    """Minimise the cross-entropy of `logit_scale · cos(image, text(B A))` over the factors that train; changes `prompts`.

    Prompts of the same images and classes train side by side, each on its own loss, as if alone; several at once are one stack
    to the text encoder. The prompt of the last step is the result; nothing is selected.
    encode_text: context (n_ctx, width) → class features (n_classes, embed_dim), and a stack of those to a stack.
    view: epoch → unit-length image features (n_views · n_images, embed_dim): each view holds the images in their order.
    seed: of the order of the images, a stream of its own.
    """
    if not len(labels):
        raise InputError("there are no training images")
    order = torch.Generator().manual_seed(stream_seed(seed, "order"))
    runs = [_Descent(prompt, recipe) for prompt in prompts]
    active = runs
    step = 0
    with progress("training", recipe.epochs * recipe.steps_per_epoch(len(labels))) as advance:
        for epoch in range(recipe.epochs):
            features = view(epoch)  # (n_views · n_images, embed_dim)
            targets = labels.repeat(len(features) // len(labels))
            for run in active:
                run.begin(epoch)
            for batch in batches(len(targets), recipe.batch_size or len(targets), order):
                images, target = features[batch], targets[batch]
                # Each prompt has its own product and loss, of the same sizes as if alone, so that it gets the same numbers.
                texts = _text_features([run.prompt for run in active], encode_text)
                logits = [logit_scale * images.to(text.device) @ text.T for text in texts]  # (batch, n_classes) each
                losses = [F.cross_entropy(scores, target.to(scores.device)) for scores in logits]
                step += 1
                for run in active:
                    run.optimizer.zero_grad()
                torch.stack(losses).sum().backward()
                for run, loss, scores in zip(active, losses, logits, strict=True):
                    right = int((scores.argmax(1).cpu() == target).sum())
                    if not run.step(loss.item(), right, len(batch)):
                        raise _diverged(str(loss.item()), step, epoch, recipe)
                rows = [run.row() for run in active]
                loss, accuracy = (sum(getattr(row, name) for row in rows) / len(rows) for name in ("loss", "accuracy"))
                advance(note=f"loss {loss:.3f}  accuracy {accuracy:.0f} %")
            for run in active:
                run.end()
            active = [run for run in active if not _converged(run.curve, recipe.tolerance)]
            if not active:
                break
    with torch.no_grad():
        if not all(text.isfinite().all() for text in _text_features(prompts, encode_text)):
            raise _diverged("not finite", step, epoch, recipe)
    return [run.curve for run in runs]


class _Descent:
    """One prompt on its way down: its optimiser, its curve, and where it was best."""

    def __init__(self, prompt: Prompt, recipe: Recipe) -> None:
        self.prompt, self._recipe = prompt, recipe
        self.factors = [factor for factor in prompt.parameters() if factor.requires_grad]
        common: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(self.factors, momentum=recipe.momentum, **common)
            if recipe.optimizer == "sgd"
            else torch.optim.AdamW(self.factors, betas=(recipe.momentum, 0.95), **common)
        )
        self.curve: list[EpochResult] = []
        self._rate = 1.0  # of the recipe's learning rate
        self._best = math.inf
        self._best_factors: list[Tensor] = []

    def begin(self, epoch: int) -> None:
        """A new epoch: learning rate, and what is counted in it."""
        self._epoch, self._lr = epoch, self._rate * self._recipe.lr_at(epoch)
        self.optimizer.param_groups[0]["lr"] = self._lr
        self._total, self._right, self._seen = 0.0, 0, 0
        self._start = [factor.detach().clone() for factor in self.factors] if self._recipe.backtrack else []

    def step(self, loss: float, right: int, seen: int) -> bool:
        """One step along the gradient; False if the loss is not a number and there is nothing to go back to."""
        self._total, self._right, self._seen = self._total + loss * seen, self._right + right, self._seen + seen
        if not math.isfinite(loss):
            return bool(self._best_factors)
        self.optimizer.step()
        return True

    def row(self) -> EpochResult:
        """The epoch so far."""
        return EpochResult(self._epoch, self._lr, self._total / self._seen, 100 * self._right / self._seen)

    def end(self) -> None:
        """The epoch is over; if its loss rose, back to where the best one began."""
        row = self.row()
        self.curve.append(row)
        if not self._recipe.backtrack:
            return
        if row.loss < self._best:
            self._best, self._best_factors = row.loss, self._start
        elif not row.loss <= (1 + self._recipe.backtrack) * self._best:
            with torch.no_grad():
                for factor, best in zip(self.factors, self._best_factors, strict=True):
                    factor.copy_(best)
            self.optimizer.state.clear()  # the momentum led here
            self._rate /= 2


def _text_features(prompts: Sequence[Prompt], encode_text: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
    """Unit-length class features (n_classes, embed_dim) of each prompt."""
    if len(prompts) == 1:
        return [F.normalize(encode_text(prompts[0]()), dim=-1)]
    return F.normalize(encode_text(torch.stack([prompt() for prompt in prompts])), dim=-1).unbind(0)


def _converged(curve: list[EpochResult], tolerance: float, window: int = 5) -> bool:
    """Whether the training loss stayed within its share `tolerance` over the last `window` epochs; a swing is not a rest."""
    losses = [row.loss for row in curve[-window:]]
    return len(losses) == window and max(losses) - min(losses) < tolerance * losses[-1]


def _diverged(value: str, step: int, epoch: int, recipe: Recipe) -> InputError:
    return InputError(
        f"the loss became {value} at step {step} (epoch {epoch}, learning rate {recipe.lr_at(epoch):g}). "
        "Most likely the learning rate is too high; if precision is fp16, try bf16 or fp32"
    )


def batches(n_images: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
    """The images in random order, cut into batches; the last partial batch is dropped if there is at least one whole."""
    parts = list(torch.randperm(n_images, generator=generator).split(batch_size))
    return [part for part in parts if len(part) == batch_size] if n_images >= batch_size else parts


def view_names(recipe: Recipe, seed: int) -> list[tuple[str, ...]]:
    """The views that each epoch trains on, as the feature bank names them."""
    return [
        tuple(TEST_VIEW if view is None else random_view_name(seed, view) for view in recipe.views_of(epoch))
        for epoch in range(recipe.epochs)
    ]


def fit_prompts(
    prompts: Sequence[Prompt],
    bank: FeatureBank,
    pictures: Sequence[Picture],
    labels: Sequence[int],
    encode_text: SharedPrefixTextEncoder,
    recipe: Recipe,
    *,
    seed: int,
) -> list[list[EpochResult]]:
    """Train `prompts` side by side on labelled pictures through a feature bank; changes them.

    The random views of a seed are a stream of their own, shared by every variant.
    """
    names = view_names(recipe, seed)
    bank.build(pictures, list(dict.fromkeys(name for epoch in names for name in epoch)))
    # Views that come back are kept in memory.
    features = lru_cache(maxsize=recipe.views or 1)(
        lambda views: torch.cat([bank.features(pictures, name) for name in views])
    )
    for prompt in prompts:
        prompt.to(bank.backbone.device)
    return train(
        prompts,
        encode_text,
        lambda epoch: features(names[epoch]),
        torch.tensor(list(labels)),
        bank.backbone.logit_scale,
        recipe,
        seed=seed,
    )
