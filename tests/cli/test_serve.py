"""`slimprompt serve`: start, answers equal to `predict`, stop by signals, addresses and tokens."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from slimprompt import Classifier
from slimprompt.cli.serve import read_token
from slimprompt.clip.backbone import load_backbone
from slimprompt.errors import InputError
from slimprompt.service.server import bind
from tests.cli.conftest import failed, ok
from tests.fork_server import start_command

TOKEN = "a-token-of-20-letters"


@pytest.fixture(scope="module")
def model(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prompt on the embedded model, which every process can load."""
    folder = tmp_path_factory.mktemp("models") / "discs"
    images = sorted(photos.glob("*/[01].png"))
    classifier = Classifier(
        load_backbone("pocket", device="cpu"), recipe={"epochs": 1, "views": 0}, n_ctx=4, cache=False
    )
    return classifier.fit(images, [path.parent.name for path in images]).save(folder)


class Serving:
    """A running command with its address."""

    def __init__(self, *arguments: object, true_start: bool = False, **variables: str) -> None:
        words = ["serve", *map(str, arguments), "--port", "0", "--device", "cpu"]
        environment = os.environ | variables
        self.process = (start_python if true_start else start_command)(words, environment=environment)
        self.printed = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if found := re.search(r"listening on http://\S+:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise AssertionError(self.process.communicate()[1])


def start_python(words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """The command by a true start of Python."""
    command = [sys.executable, "-c", "from slimprompt.cli import main; main()", *words]
    source = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command, env=environment | source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def serving() -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(*arguments: object, **options: Any) -> Serving:
        started.append(Serving(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.mark.slow
def test_the_answers_of_predict_and_a_clean_stop(serving, run, model, photos):
    image = next(photos.glob("red*/3.png"))
    (expected,) = json.loads(ok(run("predict", model, image, "--top", 2, "--format", "json", "--device", "cpu")))
    service = serving(model, true_start=True)
    assert "discs: prompt, 3 classes, pocket (GELU)" in service.printed and "Everyone" not in service.printed
    url = f"http://127.0.0.1:{service.port}"
    answer = httpx.post(f"{url}/predict", files={"images": image.read_bytes()}, data={"top": 2}).json()
    (row,) = answer["predictions"]
    assert {**row, "image": ""} == {**expected, "image": "", "error": None}
    assert httpx.get(f"{url}/health", headers={"Host": "evil.example"}).status_code == 400
    stop_during_a_request(service, signal.SIGTERM, image.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_stop_it_too(serving, model, photos, number):
    stop_during_a_request(serving(model), number, next(photos.glob("*/*.png")).read_bytes())


def stop_during_a_request(service: Serving, number: int, image: bytes) -> None:
    """The signal arrives while a request is being sent; it is answered before the command ends."""
    body = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n' + image + b"\r\n--b--\r\n"
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(head.encode() + b"Content-Type: multipart/form-data; boundary=b\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100")  # the request is running
        service.process.send_signal(number)
        while _accepts(service.port):  # until the signal has been noticed
            time.sleep(0.01)
        assert service.process.poll() is None
        connection.sendall(body)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200") and b'"answer"' in answer
    _, errors = service.process.communicate(timeout=60)
    assert service.process.returncode == 128 + number
    assert "stopped: requests that had begun were answered" in errors and "Traceback" not in errors


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_other_addresses_and_tokens(serving, model, tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    service = serving(model, "--host", "0.0.0.0")
    assert "Everyone who can reach this machine can use the service" in service.printed
    guarded = serving(
        model, "--host", "0.0.0.0", "--token-file", tmp_path / "token", SLIMPROMPT_TOKEN="another-token-here"
    )
    assert "Everyone" not in guarded.printed and TOKEN not in guarded.printed
    for one, token, status in (
        (service, "", 200),
        (guarded, "", 401),
        (guarded, TOKEN, 200),
        (guarded, "another-token-here", 401),
    ):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        assert httpx.get(f"http://127.0.0.1:{one.port}/classes", headers=headers).status_code == status


def test_tokens_from_file_and_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("SLIMPROMPT_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("SLIMPROMPT_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    for text in ("short", "with a space inside it", "ünïcödé-töken-of-letters", ""):
        (tmp_path / "token").write_text(text)
        with pytest.raises(InputError, match="at least 16 printable ASCII"):
            read_token(tmp_path / "token")


def test_errors_before_anything_is_loaded(run, model, tmp_path):
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        failed(run("serve", model, "--port", port), f"cannot listen on 127.0.0.1 port {port}", "--port")
    failed(run("serve", tmp_path, "--port", 0), "no saved model at")
    failed(run("serve", model, "--max-images", 0), "max_images", "greater than or equal to 1")
    failed(run("serve", model, "--max-upload-mb", "inf"), "max_upload_mb: Input should be a finite number")
    failed(run("serve", model, "--token-file", tmp_path / "nothing"), "nothing")
    assert run("serve", model, "--token", TOKEN).returncode == 2  # other users see command lines


def test_a_missing_package_is_one_line(run, model, monkeypatch):
    for name in [
        name for name in sys.modules if name.split(".")[0] == "uvicorn" or name.startswith("slimprompt.service")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    failed(run("serve", model), "pip install 'slimprompt[serve]'")
    assert "--max-upload-mb" in ok(run("serve", "--help"))
