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
from tests.conftest import PREPROCESS, TINY, TINY_CONFIG


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
    before, messages, inside, leave = logging.root.handlers[:], [], threading.Event(), threading.Event()

    class Handler(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    def load() -> None:
        with quiet():
            inside.set()
            logging.warning("of the loading thread")
            load_backbone("pocket", device="cpu")
            leave.wait(5)

    thread = threading.Thread(target=load)
    thread.start()
    inside.wait()
    logging.root.addHandler(handler := Handler())
    logging.warning("of another thread")
    leave.set()
    thread.join()
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
    loaded = load_backbone(TINY, str(path), device="cpu", activation="gelu")
    assert loaded.fingerprint == tiny.fingerprint
    assert loaded.activation == "gelu"


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


def test_openai_sizes_among_the_weights_mean_quick_gelu(tiny, reference, tmp_path):
    sizes = {
        "input_resolution": torch.tensor(32),
        "context_length": torch.tensor(40),
        "vocab_size": torch.tensor(49408),
    }
    torch.save(reference.state_dict() | sizes, tmp_path / "model.pt")
    assert load_backbone(TINY, str(tmp_path / "model.pt"), device="cpu").activation == "quickgelu"


@pytest.mark.parametrize("quick_gelu", [True, False])
def test_the_configuration_of_a_folder_tells_the_activation(reference, tmp_path, quick_gelu):
    config = {"model_cfg": TINY_CONFIG | {"quick_gelu": quick_gelu}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    known, other = ("quickgelu", "gelu") if quick_gelu else ("gelu", "quickgelu")
    assert load_backbone(f"local-dir:{tmp_path}", device="cpu", activation=known).activation == known
    with pytest.raises(InputError, match="leave the activation out"):
        load_backbone(f"local-dir:{tmp_path}", device="cpu", activation=other)


def test_random_and_embedded_weights_keep_the_activation_of_their_configuration(tiny):
    assert tiny.activation == "gelu"
    assert load_backbone("pocket", device="cpu").title == "pocket (GELU)"


def test_local_folder_in_hub_format(tiny, reference, tmp_path):
    (tmp_path / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": TINY_CONFIG, "preprocess_cfg": {"mean": [0.5] * 3}})
    )
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    loaded = load_backbone(f"local-dir:{tmp_path}", device="cpu")
    assert loaded.fingerprint == tiny.fingerprint
    assert tuple(loaded.preprocess.mean) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "ViT-B16", "pretrained": "openai"}, "did you mean 'ViT-B-16'"),
        ({"name": "ViT-B-16", "pretrained": "openia"}, "did you mean 'openai'"),
        ({"name": "ViT-B-16", "pretrained": "weights/x.pt"}, "no weights at weights/x.pt"),
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


def test_unknown_hub_id(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="cannot load hf-hub:nobody/nothing"):
        load_backbone("hf-hub:nobody/nothing")


def test_checkpoint_of_another_architecture(tiny, reference, tmp_path):
    state = reference.state_dict() | {"text_projection": torch.zeros(32, 7)}
    save_file(state, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=r"text_projection: .*\[32, 7\].*\[32, 24\]"):
        load_backbone(TINY, str(tmp_path / "x.safetensors"), activation="gelu")


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


def test_a_folder_with_a_text_tower_of_hugging_face_is_refused_before_its_weights_are_read(tmp_path):
    text = {"hf_model_name": "roberta-base", "hf_tokenizer_name": "roberta-base"}
    config = {"model_cfg": {**TINY_CONFIG, "text_cfg": text}, "preprocess_cfg": PREPROCESS}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="Hugging Face text tower"):
        load_backbone(f"local-dir:{tmp_path}")
