"""Prompt learning: from a task and initialised prompts to trained prompts and their heads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.methods.head import FittedHead, Head
from slimprompt.methods.task import Task
from slimprompt.methods.zero_shot import zero_shot_features
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import Position, PromptSpec, check_rank
from slimprompt.prompts.start import start_prompt
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.text.reference import check_depth
from slimprompt.text.words import word_embeddings
from slimprompt.training.loop import EpochResult, train
from slimprompt.training.recipe import Recipe

#: (class names, n_ctx, position, depth) → text encoder.
MakeEncoder = Callable[[Sequence[str], int, Position, int], SharedPrefixTextEncoder]


@dataclass(frozen=True, kw_only=True)
class LearnedPrompt(FittedHead):
    """A trained prompt with its head, and what was measured on the way."""

    prompt: Prompt
    start: dict[str, Tensor]
    """The factors before training: B0 and A0."""
    curve: list[EpochResult]
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each phase, divided by the size of the prompt batch."""
    batch_size: int = 1
    """Prompts that were trained together."""
    head_for: Callable[[Sequence[str]], Head]
    """Makes the head of the prompt for other class names."""


def make_prompt(
    backbone: Backbone, spec: PromptSpec, seed: int, trained: tuple[Tensor, Tensor] | None = None
) -> Prompt:
    """The prompt of a spec before training, with the text width of the backbone and its embeddings of the words.

    Parameters
    ----------
    backbone
        The model that the prompt is for.
    spec
        What the prompt is.
    seed
        Seed of P0 and of random bases.
    trained
        Final (B, A) of the run that a "learned" or "source" basis comes from.
    """
    words, n_ctx = context_start(backbone, spec)
    return start_prompt(
        str(spec.variant),
        width=backbone.text_width,
        seed=seed,
        n_ctx=n_ctx,
        rank=spec.rank,
        basis=spec.basis,
        trained=trained,
        words=words,
        anchored=spec.anchored,
        depth=spec.depth,
    )


def context_start(backbone: Backbone, spec: PromptSpec) -> tuple[Tensor | None, int]:
    """Embeddings of the words (n_ctx, width), if the prompt has some, and the number of context tokens n_ctx.

    Raises
    ------
    InputError
        If the prompt does not fit the backbone.
    """
    check_depth(backbone, spec.depth)
    words = None if spec.words is None else word_embeddings(backbone, spec.words)
    n_ctx = len(words) if words is not None else spec.n_ctx or 0
    if n_ctx >= backbone.context_length:
        raise InputError(
            f"n_ctx={n_ctx} does not fit: {backbone.name} reads {backbone.context_length} tokens, with the class name"
        )
    if spec.rank is not None:
        check_rank(spec.rank, n_ctx)
    return words, n_ctx


def learn_prompts(
    task: Task,
    prompts: Sequence[Prompt],
    recipe: Recipe,
    *,
    position: Position = "end",
    make_encoder: MakeEncoder | None = None,
    on_epoch: Callable[[EpochResult], object] = lambda row: None,
    show_progress: bool = True,
) -> list[LearnedPrompt]:
    """Encode the task's images and train a prompt batch on them, in place.

    Parameters
    ----------
    task
        Training images, labels and class names.
    prompts
        Initialised prompts with equal n_ctx and depth; they are trained in place.
    recipe
        The training protocol.
    position
        Position of the class name in the prompt: "end", "middle" or "front".
    make_encoder
        Creates text encoders; default: those of the task.
    on_epoch
        Called with each row of a learning curve as soon as it is known.
    show_progress
        Show a progress bar on a terminal.

    Returns
    -------
    list of LearnedPrompt
        In the order of `prompts`.
    """
    backbone, seconds = task.bank.backbone, _Stopwatch()
    make_encoder = make_encoder or task.text_encoder
    with seconds("features"):
        task.encode(recipe)
    with seconds("training"):
        starts = [{"B0": prompt.B.detach().clone(), "A0": prompt.A.detach().clone()} for prompt in prompts]
        for prompt in prompts:
            prompt.to(backbone.device)
        encode = make_encoder(task.class_names, prompts[0].n_ctx, position, prompts[0].depth)
        zero_shot = zero_shot_features(backbone, task.class_names, task.templates) if recipe.uses_zero_shot else None
        curves = train(
            prompts,
            encode,
            task.features_by_epoch(recipe),
            torch.tensor(list(task.labels)),
            backbone.logit_scale,
            recipe,
            seed=task.seed,
            zero_shot=zero_shot,
            on_epoch=on_epoch,
            show_progress=show_progress,
        )
    shares = {phase: taken / len(prompts) for phase, taken in seconds.phases.items()}
    learned = []
    for prompt, start, curve in zip(prompts, starts, curves, strict=True):
        head_for = partial(prompt_head, backbone, prompt=prompt, position=position, make_encoder=make_encoder)
        learned.append(
            LearnedPrompt(
                head=head_for(task.class_names),
                n_trained=prompt.trainable_parameters,
                head_for=head_for,
                prompt=prompt,
                start=start,
                curve=curve,
                seconds=shares,
                batch_size=len(prompts),
            )
        )
    return learned


def prompt_head(
    backbone: Backbone,
    class_names: Sequence[str],
    prompt: Prompt,
    position: Position = "end",
    make_encoder: MakeEncoder | None = None,
) -> Head:
    """The classifier of a trained prompt for these class names, which may be new to it."""
    if make_encoder is None:
        encode = SharedPrefixTextEncoder(backbone, class_names, prompt.n_ctx, position, depth=prompt.depth)
    else:
        encode = make_encoder(class_names, prompt.n_ctx, position, prompt.depth)
    with torch.inference_mode():
        features = F.normalize(encode(prompt.to(backbone.device)()), dim=-1)  # (n_classes, embed_dim)
    return Head(tuple(class_names), features, backbone.logit_scale, backbone.class_bias(len(class_names)))


class _Stopwatch:
    """Seconds per phase: `with seconds("training"): …`."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.phases[phase] = time.perf_counter() - begin
