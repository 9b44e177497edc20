"""Published weights in every form that people have them, with generated values."""

import io
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
from slimprompt.clip import load as loading
from tests.clip.test_backbone import state_bytes
from tests.conftest import TINY

COUNTER = "num_batches_tracked"


@pytest.fixture
def download(monkeypatch):
    """Replaces the download of a tag's weights by a file, or by an error if there is none."""
    found = {}

    def download_pretrained(tag, **_):
        if "file" not in found:
            raise OSError("[Errno -2] Name or service not known\nmore")
        return str(found["file"])

    monkeypatch.setattr("open_clip.factory.download_pretrained", download_pretrained)
    return found


def test_weights_that_cannot_be_downloaded(download):
    with pytest.raises(InputError) as error:
        load_backbone("RN50", "openai")
    text = str(error.value)
    for part in ("'openai' of RN50", "Name or service not known", "give a weight file", "--backbone pocket"):
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
        with pytest.raises(InputError, match=f"{name}-quickgelu={path}"):
            load_backbone(name, str(path), device="cpu")
        loaded = load_backbone(f"{name}-quickgelu", str(path), device="cpu")  # as in a study
    assert loaded.activation == "quickgelu"
    assert state_bytes(loaded.model) == state_bytes(model)
    pixels = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(loaded.encode_images(pixels), torch.nn.functional.normalize(model.encode_image(pixels)))


def test_a_tag_determines_the_activation(published, download, tmp_path):
    name, model = published
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    download["file"] = tmp_path / "open_clip_model.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # open_clip's, if the activation of the model is another one
        loaded = load_backbone(name, "openai", device="cpu")
    assert loaded.title == f"{name} (openai, QuickGELU)"
    assert state_bytes(loaded.model) == state_bytes(model)
    assert (
        loaded.fingerprint == load_backbone(f"{name}-quickgelu", tmp_path / "open_clip_model.safetensors").fingerprint
    )
    assert loaded.context_length == 77


def test_the_weights_of_a_tag_in_the_cache_of_the_hub_need_no_network(published, monkeypatch, tmp_path):
    name, model = published
    repository = get_pretrained_cfg(name, "openai")["hf_hub"].rstrip("/").replace("/", "--")
    snapshot = tmp_path / f"models--{repository}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    save_file(model.state_dict(), snapshot / "open_clip_model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert state_bytes(load_backbone(name, "openai", device="cpu").model) == state_bytes(model)


def test_position_embeddings_of_another_image_size_are_not_resized(published, tmp_path):
    """open_clip's own `load_checkpoint` would do that without an error."""
    name, model = published
    key = "visual.positional_embedding" if name == "ViT-B-16" else "positional_embedding"
    state = model.state_dict()
    save_file(state | {key: state[key].repeat(2, 1)}, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=f"does not fit {name}: size mismatch for {key}"):
        load_backbone(name, tmp_path / "x.safetensors", activation="quickgelu")


@pytest.mark.parametrize("name", ["MobileCLIP-S1", "ViT-B-16-SigLIP", "ViT-B-16"])
def test_a_file_is_preprocessed_as_the_tags_of_its_architecture(name):
    expected = {get_pretrained_cfg(name, tag)["mean"] for tag in list_pretrained_tags_by_model(name)}
    assert {loading._preprocessing(name)["mean"]} == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-B-16", "RN50"])
def test_true_architectures(name, tmp_path):
    model = loading._build(name, "quickgelu")
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


def writing_archive(path):
    """A TorchScript archive whose code writes a file when `torch.jit.load` restores it."""

    class Restored(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return x

        @torch.jit.export
        def __getstate__(self):
            return self.weight, self.training

        @torch.jit.export
        def __setstate__(self, state: tuple[torch.Tensor, bool]):
            self.weight = state[0]
            self.training = state[1]
            torch.save(state[0], "executed")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Restored()).save(str(path))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("x.pt", malicious),
        ("x.pt", malicious_archive),
        ("x.pt", writing_archive),
        ("x.pt", truncated),
        ("x.safetensors", truncated_safetensors),
        ("x.pt", lambda path: path.write_bytes(b"")),
        ("x.pt", lambda path: path.write_text("<!DOCTYPE html><html>404</html>")),
        ("x.pt", inflating),
        ("x.pt", lambda path: torch.save([torch.zeros(2)], path)),
        ("x.pt", lambda path: torch.save({"state_dict": [1]}, path)),
        ("x.pt", lambda path: torch.save({"epoch": 3}, path)),
        ("x.pt", lambda path: torch.save({"weight": torch.zeros(2)}, path)),
    ],
)
def test_bad_files_give_one_line(tiny, tmp_path, monkeypatch, name, make):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / name)
    with pytest.raises(InputError) as error:
        load_backbone(TINY, str(tmp_path / name), activation="gelu")
    assert "weights_only" not in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "executed").exists()


def test_the_code_of_an_archive_would_be_executed_by_torch(tmp_path, monkeypatch):
    """The premise of a reader of our own."""
    monkeypatch.chdir(tmp_path)
    writing_archive(tmp_path / "x.pt")
    assert not (tmp_path / "executed").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.load(tmp_path / "x.pt")
    assert (tmp_path / "executed").exists()


def test_a_malicious_file_in_a_model_folder(tiny_folder, tmp_path):
    shutil.copy(Path(tiny_folder.removeprefix("local-dir:")) / "open_clip_config.json", tmp_path)
    malicious(tmp_path / "open_clip_pytorch_model.bin")
    with pytest.raises(InputError, match="holds more than weights") as error:
        load_backbone(f"local-dir:{tmp_path}")
    assert "weights_only" not in str(error.value)
    assert not (tmp_path / "executed").exists()
