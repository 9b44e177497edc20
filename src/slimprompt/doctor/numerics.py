"""Checks of the computation: what runs on the chosen device against plain reference computations.

Differences are `max |found − expected| / max |expected|`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from slimprompt.doctor.subject import FAILED, OK, WARNING, Outcome, Subject
from slimprompt.images.bank import FeatureBank
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.prompts.start import start_prompt
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.text.reference import full_pass_encoder
from slimprompt.training.loop import train
from slimprompt.training.recipe import Recipe

_NAMES = ("cat", "red panda", "forget-me-not", "a long name of many different words", "737-300")
_N_CTX = 16


class _Tolerance(NamedTuple):
    """Differences up to `expected` are rounding; those above `allowed` are errors; in between is a warning."""

    expected: float
    allowed: float


#: By precision. A wrong mask, position or layout gives differences near 1.
_TOLERANCES = {
    "fp32": _Tolerance(1e-4, 1e-2),
    "fp16": _Tolerance(2e-2, 0.1),
    "bf16": _Tolerance(0.1, 0.4),
}


def difference(found: Tensor, expected: Tensor) -> float:
    """`max |found − expected| / max |expected|`, on the CPU in fp64."""
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    return float((found - expected).abs().max() / expected.abs().max())


def _compared(subject: Subject, **differences: float) -> Outcome:
    """The worst verdict on some differences at the subject's precision."""
    tolerance = _TOLERANCES[subject.precision]
    verdict = max((_verdict(value, tolerance) for value in differences.values()), key=(OK, WARNING, FAILED).index)
    parts = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
    return Outcome(verdict, f"relative difference: {parts} (at most {tolerance.expected:g} expected)")


def _verdict(value: float, tolerance: _Tolerance) -> str:
    """A difference that is not a number is an error."""
    if value <= tolerance.expected:
        return OK
    return WARNING if value <= tolerance.allowed else FAILED


def check_backbone(subject: Subject) -> Iterator[Outcome]:
    """The backbone can be loaded on the chosen device."""
    begin = time.perf_counter()
    backbone = subject.backbone
    millions = sum(weight.numel() for weight in backbone.model.parameters()) / 1e6
    weights = backbone.pretrained or "own weights"
    yield Outcome(
        OK,
        f"{backbone.name} ({weights}), {millions:.1f} million weights, fingerprint {backbone.fingerprint[:12]}, on "
        f"{backbone.device} in {backbone.precision}, loaded in {time.perf_counter() - begin:.1f} s",
    )


def check_text(subject: Subject) -> Iterator[Outcome]:
    """Class features and gradients equal those of open_clip's full pass, on the device."""
    backbone = subject.backbone
    encode = SharedPrefixTextEncoder(backbone, _NAMES, _N_CTX, chunk_size=2)  # several chunks, as with many classes
    features, gradient = _features_and_gradient(subject, encode)
    expected, expected_gradient = _features_and_gradient(subject, full_pass_encoder(backbone, _NAMES, _N_CTX))
    yield _compared(subject, features=difference(features, expected), gradients=difference(gradient, expected_gradient))


def _features_and_gradient(subject: Subject, encode: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Class features, and the gradient of the context for a fixed random gradient of the features."""
    generator = torch.Generator().manual_seed(0)
    context = 0.02 * torch.randn(_N_CTX, subject.backbone.text_width, generator=generator)
    context = context.to(subject.backbone.device).requires_grad_()
    features = encode(context)
    output_gradient = torch.randn(features.shape, generator=generator).to(features)
    return features, torch.autograd.grad(features, context, output_gradient)[0]


def check_training(subject: Subject) -> Iterator[Outcome]:
    """One step of the training loop equals the step written out with autograd on the CPU in fp32."""
    backbone = subject.backbone
    # a large learning rate, so that the step is not lost in the rounding of the factors
    recipe = Recipe(epochs=1, batch_size=None, warmup_epochs=0, views=0, lr=0.1)
    prompt = start_prompt("joint", width=backbone.text_width, seed=0, n_ctx=_N_CTX, rank=4)
    start = {name: factor.detach().clone() for name, factor in prompt.named_parameters()}
    embed_dim = backbone.embed_dim
    images = F.normalize(torch.randn(20, embed_dim, generator=torch.Generator().manual_seed(0)), dim=-1)
    labels = torch.arange(20) % len(_NAMES)

    encode = SharedPrefixTextEncoder(backbone, _NAMES, _N_CTX)
    prompt.to(backbone.device)
    ((result,),) = train(
        [prompt], encode, lambda epoch: images, labels, backbone.logit_scale, recipe, seed=0, show_progress=False
    )
    expected, loss = step_by_hand(subject, start, images, labels, recipe)
    yield _compared(
        subject,
        loss=abs(result.loss - loss) / loss,
        **{
            f"step of {name}": difference(factor.detach().cpu() - start[name], expected[name] - start[name])
            for name, factor in prompt.named_parameters()
        },
    )


def step_by_hand(
    subject: Subject, start: dict[str, Tensor], images: Tensor, labels: Tensor, recipe: Recipe
) -> tuple[dict[str, Tensor], float]:
    """Factors after one SGD step `X − lr (∂loss/∂X + weight_decay X)` from `start`, and the loss before it.

    The gradient is autograd's on open_clip's full pass, on the CPU in fp32.
    """
    backbone = subject.reference_backbone
    factors = {name: factor.clone().requires_grad_() for name, factor in start.items()}
    text = F.normalize(full_pass_encoder(backbone, _NAMES, _N_CTX)(factors["B"] @ factors["A"]), dim=-1)
    loss = F.cross_entropy(backbone.logit_scale * images @ text.T, labels)
    gradients = torch.autograd.grad(loss, list(factors.values()))
    lr = recipe.lr_at(0)
    after = {
        name: start[name] - lr * (gradient + recipe.weight_decay * start[name])
        for name, gradient in zip(factors, gradients, strict=True)
    }
    return after, float(loss.detach())


def check_images(subject: Subject) -> Iterator[Outcome]:
    """Features from the feature bank, in padded batches, equal open_clip's pass of the image tower on one image at a time."""
    backbone, benchmark = subject.backbone, POCKET_BENCHMARKS["pocket-sketch"]
    images = [Image.fromarray(benchmark.image(label, 0)) for label in range(8)]
    found = FeatureBank(backbone, None, show_progress=False).features(images)
    with torch.inference_mode():
        views = (backbone.eval_view(image)[None].to(backbone.device, backbone.dtype) for image in images)
        expected = torch.cat([backbone.model.encode_image(view).float() for view in views])
    yield _compared(subject, features=difference(found, F.normalize(expected, dim=-1)))
