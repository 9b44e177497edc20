"""Saved models on the tiny backbone, and a real server on a free port in a thread."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from PIL import Image

from slimprompt import Classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.service.app import create_app
from slimprompt.service.limits import Limits
from slimprompt.service.models import ServedModel, load_models
from slimprompt.service.server import bind, make_server, serve


@pytest.fixture(scope="session")
def saved(tiny: Backbone, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `prompt`, `gda` and `zero-shot`: three classes of discs."""
    root = tmp_path_factory.mktemp("saved")
    images = sorted(photos.glob("*/*.png"))
    labels = [path.parent.name for path in images]
    prompt = Classifier(
        tiny, n_ctx=4, rank=2, recipe={"epochs": 20, "views": 1}, cache=False, calibrate=True, device="cpu"
    )
    prompt.fit(images, labels).save(root / "prompt")
    for method in ("gda", "zero-shot"):
        Classifier(tiny, method=method, cache=False).fit(images, labels).save(root / method)
    return root


@pytest.fixture(scope="session")
def models(saved: Path) -> dict[str, ServedModel]:
    return load_models([saved / name for name in ("prompt", "gda", "zero-shot")], device="cpu")


@pytest.fixture(scope="session")
def only_prompt(models: dict[str, ServedModel]) -> dict[str, ServedModel]:
    return {"prompt": models["prompt"]}


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The address of a running server."""
    server = make_server(app)
    with bind("127.0.0.1", 0) as bound:
        bound.listen(128)
        thread = threading.Thread(target=serve, args=(server, bound))
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def start(only_prompt: dict[str, ServedModel]) -> Iterator[Callable[..., tuple[httpx.Client, Any]]]:
    """Starts a server with the given limits; returns a client and what the handlers share."""
    running = []

    def begin(**limits: Any) -> tuple[httpx.Client, Any]:
        app = create_app(only_prompt, Limits(**limits))
        context = served(app)
        client = httpx.Client(base_url=context.__enter__(), timeout=60, trust_env=False)
        running.append((context, client))
        return client, app.state.service

    yield begin
    for context, client in running:
        client.close()
        context.__exit__(None, None, None)


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


#: A small image file.
RED = file_of(Image.new("RGB", (40, 40), "red"))


def form(*files: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    """The `files` argument of httpx."""
    return [("images", (f"{number}.png", data)) for number, data in enumerate(files)]
