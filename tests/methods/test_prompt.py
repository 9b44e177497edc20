"""Prompts from words, anchored, deep, and kept close to zero-shot, through the path that every fit and run takes."""

import pytest
import torch

from slimprompt import InputError, Recipe, load_backbone
from slimprompt.data import load_benchmark
from slimprompt.images.bank import FeatureBank
from slimprompt.methods import prompt as prompt_learning
from slimprompt.methods.prompt import learn_prompts, make_prompt, prompt_head
from slimprompt.methods.task import LabelledImages, make_task
from slimprompt.methods.zero_shot import zero_shot_features, zero_shot_head
from slimprompt.prompts.spec import make_spec
from slimprompt.text.words import word_embeddings, words_template
from slimprompt.training.evaluation import make_eval_set

WORDS = "a photo of a"
KINDS = [
    ("dense", None, None),
    *(("joint", rank, None) for rank in (1, 4)),
    *(("fixed-B", rank, "orthogonal") for rank in (1, 2, 4)),
    ("fixed-B", 2, "svd"),
    ("fixed-A", 2, "svd"),
]


def start(backbone, variant="dense", **fields):
    return make_prompt(backbone, make_spec(variant=variant, **fields), seed=1)


@pytest.fixture(scope="module")
def pocket():
    return load_backbone("pocket", device="cpu")


@pytest.fixture(scope="module")
def eval_set(pocket, shared_cache):
    benchmark = load_benchmark("pocket-negative", cache=shared_cache)
    bank = FeatureBank(pocket, shared_cache / "features", show_progress=False)
    labels = [item.label for item in benchmark.test]
    return make_eval_set(bank, [benchmark.path(item) for item in benchmark.test], labels, benchmark.class_names)


def test_anchored_prompts_start_at_the_accuracy_of_zero_shot(pocket, eval_set):
    """At any rank, every prediction is that of zero-shot; the features differ by float rounding only."""
    zero_shot = zero_shot_head(pocket, eval_set.class_names, [words_template(WORDS)])
    expected = zero_shot.logits(eval_set.features).argmax(1)
    for variant, rank, basis in KINDS:
        spec = make_spec(variant=variant, rank=rank, basis=basis, words=WORDS, anchored=True)
        prompt = make_prompt(pocket, spec, seed=1)
        assert torch.equal(prompt().detach(), word_embeddings(pocket, WORDS))
        head = prompt_head(pocket, eval_set.class_names, prompt)
        torch.testing.assert_close(head.weights, zero_shot.weights, rtol=0, atol=1e-5)
        assert torch.equal(head.logits(eval_set.features).argmax(1), expected)
        assert torch.equal(head.correct(eval_set), zero_shot.correct(eval_set))


def test_words_decide_n_ctx(tiny):
    assert start(tiny).n_ctx == 16
    assert start(tiny, words=WORDS).n_ctx == 4
    assert start(tiny, variant="joint", rank=2, words="a close-up of a").n_ctx == 6  # a word of three tokens
    with pytest.raises(InputError, match="rank 5 does not fit.*n_ctx=4"):
        start(tiny, variant="joint", rank=5, words=WORDS)
    with pytest.raises(InputError, match="depth 4 does not fit"):
        start(tiny, depth=4)


@pytest.fixture
def task(tiny, photos):
    images = sorted(photos.glob("*/*.png"))
    names = tuple(sorted({path.parent.name for path in images}))
    labels = [names.index(path.parent.name) for path in images]
    sample = LabelledImages(images, labels, names)
    return make_task(FeatureBank(tiny, None), sample, seed=1, templates=("a bad photo of a {}.",))


def test_the_templates_of_the_task_are_what_is_kept(task, tiny, monkeypatch):
    seen, train = [], prompt_learning.train
    monkeypatch.setattr(
        prompt_learning, "train", lambda *given, **more: seen.append(more["zero_shot"]) or train(*given, **more)
    )
    for anchor in (8.0, 0.0):
        learn_prompts(task, [start(tiny, n_ctx=4)], Recipe(epochs=1, views=0, anchor=anchor))
    assert torch.equal(seen[0], zero_shot_features(tiny, task.class_names, task.templates)) and seen[1] is None


@pytest.mark.parametrize("depth", [2, 3])
def test_every_layer_of_a_deep_prompt_is_trained(task, tiny, depth):
    prompt = start(tiny, "fixed-B", n_ctx=4, rank=2, depth=depth)
    (learned,) = learn_prompts(task, [prompt], Recipe(epochs=3, views=0, batch_size=6))
    assert learned.start["A0"].shape == (depth, 2, 32)
    assert ((prompt.A.detach() - learned.start["A0"]).flatten(1).norm(dim=1) > 0).all()
    assert torch.equal(prompt.B.detach(), learned.start["B0"])
    assert prompt_head(tiny, ["otter", "lynx"], prompt).weights.shape == (2, 24)
