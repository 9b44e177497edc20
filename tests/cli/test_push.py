"""`slimprompt push`, and `hf:user/name` in the commands that read a saved model."""

import json
import os
import subprocess
import sys

import pytest

from slimprompt.saved import read_model
from tests.cli.conftest import QUICK, failed, ok
from tests.hub_server import TOKEN

SEVERAL = """
import json, sys
from slimprompt.cli import main
first, second = json.loads(sys.argv[1])
sys.argv[1:] = first
try:
    main()
except SystemExit as stop:
    assert not stop.code
print("----")
sys.argv[1:] = second
main()
"""


@pytest.fixture(scope="module")
def saved(run, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "my-prompt"
    ok(run("fit", photos, "--out", folder, "--shots", "2", *QUICK))
    return folder


def test_push_then_use_by_name(run, saved, photos, local_hub, tmp_path):
    shown = ok(run("push", saved, "user/name", "--private", "--license", "mit"))
    assert "pushed: README.md" in shown and "model.safetensors" in shown
    assert "left out: short hashes of 6 training images" in shown
    assert f"{local_hub.address}/user/name/commit/" in shown and "slimprompt predict hf:user/name a.jpg" in shown
    card = local_hub.repositories["user/name"].files["README.md"].decode()
    accuracy = read_model(saved).entries["held_out"]["model"]
    assert f"| Held-out accuracy | {100 * accuracy:.1f} % (95 % interval" in card and "12 images" in card

    image = photos / "red disc" / "0.png"
    answers = [ok(run("predict", model, image)) for model in (saved, "hf:user/name", "hf:user/name@main")]
    assert answers[0] == answers[1] == answers[2]
    local, named = (
        json.loads(ok(run("evaluate", model, photos, "--format", "json"))) for model in (saved, "hf:user/name")
    )
    assert local["model"] == named["model"]
    assert (local["training_images"], named["training_images"]) == (6, None)  # the hashes were not pushed
    ok(run("export", "hf:user/name", "--matrix", tmp_path / "m.safetensors"))
    failed(run("predict", "hf:user/none", image), "hf:user/none is not on the hub, or it is private")
    failed(run("push", saved, "name"), "'name' is not the name of a repository on the hub: expected user/name")


def test_dry_run_sends_nothing(run, saved, photos, local_hub, tmp_path):
    shown = ok(run("push", saved, "user/name", "--image-hashes", "--dry-run", tmp_path / "to-push"))
    assert "would be pushed: README.md" in shown and "with short hashes of 6 training images" in shown
    assert not local_hub.requests
    image = photos / "red disc" / "0.png"
    assert ok(run("predict", tmp_path / "to-push", image)) == ok(run("predict", saved, image))
    failed(run("push", saved, "user/name", "--dry-run", tmp_path / "to-push"), "to-push exists")


@pytest.mark.slow
def test_in_a_process_of_its_own(photos, local_hub, tmp_path):
    """With the address, the token and the cache from the environment, as users have them."""
    from slimprompt import PromptClassifier

    paths = sorted(photos.glob("*/*.png"))
    labels = [path.parent.name for path in paths]
    classifier = PromptClassifier("pocket", device="cpu", cache=False, recipe={"epochs": 1, "views": 0})
    classifier.fit(paths, labels).save(tmp_path / "my-prompt")
    settings = {"HF_ENDPOINT": local_hub.address, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
    environment = {**os.environ, **settings, "HF_HUB_DISABLE_XET": "1"}

    commands = [
        ["push", tmp_path / "my-prompt", "user/name"],
        ["predict", "hf:user/name", paths[0], "--format", "json"],
    ]
    lines = [[str(word) for word in command] for command in commands]
    result = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(lines)], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    pushed, found = result.stdout.split("----\n")
    assert "pushed: README.md" in pushed
    assert json.loads(found)[0]["answer"] == classifier.predict([paths[0]])[0]
    assert (tmp_path / "home" / "hub" / "models--user--name").is_dir()
