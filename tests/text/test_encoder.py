"""Features and gradients equal those of the plain reference and of open_clip's own full pass."""

import copy
import gc
import json
from importlib import resources

import open_clip
import pytest
import torch

from slimprompt import InputError, SharedPrefixTextEncoder, load_backbone
from slimprompt.clip.architectures import prompt_support
from slimprompt.text import encoder as encoder_module
from slimprompt.text.encoder import encode_texts
from slimprompt.text.reference import shared_prefix_reference
from tests.conftest import TINY_CONFIG
from tests.text.conftest import NAMES, features_and_gradient, open_clip_features, random_context

ARCHITECTURES = {
    path.name.removesuffix(".json"): json.loads(path.read_text())
    for path in sorted((resources.files(open_clip) / "model_configs").iterdir(), key=str)
}
#: In place of an image tower that a test does not run.
SMALL_VISION = {"image_size": 32, "layers": 1, "width": 16, "head_width": 16, "patch_size": 16}


def assert_equals_open_clip(backbone, names, n_ctx=16, position="end", tolerance=1e-4, **options):
    context = random_context(backbone, n_ctx)
    encoder = SharedPrefixTextEncoder(backbone, names, n_ctx, position, **options)
    features, gradient = features_and_gradient(encoder, context)
    expected_features, expected_gradient = features_and_gradient(
        lambda context: open_clip_features(backbone, names, context, position), context
    )
    assert features.shape == expected_features.shape
    assert (features - expected_features).norm() / expected_features.norm() < tolerance
    assert (gradient - expected_gradient).norm() / expected_gradient.norm() < tolerance
    return encoder


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("shape", [(6,), (3, 6)], ids=["one context", "three contexts"])
def test_kernels_equal_reference(double, position, chunk_size, shape):
    context = random_context(double, *shape)
    encoder = SharedPrefixTextEncoder(double, NAMES, 6, position, chunk_size=chunk_size)
    reference = shared_prefix_reference(double, NAMES, 6, position)
    assert encoder.shared_prefix
    torch.testing.assert_close(
        features_and_gradient(encoder, context), features_and_gradient(reference, context), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("shape", [(6,), (3, 6)], ids=["one context", "three contexts"])
def test_recomputed_chunks_equal_kept_ones(tiny, monkeypatch, position, shape):
    """Bit by bit, also in a second pass; all chunks but the first run twice, so a step keeps the activations of one chunk."""
    context = random_context(tiny, *shape)
    encoder = SharedPrefixTextEncoder(tiny, NAMES, 6, position, chunk_size=2)
    run, passes = encoder._run_chunk, []
    monkeypatch.setattr(encoder, "_run_chunk", lambda *args: passes.append(args[0]) or run(*args))
    results = [features_and_gradient(encoder, context) for _ in range(2)]
    assert encoder.n_chunks == 3 and len(passes) == 2 * (3 + 2)
    monkeypatch.setattr(encoder_module, "checkpoint", lambda run, *args, **_: run(*args))
    results.append(features_and_gradient(encoder, context))
    for features, gradient in results[1:]:
        assert torch.equal(features, results[0][0])
        assert torch.equal(gradient, results[0][1])


def _depths(backbone):
    n_layers = len(backbone.text_tower.transformer.resblocks)
    return sorted({2, 3, n_layers})


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_deep_contexts_equal_open_clip_with_replaced_rows(double, position, chunk_size):
    for depth in _depths(double):
        context = random_context(double, depth, 6)
        encoder = SharedPrefixTextEncoder(double, NAMES, 6, position, depth=depth, chunk_size=chunk_size)
        assert encoder.shared_prefix
        assert encoder.n_chunks == (1 if chunk_size is None else 3)
        torch.testing.assert_close(
            features_and_gradient(encoder, context),
            features_and_gradient(lambda context: open_clip_features(double, NAMES, context, position), context),
            rtol=1e-9,
            atol=1e-12,
        )


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_batch_of_deep_contexts_equals_open_clip(double, chunk_size):
    contexts = random_context(double, 3, 2, 6)
    encoder = SharedPrefixTextEncoder(double, NAMES, 6, depth=2, chunk_size=chunk_size)
    torch.testing.assert_close(
        features_and_gradient(encoder, contexts),
        features_and_gradient(
            lambda contexts: torch.stack([open_clip_features(double, NAMES, one) for one in contexts]), contexts
        ),
        rtol=1e-9,
        atol=1e-12,
    )


def test_deep_contexts_without_a_shared_prefix(model_config):
    config = json.loads(json.dumps(TINY_CONFIG))
    config["text_cfg"]["no_causal_mask"] = True
    backbone = load_backbone(model_config("tiny-deep-not-causal", config), seed=0, device="cpu")
    context = random_context(backbone, 3, 4)
    encoder = SharedPrefixTextEncoder(backbone, NAMES, 4, depth=3)
    assert not encoder.shared_prefix
    torch.testing.assert_close(
        features_and_gradient(encoder, context),
        features_and_gradient(lambda context: open_clip_features(backbone, NAMES, context), context),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_equals_open_clip(tiny, position, chunk_size):
    assert assert_equals_open_clip(tiny, NAMES, 6, position, chunk_size=chunk_size).shared_prefix


@pytest.mark.parametrize(
    "names", [["cat"], [f"thing number {n}" for n in range(200)]], ids=["one class", "200 classes"]
)
def test_number_of_classes(tiny, names):
    assert_equals_open_clip(tiny, names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-B-16", "RN50"])
def test_text_towers_of_the_paper(name, model_config):
    """Width 512, 8 heads, 12 layers, 77 tokens, QuickGELU: the text towers of the paper's two backbones."""
    config = ARCHITECTURES[name] | {"vision_cfg": SMALL_VISION}
    backbone = load_backbone(model_config(f"text-of-{name}", config), seed=0, device="cpu", activation="quickgelu")
    names = ["red panda", "a_rather_long_name of many different words"]
    encoder = assert_equals_open_clip(backbone, names)
    assert encoder.shared_prefix
    assert encoder.n_tokens < 17 + 12 * len(names)


def _expected_pass(config):
    text = config["text_cfg"]
    if text.get("hf_model_name") or text.get("embed_cls"):
        return "refused"
    causal = not text.get("no_causal_mask", False) and text.get("pool_type", "argmax") in ("argmax", "eos")
    return "shared" if causal else "full"


class _LetterTokenizer:
    """Replaces tokenizers that would have to be downloaded: start token, one token per letter, end token, padding."""

    def __init__(self, text_cfg):
        self.vocab = text_cfg["vocab_size"]
        self.eos = text_cfg.get("eos_id", 2) if text_cfg.get("pool_type") == "eos" else self.vocab - 1
        self.context_length = text_cfg["context_length"]

    def __call__(self, texts, context_length=None):
        length = context_length or self.context_length
        rows = [[self.vocab - 2, *(5 + ord(letter) % 90 for letter in text), self.eos] for text in texts]
        return torch.tensor([row[:length] + [0] * (length - len(row)) for row in rows])


def _reduced(config):
    """Reduced width and depth and another image tower; everything else as published, but for tokenizers that are not here."""
    config = json.loads(json.dumps(config))
    config["embed_dim"] = 16
    config["vision_cfg"] = SMALL_VISION
    config["text_cfg"] |= {
        "width": 16,
        "heads": 2,
        "layers": 2,
        "vocab_size": min(config["text_cfg"].get("vocab_size", 49408), 49408),
    }
    config["text_cfg"].setdefault("context_length", 77)
    if "multimodal_cfg" in config:
        config["multimodal_cfg"] |= {"width": 16, "heads": 2, "layers": 1, "mlp_ratio": 1}
    if config["text_cfg"].pop("hf_tokenizer_name", None):
        config["text_cfg"].pop("tokenizer_kwargs", None)
    return config


#: An architecture of every kind of text tower: many differ in their sizes or image towers only.
KINDS = {json.dumps(_reduced(config), sort_keys=True): name for name, config in ARCHITECTURES.items()}


@pytest.fixture(scope="module")
def reduced(tmp_path_factory):
    """Architecture → name under which it is registered at reduced size; open_clip reads a whole folder at once.

    A neutral name, because open_clip selects some tokenizers by the name of the model.
    """
    folder = tmp_path_factory.mktemp("reduced")
    names = {name: f"short-{number}" for number, name in enumerate(KINDS.values())}
    for config, name in KINDS.items():
        (folder / f"{names[name]}.json").write_text(config)
    open_clip.add_model_config(folder)
    return names


def test_the_pass_that_is_listed_for_every_architecture():
    listed = {"shared": "shared prefix", "full": "full pass", "refused": "none"}  # by `slimprompt backbones`
    for name, config in ARCHITECTURES.items():
        assert prompt_support(config).text_pass == listed[_expected_pass(config)], name


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS.values())
def test_every_architecture_of_open_clip(name, reduced):
    """Random weights and reduced width and depth; everything else as published."""
    config, expected = ARCHITECTURES[name], _expected_pass(ARCHITECTURES[name])
    if expected == "refused":
        is_hf = bool(config["text_cfg"].get("hf_model_name"))
        with pytest.raises(InputError, match="Hugging Face text tower" if is_hf else "class token"):
            load_backbone(name if is_hf else reduced[name], seed=0)
        return
    backbone = load_backbone(reduced[name], seed=0, device="cpu")
    if "hf_tokenizer_name" in config["text_cfg"]:
        object.__setattr__(backbone, "tokenizer", _LetterTokenizer(_reduced(config)["text_cfg"]))
    encoder = assert_equals_open_clip(backbone, ["cat", "red fox"], 4)
    assert encoder.shared_prefix == (expected == "shared")


@pytest.mark.parametrize("extra", [{"ls_init_value": 0.5}, {"mlp_ratio": 2.0}, {"proj_bias": True}, {"qk_norm": True}])
def test_block_variants(model_config, extra):
    config = json.loads(json.dumps(TINY_CONFIG))
    config["text_cfg"] |= extra
    backbone = load_backbone(model_config(f"tiny-{next(iter(extra))}", config), seed=0, device="cpu")
    encoder = assert_equals_open_clip(backbone, NAMES, 5)
    assert encoder.shared_prefix == ("qk_norm" not in extra)  # blocks that are not plain use the full pass


@pytest.mark.filterwarnings("ignore:fp16 is for GPUs")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_is_close_to_fp32(tiny, precision):
    backbone = load_backbone(tiny.name, seed=0, device="cpu", precision=precision)
    context = (0.02 * torch.randn(4, tiny.text_width, generator=torch.Generator().manual_seed(0))).requires_grad_()
    low = SharedPrefixTextEncoder(backbone, NAMES, 4)(context)
    full = SharedPrefixTextEncoder(tiny, NAMES, 4)(context)
    assert low.dtype == torch.float32
    assert (low - full).norm() / full.norm() < 0.05
    assert torch.autograd.grad(low.sum(), context)[0].dtype == torch.float32


@pytest.mark.parametrize(("names", "options"), [([], {}), (["cat"], {"position": "back"}), (["cat"], {"depth": 4})])
def test_invalid_arguments_are_refused(tiny, names, options):
    with pytest.raises(InputError):
        SharedPrefixTextEncoder(tiny, names, 4, **options)


def test_context_of_another_shape_is_refused(tiny):
    with pytest.raises(InputError, match=r"takes \(4, 32\)"):
        SharedPrefixTextEncoder(tiny, ["cat"], 4)(torch.zeros(5, 32))
    with pytest.raises(InputError, match=r"takes \(2, 4, 32\)"):
        SharedPrefixTextEncoder(tiny, ["cat"], 4, depth=2)(torch.zeros(4, 32))


@pytest.mark.parametrize("position", ["end", "middle"])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_batch_of_contexts_equals_separate_passes(tiny, position, chunk_size):
    encoder = SharedPrefixTextEncoder(tiny, NAMES, 6, position, chunk_size=chunk_size)
    contexts = (0.02 * torch.randn(3, 6, 32, generator=torch.Generator().manual_seed(1))).requires_grad_()
    batched = encoder(contexts)
    separate = torch.stack([encoder(context) for context in contexts])
    torch.testing.assert_close(batched, separate, rtol=1e-4, atol=1e-6)
    grad = torch.randn(batched.shape, generator=torch.Generator().manual_seed(2))
    grads = [torch.autograd.grad(features, contexts, grad, retain_graph=True)[0] for features in (batched, separate)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "texts",
    [
        [f"a photo of a {name}." for name in ("cat", "red fox", "large grey cat", "cat")],
        ["cat", "two dogs and a bird in a tree"],  # nothing but the start token in common
        ["a photo of a cat"],
        ["a cat", "a cat sitting"],  # one text is the beginning of another
    ],
    ids=["template", "no common word", "one text", "beginning"],
)
@pytest.mark.parametrize("unit_length", [True, False])
def test_texts_equal_open_clip(double, texts, unit_length):
    expected = double.encode_texts(texts, unit_length=unit_length)
    found = encode_texts(double, texts, unit_length=unit_length)
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_texts_in_several_chunks_equal_open_clip(tiny, monkeypatch):
    monkeypatch.setattr(encoder_module, "default_chunk_size", lambda *_: 2)
    monkeypatch.setattr(encoder_module, "_TEXTS", 4)
    texts = [f"a photo of a {name}." for name in ("cat", "red fox", "dog", "large grey cat", "bird")]
    torch.testing.assert_close(encode_texts(tiny, texts), tiny.encode_texts(texts), rtol=1e-4, atol=1e-5)


def test_training_after_texts_were_encoded():
    """The constants of a block, which both share, may have been made in inference mode."""
    backbone = load_backbone("pocket", device="cpu")
    encode_texts(backbone, ["a photo of a cat.", "a photo of a dog."])
    assert_equals_open_clip(backbone, NAMES, 6)


def test_only_passes_with_gradients_pack_weights():
    """Passes without gradients give the same bytes before and after training; packed weights go with the encoders that need them."""
    backbone = load_backbone("pocket", device="cpu")
    context = random_context(backbone, 6)
    encoder, other = (SharedPrefixTextEncoder(backbone, names, 6) for names in (NAMES, NAMES[:2]))
    with torch.no_grad():
        before = encoder(context)
        assert encoder._packed_blocks is None
    features, gradient = features_and_gradient(encoder, context)
    torch.testing.assert_close(features, before, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(encoder(context), before)
    copied = copy.deepcopy(encoder)
    assert torch.equal(features_and_gradient(copied, context)[1], gradient)
    features_and_gradient(other, context)
    assert other._packed_blocks[0] is encoder._packed_blocks[0]
    frozen = encoder._blocks[0]
    del encoder, other, copied
    gc.collect()
    assert frozen._packed() is None
