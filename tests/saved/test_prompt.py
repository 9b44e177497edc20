"""Saved prompts: every damage is one line that names the file and the field, and a save survives at every point."""

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from slimprompt.saved.files import describe_backbone
from slimprompt.saved.prompt import PROMPT_FILES, read_prompt, write_prompt

from slimprompt import Prompt, PromptClassifier, load_backbone
from slimprompt.errors import InputError
from slimprompt.files import sha256

COMPAT = Path(__file__).parents[1] / "compat" / "prompts"
ENTRIES = {
    "class_names": ["otter", "red panda"],
    "backbone": {"name": "pocket", "pretrained": None, "activation": "gelu", "fingerprint": "0" * 64},
    "variant": "fixed-B",
    "basis": "orthogonal",
    "position": "end",
    "recipe": {"epochs": 3},
    "seed": 1,
}


def prompt(seed=0, n_ctx=4, rank=2, width=8):
    generator = torch.Generator().manual_seed(seed)
    factors = (torch.randn(shape, generator=generator) for shape in ((n_ctx, rank), (rank, width)))
    return Prompt(*factors, trainable="A")


@pytest.fixture
def folder(tmp_path):
    write_prompt(tmp_path / "prompt", ENTRIES, prompt())
    return tmp_path / "prompt"


def rewrite(folder, *, checksum=False, **changes):
    """Change entries of prompt.json, as in a file of version 0.1, which has no checksum."""
    path = folder / "prompt.json"
    entries = json.loads(path.read_text()) | changes
    if not checksum:
        del entries["checksum"]
    path.write_text(json.dumps(entries))


def refuse(folder, *parts):
    with pytest.raises(InputError) as caught:
        read_prompt(folder)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    for part in parts:
        assert part in message
    return message


def test_a_prompt_comes_back_as_it_was_written(folder):
    description, entries, back = read_prompt(folder)
    assert (description.rank, description.n_ctx, description.trains) == (2, 4, "A")
    assert description.class_names == ENTRIES["class_names"]
    assert entries["recipe"] == {"epochs": 3}
    assert torch.equal(back.A, prompt().A) and torch.equal(back.B, prompt().B)
    assert sorted(path.name for path in folder.iterdir()) == ["prompt.json", "prompt.safetensors"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("class_names", "otter"),
        ("class_names", []),
        ("class_names", ["otter", "otter"]),
        ("class_names", ["otter", "Otter"]),
        ("class_names", ["red panda", "red_panda"]),
        ("class_names", ["otter", "a\x00b"]),
        ("class_names", ["otter", "<|endoftext|>"]),
        ("class_names", ["otter", ""]),
        ("class_names", ["otter", 7]),
        ("rank", 0),
        ("rank", "2"),
        ("rank", 2.0),
        ("rank", 5),
        ("n_ctx", None),
        ("trains", "B"),
        ("trains", "C"),
        ("variant", "fixed-C"),
        ("basis", None),
        ("position", "last"),
        ("recipe", {"epochs": 0}),
        ("recipe", {"epoch": 3}),
        ("recipe", None),
        ("seed", "one"),
        ("backbone", "pocket"),
        ("backbone", {"name": "pocket", "pretrained": None, "fingerprint": "short"}),
        ("templates", "a photo of a {}."),
        ("imported", 3),
        ("temperature", 0),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("confidences", [0.5, 1.5]),
        ("confidences", 0.5),
        ("training_images", ["0" * 16]),
        ("training_images", "0" * 15),
        ("format", "one"),
        ("slimprompt", None),
    ],
    ids=str,
)
def test_a_wrong_entry_is_named_also_without_a_checksum(folder, field, value):
    rewrite(folder, **{field: value})
    refuse(folder, str(folder / "prompt.json"), "damaged", field)


def test_a_missing_entry_is_named(folder):
    for name in ("class_names", "variant", "factors_sha256", "backbone", "format"):
        copy = shutil.copytree(folder, folder.parent / name)
        entries = json.loads((copy / "prompt.json").read_text())
        del entries[name]
        (copy / "prompt.json").write_text(json.dumps(entries))
        refuse(copy, "prompt.json", name)


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, '{"format": 1}', "\x00", '"prompt"'])
def test_a_description_that_is_none(folder, text):
    (folder / "prompt.json").write_text(text)
    refuse(folder, "prompt.json is damaged")


def test_a_changed_entry_does_not_match_the_checksum(folder):
    rewrite(folder, checksum=True, class_names=["otter", "giant panda"])
    refuse(folder, "prompt.json is damaged: checksum")


def test_a_newer_format_asks_for_an_update(folder):
    rewrite(folder, format=2)
    refuse(folder, "prompt format 2", "update it")


def with_factors(folder, **factors):
    """Other factors with the right hash, so that only their content is wrong."""
    data = save(load((folder / "prompt.safetensors").read_bytes()) | factors)
    (folder / "prompt.safetensors").write_bytes(data)
    rewrite(folder, factors_sha256=sha256(data))


@pytest.mark.parametrize(
    ("name", "factor", "message"),
    [
        ("A", torch.full((2, 8), float("nan")), "not finite"),
        ("B", torch.full((4, 2), float("inf")), "not finite"),
        ("A", torch.full((2, 8), 1e30), "largest number is 1.0e+30"),
        ("A", torch.zeros(3, 8), "its shape is (3, 8), but prompt.json says (2, width)"),
        ("B", torch.zeros(5, 2), "its shape is (5, 2), but prompt.json says (4, 2)"),
        ("B", torch.zeros(8), "its shape is (8,)"),
        ("A", torch.zeros(2, 8, dtype=torch.int64), "torch.int64"),
    ],
    ids=str,
)
def test_factors_that_cannot_be_used(folder, name, factor, message):
    with_factors(folder, **{name: factor})
    refuse(folder, "prompt.safetensors is damaged", f"{name}: ", message)


def test_damaged_factors(folder):
    path = folder / "prompt.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:-1] + b"\xff", b""):
        path.write_bytes(content)
        refuse(folder, "prompt.safetensors is damaged")
        rewrite_hash = shutil.copytree(folder, folder.parent / str(len(content)), dirs_exist_ok=True)
        if content != whole[:-1] + b"\xff":  # a hash that fits does not make it a tensor file
            rewrite(rewrite_hash, factors_sha256=sha256(content))
            refuse(rewrite_hash, "prompt.safetensors is damaged")
    path.unlink()
    refuse(folder, "prompt.safetensors is damaged: No such file")


def test_no_flipped_bit_goes_unnoticed(folder):
    rng, before = random.Random(0), read_prompt(folder)
    for name in ("prompt.json", "prompt.safetensors"):
        content = (folder / name).read_bytes()
        for _ in range(300):
            flipped = bytearray(content)
            flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            (folder / name).write_bytes(flipped)
            try:
                after = read_prompt(folder)
            except InputError:
                continue
            # white space, or the name of the checksum, which then is one more entry
            assert after.entries.items() >= before.entries.items()
            assert torch.equal(after.prompt.A, before.prompt.A) and torch.equal(after.prompt.B, before.prompt.B)
        (folder / name).write_bytes(content)


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_replaced_prompt_keeps_the_files_beside_it(folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "figures").mkdir()
    PROMPT_FILES.check_free(folder, overwrite=True)
    write_prompt(folder, ENTRIES | {"seed": 2}, prompt(1))
    assert read_prompt(folder).description.seed == 2
    expected = ["figures", "notes.txt", "prompt.json", "prompt.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == expected


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_is_followed(tmp_path, there):
    if there:
        write_prompt(tmp_path / "real", ENTRIES, prompt())
    (tmp_path / "link").symlink_to("real")
    PROMPT_FILES.check_free(tmp_path / "link", overwrite=True)
    write_prompt(tmp_path / "link", ENTRIES | {"seed": 2}, prompt(1))
    assert (tmp_path / "link").is_symlink()
    assert read_prompt(tmp_path / "real").description.seed == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_the_current_folder_and_long_names(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    PROMPT_FILES.check_free(Path("."), overwrite=False)
    write_prompt(Path("."), ENTRIES, prompt())
    assert read_prompt(Path(".")).description.rank == 2
    for name in ("x" * 250, "é" * 127):
        PROMPT_FILES.check_free(tmp_path / name, overwrite=False)
        write_prompt(tmp_path / name, ENTRIES, prompt())
        assert read_prompt(tmp_path / name)
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        PROMPT_FILES.check_free(tmp_path / ("x" * 256), overwrite=False)


def test_a_target_that_cannot_be_written_is_refused_before(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        PROMPT_FILES.check_free(tmp_path / "file", overwrite=True)
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        PROMPT_FILES.check_free(tmp_path / "file" / "below", overwrite=True)
    PROMPT_FILES.check_free(tmp_path / "deep" / "below", overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # a check leaves nothing


def test_a_killed_first_save_into_an_empty_folder_can_be_repeated(folder):
    pending = (folder / "prompt.json").rename(folder / "prompt.json.new")
    assert read_prompt(folder).description.seed == 1  # killed before the last rename: the prompt is complete
    with pytest.raises(InputError, match="already holds a saved prompt"):
        PROMPT_FILES.check_free(folder, overwrite=False)
    (folder / "prompt.safetensors").unlink()
    PROMPT_FILES.check_free(folder, overwrite=False)  # killed before that: there is nothing yet
    write_prompt(folder, ENTRIES, prompt())
    assert read_prompt(folder) and not pending.exists()


def test_a_damaged_pending_description_does_not_hide_the_prompt(folder):
    for text in ("", "{}", "[1]"):
        (folder / "prompt.json.new").write_text(text)
        assert read_prompt(folder).description.seed == 1


def test_a_prompt_on_a_basis_of_your_own_loads_without_its_code(tmp_path):
    write_prompt(tmp_path / "prompt", ENTRIES | {"basis": "antigravity:fly"}, prompt())
    assert read_prompt(tmp_path / "prompt").description.basis == "antigravity:fly"
    assert "antigravity" not in sys.modules


def test_a_prompt_on_a_folder_of_weights_can_be_moved_and_so_can_the_folder(tiny_folder, tmp_path, monkeypatch):
    weights = shutil.copytree(tiny_folder.removeprefix("local-dir:"), tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    backbone = load_backbone("local-dir:weights", device="cpu")
    classifier = PromptClassifier(backbone, rank=2, n_ctx=4, cache=False)
    folder = classifier.set_prompt(backbone, classifier.start(backbone), ["otter", "red panda"]).save(
        tmp_path / "prompt"
    )
    monkeypatch.chdir(folder)
    assert read_prompt(folder).description.backbone.name == f"local-dir:{weights}"
    features = PromptClassifier.load(folder, device="cpu").class_features_
    assert torch.equal(features, classifier.class_features_)
    moved = shutil.move(weights, tmp_path / "moved")
    with pytest.raises(InputError, match="cannot load local-dir:.*--pretrained FOLDER"):
        PromptClassifier.load(folder, device="cpu")
    for given in (str(moved), f"local-dir:{moved}", "../moved", Path(moved)):
        assert torch.equal(PromptClassifier.load(folder, pretrained=given, device="cpu").class_features_, features)


def test_a_weight_file_is_found_from_another_working_directory(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(tiny.model.state_dict(), "weights.pt")
    backbone = load_backbone(tiny.name, "weights.pt", activation=tiny.activation, device="cpu")
    assert describe_backbone(backbone)["pretrained"] == str(tmp_path / "weights.pt")
    Path("openai").mkdir()
    Path("weights.pt").rename("openai/weights")
    backbone = load_backbone(tiny.name, "openai/weights", activation=tiny.activation, device="cpu")
    assert describe_backbone(backbone)["pretrained"] == str(tmp_path / "openai/weights")
    assert describe_backbone(tiny)["pretrained"] == "random:0"
