"""The training loop, in one function that can be read in one sitting."""

from __future__ import annotations

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
from slimprompt.text import SharedPrefixTextEncoder


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
    optimizers = [
        torch.optim.SGD(
            [factor for factor in prompt.parameters() if factor.requires_grad],
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        for prompt in prompts
    ]
    curves: list[list[EpochResult]] = [[] for _ in prompts]
    active = list(range(len(prompts)))
    step = 0
    with progress("training", recipe.epochs * recipe.steps_per_epoch(len(labels))) as advance:
        for epoch in range(recipe.epochs):
            features = view(epoch)  # (n_views · n_images, embed_dim)
            targets = labels.repeat(len(features) // len(labels))
            totals, right, seen = torch.zeros(len(active)), torch.zeros(len(active)), 0
            for batch in batches(len(targets), recipe.batch_size or len(targets), order):
                text = _text_features([prompts[index] for index in active], encode_text)
                logits = logit_scale * features[batch].to(text.device) @ text.flatten(0, 1).T
                logits = logits.view(len(batch), *text.shape[:2])  # (batch, active, n_classes)
                target = targets[batch, None].to(text.device).expand(-1, len(active))
                losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
                losses = losses.view(target.shape).mean(0)  # (active,)
                step += 1
                if not losses.isfinite().all():
                    raise _diverged(str(losses.max().item()), step, epoch, recipe)
                for index in active:
                    optimizers[index].param_groups[0]["lr"] = recipe.lr_at(epoch)
                    optimizers[index].zero_grad()
                losses.sum().backward()
                for index in active:
                    optimizers[index].step()
                totals += losses.detach().cpu() * len(batch)
                right += (logits.argmax(2) == target).sum(0).cpu()
                seen += len(batch)
                loss, accuracy = (totals / seen).mean(), (100 * right / seen).mean()
                advance(note=f"loss {loss:.3f}  accuracy {accuracy:.0f} %")
            for index, total, count in zip(active, totals.tolist(), right.tolist(), strict=True):
                curves[index].append(EpochResult(epoch, recipe.lr_at(epoch), total / seen, 100 * count / seen))
            active = [index for index in active if not _converged(curves[index], recipe.tolerance)]
            if not active:
                break
    with torch.no_grad():
        if not _text_features(prompts, encode_text).isfinite().all():
            raise _diverged("not finite", step, epoch, recipe)
    return curves


def _text_features(prompts: Sequence[Prompt], encode_text: Callable[[Tensor], Tensor]) -> Tensor:
    """Unit-length class features (n_prompts, n_classes, embed_dim)."""
    features = encode_text(torch.stack([prompt() for prompt in prompts]) if len(prompts) > 1 else prompts[0]())
    return F.normalize(features if len(prompts) > 1 else features[None], dim=-1)


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
