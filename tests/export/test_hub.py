"""Pushing a saved model: one commit with the model and its card, without what should stay on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from slimprompt import Backbone, Classifier, InputError, load_backbone, load_classifier
from slimprompt.export import push, write_hub_folder
from slimprompt.saved import read_model
from tests.conftest import TINY
from tests.export.conftest import NAMES
from tests.hub_server import READ_ONLY, Hub, Repository

HELD_OUT = {"images": 100, "zero_shot": 0.5, "model": 0.8, "chance": 0.25}


@pytest.fixture
def saved(tiny: Backbone, prompt_classifier: Callable[[Backbone], Classifier], tmp_path: Path) -> Path:
    classifier = prompt_classifier(tiny)
    classifier.training_images_ = frozenset({"0" * 16, "1" * 16})
    return classifier.save(tmp_path / "my-prompt", held_out=HELD_OUT, shots=1)


def front_matter(card: str) -> dict[str, object]:
    _, front, _ = card.split("---\n", 2)
    return yaml.safe_load(front)


@pytest.mark.parametrize("lfs_suffixes", [(), (".safetensors",)], ids=["in the commit", "Git LFS"])
def test_pushed_and_loaded_by_its_name(
    lfs_suffixes: tuple[str, ...], saved: Path, local_hub: Hub, tiny: Backbone, images: list[Path]
) -> None:
    local_hub.lfs_suffixes = lfs_suffixes
    found = push(saved, "user/name", licence="cc-by-4.0")
    repository = local_hub.repositories["user/name"]
    assert not repository.private and len(local_hub.objects) == len(lfs_suffixes)
    assert repository.files.keys() - {".gitattributes"} == found.sizes.keys() == {"README.md", "model.safetensors"}
    assert found.sizes == {name: len(repository.files[name]) for name in found.sizes}
    assert found.address == f"{local_hub.address}/user/name/commit/{repository.commits[-1][0]}"
    loaded, local = load_classifier("hf:user/name", backbone=tiny), load_classifier(saved, backbone=tiny)
    assert np.array_equal(loaded.predict_proba(images), local.predict_proba(images))
    assert loaded.calibration_ == local.calibration_
    again = load_classifier(f"hf:user/name@{repository.commits[-1][0]}", backbone=tiny)
    assert again.classes_.tolist() == list(NAMES)


def test_hashes_of_training_images_stay_here(saved: Path, local_hub: Hub, tiny: Backbone) -> None:
    found = push(saved, "user/name")
    pushed = local_hub.repositories["user/name"].files
    assert (found.n_hashes, found.n_left_out) == (0, 2)
    assert not any(("0" * 16).encode() in data for data in pushed.values())
    assert b"| Training images | 2 (up to 1 per class) |" in pushed["README.md"]
    found = push(saved, "user/name", image_hashes=True)
    assert (found.n_hashes, found.n_left_out) == (2, 0)
    assert load_classifier("hf:user/name", backbone=tiny).training_images_ == {"0" * 16, "1" * 16}
    assert len(local_hub.repositories["user/name"].commits) == 3  # with the one that creates it


def test_the_card(saved: Path, tiny: Backbone, tmp_path: Path) -> None:
    found = write_hub_folder(saved, "user/name", tmp_path / "to-push", licence="mit")
    card = (tmp_path / "to-push" / "README.md").read_text(encoding="utf-8")
    assert front_matter(card) == {
        "license": "mit",
        "library_name": "slimprompt",
        "pipeline_tag": "image-classification",
        "tags": ["slimprompt", "clip", "few-shot", "prompt-learning"],
    }
    assert f"| Backbone | {TINY} (random:0, gelu) |" in card and f"`{tiny.fingerprint}`" in card
    # Wilson's interval of 80 of 100
    assert "| Held-out accuracy | 80.0 % (95 % interval 71.1–86.7, 100 images); zero-shot 50.0 % |" in card
    assert "| Recipe | fixed-B orthogonal r2, 4 context tokens, class name at the end; 20 epochs" in card
    assert "blue disc, green disc, red disc, Käse \\& Brot" in card
    assert 'load_classifier("hf:user/name")' in card and "slimprompt predict hf:user/name a.jpg" in card
    assert found.address == "" and not found.is_local_backbone
    assert load_classifier(tmp_path / "to-push", backbone=tiny).classes_.tolist() == list(NAMES)
    with pytest.raises(InputError, match="to-push exists"):
        write_hub_folder(saved, "user/name", tmp_path / "to-push")


def test_paths_of_this_machine_are_not_pushed(
    prompt_classifier: Callable[[Backbone], Classifier], tiny_folder: str, tmp_path: Path
) -> None:
    backbone = load_backbone(tiny_folder, device="cpu")
    saved = prompt_classifier(backbone).save(tmp_path / "my-prompt")
    found = write_hub_folder(saved, "user/name", tmp_path / "to-push")
    assert found.is_local_backbone
    for path in (tmp_path / "to-push").iterdir():
        assert str(Path(tiny_folder.removeprefix("local-dir:")).parent).encode() not in path.read_bytes()
    assert read_model(tmp_path / "to-push").description.backbone.name == "local-dir:tiny"
    assert load_classifier(tmp_path / "to-push", backbone=backbone).classes_.tolist() == list(NAMES)
    folder = tiny_folder.removeprefix("local-dir:")
    assert load_classifier(tmp_path / "to-push", pretrained=folder, device="cpu").classes_.tolist() == list(NAMES)


def test_a_head_replaces_a_prompt(
    saved: Path, local_hub: Hub, tiny: Backbone, images: list[Path], tmp_path: Path
) -> None:
    push(saved, "user/name")
    labels = [path.parent.name for path in images]
    head = Classifier(tiny, method="gda", views=0, cache=False).fit(images, labels).save(tmp_path / "my-head")
    push(head, "user/name")
    files = local_hub.repositories["user/name"].files
    assert files.keys() == {".gitattributes", "README.md", "model.safetensors"}
    assert load_classifier("hf:user/name", backbone=tiny).method_ == "gda"
    card = files["README.md"].decode()  # of a head that was not evaluated
    assert "license" not in front_matter(card) and "| Licence | not stated |" in card
    assert "| Held-out accuracy | not measured |" in card and "| Recipe | gda, alpha" in card
    assert f"| Training images | {len(images)} |" in card


def test_repositories_that_are_refused(saved: Path, local_hub: Hub) -> None:
    other = local_hub.repositories["user/bert"] = Repository()
    other.commit({"README.md": b"# BERT", "config.json": b"{}"})
    with pytest.raises(InputError, match="user/bert exists and holds no saved model, so it is left alone"):
        push(saved, "user/bert")
    assert len(other.commits) == 1
    push(saved, "user/public")
    with pytest.raises(InputError, match="user/public exists and is public, so nothing was pushed"):
        push(saved, "user/public", private=True)
    assert len(local_hub.repositories["user/public"].commits) == 2
    push(saved, "user/hidden", private=True)
    assert local_hub.repositories["user/hidden"].private
    with pytest.raises(InputError, match="'name' is not the name of a repository on the hub"):
        push(saved, "name")


def test_problems_are_one_line(saved: Path, local_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no saved model at"):
        push(tmp_path / "nothing", "user/name")
    with pytest.raises(InputError, match=r"licence 'MIT License': expected an identifier"):
        push(saved, "user/name", licence="MIT License")
    assert not local_hub.requests  # before anything is sent
    with pytest.raises(InputError, match=r'user/name: Invalid metadata.*"license" must be one of'):
        push(saved, "user/name", licence="nonsense")
    monkeypatch.setenv("HF_TOKEN", READ_ONLY)
    with pytest.raises(InputError, match=r"the hub refuses access to user/other .*hf auth login"):
        push(saved, "user/other")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(InputError, match="hf auth login"):
        push(saved, "user/other")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(InputError, match="user/other: the hub cannot be reached"):
        push(saved, "user/other")
    saved.write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"model.safetensors is damaged"):
        push(saved, "user/name")
