"""Models on the hub: downloaded once, checked like local ones, used offline; every problem is one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from slimprompt import Classifier, InputError, Prompt, load_classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.hub import FILE, model_folder
from slimprompt.prompts.spec import make_spec
from tests.hub_server import READ_ONLY, Hub, Repository, go_offline, use_hub

NAMES = ["otter", "red panda"]


@pytest.fixture(scope="module")
def saved(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    prompt = Prompt(torch.eye(4, 2), 0.1 * torch.ones(2, tiny.text_width), trainable="A")
    classifier = Classifier.of_prompt(tiny, prompt, make_spec(rank=2, n_ctx=4), NAMES)
    return classifier.save(tmp_path_factory.mktemp("saved")).read_bytes()


def downloads(hub: Hub) -> list[str]:
    return [request for request in hub.requests if request.startswith("GET") and "/resolve/" in request]


@pytest.fixture
def there(local_hub: Hub, saved: bytes) -> Repository:
    """`user/name`: a prompt beside files that nobody asked for."""
    repository = local_hub.repositories["user/name"] = Repository()
    repository.commit({FILE: saved, "README.md": b"# name", "pytorch_model.bin": b"pickle"})
    return repository


def test_a_model_by_its_name(there: Repository, local_hub: Hub, tiny: Backbone) -> None:
    classifier = load_classifier("hf:user/name", backbone=tiny)
    assert classifier.classes_.tolist() == NAMES
    assert torch.equal(classifier.prompt_.A.detach(), 0.1 * torch.ones(2, tiny.text_width))
    assert {request.rpartition("/")[2] for request in local_hub.requests if "/resolve/" in request} == {FILE}


def test_a_revision_and_a_newer_version(there: Repository, local_hub: Hub, saved: bytes) -> None:
    first = model_folder(Path("hf:user/name"))
    assert model_folder("hf:user/name") == first
    assert len(downloads(local_hub)) == 1  # not again
    there.commit({**there.files, FILE: b"newer"})
    assert (model_folder("hf:user/name") / FILE).read_bytes() == b"newer"
    assert model_folder(f"hf:user/name@{there.commits[0][0]}") == first
    assert (first / FILE).read_bytes() == saved


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


def test_a_connection_that_is_lost_during_the_download(
    there: Repository, local_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is known by then; whether there is an older copy decides, not that the newer one is missing."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    local_hub.broken = re.compile("^GET .*/resolve/")
    with pytest.raises(InputError, match="was not downloaded before and the hub cannot be reached .*connection"):
        model_folder("hf:user/name")
    local_hub.broken = None
    folder = model_folder("hf:user/name")
    there.commit({**there.files, FILE: b"newer"})
    local_hub.broken = re.compile("^GET .*/resolve/")
    with pytest.warns(UserWarning, match="using hf:user/name as it was downloaded before"):
        assert model_folder("hf:user/name") == folder


@pytest.mark.filterwarnings("ignore:the hub cannot be reached")
def test_a_connection_that_is_lost_after_the_size_is_known(
    there: Repository, local_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub calls this a missing entry."""
    from huggingface_hub import get_hf_file_metadata

    def then_lost(address: str) -> object:
        found = get_hf_file_metadata(address)
        local_hub.broken = re.compile("/resolve/")
        return found

    folder = model_folder("hf:user/name")
    local_hub.repositories["user/other"] = there
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", then_lost)
    assert model_folder("hf:user/name") == folder
    local_hub.broken = None
    with pytest.raises(InputError, match="was not downloaded before and the hub cannot be reached .*connection"):
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
    refuse("hf:user/bert", "hf:user/bert holds no saved model: expected model.safetensors")
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


def test_a_large_file_is_not_downloaded(there: Repository, local_hub: Hub) -> None:
    local_hub.sizes[FILE] = 600 * 10**6
    with pytest.raises(InputError, match=f"{FILE} has 600 MB and is not downloaded: the limit is 512 MB"):
        model_folder("hf:user/name")
    assert not downloads(local_hub)


def test_a_cache_that_cannot_be_written_is_no_lost_connection(
    there: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    with pytest.raises(OSError, match="No space left"):
        model_folder("hf:user/name")


def test_a_downloaded_model_is_checked_like_a_local_one(there: Repository, saved: bytes, tiny: Backbone) -> None:
    for changed in (saved.replace(b"otter", b"hotel"), saved[:-1], b"\x80\x04."):
        there.commit({FILE: changed})
        with pytest.raises(InputError, match=f"{FILE} is damaged"):
            load_classifier("hf:user/name", backbone=tiny)
