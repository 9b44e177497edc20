"""The prompt objective compared with open_clip's full pass and autograd, in double precision."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from slimprompt.clip.backbone import load_backbone
from slimprompt.paper.theory import check_loss
from slimprompt.paper.theory.objective import gradient, hessian_product, value
from slimprompt.paper.theory.prompt_objective import PromptObjective, few_shot_objective
from slimprompt.text.tokens import prompt_tokens
from tests.conftest import TINY_CONFIG

NAMES = ["red disc", "a very long blue square", "ring"]
N_CTX = 3


@pytest.fixture(scope="module")
def images():
    return F.normalize(torch.randn(7, 24, generator=torch.Generator().manual_seed(1)), dim=-1)


@pytest.fixture(scope="module")
def labels():
    return [0, 1, 2, 0, 1, 2, 1]


@pytest.fixture(scope="module")
def objective(tiny, images, labels):
    return PromptObjective(tiny, NAMES, images, labels, N_CTX)


@pytest.fixture(scope="module")
def logits(tiny, images):
    """context (n_ctx, width) → logits (n_images, n_classes), by open_clip's modules on full sequences."""
    model = copy.deepcopy(tiny.model).double()
    sequences = prompt_tokens(tiny, NAMES, N_CTX)
    ids = torch.tensor([sequence + [0] * (tiny.context_length - len(sequence)) for sequence in sequences])
    places, ends = ids == -1, torch.tensor([len(sequence) - 1 for sequence in sequences])

    def full(context):
        x = model.token_embedding(ids.clamp(min=0))
        x = x.masked_scatter(places[..., None], context.expand(len(ids), -1, -1)) + model.positional_embedding
        x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask))
        text = F.normalize(x[torch.arange(len(ids)), ends] @ model.text_projection, dim=-1)
        return tiny.logit_scale * images.double() @ text.T

    return full


@pytest.fixture
def point():
    return 0.02 * np.random.default_rng(2).standard_normal((N_CTX, 32))


@pytest.fixture
def direction():
    return np.random.default_rng(3).standard_normal((N_CTX, 32))


def loss_of(logits, labels):
    return lambda context: F.cross_entropy(logits(context), torch.tensor(labels))


def test_value_and_gradient_are_exact(objective, logits, labels, point):
    context = torch.tensor(point, requires_grad=True)
    expected = loss_of(logits, labels)(context)
    expected.backward()
    assert value(objective, point) == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(gradient(objective, point), context.grad.numpy(), rtol=1e-8, atol=1e-13)


def test_group_gradients_average_to_the_full_gradient(objective, labels, point):
    _, (whole, *single) = objective.gradients(point, [None, *[np.array([i]) for i in range(len(labels))]])
    np.testing.assert_allclose(np.mean(single, axis=0), whole, atol=1e-14)
    _, (repeated,) = objective.gradients(point, [np.array([2, 2, 5])])
    np.testing.assert_allclose(repeated, (2 * single[2] + single[5]) / 3, atol=1e-14)


def test_hessian_product_agrees_with_autograd(objective, logits, labels, point, direction):
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels cannot be differentiated twice
        _, exact = torch.autograd.functional.hvp(loss_of(logits, labels), torch.tensor(point), torch.tensor(direction))
    found = hessian_product(objective, point, direction)
    assert np.linalg.norm(found - exact.numpy()) < 1e-7 * np.linalg.norm(exact.numpy())


def test_curvature_is_gauss_newton(objective, logits, labels, point, direction):
    """Jᵀ S J V with the explicit Jacobian of the logits."""
    context = torch.tensor(point)
    jacobian = torch.autograd.functional.jacobian(logits, context).flatten(2)  # (images, classes, n_ctx · width)
    p = logits(context).softmax(-1)
    s = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    matrix = torch.einsum("ica,icd,idb->ab", jacobian, s, jacobian) / len(labels)
    expected = matrix @ torch.tensor(direction).flatten()
    found = objective.curvature(point)(direction).ravel()
    assert np.linalg.norm(found - expected.numpy()) < 1e-7 * np.linalg.norm(expected.numpy())


def test_curvature_is_symmetric_and_positive(objective, point):
    product = objective.curvature(point)
    v, w = np.random.default_rng(4).standard_normal((2, N_CTX, 32))
    assert np.sum(v * product(w)) == pytest.approx(np.sum(w * product(v)), rel=1e-6)
    assert np.sum(v * product(v)) > 0


def test_backbone_is_not_modified(tiny, images, labels):
    before = {name: value.clone() for name, value in tiny.model.state_dict().items()}
    PromptObjective(tiny, NAMES, images, labels, N_CTX)
    after = tiny.model.state_dict()
    assert all(torch.equal(before[name], after[name]) and after[name].dtype == before[name].dtype for name in before)
    assert tiny.dtype == torch.float32 and len(list(tiny.model.visual.parameters())) > 0


def test_few_shot_objective_of_a_folder(tiny, photos):
    objective = few_shot_objective(tiny, str(photos), shots=2, seed=1, n_ctx=4)
    assert objective.n_examples == 6 and objective.shape == (4, 32)
    assert objective.title == "tiny-for-tests, 3 classes, 6 images"


def test_statements_on_the_loss(objective):
    """All checks on a real text tower; proven statements must hold."""
    check = check_loss(objective, rank=2, seed=1, steps=6)
    found = {statement.name: statement.verdict for statement in check.statements}
    for name in ("Completing the square in S_A(B0)", "L_A by the norm of B", "Descent inequality", "Smallest gradient"):
        assert found[name] == "holds", name


def test_text_tower_that_is_not_causal(model_config, labels):
    """It uses open_clip's full pass in double precision; the gradient agrees with finite differences."""
    text = TINY_CONFIG["text_cfg"] | {"no_causal_mask": True, "pool_type": "last"}
    backbone = load_backbone(model_config("tiny-not-causal", TINY_CONFIG | {"text_cfg": text}), seed=0, device="cpu")
    images = F.normalize(torch.randn(7, 24, generator=torch.Generator().manual_seed(1)), dim=-1)
    objective = PromptObjective(backbone, NAMES, images, labels, N_CTX)
    point, direction = 0.02 * np.random.default_rng(2).standard_normal((2, N_CTX, 32))
    slope = (value(objective, point + 1e-4 * direction) - value(objective, point - 1e-4 * direction)) / 2e-4
    assert np.sum(gradient(objective, point) * direction) == pytest.approx(slope, rel=1e-7)
    product = objective.curvature(point)
    assert np.sum(direction * product(direction)) > 0


def test_every_text_pass_is_reported(objective, point, monkeypatch):
    passes = []
    monkeypatch.setattr(objective, "on_pass", lambda: passes.append(1), raising=False)
    gradient(objective, point)
    assert len(passes) == 1
    hessian_product(objective, point, point)
    assert len(passes) == 3
