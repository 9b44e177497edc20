"""Which text towers prompts work with, and a model of SigLIP's kind from loading to a saved prompt."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from slimprompt import InputError, PromptClassifier, SharedPrefixTextEncoder, load_backbone
from slimprompt.clip import architectures
from slimprompt.clip.architectures import PromptSupport, prompt_support
from slimprompt.clip.architectures import model_config as config_of
from slimprompt.clip.towers import supports_shared_prefix
from slimprompt.methods.prompt import prompt_head
from slimprompt.methods.zero_shot import zero_shot_head
from slimprompt.text.tokens import CONTEXT, prompt_tokens
from tests.conftest import TINY_CONFIG

SIGMOID = "tiny-sigmoid"
SIGMOID_CONFIG = {
    "embed_dim": 24,
    "init_logit_bias": -10,
    "custom_text": True,
    "vision_cfg": TINY_CONFIG["vision_cfg"],
    "text_cfg": TINY_CONFIG["text_cfg"]
    | {
        "no_causal_mask": True,
        "proj_bias": True,
        "pool_type": "last",
        "norm_kwargs": {"eps": 1e-6},
        "act_kwargs": {"approximate": "tanh"},
    },
}
NAMES = ["blue disc", "green disc", "red disc"]


@pytest.fixture(scope="module")
def sigmoid(model_config):
    """A tiny model of SigLIP's kind: not causal, feature at the last token, projection and logits with bias."""
    return load_backbone(model_config(SIGMOID, SIGMOID_CONFIG), seed=0, device="cpu")


def support(**text):
    config = json.loads(json.dumps(TINY_CONFIG))
    config["text_cfg"] |= text
    return prompt_support(config)


@pytest.mark.parametrize(
    ("text", "text_pass", "reason"),
    [
        ({}, "shared prefix", ""),
        ({"pool_type": "eos", "eos_id": 2}, "shared prefix", ""),
        ({"no_causal_mask": True}, "full pass", "not causal"),
        ({"pool_type": "last"}, "full pass", "feature read at the last token"),
        ({"embed_cls": True}, "none", "text feature read from an appended class token (CoCa)"),
        ({"hf_model_name": "roberta-base"}, "none", "Hugging Face text tower"),
    ],
)
def test_support_of_a_configuration(text, text_pass, reason):
    assert support(**text) == PromptSupport(text_pass, reason)


def test_a_configuration_and_its_model_agree(tiny, sigmoid):
    for config, backbone, expected in (
        (TINY_CONFIG, tiny, PromptSupport("shared prefix")),
        (SIGMOID_CONFIG, sigmoid, PromptSupport("full pass", "not causal")),
    ):
        assert prompt_support(config) == expected
        assert supports_shared_prefix(backbone.text_tower) == (expected.text_pass == "shared prefix")


def test_a_missing_tokenizer_package_is_named_before_weights_are_loaded(monkeypatch):
    config = config_of("ViT-B-16-SigLIP")
    find_spec = architectures.importlib.util.find_spec
    monkeypatch.setattr(
        architectures.importlib.util, "find_spec", lambda name: None if name == "transformers" else find_spec(name)
    )
    assert prompt_support(config) == PromptSupport("full pass", "not causal", "transformers")
    assert prompt_support(config_of("ViT-B-16")).missing == ""
    with pytest.raises(InputError, match=r"needs the package transformers: pip install 'slimprompt\[hf\]'"):
        load_backbone("ViT-B-16-SigLIP", "webli", device="cpu")


class _WordTokenizer:
    """One token per word, then the end token, then padding; the two may be the same."""

    def __init__(self, end, pad):
        self.words, self.end, self.pad = {}, end, pad

    def __call__(self, texts, context_length):
        rows = [[10 + self.words.setdefault(word, len(self.words)) for word in text.split()] for text in texts]
        rows = [[*row, self.end] for row in rows]
        return torch.tensor([row + [self.pad] * (context_length - len(row)) for row in rows])


@pytest.mark.parametrize("pad", [0, 1], ids=["padding of its own", "padded with end-of-text"])
def test_tokens_of_a_text_without_padding(sigmoid, pad):
    """The tokenizers of SigLIP 2 and SigLIP: no start token, and padding that differs from the end token or does not."""
    backbone = replace(sigmoid, tokenizer=_WordTokenizer(end=1, pad=pad))
    assert [len(backbone.tokenize(text)) for text in ("red disc", "disc")] == [3, 2]
    assert backbone.tokenize("disc")[-1] == 1
    (sequence,) = prompt_tokens(backbone, ["red disc"], 4, "middle")
    assert [token == CONTEXT for token in sequence] == [True, True, False, False, True, True, False], (
        "name, context, end"
    )


def test_head_has_the_logits_of_the_model(sigmoid):
    """Scale, cosine and bias as in open_clip's own forward pass, so the sigmoid of a logit is SigLIP's score."""
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    texts = [f"a {name}." for name in NAMES]
    expected, _ = sigmoid.model.get_logits(pixels, sigmoid.tokenizer(texts, context_length=sigmoid.context_length))
    head = zero_shot_head(sigmoid, NAMES, ["a {}."])
    torch.testing.assert_close(head.logits(sigmoid.encode_images(pixels)), expected)
    assert (expected.sigmoid() < 0.5).all(), "the bias decides the score"
    unbiased = copy.copy(head)
    object.__setattr__(unbiased, "bias", None)
    features = sigmoid.encode_images(pixels)
    torch.testing.assert_close(head.logits(features).softmax(1), unbiased.logits(features).softmax(1))


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "vector"])
def test_logit_bias_in_a_checkpoint(sigmoid, tmp_path, shape):
    state = sigmoid.model.state_dict() | {"logit_bias": torch.full(shape, -7.5)}
    torch.save(state, tmp_path / "model.pt")
    loaded = load_backbone(SIGMOID, str(tmp_path / "model.pt"), activation="gelu", device="cpu")
    assert loaded.logit_bias == -7.5
    assert loaded.fingerprint != sigmoid.fingerprint, "the bias is a weight like any other"


def test_fit_predict_save_load(sigmoid, photos, tmp_path):
    images = sorted(photos.glob("*/*.png"))
    classifier = PromptClassifier(sigmoid, rank=2, n_ctx=4, recipe="fast", cache=False)
    classifier.fit(images, [path.parent.name for path in images])
    assert not SharedPrefixTextEncoder(sigmoid, NAMES, 4).shared_prefix
    assert classifier.curve_[-1].loss < classifier.curve_[0].loss
    probabilities = classifier.predict_proba(images)
    assert probabilities.sum(1) == pytest.approx(1)
    head = prompt_head(sigmoid, classifier.classes_.tolist(), classifier.prompt_)
    assert head.bias is not None and head.bias.tolist() == [-10.0] * 3
    logits = head.logits(classifier.encode(images))
    assert logits.double().softmax(1).numpy() == pytest.approx(probabilities, abs=1e-5)
    loaded = PromptClassifier.load(classifier.save(tmp_path / "prompt"), device="cpu")
    assert loaded.backbone_.logit_bias == -10
    assert (loaded.predict_proba(images) == probabilities).all()
    assert (loaded.predict(images) == classifier.predict(images)).all()
    assert set(loaded.with_classes(["yellow disc", "red disc"]).predict(images)) <= {"yellow disc", "red disc"}
