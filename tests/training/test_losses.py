"""Class weights and keep-close losses against a few lines of arithmetic, alone and inside the training loop."""

import pytest
import torch
from torch.nn import functional as F

from slimprompt import InputError, Recipe, SharedPrefixTextEncoder, start_prompt
from slimprompt.training.loop import train
from slimprompt.training.losses import (
    balanced_weights,
    cross_entropy,
    feature_distance,
    kl_to_zero_shot,
    prograd_backward,
)
from tests.text.conftest import open_clip_features

NAMES = ["cat", "red panda", "forget-me-not", "dog"]


def unit(*shape: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_balanced_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    expected = compute_class_weight("balanced", classes=labels.unique().numpy(), y=labels.numpy())
    assert balanced_weights(labels).tolist() == pytest.approx(expected.tolist()) == [2 / 3, 2.0, 1.0]
    assert balanced_weights(torch.tensor([0, 2])).tolist() == [1.0, 0.0, 1.0]


def test_weighted_cross_entropy_by_hand():
    """With balanced weights, the loss is the mean over the classes of the mean over their images."""
    logits, targets = 3 * unit(6, 4, seed=1), torch.tensor([0, 0, 0, 1, 2, 2])
    losses = -logits.log_softmax(1)[torch.arange(6), targets]
    expected = (losses[:3].mean() + losses[3] + losses[4:].mean()) / 3
    torch.testing.assert_close(cross_entropy(logits, targets, balanced_weights(targets)[targets]), expected)
    assert torch.equal(cross_entropy(logits, targets), F.cross_entropy(logits, targets))


def test_a_balanced_step_by_hand(tiny):
    """One SGD step on three images of one class and one of another; two classes have no images."""
    features, labels = unit(4, 24, seed=3), torch.tensor([0, 0, 0, 2])
    plain = {
        "epochs": 1,
        "batch_size": None,
        "views": 0,
        "lr": 0.5,
        "warmup_epochs": 0,
        "momentum": 0,
        "weight_decay": 0,
    }
    encoder = SharedPrefixTextEncoder(tiny, NAMES, 4)
    prompt = start_prompt("dense", width=32, seed=3, n_ctx=4)
    context = prompt().detach().clone().requires_grad_()
    (curve,) = train(
        [prompt],
        encoder,
        lambda _: features,
        labels,
        tiny.logit_scale,
        Recipe(**plain, class_weights="balanced"),
        seed=1,
    )
    text = F.normalize(encoder(context), dim=-1)
    losses = F.cross_entropy(tiny.logit_scale * features @ text.T, labels, reduction="none")
    loss = (losses[:3].mean() + losses[3]) / 2
    expected = context.detach() - 0.5 * torch.autograd.grad(loss, context)[0]
    torch.testing.assert_close(prompt().detach(), expected, rtol=1e-4, atol=1e-6)
    assert curve[0].loss == pytest.approx(float(loss.detach()), rel=1e-5)


def test_feature_distance():
    text, zero_shot = unit(5, 8, seed=1).requires_grad_(), unit(5, 8, seed=2)
    expected = sum(1 - F.cosine_similarity(t, z, dim=0) for t, z in zip(text, zero_shot, strict=True)) / 5
    distance = feature_distance(text, zero_shot)
    torch.testing.assert_close(distance, expected)
    torch.testing.assert_close(torch.autograd.grad(distance, text)[0], -zero_shot / 5)
    assert feature_distance(zero_shot, zero_shot).abs() < 1e-6


def test_divergence_is_kl_up_to_the_entropy_of_zero_shot():
    logits, zero_shot = 3 * unit(6, 4, seed=1), 3 * unit(6, 4, seed=2)
    p, q = zero_shot.softmax(1), logits.softmax(1)
    kl = (p * (p / q).log()).sum(1).mean()
    entropy = -(p * p.log()).sum(1).mean()
    torch.testing.assert_close(kl_to_zero_shot(logits, zero_shot), kl + entropy)
    variable = logits.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(kl_to_zero_shot(variable, zero_shot), variable)[0], (q - p) / 6)


def projected(gradient: list[float], direction: list[float]) -> list[float]:
    """The gradient that remains, for one prompt with two factors of one number each."""
    factors = [torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)]
    loss, kept = (
        sum(slope * factor for slope, factor in zip(slopes, factors, strict=True)) for slopes in (gradient, direction)
    )
    prograd_backward(loss, kept, [factors])
    return [factor.grad.item() for factor in factors]


def test_projection_by_hand():
    assert projected([1, 2], [3, 0]) == [1, 2]  # both losses fall: unchanged
    assert projected([-1, 2], [3, 0]) == [0, 2]  # the part along the direction is removed
    assert projected([1, 0], [-1, 1]) == [0.5, 0.5]  # over both factors together
    assert projected([1, 2], [0, 0]) == [1, 2]  # nothing to keep


@pytest.fixture
def task(tiny):
    """Labels, image features, and zero-shot features that differ from a prompt's in the way opposite to the labels."""
    labels, images = torch.arange(24) % 4, unit(24, 24, seed=5)
    with torch.no_grad():
        prompt = start_prompt("dense", width=32, seed=3, n_ctx=4)
        text = F.normalize(SharedPrefixTextEncoder(tiny, NAMES, 4)(prompt()), dim=-1)
        wanted = F.one_hot(labels) - (tiny.logit_scale * images @ text.T).softmax(1)  # (24, 4)
        return labels, images, F.normalize(text - wanted.T @ images / 24, dim=-1)


@pytest.mark.parametrize(("variant", "rank"), [("dense", None), ("joint", 4)])
@pytest.mark.parametrize("fields", [{"anchor": 8.0}, {"prograd": True}, {"anchor": 8.0, "prograd": True}], ids=str)
def test_a_step_equals_a_step_by_hand(tiny, task, variant, rank, fields):
    labels, images, zero_shot = task
    recipe = Recipe(epochs=1, batch_size=None, views=0, lr=0.5, warmup_epochs=0, momentum=0, weight_decay=0, **fields)
    prompt = start_prompt(variant, width=32, seed=3, n_ctx=4, rank=rank)
    factors = [factor.detach().clone().requires_grad_() for factor in prompt.trainable_factors]
    encoder = SharedPrefixTextEncoder(tiny, NAMES, 4)
    (curve,) = train([prompt], encoder, lambda _: images, labels, tiny.logit_scale, recipe, seed=1, zero_shot=zero_shot)

    context = factors[0] @ factors[1] if variant == "joint" else factors[0]
    text = F.normalize(open_clip_features(tiny, NAMES, context), dim=-1)
    logits = tiny.logit_scale * images @ text.T
    loss = F.cross_entropy(logits, labels) + recipe.anchor * (1 - (text * zero_shot).sum(1)).mean()
    gradient = torch.cat([one.flatten() for one in torch.autograd.grad(loss, factors, retain_graph=True)])
    if recipe.prograd:
        target = (tiny.logit_scale * images @ zero_shot.T).softmax(1)
        kl = (target * (target.log() - logits.log_softmax(1))).sum(1).mean()
        direction = F.normalize(torch.cat([one.flatten() for one in torch.autograd.grad(kl, factors)]), dim=0)
        assert gradient @ direction < 0  # a conflict
        gradient -= (gradient @ direction) * direction
    expected = torch.cat([one.detach().flatten() for one in factors]) - 0.5 * gradient
    found = torch.cat([one.detach().flatten() for one in prompt.trainable_factors])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert curve[0].loss == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("fields", [{"anchor": 8.0}, {"prograd": True}], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_batch_equals_separate_trainings(tiny, task, fields, chunk_size, depth):
    labels, images, zero_shot = task
    recipe = Recipe(epochs=4, batch_size=12, views=0, lr=0.02, **fields)
    encoder = SharedPrefixTextEncoder(tiny, NAMES, 4, depth=depth, chunk_size=chunk_size)
    rest = (encoder, lambda _: images, labels, tiny.logit_scale, recipe)

    def prompts():
        start = {"width": 32, "seed": 3, "n_ctx": 4, "depth": depth}
        return [
            start_prompt("dense", **start),
            start_prompt("joint", **start, rank=2),
            start_prompt("fixed-B", **start, rank=3, basis="orthogonal"),
        ]

    together = prompts()
    curves = train(together, *rest, seed=2, zero_shot=zero_shot)
    for prompt, other, curve in zip(together, prompts(), curves, strict=True):
        (expected,) = train([other], *rest, seed=2, zero_shot=zero_shot)
        torch.testing.assert_close(prompt().detach(), other().detach(), rtol=1e-3, atol=1e-5)
        assert [row.loss for row in curve] == pytest.approx([row.loss for row in expected], rel=1e-4)


@pytest.mark.parametrize("fields", [{"anchor": 8.0}, {"prograd": True}], ids=str)
def test_zero_shot_features_are_needed(tiny, task, fields):
    labels, images, _ = task
    prompt = start_prompt("dense", width=32, seed=3, n_ctx=4)
    with pytest.raises(InputError, match="needs zero-shot class features"):
        train(
            [prompt], SharedPrefixTextEncoder(tiny, NAMES, 4), lambda _: images, labels, 1.0, Recipe(**fields), seed=1
        )
