"""Published weights in every form that people have them, with generated values."""

import io
import json
import pickle
import shutil
import warnings
import zipfile
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model
from safetensors.torch import save_file

from slimprompt import InputError, load_backbone
from slimprompt.clip import architectures
from slimprompt.clip.architectures import _preprocessing
from slimprompt.clip.checkpoints import read_state_dict
from slimprompt.clip.weights import UnknownActivationError, find_weights
from slimprompt.files import cache_dir
from tests.clip.test_backbone import state_bytes
from tests.conftest import TINY

COUNTER = "num_batches_tracked"
OPENAI = {"url": "https://example.org/0123/Tiny-B-16.pt", "hf_hub": "timm/tiny.openai/", "quick_gelu": True}


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty home directory and Hugging Face cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def no_download(monkeypatch):
    def fail(_):
        raise OSError("[Errno -2] Name or service not known\nmore")

    monkeypatch.setattr("slimprompt.clip.weights.download_pretrained", fail)


def hub_file(home: Path, name: str) -> Path:
    """Path of a file in the Hugging Face cache, in the layout of huggingface_hub."""
    repository = home / "hub" / "models--timm--tiny.openai"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    return repository / "snapshots" / "abc" / name


@pytest.mark.parametrize("place", ["own .pt", "own .safetensors", "OpenAI's package", "hub", "hub, old name"])
def test_weights_are_found_where_people_have_them(home, no_download, place):
    own = cache_dir() / "weights" / TINY
    path = {
        "own .pt": lambda: own / "openai.pt",
        "own .safetensors": lambda: own / "openai.safetensors",
        "OpenAI's package": lambda: home / ".cache" / "clip" / "Tiny-B-16.pt",
        "hub": lambda: hub_file(home, "open_clip_model.safetensors"),
        "hub, old name": lambda: hub_file(home, "open_clip_pytorch_model.bin"),
    }[place]()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    assert find_weights(TINY, "openai", OPENAI, cache_dir()) == path


def test_weights_that_are_nowhere(home, no_download):
    with pytest.raises(InputError) as error:
        load_backbone("RN50", "openai")
    text = str(error.value)
    folder = cache_dir() / "weights" / "RN50"
    for part in (
        "Name or service not known",
        f"/RN50.pt as {folder}/openai.pt",
        f"https://huggingface.co/timm/resnet50_clip.openai/resolve/main/open_clip_model.safetensors as {folder}/openai.safetensors",
        "--backbone pocket",
    ):
        assert part in text
    assert "\n" not in text


#: Small towers of the same kinds: the names of the weights are those of the published models, but for the later layers.
SMALL_TEXT = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2}
SMALL_VISION = {
    "ViT-B-16": {"image_size": 224, "layers": 2, "width": 64, "patch_size": 16},
    "RN50": {"image_size": 224, "layers": [2, 1, 1, 1], "width": 8, "head_width": 64, "patch_size": None},
}


def representable(name):
    """A model with random weights that fp16 represents exactly."""
    model = load_backbone(name, seed=3, device="cpu", activation="quickgelu").model
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(value.half().float())
    return model


@pytest.fixture(params=SMALL_VISION)
def published(request, monkeypatch):
    """The name of a published model whose towers are small here, and such a model."""
    name, configs = request.param, open_clip.factory._MODEL_CONFIGS
    for one in (name, f"{name}-quickgelu"):
        small = {"embed_dim": 32, "vision_cfg": SMALL_VISION[name], "text_cfg": SMALL_TEXT}
        monkeypatch.setitem(configs, one, configs[one] | small)
    return name, representable(name)


class Weights(torch.nn.Module):
    """Names and values of weights, for TorchScript archives: tracing the whole model would take a minute."""

    def forward(self, x):
        return x


def openai_archive(state, path):
    """A TorchScript archive with fp16 weights, the sizes of the model, and OpenAI's nesting of modules."""
    root = Weights()
    sizes = {"input_resolution": 224, "context_length": 77, "vocab_size": 49408}
    halves = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    for name, value in (halves | {name: torch.tensor(size) for name, size in sizes.items()}).items():
        module = root
        *folders, leaf = name.split(".")
        for folder in folders:
            if not hasattr(module, folder):
                module.add_module(folder, Weights())
            module = getattr(module, folder)
        module.register_buffer(leaf, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but OpenAI's files use it
        torch.jit.save(torch.jit.trace(root, torch.zeros(1), check_trace=False), str(path))


def training_checkpoint(state, path):
    parameters = [torch.nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.AdamW(parameters)
    parameters[0].sum().backward()
    optimizer.step()
    prefixed = {f"module.{name}": value for name, value in state.items()}
    torch.save({"epoch": 32, "name": "run", "state_dict": prefixed, "optimizer": optimizer.state_dict()}, path)


def without_counters(state, path):
    save_file({name: value for name, value in state.items() if COUNTER not in name}, path)


FORMS = {
    "archive.pt": openai_archive,
    "state_dict.pt": lambda state, path: torch.save(state, path),
    "model.safetensors": save_file,
    "epoch_32.pt": training_checkpoint,
    "no_counters.safetensors": without_counters,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_published_form(published, tmp_path, form):
    name, model = published
    path = tmp_path / form
    FORMS[form](model.state_dict(), path)
    if form == "archive.pt":
        loaded = load_backbone(name, str(path), device="cpu")
    else:
        with pytest.raises(UnknownActivationError, match=f"{name}-quickgelu={path}"):
            load_backbone(name, str(path), device="cpu")
        loaded = load_backbone(f"{name}-quickgelu", str(path), device="cpu")  # as in a study
    assert loaded.activation == "quickgelu"
    assert state_bytes(loaded.model) == state_bytes(model)
    pixels = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(loaded.encode_images(pixels), torch.nn.functional.normalize(model.encode_image(pixels)))


def test_hub_layout(published, tmp_path):
    name, model = published
    config = {"model_cfg": open_clip.get_model_config(name) | {"quick_gelu": True}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    loaded = load_backbone(f"local-dir:{tmp_path}", device="cpu")
    assert loaded.activation == "quickgelu"
    assert state_bytes(loaded.model) == state_bytes(model)


def test_a_tag_determines_the_activation(published, home, no_download):
    """The file that OpenAI's package downloaded, and a converted file in the cache directory, both with tag `openai`."""
    name, model = published
    archive = home / ".cache" / "clip" / f"{name}.pt"
    archive.parent.mkdir(parents=True)
    openai_archive(model.state_dict(), archive)
    first = load_backbone(name, "openai", device="cpu")
    own = cache_dir() / "weights" / name / "openai.safetensors"
    own.parent.mkdir(parents=True)
    save_file(model.state_dict(), own)
    archive.unlink()
    second = load_backbone(name, "openai", device="cpu")
    assert first.title == second.title == f"{name} (openai, QuickGELU)"
    assert first.fingerprint == second.fingerprint
    assert second.context_length == 77


@pytest.mark.parametrize("name", ["MobileCLIP-S1", "ViT-B-16-SigLIP", "ViT-B-16"])
def test_a_file_is_preprocessed_as_the_tags_of_its_architecture(name):
    expected = {get_pretrained_cfg(name, tag)["mean"] for tag in list_pretrained_tags_by_model(name)}
    assert {_preprocessing(name, {})["mean"]} == expected


def test_tags_that_disagree_do_not_tell_the_preprocessing_of_a_file(tiny, tmp_path, monkeypatch):
    tags = {
        "one": {"mean": (0.5, 0.5, 0.5), "resize_mode": "squash"},
        "other": {"mean": (0.5, 0.5, 0.5), "resize_mode": "squash"},
    }
    monkeypatch.setattr(architectures, "list_pretrained_tags_by_model", lambda name: list(tags))
    monkeypatch.setattr(architectures, "get_pretrained_cfg", lambda name, tag: tags.get(tag, {}))
    save_file(tiny.model.state_dict(), tmp_path / "weights.safetensors")

    def load():
        return load_backbone(TINY, str(tmp_path / "weights.safetensors"), activation="gelu", device="cpu").preprocess

    assert (load().mean, load().resize_mode) == ((0.5, 0.5, 0.5), "squash")
    tags["other"]["resize_mode"] = "shortest"
    assert load() == tiny.preprocess


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-B-16", "RN50"])
def test_true_architectures(name, tmp_path):
    model = architectures._build(name, "quickgelu")
    numbers = torch.arange(3e7) % 2039  # a prime; fp16 represents these numbers exactly
    for start, value in enumerate(model.state_dict().values()):
        value.copy_(numbers[start : start + value.numel()].view_as(value))
    assert sum(weight.numel() for weight in model.parameters()) > 1e8
    openai_archive(model.state_dict(), tmp_path / "archive.pt")
    loaded = load_backbone(name, str(tmp_path / "archive.pt"), device="cpu")
    assert loaded.activation == "quickgelu"
    found, expected = loaded.model.state_dict(), model.state_dict()
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert np.array_equal(*(one.flatten().numpy().view(np.uint8) for one in (found[key], value))), key


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def malicious(path):
    torch.save({"state_dict": {"weight": Malicious(path.parent / "executed")}}, path)


def malicious_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bad/constants.pkl", b"")
        archive.writestr("bad/data.pkl", pickle.dumps(Malicious(path.parent / "executed")))


def truncated(path):
    whole = io.BytesIO()
    torch.save({"weight": torch.zeros(10_000)}, whole)
    path.write_bytes(whole.getvalue()[:20_000])


def truncated_safetensors(path):
    save_file({"weight": torch.zeros(10_000)}, path.with_suffix(".whole"))
    path.write_bytes(path.with_suffix(".whole").read_bytes()[:20_000])


def inflating(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"")
        archive.writestr("x/data/0", bytes(10**8))


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("x.pt", malicious, "holds more than weights .*open.* not loaded"),
        ("x.pt", malicious_archive, "holds more than weights .*open.* not loaded"),
        ("x.pt", truncated, "not a readable checkpoint"),
        ("x.safetensors", truncated_safetensors, "not a readable checkpoint"),
        ("x.pt", lambda path: path.write_bytes(b""), "not a readable checkpoint"),
        ("x.pt", inflating, "x/data/0 is compressed and would take 0.1 GB"),
        ("x.pt", lambda path: torch.save([torch.zeros(2)], path), "contains a list"),
        ("x.pt", lambda path: torch.save({"state_dict": [1]}, path), "contains a list"),
        ("x.pt", lambda path: torch.save({"epoch": 3}, path), "no weights; found the entries epoch"),
        ("x.pt", lambda path: torch.save({"weight": torch.zeros(2)}, path), "does not fit .* is missing"),
    ],
)
def test_bad_files_give_one_line(tiny, tmp_path, name, make, message):
    make(tmp_path / name)
    with pytest.raises(InputError, match=message) as error:
        load_backbone(TINY, str(tmp_path / name), activation="gelu")
    assert "weights_only" not in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "executed").exists()


def test_a_malicious_file_in_a_model_folder(tiny_folder, tmp_path):
    shutil.copy(Path(tiny_folder.removeprefix("local-dir:")) / "open_clip_config.json", tmp_path)
    malicious(tmp_path / "open_clip_pytorch_model.bin")
    with pytest.raises(InputError, match="holds more than weights") as error:
        load_backbone(f"local-dir:{tmp_path}")
    assert "weights_only" not in str(error.value)
    assert not (tmp_path / "executed").exists()


def test_many_compressed_entries_are_refused_too(tmp_path):
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"")
        for number in range(5):
            archive.writestr(f"x/data/{number}", bytes(20 * 2**20))
    with pytest.raises(InputError, match="6 of its entries are compressed and would take 0.1 GB"):
        read_state_dict(path)
