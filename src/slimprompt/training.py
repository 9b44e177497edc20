"""The training loop, in one function that can be read in one sitting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.bank import TEST_VIEW, FeatureBank, Picture, random_view_name
from slimprompt.errors import InputError
from slimprompt.progress import progress
from slimprompt.prompt import Prompt
from slimprompt.recipe import Recipe
from slimprompt.seeds import stream_seed
from slimprompt.text import Position, SharedPrefixTextEncoder


class EpochResult(NamedTuple):
    """One row of the learning curve: means over the epoch's images, before each step; accuracy in percent."""

    epoch: int
    lr: float
    loss: float
    accuracy: float


def train(
    prompt: Prompt,
    encode_text: Callable[[Tensor], Tensor],
    view: Callable[[int], Tensor],
    labels: Tensor,
    logit_scale: float,
    recipe: Recipe,
    *,
    seed: int,
) -> list[EpochResult]:
    """Minimise the cross-entropy of `logit_scale · cos(image, text(B A))` over the factors that train; changes `prompt`.

    encode_text: context (n_ctx, width) → class features (n_classes, embed_dim).
    view: epoch → unit-length image features (n_views · n_images, embed_dim): each view holds the images in their order.
    seed: of the order of the images, a stream of its own. The prompt of the last step is the result; nothing is selected.
    """
    if not len(labels):
        raise InputError("there are no training images")
    order = torch.Generator().manual_seed(stream_seed(seed, "order"))
    optimizer = torch.optim.SGD(
        [factor for factor in prompt.parameters() if factor.requires_grad],
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    curve: list[EpochResult] = []
    step = 0
    with progress("training", recipe.epochs * recipe.steps_per_epoch(len(labels))) as advance:
        for epoch in range(recipe.epochs):
            features = view(epoch)  # (n_views · n_images, embed_dim)
            targets = labels.repeat(len(features) // len(labels))
            optimizer.param_groups[0]["lr"] = recipe.lr_at(epoch)
            total_loss, right, seen = 0.0, 0, 0
            for batch in batches(len(targets), recipe.batch_size or len(targets), order):
                text = F.normalize(encode_text(prompt()), dim=-1)  # (n_classes, embed_dim)
                logits = logit_scale * features[batch].to(text.device) @ text.T  # (batch, n_classes)
                target = targets[batch].to(text.device)
                loss = F.cross_entropy(logits, target)
                value = loss.item()
                if not math.isfinite(value):
                    raise _diverged(str(value), step + 1, epoch, recipe)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                total_loss += value * len(batch)
                right += int((logits.argmax(1) == target).sum())
                seen += len(batch)
                advance(note=f"loss {total_loss / seen:.3f}  accuracy {100 * right / seen:.0f} %")
            if epoch == recipe.epochs - 1 and not torch.isfinite(encode_text(prompt().detach())).all():
                raise _diverged("not finite", step, epoch, recipe)
            curve.append(EpochResult(epoch, recipe.lr_at(epoch), total_loss / seen, 100 * right / seen))
            if _converged(curve, recipe.tolerance):
                break
    if not torch.isfinite(encode_text(prompt().detach())).all():
        raise _diverged("not finite", step, curve[-1].epoch, recipe)
    return curve


def _converged(curve: list[EpochResult], tolerance: float, window: int = 10) -> bool:
    """Whether the last `window` epochs lowered the training loss by less than its share `tolerance`."""
    return len(curve) > window and curve[-1].loss > (1 - tolerance) * curve[-1 - window].loss if tolerance else False


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


def fit_prompt(
    prompt: Prompt,
    bank: FeatureBank,
    pictures: Sequence[Picture],
    labels: Sequence[int],
    class_names: Sequence[str],
    recipe: Recipe,
    *,
    seed: int,
    position: Position = "end",
    chunk_size: int | None = None,
) -> list[EpochResult]:
    """Train `prompt` on labelled pictures through a feature bank; changes `prompt`.

    The random views of a seed are a stream of their own, shared by every variant.
    """
    encoder = SharedPrefixTextEncoder(bank.backbone, class_names, prompt.n_ctx, position, chunk_size=chunk_size)
    names = view_names(recipe, seed)
    bank.build(pictures, list(dict.fromkeys(name for epoch in names for name in epoch)))
    # Views that come back are kept in memory.
    features = lru_cache(maxsize=recipe.views or 1)(
        lambda views: torch.cat([bank.features(pictures, name) for name in views])
    )
    prompt.to(bank.backbone.device)
    return train(
        prompt,
        encoder,
        lambda epoch: features(names[epoch]),
        torch.tensor(list(labels)),
        bank.backbone.logit_scale,
        recipe,
        seed=seed,
    )
