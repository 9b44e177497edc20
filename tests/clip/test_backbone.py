"""Loading backbones by name, tag and checkpoint file, and the error messages."""

import copy
import hashlib
import json
import logging
import pickle
import threading
import warnings

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from slimprompt import InputError, load_backbone
from slimprompt.clip.load import quiet
from tests.conftest import TINY, TINY_CONFIG


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


def test_weights_by_path_and_device_by_torch(tiny, reference, tmp_path):
    torch.save(reference.state_dict(), tmp_path / "model.pt")
    loaded = load_backbone(TINY, tmp_path / "model.pt", activation="gelu", device=torch.device("cpu"))
    assert (loaded.fingerprint, loaded.pretrained) == (tiny.fingerprint, str(tmp_path / "model.pt"))


def test_a_pickle_finds_the_weights_from_another_working_directory(tiny, reference, tmp_path, monkeypatch):
    torch.save(reference.state_dict(), tmp_path / "model.pt")
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(load_backbone(TINY, "model.pt", activation="gelu", device="cpu"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    assert pickle.loads(pickled).fingerprint == tiny.fingerprint


def test_loading_a_model_silences_its_own_thread_only():
    """And leaves logging as it was: open_clip logs to the root logger, which gets a handler that prints if it has none."""
    before, messages = logging.root.handlers[:], []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    with quiet():
        logging.warning("of the loading thread")
        load_backbone("pocket", device="cpu")
        logging.root.addHandler(handler)
        other = threading.Thread(target=logging.warning, args=["of another thread"])
        other.start()
        other.join()
    logging.warning("afterwards")
    logging.root.removeHandler(handler)
    assert messages == ["of another thread", "afterwards"]
    assert logging.root.handlers == before and not logging.root.filters


@pytest.mark.parametrize("device", ["cuda:1", "cuda:first"])
def test_a_gpu_that_is_not_there(device, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(InputError, match=f"device '{device}' is not available on this machine"):
        load_backbone(TINY, seed=0, device=device)


def test_frozen_and_in_eval_mode(tiny):
    assert not any(parameter.requires_grad for parameter in tiny.model.parameters())
    assert not any(module.training for module in tiny.model.modules())


def test_openai_archive_is_read_and_gets_quick_gelu(tiny, reference, tmp_path):
    path = openai_archive(reference, tmp_path / "model.pt")
    loaded = load_backbone(TINY, str(path), device="cpu")
    assert state_bytes(loaded.model) == state_bytes(reference)
    assert type(loaded.model.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    assert loaded.fingerprint != tiny.fingerprint  # same weights, different activation
    assert load_backbone(TINY, str(path), device="cpu", activation="gelu").fingerprint == tiny.fingerprint


def test_an_unknown_activation_is_asked_for(tiny, reference, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(reference.state_dict(), path)
    with pytest.raises(InputError, match="activation quickgelu or --activation gelu.*local-dir:FOLDER"):
        load_backbone(TINY, str(path), device="cpu")
    quick = load_backbone(TINY, str(path), device="cpu", activation="quickgelu")
    assert quick.title == f"{TINY} ({path}, QuickGELU)"
    assert quick.fingerprint != tiny.fingerprint
    with pytest.raises(InputError, match="unknown activation 'relu'"):
        load_backbone(TINY, str(path), activation="relu")


@pytest.mark.parametrize("quick_gelu", [True, False])
def test_the_configuration_of_a_folder_tells_the_activation(reference, tmp_path, quick_gelu):
    config = {"model_cfg": TINY_CONFIG | {"quick_gelu": quick_gelu}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    known, other = ("quickgelu", "gelu") if quick_gelu else ("gelu", "quickgelu")
    assert load_backbone(f"local-dir:{tmp_path}", device="cpu", activation=known).activation == known
    with pytest.raises(InputError, match="leave the activation out"):
        load_backbone(f"local-dir:{tmp_path}", device="cpu", activation=other)


def test_local_folder_in_hub_format(tiny, reference, tmp_path):
    config = {"model_cfg": TINY_CONFIG, "preprocess_cfg": {"mean": [0.5] * 3}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    loaded = load_backbone(f"local-dir:{tmp_path}", device="cpu")
    assert loaded.fingerprint == tiny.fingerprint
    assert tuple(loaded.preprocess.mean) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "ViT-B16", "pretrained": "openai"},
        {"name": "ViT-B-16", "pretrained": "openia"},
        {"name": "ViT-H-14"},
        {"name": TINY, "seed": 0, "device": "gpu"},
        {"name": "roberta-ViT-B-32", "seed": 0},
    ],
)
def test_error_messages(tiny, arguments):
    with pytest.raises(InputError):
        load_backbone(**arguments)


def test_unknown_hub_id(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="cannot load hf-hub:nobody/nothing"):
        load_backbone("hf-hub:nobody/nothing")


def test_features_equal_those_of_open_clip(tiny):
    pixels = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(
        tiny.encode_images(pixels), torch.nn.functional.normalize(tiny.model.encode_image(pixels), dim=-1)
    )
    ids = open_clip.get_tokenizer(TINY)(["a cat.", "two dogs."])
    torch.testing.assert_close(
        tiny.encode_texts(["a cat.", "two dogs."]), torch.nn.functional.normalize(tiny.model.encode_text(ids), dim=-1)
    )


def test_fp16_on_a_cpu_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="fp16 is for GPUs"):
        load_backbone("pocket", device="cpu", precision="fp16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_backbone("pocket", device="cpu", precision="bf16")


@pytest.mark.filterwarnings("ignore:fp16 is for GPUs")
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
