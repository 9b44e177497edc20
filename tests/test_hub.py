"""Models on the hub: downloaded once, checked like local ones, used offline; every problem is one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from slimprompt import HeadClassifier, InputError, Prompt, PromptClassifier, load_classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.hub import model_folder
from tests.hub_server import READ_ONLY, Hub, Repository, go_offline, use_hub

NAMES = ["otter", "red panda"]


@pytest.fixture(scope="module")
def saved(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompt = Prompt(torch.eye(4, 2), 0.1 * torch.ones(2, tiny.text_width), trainable="A")
    classifier = PromptClassifier(tiny, rank=2, n_ctx=4).set_prompt(tiny, prompt, NAMES)
    return classifier.save(tmp_path_factory.mktemp("saved") / "prompt")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def downloads(hub: Hub) -> list[str]:
    return [request for request in hub.requests if request.startswith("GET") and "/resolve/" in request]


@pytest.fixture
def there(local_hub: Hub, saved: Path) -> Repository:
    """`user/name`: a prompt beside files that nobody asked for."""
    repository = local_hub.repositories["user/name"] = Repository()
    repository.commit({**files_of(saved), "README.md": b"# name", "pytorch_model.bin": b"pickle"})
    return repository


@pytest.mark.parametrize("load", [PromptClassifier.load, load_classifier])
def test_a_prompt_by_its_name(load, there: Repository, local_hub: Hub, saved: Path, tiny: Backbone) -> None:
    classifier = load("hf:user/name", backbone=tiny)
    assert classifier.classes_.tolist() == NAMES
    assert torch.equal(classifier.prompt_.A, PromptClassifier.load(saved, backbone=tiny).prompt_.A)
    assert sorted(path.name for path in model_folder("hf:user/name").iterdir()) == ["prompt.json", "prompt.safetensors"]
    asked = {request.rpartition("/")[2] for request in local_hub.requests if "/resolve/" in request}
    assert asked == {"prompt.json", "prompt.safetensors"}


def test_a_revision_and_a_newer_version(there: Repository, local_hub: Hub, saved: Path) -> None:
    first = model_folder(Path("hf:user/name"))
    assert len(downloads(local_hub)) == 2
    assert model_folder("hf:user/name") == first
    assert len(downloads(local_hub)) == 2  # not again
    there.commit({**there.files, "prompt.json": b"{}"})
    assert (model_folder("hf:user/name") / "prompt.json").read_bytes() == b"{}"
    assert model_folder(f"hf:user/name@{there.commits[0][0]}") == first
    assert (first / "prompt.json").read_bytes() == (saved / "prompt.json").read_bytes()


def test_a_head_by_its_name(local_hub: Hub, tiny: Backbone, tmp_path: Path) -> None:
    head = HeadClassifier("zero-shot", tiny, views=0, cache=False)
    images = [tmp_path / "a.png", tmp_path / "b.png"]
    from PIL import Image

    for path, colour in zip(images, ("red", "blue"), strict=True):
        Image.new("RGB", (32, 32), colour).save(path)
    folder = head.fit(images, NAMES).save(tmp_path / "head")
    local_hub.repositories["user/head"] = Repository()
    local_hub.repositories["user/head"].commit(files_of(folder))
    loaded = load_classifier("hf:user/head", backbone=tiny)
    assert isinstance(loaded, HeadClassifier) and loaded.predict(images).tolist() == head.predict(images).tolist()


@pytest.mark.parametrize("offline", ["unreachable", "broken", "HF_HUB_OFFLINE"])
def test_offline_use(offline: str, there: Repository, local_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder("hf:user/name")
    if offline == "HF_HUB_OFFLINE":
        go_offline(monkeypatch)
        assert model_folder("hf:user/name") == folder  # as asked for: no note
    else:
        if offline == "unreachable":
            use_hub("http://127.0.0.1:1", monkeypatch)
        else:
            local_hub.failing = True
        with pytest.warns(UserWarning, match="hub cannot be reached: using hf:user/name as it was downloaded before"):
            assert model_folder("hf:user/name") == folder
    with pytest.raises(InputError, match="hf:user/other was not downloaded before and the hub cannot be reached"):
        model_folder("hf:user/other")


def test_problems_are_one_line(there: Repository, local_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *parts: str) -> None:
        with pytest.raises(InputError) as caught:
            model_folder(name)
        message = str(caught.value)
        assert "\n" not in message and len(message) < 400, message
        for part in parts:
            assert part in message, message

    refuse("hf:user/none", "hf:user/none is not on the hub, or it is private", "hf auth login")
    refuse("hf:user/name@v9", "hf:user/name@v9", "no such branch, tag or commit")
    local_hub.repositories["user/bert"] = Repository()
    local_hub.repositories["user/bert"].commit({"config.json": b"{}"})
    refuse("hf:user/bert", "holds no saved model: expected prompt.json or head.json")
    local_hub.repositories["user/half"] = Repository()
    local_hub.repositories["user/half"].commit({"prompt.json": b"{}"})
    refuse("hf:user/half", "holds prompt.json but no prompt.safetensors")
    there.gated = True
    refuse("hf:user/name", "no access to hf:user/name", "ask for access")
    there.gated, there.private = False, True
    monkeypatch.setenv("HF_TOKEN", READ_ONLY)
    assert model_folder("hf:user/name").is_dir()
    monkeypatch.delenv("HF_TOKEN")
    refuse("hf:user/name", "is not on the hub, or it is private")
    for name in ("hf:name", "hf:", "hf:../etc", "hf:a/b/c", "hf:user/na me", "hf:user/..", "hf:user/a--b"):
        refuse(name, "is not the name of a repository on the hub: expected user/name")
    for name in ("hf:user/name@", "hf:user/name@../x", "hf:user/name@a b"):
        refuse(name, "expected a branch, a tag or a commit after '@'")


@pytest.mark.parametrize(("name", "size"), [("prompt.json", 17 * 10**6), ("prompt.safetensors", 600 * 10**6)])
def test_large_files_are_not_downloaded(name: str, size: int, there: Repository, local_hub: Hub) -> None:
    local_hub.sizes[name] = size
    with pytest.raises(InputError, match=f"{name} has {size // 10**6} MB and is not downloaded: the limit"):
        model_folder("hf:user/name")
    assert not downloads(local_hub)


def test_a_downloaded_prompt_is_checked_like_a_local_one(
    there: Repository, saved: Path, tiny: Backbone, tmp_path: Path
) -> None:
    good = files_of(saved)
    other_names = json.loads(good["prompt.json"]) | {"class_names": ["otter", "cat"]}
    damaged = {
        "prompt.json is damaged: checksum": {"prompt.json": json.dumps(other_names).encode()},
        "prompt.safetensors is damaged": {"prompt.safetensors": good["prompt.safetensors"][:-1]},
        "prompt.json is damaged": {"prompt.json": b"\x80\x04."},
    }
    for message, changed in damaged.items():
        there.commit({**good, **changed})
        with pytest.raises(InputError, match=message) as remote:
            load_classifier("hf:user/name", backbone=tiny)
        local = tmp_path / "local"
        shutil.rmtree(local, ignore_errors=True)
        local.mkdir()
        for name, data in {**good, **changed}.items():
            (local / name).write_bytes(data)
        with pytest.raises(InputError, match=message) as expected:
            load_classifier(local, backbone=tiny)
        tail = str(expected.value).partition(" is damaged")[2]
        assert str(remote.value).endswith(tail)
