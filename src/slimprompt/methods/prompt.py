"""Prompt learning: from a task and initialised prompts to trained prompts and their heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from slimprompt.prompts.start import start_image_prompt, start_prompt
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.text.reference import check_depth
from slimprompt.text.words import word_embeddings
from slimprompt.training.loop import EncodeImages, EpochResult, Inputs, train
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
    batch_size: int = 1
    """Prompts that were trained together."""
    note: str = ""
    """Why it was trained alone instead of with the others of its batch."""


def make_prompt(
    backbone: Backbone, spec: PromptSpec, seed: int, trained: tuple[Tensor, Tensor] | None = None
) -> Prompt:
    """The prompt of a spec before training; `trained` is the final (B, A) of the run that a "learned" or "source" basis comes from."""
    words, n_ctx = context_start(backbone, spec)
    if spec.tower == "image":
        assert words is not None  # the spec has set them
        text = Prompt(torch.zeros(n_ctx, 0), torch.zeros(0, backbone.text_width), "none", words)
        return _with_image_rows(text, backbone, spec, seed)
    text = start_prompt(
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
    return text if spec.tower == "text" else _with_image_rows(text, backbone, spec, seed)


def _with_image_rows(text: Prompt, backbone: Backbone, spec: PromptSpec, seed: int) -> Prompt:
    first, end = image_blocks(backbone, spec)
    if spec.share_basis and (spec.n_ctx_image or text.n_ctx) != text.n_ctx:
        raise InputError(
            f"with share_basis, both towers have the same number of context tokens (the words {text.n_ctx}, n_ctx_image {spec.n_ctx_image})"
        )
    text.image = start_image_prompt(spec, width=backbone.image_width, seed=seed, first=first, end=end, text=text)
    return text


def with_blocks(backbone: Backbone, spec: PromptSpec) -> PromptSpec:
    """The spec with the blocks of the image tower that its default means for this backbone."""
    if spec.tower == "text":
        return spec
    first, end = image_blocks(backbone, spec)
    return spec.model_copy(update={"image_blocks": f"{first}:{end}"})


def image_blocks(backbone: Backbone, spec: PromptSpec) -> tuple[int, int]:
    """The blocks J and E of a spec's rows of the image tower; an `InputError` if the tower does not have them."""
    n_blocks = len(backbone.image_tower.transformer.resblocks)
    first, end = (
        spec.blocks_of(spec.image_blocks) if spec.image_blocks else (n_blocks - max(1, n_blocks // 4), n_blocks)
    )
    if end > n_blocks:
        raise InputError(
            f"image_blocks {spec.image_blocks!r}: the image tower of {backbone.name} has {n_blocks} blocks"
        )
    return first, end


def context_start(backbone: Backbone, spec: PromptSpec) -> tuple[Tensor | None, int]:
    """Embeddings of the words (n_ctx, width), if the prompt has some, and the number of context tokens n_ctx."""
    check_depth(backbone, spec.depth)
    words = None if spec.words is None else word_embeddings(backbone, spec.words)
    n_ctx = len(words) if words is not None else spec.n_ctx or 0
    if n_ctx >= backbone.context_length:
        raise InputError(
            f"n_ctx={n_ctx} does not fit: {backbone.name} reads {backbone.context_length} tokens, with the class name"
        )
    if spec.rank is not None and spec.tower != "image":
        check_rank(spec.rank, n_ctx)
    return words, n_ctx


def encode_images(task: Task, spec: PromptSpec, recipe: Recipe) -> None:
    """Encode what the image side of the training of a prompt reads, as far as the bank does not have it."""
    task.encode(recipe, None if spec.tower == "text" else image_blocks(task.bank.backbone, spec)[0])


def learn_prompts(
    task: Task,
    prompts: Sequence[Prompt],
    recipe: Recipe,
    *,
    position: Position = "end",
    make_encoder: MakeEncoder | None = None,
    validation: Task | None = None,
    on_epoch: Callable[[EpochResult], object] = lambda row: None,
    show_progress: bool = True,
) -> list[LearnedPrompt]:
    """Encode the task's images and train a prompt batch on them, in place.

    The prompts have equal n_ctx and depth. `validation` are other images of the classes, by which training is stopped and the best epoch
    is chosen; `on_epoch` is called with each row of a learning curve as soon as it is known.
    """
    backbone, make_encoder = task.bank.backbone, make_encoder or task.text_encoder
    image = prompts[0].image
    task.encode(recipe, None if image is None else image.first)
    starts = [{f"{name}0": value for name, value in prompt.tensors().items() if name != "W"} for prompt in prompts]
    for prompt in prompts:
        prompt.to(backbone.device)
    encode: Callable[[Tensor], Tensor] = make_encoder(task.class_names, prompts[0].n_ctx, position, prompts[0].depth)
    if not prompts[0].trains_text:  # the text of all steps and prompts
        encode = _constant(encode, prompts[0])
    zero_shot = zero_shot_features(backbone, task.class_names, task.templates) if recipe.uses_zero_shot else None
    validated: tuple[Inputs, Tensor] | None = None
    if validation is not None:
        inputs = validation.eval_features if image is None else validation.eval_inputs(image.first)
        validated = inputs, validation.targets
    curves = train(
        prompts,
        encode,
        task.features_by_epoch(recipe) if image is None else task.inputs_by_epoch(recipe, image.first),
        torch.tensor(list(task.labels)),
        backbone.logit_scale,
        recipe,
        seed=task.seed,
        zero_shot=zero_shot,
        sample_weight=None if task.sample_weight is None else torch.tensor(task.sample_weight),
        validation=validated,
        **({} if image is None else {"encode_images": _image_encoder(backbone, image.first)}),
        on_epoch=on_epoch,
        show_progress=show_progress,
    )
    learned = []
    for prompt, start, curve in zip(prompts, starts, curves, strict=True):
        head_for = _head_maker(backbone, prompt, position, make_encoder)
        learned.append(
            LearnedPrompt(
                head=head_for(task.class_names, task.templates),
                n_trained=prompt.trainable_parameters,
                head_for=head_for,
                prompt=prompt,
                start=start,
                curve=curve,
                batch_size=len(prompts),
            )
        )
    return learned


def _constant(encode: Callable[[Tensor], Tensor], prompt: Prompt) -> Callable[[Tensor], Tensor]:
    """The text features of a prompt that does not train in the text tower, encoded once."""
    with torch.no_grad():
        features = encode(prompt())  # (n_classes, embed_dim)
    return lambda context: features if context.ndim == 2 else features.expand(len(context), -1, -1)


def _image_encoder(backbone: Backbone, first: int) -> EncodeImages:
    """Inputs of block `first` → features with the rows of a prompt, or of the frozen tower."""

    def encode(inputs: Tensor, prompt: Prompt | None) -> Tensor:
        rows = prompt.image() if prompt is not None and prompt.image is not None else None
        return backbone.features_from_block(inputs, first, rows)

    return encode


def _head_maker(
    backbone: Backbone, prompt: Prompt, position: Position, make_encoder: MakeEncoder
) -> Callable[[Sequence[str], Sequence[str]], Head]:
    """`FittedHead.head_for` of a prompt, which needs no templates."""
    return lambda class_names, _: prompt_head(backbone, class_names, prompt, position, make_encoder)


def fit_many(
    task: Task,
    specs: Sequence[PromptSpec],
    recipe: Recipe,
    trained: Callable[[Any], tuple[Tensor, Tensor] | None] = lambda spec: None,
) -> list[LearnedPrompt | Exception]:
    """The trained prompt of each spec, or its error. The specs have equal position, depth and number of context tokens.

    If training them together fails, each is trained alone, so that one failure does not spoil the others; `LearnedPrompt.note`
    tells that.
    """
    prompts: dict[int, Prompt] = {}
    found: dict[int, LearnedPrompt | Exception] = {}
    for index, spec in enumerate(specs):
        try:
            prompts[index] = make_prompt(task.bank.backbone, spec, task.seed, trained(spec))
        except Exception as error:
            found[index] = error
    try:
        if prompts:
            learned = learn_prompts(
                task, list(prompts.values()), recipe, position=specs[0].position, show_progress=False
            )
            found |= zip(prompts, learned, strict=True)
    except Exception as error:
        if len(prompts) == 1:
            found |= dict.fromkeys(prompts, error)
        else:
            note = f"trained alone, because training it with others failed: {type(error).__name__}: {error}"
            for index in prompts:
                (alone,) = fit_many(task, [specs[index]], recipe, trained)
                found[index] = alone if isinstance(alone, Exception) else replace(alone, note=note)
    return [found[index] for index in range(len(specs))]


def most_together(encoder: SharedPrefixTextEncoder) -> int:
    """Prompts to train at once. A large text pass uses the whole machine by itself; batching it only costs memory."""
    most_numbers = 2**20  # in the activations of one layer; beyond that, benchmarks/stacking.py shows no gain
    return max(1, most_numbers // (encoder.n_tokens * encoder.backbone.text_width))


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
