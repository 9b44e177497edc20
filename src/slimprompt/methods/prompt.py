"""Prompt learning: the one path from a task and initialised prompts to evaluated prompts.

`PromptClassifier.fit`, `slimprompt fit` and every run of a study call `learn_prompts`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.methods.head import Head
from slimprompt.methods.task import Task
from slimprompt.methods.zero_shot import zero_shot_features
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import check_words
from slimprompt.prompts.start import start_prompt
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.text.reference import check_depth
from slimprompt.text.tokens import Position
from slimprompt.text.words import word_embeddings
from slimprompt.training.evaluation import EvalSet, accuracy
from slimprompt.training.loop import EpochResult, train
from slimprompt.training.recipe import Recipe

#: (class names, n_ctx, position, depth) → text encoder.
MakeEncoder = Callable[[tuple[str, ...], int, Position, int], SharedPrefixTextEncoder]


@dataclass(frozen=True)
class LearnedPrompt:
    """A trained prompt and what was measured on the way."""

    prompt: Prompt
    start: dict[str, Tensor]
    """The factors before training: B0 and A0."""
    curve: list[EpochResult]
    metrics: dict[str, float]
    """Accuracy in percent on each eval set."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each phase, divided by the size of the prompt batch."""
    batch_size: int = 1
    """Prompts that were trained together."""


def initial_prompt(
    backbone: Backbone,
    variant: str,
    *,
    seed: int,
    n_ctx: int | None = None,
    rank: int | None = None,
    basis: str | None = None,
    words: str | None = None,
    anchored: bool = False,
    depth: int = 1,
    trained: tuple[Tensor, Tensor] | None = None,
) -> Prompt:
    """The prompt before training, for a backbone: `start_prompt` with its text width and its embeddings of the words.

    Parameters
    ----------
    backbone
        The model that the prompt is for.
    n_ctx
        Number of context tokens; None: the number of tokens of the words, or 16. Words allow no other number.
    words
        Words to start from, such as "a photo of a".
    variant, seed, rank, basis, anchored, depth, trained
        As for `start_prompt`.
    """
    check_words(words=words is not None, anchored=anchored, depth=depth)
    check_depth(backbone, depth)
    embeddings = None if words is None else word_embeddings(backbone, words)  # (n_tokens, width)
    default = 16 if embeddings is None else len(embeddings)
    n_ctx = default if n_ctx is None else n_ctx
    if embeddings is not None and n_ctx != default:
        raise InputError(
            f"the words {words!r} are {default} tokens of {backbone.name}, but n_ctx is {n_ctx}; set n_ctx to {default}"
        )
    return start_prompt(
        variant,
        width=backbone.text_width,
        seed=seed,
        n_ctx=n_ctx,
        rank=rank,
        basis=basis,
        trained=trained,
        words=embeddings,
        anchored=anchored,
        depth=depth,
    )


def learn_prompts(
    task: Task,
    prompts: Sequence[Prompt],
    recipe: Recipe,
    *,
    position: Position = "end",
    eval_sets: Mapping[str, EvalSet] | None = None,
    make_encoder: MakeEncoder | None = None,
    show_progress: bool = True,
) -> list[LearnedPrompt]:
    """Encode the task's images, train a prompt batch on them and evaluate each prompt.

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
    eval_sets
        Sets to evaluate on, by name; their classes may differ from the task's.
    make_encoder
        Creates text encoders; pass a cached function to share them between calls.
    show_progress
        Show a progress bar on a terminal.

    Returns
    -------
    list of LearnedPrompt
        In the order of `prompts`.
    """
    backbone, seconds = task.bank.backbone, _Stopwatch()
    make_encoder = make_encoder or (
        lambda names, n_ctx, where, depth: SharedPrefixTextEncoder(backbone, names, n_ctx, where, depth=depth)
    )
    n_ctx, depth = prompts[0].n_ctx, prompts[0].depth
    with seconds("features"):
        task.encode(recipe)
    with seconds("training"):
        starts = [{"B0": prompt.B.detach().clone(), "A0": prompt.A.detach().clone()} for prompt in prompts]
        for prompt in prompts:
            prompt.to(backbone.device)
        encode = make_encoder(task.class_names, n_ctx, position, depth)
        labels, features_at = torch.tensor(list(task.labels)), task.features_by_epoch(recipe)
        zero_shot = zero_shot_features(backbone, task.class_names, task.templates) if recipe.uses_zero_shot else None
        curves = train(
            prompts,
            encode,
            features_at,
            labels,
            backbone.logit_scale,
            recipe,
            seed=task.seed,
            zero_shot=zero_shot,
            show_progress=show_progress,
        )
    metrics: list[dict[str, float]] = [{} for _ in prompts]
    with seconds("evaluation"), torch.inference_mode():
        for name, (features, labels, class_names) in (eval_sets or {}).items():
            encode = make_encoder(class_names, n_ctx, position, depth)
            for prompt, found in zip(prompts, metrics, strict=True):
                found[name] = accuracy(features, encode(prompt()), labels)
    shares = {phase: taken / len(prompts) for phase, taken in seconds.phases.items()}
    return [
        LearnedPrompt(prompt, start, curve, found, shares, len(prompts))
        for prompt, start, curve, found in zip(prompts, starts, curves, metrics, strict=True)
    ]


def prompt_head(backbone: Backbone, class_names: Sequence[str], prompt: Prompt, position: Position = "end") -> Head:
    """The classifier of a trained prompt for these class names, which may be new to it."""
    encode = SharedPrefixTextEncoder(backbone, class_names, prompt.n_ctx, position, depth=prompt.depth)
    with torch.inference_mode():
        features = F.normalize(encode(prompt()), dim=-1)  # (n_classes, embed_dim)
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
