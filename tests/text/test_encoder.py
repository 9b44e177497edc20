"""Sameness first: features and gradients of the shared-prefix path equal those of open_clip's own full pass."""

import json
from importlib import resources

import open_clip
import pytest
import torch

from slimprompt import InputError, SharedPrefixTextEncoder, load_backbone
from slimprompt.clip.backbone import Backbone
from slimprompt.text.encoder import _chunk_size, _group_sizes
from slimprompt.text.tokens import prompt_tokens

RAGGED = ["cat", "red panda", "a_rather_long_name of many different words", "737-300", "forget-me-not"]


def open_clip_features(backbone: Backbone, names, context, position="end"):
    """`encode_text` itself, over the whole context length, with the context put in where the embedding is looked up."""
    sequences = prompt_tokens(backbone, names, len(context), position)
    length = backbone.context_length
    pad = int(backbone.tokenizer(["a"], context_length=length)[0, -1])
    rows = torch.tensor([ids + [pad] * (length - len(ids)) for ids in sequences])
    places = rows == -1
    hook = backbone.text_tower.token_embedding.register_forward_hook(
        lambda module, args, out: out.masked_scatter(places[..., None], context.expand(len(rows), -1, -1))
    )
    try:
        return backbone.model.encode_text(rows.clamp(min=0))
    finally:
        hook.remove()


def assert_same(backbone, names, n_ctx=16, position="end", tolerance=1e-4, **options):
    generator = torch.Generator().manual_seed(1)
    context = (0.02 * torch.randn(n_ctx, backbone.text_width, generator=generator)).requires_grad_()
    encoder = SharedPrefixTextEncoder(backbone, names, n_ctx, position, **options)
    ours, theirs = encoder(context), open_clip_features(backbone, names, context, position)
    assert ours.shape == theirs.shape
    grad = torch.randn(ours.shape, generator=generator)
    ours_grad, theirs_grad = (torch.autograd.grad(features, context, grad)[0] for features in (ours, theirs))
    assert (ours - theirs).norm() / theirs.norm() < tolerance
    assert (ours_grad - theirs_grad).norm() / theirs_grad.norm() < tolerance
    return encoder


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_equals_open_clip(tiny, position, chunk_size):
    assert assert_same(tiny, RAGGED, 6, position, chunk_size=chunk_size).shared_prefix


@pytest.mark.parametrize(
    "names", [["cat"], [f"thing number {n}" for n in range(200)]], ids=["one class", "200 classes"]
)
def test_number_of_classes(tiny, names):
    assert_same(tiny, names)


@pytest.mark.parametrize("name", ["ViT-B-16", "RN50"])
def test_text_towers_of_the_paper(name):
    """Width 512, 8 heads, 12 layers, 77 tokens: both papers' backbones, with QuickGELU as OpenAI's weights have it."""
    encoder = assert_same(load_backbone(name, seed=0, device="cpu", quick_gelu=True), RAGGED)
    assert encoder.shared_prefix
    assert encoder.n_tokens < 17 + 12 * len(RAGGED)


def _towers():
    """Every architecture of open_clip, by what its text tower is."""
    folder = resources.files(open_clip) / "model_configs"
    return {path.name.removesuffix(".json"): json.loads(path.read_text()) for path in sorted(folder.iterdir(), key=str)}


ARCHITECTURES = _towers()


def _expected(config):
    text = config["text_cfg"]
    if text.get("hf_model_name") or text.get("embed_cls"):
        return "refused"
    causal = not text.get("no_causal_mask", False) and text.get("pool_type", "argmax") in ("argmax", "eos")
    return "shared" if causal else "full"


def test_counts_of_open_clip_s_architectures():
    kinds = [_expected(config) for config in ARCHITECTURES.values()]
    assert kinds.count("shared") >= 92


class _Letters:
    """A tokenizer for towers whose own must be downloaded: start, one token per letter, end, padding."""

    def __init__(self, text_cfg):
        self.vocab = text_cfg["vocab_size"]
        self.eos = text_cfg.get("eos_id", 2) if text_cfg.get("pool_type") == "eos" else self.vocab - 1
        self.context_length = text_cfg["context_length"]

    def __call__(self, texts, context_length=None):
        length = context_length or self.context_length
        rows = [[self.vocab - 2, *(5 + ord(letter) % 90 for letter in text), self.eos] for text in texts]
        return torch.tensor([row[:length] + [0] * (length - len(row)) for row in rows])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_of_open_clip(name, model_config):
    """Random weights; widths and depths reduced, everything else as published."""
    config = json.loads(json.dumps(ARCHITECTURES[name]))
    expected = _expected(config)
    if config["text_cfg"].get("hf_model_name"):
        with pytest.raises(InputError, match="Hugging Face text tower"):
            load_backbone(name, seed=0)
        return
    config["embed_dim"] = 16
    config["vision_cfg"] = {"image_size": 32, "layers": 1, "width": 16, "head_width": 16, "patch_size": 16}
    config["text_cfg"] |= {
        "width": 16,
        "heads": 2,
        "layers": 2,
        "vocab_size": min(config["text_cfg"].get("vocab_size", 49408), 49408),
    }
    config["text_cfg"].setdefault("context_length", 77)
    if "multimodal_cfg" in config:
        config["multimodal_cfg"] |= {"width": 16, "heads": 2, "layers": 1, "mlp_ratio": 1}
    own_tokenizer = "hf_tokenizer_name" in config["text_cfg"]
    if own_tokenizer:
        del config["text_cfg"]["hf_tokenizer_name"]
        config["text_cfg"].pop("tokenizer_kwargs", None)
    # open_clip picks some tokenizers by the model's name
    short = model_config(f"short-{list(ARCHITECTURES).index(name)}", config)
    if expected == "refused":
        with pytest.raises(InputError, match="class token"):
            load_backbone(short, seed=0)
        return
    backbone = load_backbone(short, seed=0, device="cpu")
    if own_tokenizer:
        object.__setattr__(backbone, "tokenizer", _Letters(config["text_cfg"]))
    encoder = assert_same(backbone, ["cat", "red fox"], 4)
    assert encoder.shared_prefix == (expected == "shared")


@pytest.mark.parametrize("extra", [{"ls_init_value": 0.5}, {"mlp_ratio": 2.0}, {"proj_bias": True}, {"qk_norm": True}])
def test_block_variants(model_config, extra):
    from tests.conftest import TINY_CONFIG

    config = json.loads(json.dumps(TINY_CONFIG))
    config["text_cfg"] |= extra
    backbone = load_backbone(model_config(f"tiny-{next(iter(extra))}", config), seed=0, device="cpu")
    encoder = assert_same(backbone, RAGGED, 5)
    assert encoder.shared_prefix == ("qk_norm" not in extra)  # other blocks than the plain ones take the full pass


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_stays_close(tiny, precision):
    backbone = load_backbone(tiny.name, seed=0, device="cpu", precision=precision)
    context = (0.02 * torch.randn(4, tiny.text_width, generator=torch.Generator().manual_seed(0))).requires_grad_()
    low = SharedPrefixTextEncoder(backbone, RAGGED, 4)(context)
    full = SharedPrefixTextEncoder(tiny, RAGGED, 4)(context)
    assert low.dtype == torch.float32
    assert (low - full).norm() / full.norm() < 0.05
    assert torch.autograd.grad(low.sum(), context)[0].dtype == torch.float32


def test_tokens_are_coop_s(tiny):
    """`SOS ctx name . EOT` with the name's tokens as in 'X X X X name.', which is how CoOp finds them."""
    (tokens,) = prompt_tokens(tiny, ["Oxford_Blue cat"], 4)
    whole = tiny.tokenize("X X X X Oxford Blue cat.")
    assert tokens == [whole[0], -1, -1, -1, -1, *whole[5:]]
    (middle,) = prompt_tokens(tiny, ["Oxford_Blue cat"], 4, "middle")
    assert middle == [whole[0], -1, -1, *whole[5:8], -1, -1, *whole[8:]]
    (front,) = prompt_tokens(tiny, ["Oxford_Blue cat"], 4, "front")
    assert front == [whole[0], *whole[5:8], -1, -1, -1, -1, *whole[8:]]


def test_a_name_too_long_is_named(tiny):
    with pytest.raises(InputError, match=r"'word word.*makes 69 tokens and .* reads at most 40"):
        SharedPrefixTextEncoder(tiny, ["cat", "word " * 50], 16)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "no class names"),
        (["cat", " _ "], {}, "empty class name"),
        (["cat"], {"position": "back"}, "unknown position 'back'"),
        (["cat"], {"chunk_size": 0}, "at least 1 class"),
    ],
)
def test_bad_input(tiny, names, options, message):
    with pytest.raises(InputError, match=message):
        SharedPrefixTextEncoder(tiny, names, 4, **options)


def test_a_context_of_another_shape_is_refused(tiny):
    with pytest.raises(InputError, match=r"takes \(4, 32\)"):
        SharedPrefixTextEncoder(tiny, ["cat"], 4)(torch.zeros(5, 32))


@pytest.mark.parametrize("position", ["end", "middle"])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_stack_of_contexts_is_each_of_them(tiny, position, chunk_size):
    encoder = SharedPrefixTextEncoder(tiny, RAGGED, 6, position, chunk_size=chunk_size)
    contexts = (0.02 * torch.randn(3, 6, 32, generator=torch.Generator().manual_seed(1))).requires_grad_()
    together = encoder(contexts)
    apart = torch.stack([encoder(context) for context in contexts])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-6)
    grad = torch.randn(together.shape, generator=torch.Generator().manual_seed(2))
    grads = [torch.autograd.grad(features, contexts, grad, retain_graph=True)[0] for features in (together, apart)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)


def test_groups_of_similar_length_are_cut_by_cost():
    lengths = [3] * 40 + [4] * 30 + [9]
    assert _group_sizes(lengths, width=2048) == [40, 30, 1]  # a wide tower: no token is filled up
    assert _group_sizes(lengths, width=32) == [71]  # a narrow one: one group
    assert sum(_group_sizes(lengths, width=300)) == 71


def test_so_many_classes_that_memory_matters_go_in_chunks_of_equal_size():
    assert _chunk_size(5_305, 1_000, 512) == 1_000  # a thousand at once
    assert _chunk_size(62_850, 10_000, 512) == 1_250  # eight chunks
    assert _chunk_size(62_850, 10_000, 128) == 5_000  # a narrow tower takes more
