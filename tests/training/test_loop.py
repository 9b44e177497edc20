import math
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F

from slimprompt import InputError, Recipe, SharedPrefixTextEncoder, start_prompt
from slimprompt.training.loop import batches, train
from slimprompt.training.recipe import RECIPES
from tests.conftest import in_double
from tests.text.test_encoder import open_clip_features

NAMES = ["cat", "red panda", "forget-me-not", "dog"]


@pytest.fixture
def task():
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(24) % 4
    views = F.normalize(torch.randn(300, 24, 24, generator=generator), dim=-1)
    return labels, lambda epoch: views[epoch]


@pytest.fixture(scope="module")
def double(tiny):
    return in_double(tiny)


@pytest.fixture
def double_task(task):
    labels, view = task
    return labels, lambda epoch: view(epoch).double()


def test_learning_rate_of_the_protocol():
    recipe = Recipe()
    assert recipe.lr_at(0) == 1e-5
    assert recipe.lr_at(1) == 0.002
    assert recipe.lr_at(100) == pytest.approx(0.001 * (1 + math.cos(math.pi * 99 / 200)))
    assert recipe.lr_at(199) > 0


def test_batches_of_the_protocol():
    generator = torch.Generator().manual_seed(1)
    parts = batches(47, 32, True, generator)  # 1-shot DTD: one step, 15 images dropped
    assert [len(part) for part in parts] == [32]
    assert [len(part) for part in batches(64, 32, True, generator)] == [32, 32]
    (all_of_it,) = batches(20, 32, True, generator)  # a set smaller than a batch is kept whole
    assert sorted(all_of_it.tolist()) == list(range(20))
    assert Recipe().steps_per_epoch(47) == 1
    assert Recipe().steps_per_epoch(64) == 2
    assert Recipe().steps_per_epoch(20) == 1


@pytest.mark.parametrize("n_images", [1, 31, 32, 47, 64, 100])
def test_batches_that_drop_nothing_take_as_many_steps(n_images):
    parts = batches(n_images, 32, False, torch.Generator().manual_seed(1))
    assert sorted(torch.cat(parts).tolist()) == list(range(n_images))
    assert len(parts) == Recipe().steps_per_epoch(n_images) == Recipe(drop_last=False).steps_per_epoch(n_images)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("variant", "basis"), [("dense", None), ("joint", None), ("fixed-B", "gaussian"), ("fixed-A", "svd")]
)
def test_steps_equal_steps_by_hand(double, double_task, variant, basis):
    """In fp64: two epochs of two steps against momentum SGD written out, on open_clip's own full pass."""
    labels, view = double_task
    recipe = Recipe(epochs=2, batch_size=12, lr=0.1, weight_decay=0.01)
    rank = None if variant == "dense" else 2
    prompt = start_prompt(variant, width=32, seed=3, n_ctx=4, rank=rank, basis=basis).double()
    b, a = prompt.B.detach().clone(), prompt.A.detach().clone()
    encoder = SharedPrefixTextEncoder(double, NAMES, 4)
    train([prompt], encoder, view, labels, double.logit_scale, recipe, seed=3)

    from slimprompt.seeds import stream_seed

    order = torch.Generator().manual_seed(stream_seed(3, "order"))
    factors = {"B": b.requires_grad_(), "A": a.requires_grad_()}
    velocity = {name: torch.zeros_like(value) for name, value in factors.items()}
    for epoch in range(2):
        permutation = torch.randperm(24, generator=order)
        for batch in (permutation[:12], permutation[12:]):
            text = F.normalize(open_clip_features(double, NAMES, factors["B"] @ factors["A"]), dim=-1)
            probability = (double.logit_scale * view(epoch)[batch] @ text.T).softmax(1)
            loss = -probability[torch.arange(12), labels[batch]].log().mean()
            grads = dict(zip(factors, torch.autograd.grad(loss, list(factors.values())), strict=True))
            with torch.no_grad():
                for name in prompt.trainable:
                    velocity[name] = 0.9 * velocity[name] + grads[name] + 0.01 * factors[name]
                    factors[name] -= (1e-5 if epoch == 0 else 0.1) * velocity[name]
    torch.testing.assert_close(prompt.A.detach(), factors["A"].detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(prompt.B.detach(), factors["B"].detach(), rtol=1e-9, atol=1e-12)


def test_the_frozen_factor_keeps_its_bytes(tiny, task):
    labels, view = task
    prompt = start_prompt("fixed-B", width=32, seed=3, n_ctx=4, rank=2, basis="orthogonal")
    before = prompt.B.detach().clone()
    train([prompt], SharedPrefixTextEncoder(tiny, NAMES, 4), view, labels, tiny.logit_scale, Recipe(epochs=3), seed=1)
    assert torch.equal(prompt.B.detach(), before)


@pytest.mark.parametrize("backtrack", [0.0, 0.1])
def test_a_last_step_that_diverges(tiny, task, backtrack):
    """Is taken back by recipes that return to the best factors, and is an error of the others."""
    labels, view = task
    prompt = start_prompt("dense", width=32, seed=3, n_ctx=4)
    before = prompt.A.detach().clone()
    recipe = Recipe(epochs=1, batch_size=None, lr=1e30, warmup_epochs=0, backtrack=backtrack)
    encode = SharedPrefixTextEncoder(tiny, NAMES, 4)
    with nullcontext() if backtrack else pytest.raises(InputError, match="nan at step 2"):
        train([prompt], encode, view, labels, tiny.logit_scale, recipe, seed=1)
    assert torch.equal(prompt.A.detach(), before) == bool(backtrack)


def test_full_batch_step_is_the_mean_over_images_and_views(tiny):
    views = F.normalize(torch.randn(3 * 8, 24, generator=torch.Generator().manual_seed(1)), dim=-1)
    labels = torch.arange(8) % 4
    recipe = Recipe(
        epochs=1, batch_size=None, views=2, all_views=True, lr=0.5, warmup_epochs=0, momentum=0, weight_decay=0
    )
    prompt = start_prompt("dense", width=32, seed=3, n_ctx=4)
    context = prompt().detach().clone().requires_grad_()
    encoder = SharedPrefixTextEncoder(tiny, NAMES, 4)
    train([prompt], encoder, lambda _: views, labels, tiny.logit_scale, recipe, seed=1)
    text = F.normalize(encoder(context), dim=-1)
    loss = F.cross_entropy(tiny.logit_scale * views @ text.T, torch.cat([labels] * 3))
    expected = context.detach() - 0.5 * torch.autograd.grad(loss, context)[0]
    torch.testing.assert_close(prompt().detach(), expected, rtol=1e-4, atol=1e-6)


def test_training_stops_when_it_has_converged(tiny, task):
    labels, view = task
    recipe = Recipe(epochs=300, batch_size=None, views=0, lr=0.01, tolerance=0.02)
    prompt = start_prompt("dense", width=32, seed=3, n_ctx=4)
    encoder = SharedPrefixTextEncoder(tiny, NAMES, 4)
    (curve,) = train([prompt], encoder, lambda _: view(0), labels, tiny.logit_scale, recipe, seed=1)
    assert 5 <= len(curve) < 300
    spreads = [
        max(losses) - min(losses)
        for losses in ([row.loss for row in curve[at : at + 5]] for at in range(len(curve) - 4))
    ]
    quiet = [spread < 0.02 * curve[at + 4].loss for at, spread in enumerate(spreads)]
    assert quiet[-1] and not any(quiet[:-1])


def different_prompts():
    """All four families, and one more rank."""
    start = {"width": 32, "seed": 3, "n_ctx": 4}
    return [
        start_prompt("dense", **start),
        start_prompt("joint", **start, rank=2),
        start_prompt("fixed-B", **start, rank=3, basis="orthogonal"),
        start_prompt("fixed-A", **start, rank=2, basis="svd"),
        start_prompt("fixed-B", **start, rank=1, basis="gaussian"),
    ]


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(epochs=6, batch_size=12, lr=0.05),
        Recipe(epochs=15, batch_size=None, views=0, lr=0.05),
        RECIPES["fast"].model_copy(update={"lr": 0.3, "views": 0, "tolerance": 0.0}),
        Recipe(epochs=200, batch_size=None, views=0, lr=0.01, tolerance=0.02),
    ],
    ids=["batches", "full batch", "fast", "early stop"],
)
def test_a_prompt_batch_equals_separate_trainings(double, double_task, recipe):
    """In fp64, in which training amplifies rounding to far less than the tolerance."""
    labels, views = double_task

    def view(epoch: int) -> torch.Tensor:
        return views(epoch if recipe.views is None else 0)

    encoder = SharedPrefixTextEncoder(double, NAMES, 4)
    together, alone = ([prompt.double() for prompt in different_prompts()] for _ in range(2))
    curves = train(together, encoder, view, labels, double.logit_scale, recipe, seed=2)
    for prompt, other, curve in zip(together, alone, curves, strict=True):
        (expected,) = train([other], encoder, view, labels, double.logit_scale, recipe, seed=2)
        torch.testing.assert_close(prompt().detach(), other().detach(), rtol=1e-7, atol=1e-10)
        assert [row.epoch for row in curve] == [row.epoch for row in expected]
        assert [row.loss for row in curve] == pytest.approx([row.loss for row in expected], rel=1e-8)
        assert [row.accuracy for row in curve] == [row.accuracy for row in expected]
    if recipe.tolerance:
        assert len({len(curve) for curve in curves}) > 1  # each stops when it has converged itself


@pytest.mark.parametrize(("n_classes", "shots"), [(2, 1), (2, 100), (1000, 1)])
def test_the_fast_recipe_behaves_at_the_ends(tiny, n_classes, shots):
    """2 and 1,000 classes, 1 and 100 shots: the loss falls, monotonously but for the first steps' momentum."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n_classes).repeat(shots)
    centres = F.normalize(torch.randn(n_classes, 24, generator=generator), dim=-1)
    features = F.normalize(centres[labels] + 0.1 * torch.randn(len(labels), 24, generator=generator), dim=-1)
    prompt = start_prompt("fixed-B", width=32, seed=1, n_ctx=4, rank=4, basis="orthogonal")
    encoder = SharedPrefixTextEncoder(tiny, [f"thing {n}" for n in range(n_classes)], 4)
    (curve,) = train([prompt], encoder, lambda _: features, labels, tiny.logit_scale, RECIPES["fast"], seed=1)
    losses = [row.loss for row in curve]
    assert losses[-1] < losses[0]
    assert max(losses) < 1.05 * losses[0]
    assert losses[-1] < 1.02 * min(losses)


@pytest.mark.parametrize("lr", [0.005, 1.0, 30.0])
def test_a_learning_rate_too_high_for_the_model_is_halved(tiny, lr):
    """The default recipe meets text towers of any scale: it may be slow there, but it must not end above its start."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(32) % 4
    centres = F.normalize(torch.randn(4, 24, generator=generator), dim=-1)
    features = F.normalize(centres[labels] + 0.1 * torch.randn(32, 24, generator=generator), dim=-1)
    encoder = SharedPrefixTextEncoder(tiny, NAMES, 4)
    recipe = RECIPES["fast"].model_copy(update={"lr": lr})
    last_rates = []
    for prompt in different_prompts():
        (curve,) = train([prompt], encoder, lambda _: features, labels, 100.0, recipe, seed=1)
        text = F.normalize(encoder(prompt()), dim=-1)
        assert F.cross_entropy(100 * features @ text.T, labels) < 1.1 * curve[0].loss
        rates = [row.lr / recipe.lr_at(row.epoch) for row in curve]
        assert set(rates) <= {0.5**n for n in range(20)}
        assert rates == sorted(rates, reverse=True)
        last_rates.append(rates[-1])
    assert lr < 1 or min(last_rates) < 1


def test_views_in_turn():
    assert [Recipe().views_at(epoch) for epoch in range(3)] == [[0], [1], [2]]
    assert [Recipe(views=2).views_at(epoch) for epoch in range(4)] == [[0], [1], [0], [1]]
    assert Recipe(views=0).views_at(7) == [None]
    assert Recipe(views=2, all_views=True).views_at(5) == [None, 0, 1]
    assert [Recipe(views=2, all_views=True).steps_per_epoch(n) for n in (1, 32, 33)] == [1, 3, 3]
