"""The file of a saved model: every damage is one line that names the file and the field, and a save is whole or absent."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from slimprompt import Classifier, Prompt, load_backbone
from slimprompt.errors import InputError
from slimprompt.methods.head import AnyHead, CacheHead, Head
from slimprompt.prompts.spec import make_spec
from slimprompt.saved import _checksum, check_free, model_file, read_model, write_model

NAMES = ["otter", "red panda"]
ENTRIES: dict[str, Any] = {
    "method": "prompt",
    "class_names": NAMES,
    "backbone": {
        "name": "pocket",
        "pretrained": None,
        "activation": "gelu",
        "precision": "fp32",
        "fingerprint": "0" * 64,
        "preprocess": {"size": [8, 8]},
    },
    "prompt": make_spec(rank=2, n_ctx=4).prompt_fields(),
    "recipe": None,
    "n_trained": 16,
    "settings": {},
    "templates": ["a photo of a {}."],
    "views": 10,
    "seed": 1,
    "temperature": 1.0,
    "confidences": [],
    "training_images": "",
    "imported": None,
    "continued_from": None,
}
OF_A_HEAD = {"method": "tip-adapter", "prompt": None, "settings": {"alpha": 1.0}}
LINEAR = Head(tuple(NAMES), torch.eye(2, 4), 10.0, torch.zeros(2))
CACHE = CacheHead(tuple(NAMES), torch.eye(2, 4), 10.0, torch.eye(3, 4), torch.tensor([0, 1, 1]), 1.0, 5.0)


def prompt(seed: int = 0, n_ctx: int = 4, rank: int = 2, width: int = 8) -> Prompt:
    generator = torch.Generator().manual_seed(seed)
    factors = [torch.randn(shape, generator=generator) for shape in ((n_ctx, rank), (rank, width))]
    return Prompt(*factors, trainable="A")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_model(tmp_path / "model.safetensors", ENTRIES, prompt())
    return tmp_path / "model.safetensors"


def rewrite(file: Path, entries: dict[str, Any] | str | None = None, tensors: dict[str, Tensor] | None = None) -> None:
    """Other entries or tensors, under a checksum that fits: only the content is wrong."""
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    tensors = load(data) | (tensors or {})
    if isinstance(entries, str):
        text = entries
    else:
        content = json.loads(header["__metadata__"]["slimprompt"]) | (entries or {})
        text = json.dumps(content | {"checksum": _checksum(content, tensors)})
    file.write_bytes(save(tensors, metadata={"slimprompt": text}))


def refuse(file: Path, *parts: str) -> None:
    with pytest.raises(InputError) as caught:
        read_model(file)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    for part in (str(file), "damaged", *parts):
        assert part in message


@pytest.mark.parametrize("model", [prompt(), LINEAR, CACHE], ids=["prompt", "linear", "cache"])
def test_a_model_comes_back_as_it_was_written(model: Prompt | AnyHead, tmp_path: Path) -> None:
    file = model_file(tmp_path / "model")
    write_model(file, ENTRIES if isinstance(model, Prompt) else ENTRIES | OF_A_HEAD, model, {"note": "kept"})
    description, entries, back = read_model(tmp_path / "model")[1:]
    assert (description.class_names, description.seed, entries["note"]) == (NAMES, 1, "kept")
    if isinstance(back, Prompt) and isinstance(model, Prompt):
        assert torch.equal(back.A, model.A) and torch.equal(back.B, model.B) and back.trainable == "A"
        assert description.prompt == make_spec(rank=2, n_ctx=4)
    elif not isinstance(back, Prompt) and not isinstance(model, Prompt):
        assert torch.equal(back.logits(torch.eye(2, 4)), model.logits(torch.eye(2, 4)))
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("class_names", "otter"),
        ("class_names", ["otter", 7]),
        ("method", "magic"),
        ("kind", "linear"),
        ("prompt", {"variant": "fixed-C"}),
        ("prompt", {"rank": 5, "n_ctx": 4}),
        ("recipe", {"epoch": 3}),
        ("seed", -1),
        ("backbone", ENTRIES["backbone"] | {"fingerprint": "short"}),
        ("backbone", ENTRIES["backbone"] | {"preprocess": {"sise": 3}}),
        ("temperature", 0),
        ("confidences", [0.5, 1.5]),
        ("training_images", "0" * 15),
        ("format", 2),
        ("slimprompt", None),
    ],
    ids=str,
)
def test_a_wrong_entry_is_named(file: Path, field: str, value: Any) -> None:
    rewrite(file, {field: value})
    refuse(file, field)


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, '{"format": 1}', '"prompt"'])
def test_a_description_that_is_none(file: Path, text: str) -> None:
    rewrite(file, text)
    refuse(file)


@pytest.mark.parametrize(
    ("name", "factor", "message"),
    [
        ("A", torch.full((2, 8), float("nan")), "not finite"),
        ("A", torch.full((2, 8), 1e30), "largest number is 1.0e+30"),
        ("B", torch.zeros(5, 2), "its shape is (5, 2), but the description says (4, 2)"),
        ("A", torch.zeros(2, 8, dtype=torch.int64), "torch.int64"),
    ],
    ids=str,
)
def test_factors_that_cannot_be_used(file: Path, name: str, factor: Tensor, message: str) -> None:
    rewrite(file, tensors={name: factor})
    refuse(file, f"{name}: ", message)


def test_an_anchored_prompt_without_its_words_is_refused(tmp_path: Path) -> None:
    spec = make_spec(rank=2, words="a photo of a", anchored=True)
    write_model(tmp_path / "model.safetensors", ENTRIES | {"prompt": spec.prompt_fields()}, prompt())
    refuse(tmp_path / "model.safetensors", "W: it is missing")


@pytest.mark.parametrize(
    ("head", "tensors", "entries", "reason"),
    [
        (LINEAR, {"weights": torch.ones(3, 4)}, {}, "weights: 2 class names, but the shape is (3, 4)"),
        (LINEAR, {"weights": torch.full((2, 4), torch.nan)}, {}, "weights: it holds numbers that are not finite"),
        (LINEAR, {"bias": torch.ones(3)}, {}, "bias: 2 class names, but the shape is (3,)"),
        (CACHE, {"keys": torch.ones(3, 5)}, {}, "keys: the shape is (3, 5), but 3 labels and width 4 are given"),
        (CACHE, {"labels": torch.tensor([0, 1, 2])}, {}, "labels: they are not whole numbers from 0 to 1"),
        (CACHE, {}, {"numbers": {"scale": 1.0, "alpha": 1.0, "beta": -3.0}}, "beta: -3.0 is negative"),
        (CACHE, {}, {"numbers": {"scale": 1.0, "alpha": 1.0}}, "missing 1 required positional argument: 'beta'"),
    ],
)
def test_a_head_that_cannot_be_used(
    head: AnyHead, tensors: dict[str, Tensor], entries: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    write_model(file, ENTRIES | OF_A_HEAD, head)
    rewrite(file, entries, tensors)
    refuse(file, reason)


def test_damaged_bytes_and_missing_files(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for content in (whole[:-1], whole[:-1] + b"\xff", b"", whole[:100]):
        file.write_bytes(content)
        refuse(file)
    tensors_alone = save({"A": torch.zeros(2, 2)})
    file.write_bytes(tensors_alone)
    refuse(file, "no description of a slimprompt model")
    with pytest.raises(InputError, match="no saved model at .*model.safetensors"):
        read_model(tmp_path / "elsewhere")


def test_no_flipped_bit_goes_unnoticed(file: Path) -> None:
    rng, before, content = random.Random(0), read_model(file), file.read_bytes()
    for _ in range(600):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(flipped)
        try:
            after = read_model(file)
        except InputError:
            continue
        assert after.entries == before.entries  # white space
        assert isinstance(after.model, Prompt) and isinstance(before.model, Prompt)
        assert torch.equal(after.model.A, before.model.A) and torch.equal(after.model.B, before.model.B)


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_link_is_followed_and_files_beside_it_stay(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to("real")
    for seed in (1, 2):
        write_model(check_free(tmp_path / "link", overwrite=True), ENTRIES | {"seed": seed}, prompt(seed))
        assert read_model(tmp_path / "real").description.seed == seed
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == ["model.safetensors", "notes.txt"]


def test_the_current_folder_and_long_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in (".", tmp_path / ("x" * 250), tmp_path / ("é" * 127)):
        write_model(check_free(name, overwrite=False), ENTRIES, prompt())
        assert read_model(name)
    with pytest.raises(InputError, match="File name too long"):
        check_free(tmp_path / ("x" * 256), overwrite=False)


def test_a_target_that_cannot_be_written_is_refused_before(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{re.escape(str(file))} exists already"):
        check_free(tmp_path, overwrite=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written|is a file"):
        check_free(tmp_path / "file" / "below", overwrite=True)
    check_free(tmp_path / "deep" / "below", overwrite=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model.safetensors"]  # a check leaves nothing


def test_a_function_of_the_user_is_not_imported(tmp_path: Path) -> None:
    spec = make_spec(rank=2, n_ctx=4, basis="antigravity:fly")
    write_model(tmp_path / "model.safetensors", ENTRIES | {"prompt": spec.prompt_fields()}, prompt())
    described = read_model(tmp_path).description
    assert described.prompt is not None and described.prompt.basis == "antigravity:fly"
    assert "antigravity" not in sys.modules


def test_a_model_on_a_folder_of_weights_can_be_moved_and_so_can_the_folder(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = shutil.copytree(tiny_folder.removeprefix("local-dir:"), tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    backbone = load_backbone("local-dir:weights", device="cpu")
    classifier = Classifier.zero_shot(backbone, NAMES)
    file = classifier.save(tmp_path / "model")
    monkeypatch.chdir(file.parent)
    assert read_model(file).description.backbone.name == f"local-dir:{weights}"
    assert torch.equal(Classifier.load(file, device="cpu").head_.weights, classifier.head_.weights)
    moved = shutil.move(weights, tmp_path / "moved")
    with pytest.raises(InputError, match="cannot load local-dir:.*--pretrained FOLDER"):
        Classifier.load(file, device="cpu")
    for given in (str(moved), f"local-dir:{moved}", "../moved", Path(moved)):
        loaded = Classifier.load(file, pretrained=given, device="cpu")
        assert torch.equal(loaded.head_.weights, classifier.head_.weights)
