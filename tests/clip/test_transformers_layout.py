"""Weights that transformers wrote, as a folder, a snapshot of the Hugging Face cache or a single file."""

import json

import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from slimprompt import InputError, load_backbone
from tests.conftest import TINY, TINY_CONFIG

transformers = pytest.importorskip("transformers")

PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TEXTS = ["a photo of a cat.", "two dogs", "737-300, a type of aircraft."]


def save_clip_model(folder, architecture, activation="quick_gelu", **options):
    """Write a `CLIPModel` with random weights at the sizes of an open_clip architecture."""
    vision, text = architecture["vision_cfg"], architecture["text_cfg"]
    config = transformers.CLIPConfig(
        vision_config={
            "hidden_size": vision["width"],
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision.get("head_width", 64),
            "intermediate_size": 4 * vision["width"],
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
            "hidden_act": activation,
        },
        text_config={
            "hidden_size": text["width"],
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "intermediate_size": 4 * text["width"],
            "max_position_embeddings": text["context_length"],
            "vocab_size": text["vocab_size"],
            "hidden_act": activation,
        },
        projection_dim=architecture["embed_dim"],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.CLIPModel(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape))  # biases and layer norms that are not 0 or 1
    model.save_pretrained(folder, **options)
    return model


@pytest.fixture
def folder(tiny, tmp_path):
    save_clip_model(tmp_path / "clip-tiny", TINY_CONFIG)
    return tmp_path / "clip-tiny"


def assert_equal_features(backbone, model, pixels):
    with torch.inference_mode():
        ids = backbone.tokenizer(TEXTS, context_length=backbone.context_length)
        expected = [
            model.visual_projection(model.vision_model(pixels).pooler_output),
            model.text_projection(model.text_model(input_ids=ids).pooler_output),
        ]
    for found, features in zip((backbone.encode_images(pixels), backbone.encode_texts(TEXTS)), expected, strict=True):
        torch.testing.assert_close(found, F.normalize(features, dim=-1), rtol=1e-5, atol=1e-5)
    assert backbone.logit_scale == pytest.approx(model.logit_scale.exp().item(), rel=1e-6)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_features_equal_those_of_transformers(tiny, tmp_path, activation):
    model = save_clip_model(tmp_path, TINY_CONFIG, activation)
    backbone = load_backbone(TINY, tmp_path, device="cpu")
    assert backbone.activation == activation.replace("_", "")
    assert_equal_features(backbone, model, PIXELS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-B-16"])
def test_true_architectures(tmp_path, name):
    architecture = open_clip.get_model_config(name)
    model = save_clip_model(tmp_path, architecture | {"text_cfg": {"vocab_size": 49408} | architecture["text_cfg"]})
    backbone = load_backbone(name, tmp_path, device="cpu")
    assert backbone.title == f"{name} ({tmp_path}, QuickGELU)"
    assert_equal_features(backbone, model, torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)))


def test_every_form_gives_the_same_weights(folder, tmp_path):
    """The folder, its file, a snapshot of the cache, whose files are links, `pytorch_model.bin`, and the file without its folder."""
    whole = load_backbone(TINY, folder, device="cpu")
    snapshot, old = tmp_path / "models--openai--clip" / "snapshots" / "abc", tmp_path / "old"
    snapshot.mkdir(parents=True)
    old.mkdir()
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(folder / name)
    (old / "config.json").symlink_to(folder / "config.json")
    state = load_file(folder / "model.safetensors")
    position_ids = {f"{part}.embeddings.position_ids": torch.arange(9)[None] for part in ("text_model", "vision_model")}
    torch.save(state | position_ids, old / "pytorch_model.bin")
    save_file(state, tmp_path / "alone.safetensors")
    for path in (folder / "model.safetensors", snapshot, snapshot / "model.safetensors", old):
        loaded = load_backbone(TINY, path, device="cpu")
        assert (loaded.fingerprint, loaded.pretrained) == (whole.fingerprint, str(path))
    with pytest.raises(InputError, match="the activation of the weights in .* is not known"):
        load_backbone(TINY, tmp_path / "alone.safetensors", device="cpu")
    loaded = load_backbone(TINY, tmp_path / "alone.safetensors", device="cpu", activation="quickgelu")
    assert loaded.fingerprint == whole.fingerprint


def test_the_preprocessing_beside_the_weights(folder, tiny):
    assert load_backbone(TINY, folder, device="cpu").preprocess == tiny.preprocess
    config = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "size": {"shortest_edge": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    found = load_backbone(TINY, folder, device="cpu").preprocess
    assert (found.mean, found.std, found.size) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), tiny.preprocess.size)


def test_the_activation_is_never_guessed(folder):
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(InputError, match="uses QuickGELU, not gelu"):
        load_backbone(TINY, folder, device="cpu", activation="gelu")
    for part in ("text_config", "vision_config"):
        del config[part]["hidden_act"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="the activation of the weights in .* is not known"):
        load_backbone(TINY, folder, device="cpu")
    assert load_backbone(TINY, folder, device="cpu", activation="gelu").activation == "gelu"


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("text_config", "num_attention_heads", 4),
        ("vision_config", "layer_norm_eps", 1e-6),
        ("text_config", "hidden_act", "gelu"),
        (None, "model_type", "siglip"),
    ],
)
def test_a_configuration_that_differs_from_the_architecture(folder, part, field, value):
    config = json.loads((folder / "config.json").read_text())
    (config[part] if part else config)[field] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as error:
        load_backbone(TINY, folder, device="cpu")
    assert "\n" not in str(error.value)


def test_weights_that_do_not_fit(folder, tmp_path, model_config):
    with pytest.raises(InputError, match=r"does not fit ViT-B-16: .*image_size is 32 instead of 224"):
        load_backbone("ViT-B-16", folder, device="cpu")
    with pytest.raises(InputError, match="RN50 has another image tower"):
        load_backbone("RN50", folder, device="cpu")
    quick = model_config("tiny-quickgelu", TINY_CONFIG | {"quick_gelu": True})
    save_clip_model(tmp_path / "gelu", TINY_CONFIG, "gelu")
    with pytest.raises(InputError, match="does not fit tiny-quickgelu: .*activation gelu"):
        load_backbone(quick, tmp_path / "gelu", device="cpu")
    state = load_file(folder / "model.safetensors")
    for name, changed, message in (
        ("missing", {key: value for key, value in state.items() if "layers.1.self_attn.k_proj" not in key}, "in_proj"),
        ("unknown", state | {"vision_model.head.weight": torch.zeros(2)}, "no CLIPModel .*vision_model.head.weight"),
    ):
        save_file(changed, tmp_path / f"{name}.safetensors")
        with pytest.raises(InputError, match=message):
            load_backbone(TINY, tmp_path / f"{name}.safetensors", activation="gelu", device="cpu")


def test_folders_without_such_weights(tmp_path, tiny_folder):
    with pytest.raises(InputError, match=r"no model.safetensors and no pytorch_model.bin .*snapshots/<commit>"):
        load_backbone(TINY, tmp_path)
    with pytest.raises(InputError, match="use it as the backbone local-dir:"):
        load_backbone(TINY, tiny_folder.removeprefix("local-dir:"))
