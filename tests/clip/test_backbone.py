"""Loading backbones by name, tag and checkpoint file, and the error messages."""

import copy
import hashlib
import json
import pickle
import warnings
import zipfile

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from slimprompt import InputError, load_backbone
from slimprompt.storage import cache_dir
from tests.conftest import TINY, TINY_CONFIG

NAME = "ViT-B-16"


def state_bytes(model) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def reference(tiny):
    return tiny.model


def openai_archive(model, path):
    """Save a TorchScript archive in OpenAI's format: a traced model with three sizes among its weights."""
    model = copy.deepcopy(model)
    for name, value in (("input_resolution", 32), ("context_length", 40), ("vocab_size", 49408)):
        if hasattr(model, name):
            delattr(model, name)
        model.register_buffer(name, torch.tensor(value))
    inputs = {"encode_image": torch.zeros(1, 3, 32, 32), "encode_text": torch.zeros(1, 40, dtype=torch.long)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but OpenAI's files use it
        torch.jit.save(torch.jit.trace_module(model, inputs), str(path))
    return path


def test_random_weights_depend_on_the_seed_only(tiny):
    torch.manual_seed(123)
    again = load_backbone(TINY, seed=0, device="cpu")
    assert again.fingerprint == tiny.fingerprint
    assert load_backbone(TINY, seed=1, device="cpu").fingerprint != tiny.fingerprint
    assert load_backbone(TINY, "random:0", device="cpu").fingerprint == tiny.fingerprint
    assert tiny.pretrained == "random:0"


def test_frozen_and_in_eval_mode(tiny):
    assert not any(parameter.requires_grad for parameter in tiny.model.parameters())
    assert not any(module.training for module in tiny.model.modules())


def test_openai_archive_is_read_and_gets_quick_gelu(tiny, reference, tmp_path):
    path = openai_archive(reference, tmp_path / "model.pt")
    loaded = load_backbone(TINY, str(path), device="cpu")
    assert state_bytes(loaded.model) == state_bytes(reference)
    assert type(loaded.model.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    assert loaded.fingerprint != tiny.fingerprint  # same weights, different activation
    assert load_backbone(TINY, str(path), device="cpu", quick_gelu=False).fingerprint == tiny.fingerprint


@pytest.mark.parametrize("kind", ["open_clip training checkpoint", "state dict", "safetensors", "data parallel"])
def test_other_checkpoint_formats(tiny, reference, tmp_path, kind):
    state = reference.state_dict()
    path = tmp_path / ("model.safetensors" if kind == "safetensors" else "model.pt")
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "state dict":
        torch.save(state, path)
    elif kind == "data parallel":
        torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    else:
        torch.save({"epoch": 3, "name": "run", "state_dict": state, "optimizer": {"state": {}}}, path)
    loaded = load_backbone(TINY, str(path), device="cpu")
    assert loaded.fingerprint == tiny.fingerprint
    assert type(loaded.model.transformer.resblocks[0].mlp.gelu).__name__ == "GELU"


@pytest.mark.slow
def test_tag_is_loaded_from_the_weights_folder_with_its_activation():
    """`ViT-B-16` with tag `openai` uses QuickGELU although the default of the architecture is GELU."""
    model = load_backbone(NAME, seed=3, device="cpu").model
    path = cache_dir() / "weights" / NAME / "openai.safetensors"
    path.parent.mkdir(parents=True)
    save_file(model.state_dict(), path)
    loaded = load_backbone(NAME, "openai", device="cpu")
    assert state_bytes(loaded.model) == state_bytes(model)
    assert type(loaded.model.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    assert type(loaded.model.visual.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    assert (loaded.context_length, loaded.text_width, loaded.preprocess.size) == (77, 512, (224, 224))


def test_local_folder_in_hub_format(tiny, reference, tmp_path):
    (tmp_path / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": TINY_CONFIG, "preprocess_cfg": {"mean": [0.5] * 3}})
    )
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    loaded = load_backbone(f"local-dir:{tmp_path}", device="cpu")
    assert loaded.fingerprint == tiny.fingerprint
    assert tuple(loaded.preprocess.mean) == (0.5, 0.5, 0.5)


def test_code_in_a_checkpoint_is_not_executed(tiny, tmp_path):
    class Malicious:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    torch.save({"state_dict": {"weight": Malicious()}}, tmp_path / "bad.pt")
    with pytest.raises(InputError, match="holds more than weights"):
        load_backbone(TINY, str(tmp_path / "bad.pt"))
    assert not (tmp_path / "executed").exists()


def test_code_in_an_archive_is_not_executed(tiny, tmp_path):
    class Malicious:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    path = tmp_path / "bad.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bad/constants.pkl", b"")
        archive.writestr("bad/data.pkl", pickle.dumps(Malicious()))
    with pytest.raises(InputError, match="holds more than weights"):
        load_backbone(TINY, str(path))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "ViT-B16", "pretrained": "openai"}, "did you mean 'ViT-B-16'"),
        ({"name": "ViT-B-16", "pretrained": "openia"}, "did you mean 'openai'"),
        ({"name": "ViT-B-16", "pretrained": "weights/x.pt"}, "no checkpoint file at weights/x.pt"),
        ({"name": "ViT-B-16"}, "which weights for ViT-B-16.*openai"),
        ({"name": "s3:bucket"}, "hf-hub or local-dir"),
        ({"name": TINY, "seed": 0, "device": "gpu"}, "unknown device 'gpu'"),
        ({"name": TINY, "seed": 0, "precision": "fp8"}, "unknown precision 'fp8'"),
        ({"name": TINY, "pretrained": "random:x"}, "random:0"),
        ({"name": "roberta-ViT-B-32", "seed": 0}, "Hugging Face text tower"),
    ],
)
def test_error_messages(tiny, arguments, message):
    with pytest.raises(InputError, match=message):
        load_backbone(**arguments)


def test_error_without_weights_and_network(monkeypatch):
    def no_network(cfg, **_):
        raise OSError("[Errno -2] Name or service not known")

    monkeypatch.setattr("slimprompt.clip.backbone.download_pretrained", no_network)
    with pytest.raises(InputError) as error:
        load_backbone("RN50", "openai")
    text = str(error.value)
    assert "Name or service not known" in text
    assert str(cache_dir() / "weights" / "RN50" / "openai.pt") in text
    assert "RN50.pt" in text  # the download address


def test_unknown_hub_id(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="cannot load hf-hub:nobody/nothing"):
        load_backbone("hf-hub:nobody/nothing")


def test_checkpoint_of_another_architecture(tiny, reference, tmp_path):
    state = reference.state_dict() | {"text_projection": torch.zeros(32, 7)}
    save_file(state, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=r"text_projection has shape \(32, 7\) instead of \(32, 24\)"):
        load_backbone(TINY, str(tmp_path / "x.safetensors"))
    (tmp_path / "y.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="not a readable checkpoint|holds more than weights"):
        load_backbone(TINY, str(tmp_path / "y.pt"))


def test_features_equal_those_of_open_clip(tiny):
    pixels = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(
        tiny.encode_images(pixels), torch.nn.functional.normalize(tiny.model.encode_image(pixels), dim=-1)
    )
    ids = open_clip.get_tokenizer(TINY)(["a cat.", "two dogs."])
    torch.testing.assert_close(
        tiny.encode_texts(["a cat.", "two dogs."]), torch.nn.functional.normalize(tiny.model.encode_text(ids), dim=-1)
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precision_changes_features_but_not_the_fingerprint(tiny, precision):
    low = load_backbone(TINY, seed=0, device="cpu", precision=precision)
    assert low.fingerprint == tiny.fingerprint
    pixels = torch.randn(2, 3, 32, 32)
    difference = (low.encode_images(pixels) - tiny.encode_images(pixels)).norm()
    assert 0 < difference < 0.05


def test_texts_are_never_truncated(tiny):
    assert len(tiny.tokenize("word " * 60)) == 62
    with pytest.raises(InputError, match="more than the 40 tokens"):
        tiny.encode_texts(["word " * 60])
