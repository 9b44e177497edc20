"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.errors import InputError
from slimprompt.progress import progress
from slimprompt.prompts.prompt import Prompt
from slimprompt.seeds import stream_seed
from slimprompt.training.losses import (
    balanced_weights,
    cross_entropy,
    feature_distance,
    kl_to_zero_shot,
    prograd_backward,
)
from slimprompt.training.optimizers import SGD, AdamW
from slimprompt.training.recipe import Recipe

#: Validation images that are classified at once.
_VALIDATION_BATCH = 256


class Inputs(Protocol):
    """What the image side of a batch is read from: a tensor, or rows that are read from a disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Tensor, /) -> Tensor: ...


#: (inputs of a batch, prompt or None) → unit-length image features (batch, embed_dim).
EncodeImages = Callable[[Tensor, Prompt | None], Tensor]


class EpochResult(NamedTuple):
    """One row of the learning curve: means over the epoch's images, before each step; accuracy in percent.

    The loss is what is minimised: (weighted) cross-entropy, with `Recipe.anchor` also the distance to the zero-shot features.
    """

    epoch: int
    lr: float
    loss: float
    accuracy: float


def train(
    prompts: Sequence[Prompt],
    encode_text: Callable[[Tensor], Tensor],
    features_at: Callable[[int], Inputs],
    labels: Tensor,
    logit_scale: float,
    recipe: Recipe,
    *,
    seed: int,
    zero_shot: Tensor | None = None,
    sample_weight: Tensor | None = None,
    validation: tuple[Inputs, Tensor] | None = None,
    encode_images: EncodeImages = lambda inputs, prompt: inputs,
    on_epoch: Callable[[EpochResult], object] = lambda row: None,
    show_progress: bool = True,
) -> list[list[EpochResult]]:
    """Minimise the cross-entropy of `logit_scale · cos(image, text(B A))` over the trainable factors, in place.

    With `recipe.class_weights` "balanced", an image counts 1 / images of its class, and with `sample_weight` (n_images,) so much more.
    With `recipe.anchor`,
    λ · mean_k(1 − cos(t_k, t_k⁰)) is added to the loss. With `recipe.prograd`, the part of the gradient that conflicts with the
    zero-shot predictions is removed. See `slimprompt.training.losses`.

    A prompt batch shares images and text passes, but every prompt has its own loss and optimizer: their results equal
    separate trainings up to float rounding. The prompt after the last step is the result; with `recipe.backtrack`, training
    may have returned to the factors at the start of its best epoch. With `validation`, what the features of n images are made from and labels (n,), the
    result is the prompt after the epoch with the lowest cross-entropy on these, and training ends `recipe.patience` epochs after it.

    `encode_text` maps a context (n_ctx, width) to class features (n_classes, embed_dim), and a batch of contexts to a batch;
    `features_at` maps an epoch to unit-length image features (n_views · n_images, embed_dim), where each view lists the images in
    order; `labels` is (n_images,) and `zero_shot` t⁰ (n_classes, embed_dim). With prompts of the image tower, `features_at` gives what that
    tower reads instead, and `encode_images` the features of a prompt, or without it those of the frozen tower. `on_epoch` is called with each row of a learning
    curve as soon as it is known. Returns the learning curve of each prompt.
    """
    if not len(labels):
        raise InputError("there are no training images")
    if zero_shot is None:
        if recipe.uses_zero_shot:
            raise InputError("a recipe with anchor or prograd needs zero-shot class features: pass zero_shot")
        zero_shot = torch.empty(0)
    zero_shot = zero_shot.clone().to(prompts[0].A.device)  # autograd refuses tensors made in inference mode
    weights = _image_weights(labels, sample_weight, recipe)  # (n_images,)
    if validation is not None:
        validation = validation[0], validation[1].to(zero_shot.device)
    order = torch.Generator().manual_seed(stream_seed(seed, "order"))
    states = [_State(prompt, _optimizer(prompt, recipe)) for prompt in prompts]
    active, step = states, 0
    with progress("training", recipe.steps(len(labels)), "steps", show=show_progress) as advance:
        for epoch in range(recipe.epochs):
            inputs = features_at(epoch)  # (n_views · n_images, embed_dim), or what the image tower reads
            n_views, device = len(inputs) // len(labels), prompts[0].A.device
            targets = labels.repeat(n_views).to(device)
            importance = None if weights is None else weights.repeat(n_views).to(device)
            for state in active:
                state.begin_epoch(recipe.lr_at(epoch))
            sizes, losses, correct = [], [], []
            for batch in batches(len(targets), recipe.batch_size or len(targets), recipe.drop_last, order):
                given, target = inputs[batch].to(device), targets[batch]
                images = [encode_images(given, state.prompt) for state in active]  # (batch, embed_dim) each
                texts = _text_features([state.prompt for state in active], encode_text)  # (n_classes, embed_dim) each
                logits = [logit_scale * image @ text.T for image, text in zip(images, texts, strict=True)]
                own = None if importance is None else importance[batch]
                loss = torch.stack([cross_entropy(scores, target, own) for scores in logits])  # (n_prompts,)
                if recipe.anchor:
                    loss = loss + recipe.anchor * torch.stack([feature_distance(text, zero_shot) for text in texts])
                if recipe.prograd:
                    zero_shot_logits = logit_scale * encode_images(given, None) @ zero_shot.T  # (batch, n_classes)
                    zero_shot_kl = torch.stack(
                        [kl_to_zero_shot(scores, zero_shot_logits) for scores in logits]
                    )  # (n_prompts,)
                    prograd_backward(loss, zero_shot_kl, [state.prompt.trainable_factors for state in active])
                else:
                    loss.sum().backward()
                for state in active:
                    state.optimizer.step()
                    state.optimizer.zero_grad()
                sizes.append(len(batch))
                losses.append(loss.detach())
                correct.append(torch.stack([(scores.argmax(1) == target).sum() for scores in logits]))
                advance()
            # The only transfer from the device in an epoch: (n_steps, n_prompts) → one list per prompt.
            losses_by_prompt, correct_by_prompt = (torch.stack(rows).T.tolist() for rows in (losses, correct))
            for state, step_losses, step_correct in zip(active, losses_by_prompt, correct_by_prompt, strict=True):
                mean = sum(value * size for value, size in zip(step_losses, sizes, strict=True)) / sum(sizes)
                accuracy = 100 * sum(step_correct) / sum(sizes)
                state.curve.append(EpochResult(epoch, state.lr, mean, accuracy))
                on_epoch(state.curve[-1])
                if not math.isfinite(mean) and not state.best_factors:
                    raise _diverged(step_losses, step, epoch, recipe)
                if recipe.backtrack:
                    state.backtrack(mean, recipe.backtrack)
            step += len(sizes)
            advance(0, note=f"loss {active[0].curve[-1].loss:.3f}  accuracy {active[0].curve[-1].accuracy:.0f} %")
            if validation is not None:
                _validate(active, encode_text, encode_images, *validation, logit_scale)
            active = [state for state in active if not _converged(state, recipe)]
            if not active:
                break
    for state in states:
        if state.validated_factors:
            state.set_factors(state.validated_factors)
    with torch.no_grad():
        for state, text in zip(states, _text_features(prompts, encode_text), strict=True):
            if not text.isfinite().all():  # the last step diverged
                if not state.best_factors:
                    raise _diverged([math.nan], step, epoch, recipe)
                state.return_to_best()
    return [state.curve for state in states]


def batches(n_images: int, batch_size: int, drop_last: bool, generator: torch.Generator) -> list[Tensor]:
    """Indices in random order, split into ⌊n_images / batch_size⌋ batches, at least one.

    The rest is dropped with `drop_last`, otherwise spread over the batches, which then have `batch_size` images or more.
    """
    order = torch.randperm(n_images, generator=generator)
    n_batches = max(1, n_images // batch_size)
    return list(order.split(batch_size)[:n_batches] if drop_last else order.tensor_split(n_batches))


@dataclass
class _State:
    """What the loop keeps for one prompt: its optimizer, its curve, and the best factors so far."""

    prompt: Prompt
    optimizer: torch.optim.Optimizer
    curve: list[EpochResult] = field(default_factory=list)
    lr: float = 0.0
    lr_scale: float = 1.0
    """Halved by each backtracking."""
    epoch_start: list[Tensor] = field(default_factory=list)
    best_loss: float = math.inf
    best_factors: list[Tensor] = field(default_factory=list)
    validation_loss: float = math.inf
    """The lowest one so far, and the factors and the length of the curve at that time."""
    validated_factors: list[Tensor] = field(default_factory=list)
    validated_at: int = 0

    def begin_epoch(self, lr: float) -> None:
        self.lr = self.optimizer.param_groups[0]["lr"] = self.lr_scale * lr
        self.epoch_start = [factor.detach().clone() for factor in self.prompt.trainable_factors]

    def backtrack(self, loss: float, margin: float) -> None:
        """Remember the factors at the start of the best epoch; return to them if `loss` exceeds the best by the fraction `margin`."""
        if loss < self.best_loss:
            self.best_loss, self.best_factors = loss, self.epoch_start
        elif not loss <= (1 + margin) * self.best_loss:  # also if the loss is not a number
            self.return_to_best()
            self.optimizer.state.clear()  # the momentum points away from the best factors
            self.lr_scale /= 2

    def return_to_best(self) -> None:
        self.set_factors(self.best_factors)

    @torch.no_grad()
    def set_factors(self, factors: Sequence[Tensor]) -> None:
        for factor, value in zip(self.prompt.trainable_factors, factors, strict=True):
            factor.copy_(value)

    def validate(self, loss: float) -> None:
        """Remember the factors if `loss`, the one on the validation images, is the lowest so far."""
        if loss < self.validation_loss:
            self.validation_loss, self.validated_at = loss, len(self.curve)
            self.validated_factors = [factor.detach().clone() for factor in self.prompt.trainable_factors]


def _optimizer(prompt: Prompt, recipe: Recipe) -> torch.optim.Optimizer:
    factors = prompt.trainable_factors
    if recipe.optimizer == "sgd":
        return SGD(factors, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    betas = (recipe.momentum, recipe.beta2)
    return AdamW(factors, recipe.lr, betas=betas, weight_decay=recipe.weight_decay)


def _text_features(prompts: Sequence[Prompt], encode_text: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
    """Unit-length class features (n_classes, embed_dim) of each prompt."""
    if len(prompts) == 1:
        return [F.normalize(encode_text(prompts[0]()), dim=-1)]
    return F.normalize(encode_text(torch.stack([prompt() for prompt in prompts])), dim=-1).unbind(0)


def _image_weights(labels: Tensor, sample_weight: Tensor | None, recipe: Recipe) -> Tensor | None:
    """The weight of each image in the loss, (n_images,); None if all count equally."""
    balanced = balanced_weights(labels)[labels] if recipe.class_weights == "balanced" else None
    if balanced is None or sample_weight is None:
        return sample_weight if balanced is None else balanced
    return balanced * sample_weight


@torch.no_grad()
def _validate(
    states: Sequence[_State],
    encode_text: Callable[[Tensor], Tensor],
    encode_images: EncodeImages,
    inputs: Inputs,
    targets: Tensor,
    logit_scale: float,
) -> None:
    texts = _text_features([state.prompt for state in states], encode_text)
    parts = torch.arange(len(targets)).split(_VALIDATION_BATCH)
    for state, text in zip(states, texts, strict=True):
        images = torch.cat([encode_images(inputs[part].to(text.device), state.prompt) for part in parts])
        state.validate(float(cross_entropy(logit_scale * images @ text.T, targets)))


def _converged(state: _State, recipe: Recipe) -> bool:
    """Whether the loss changed by less than the tolerance over the last epochs; oscillation does not count as convergence.

    Or whether the loss on the validation images has not become lower for so many epochs.
    """
    curve = state.curve
    if state.validated_factors and len(curve) - state.validated_at >= recipe.patience:
        return True
    losses = [row.loss for row in curve[-recipe.patience :]]
    return len(losses) == recipe.patience and max(losses) - min(losses) < recipe.tolerance * losses[-1]


def _diverged(losses: Sequence[float], steps_before: int, epoch: int, recipe: Recipe) -> InputError:
    index, value = next((index, loss) for index, loss in enumerate(losses, 1) if not math.isfinite(loss))
    return InputError(
        f"the loss became {value} at step {steps_before + index} (epoch {epoch}, learning rate {recipe.lr_at(epoch):g}). "
        "Most likely the learning rate is too high; if precision is fp16, try bf16 or fp32"
    )
