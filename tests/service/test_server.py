"""A real server under hostile clients: large, slow, malformed and many requests."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image

from slimprompt.errors import InputError
from slimprompt.service import server
from tests.service.conftest import RED, file_of, form
from tests.service.test_uploads import REFUSED, UNUSABLE


def connected(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def head(length: int, *lines: str) -> bytes:
    fixed = ("POST /predict HTTP/1.1", "Host: localhost", "Content-Type: multipart/form-data; boundary=b")
    return "\r\n".join([*fixed, f"Content-Length: {length}", *lines, "", ""]).encode()


def is_well(client: httpx.Client) -> bool:
    return client.get("/health").status_code == client.post("/predict", files=form(RED)).status_code == 200


def test_large_bodies_are_refused_with_and_without_their_length(start):
    client, service = start(max_upload_mb=0.05)
    assert client.post("/predict", files=form(b"x" * 49_000)).status_code == 415
    response = client.post("/predict", files=form(b"x" * 60_000))
    assert response.status_code == 413 and "more than 0.05 MB" in response.json()["detail"]
    most = [0]

    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            most[0] = max(most[0], service.uploads.n_bytes)
            yield b"x" * 5_000

    response = client.post("/predict", content=chunks(), headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert response.status_code == 413
    assert most[0] <= 50_000 and service.uploads.n_bytes == 0
    assert is_well(client)


def test_malformed_forms_are_not_logged(start, monkeypatch):
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", records.append)
    monkeypatch.setattr(logging.root, "handlers", [handler])
    client, _ = start()
    response = client.post("/predict", content=b"abc", headers={"Content-Type": "multipart/form-data"})
    assert response.status_code == 422
    assert not [record for record in records if record.name.startswith("python_multipart")]


def test_a_client_that_asks_first_sends_nothing(start):
    client, _ = start(max_upload_mb=1)
    with connected(client) as connection:
        connection.sendall(head(50_000_000, "Expect: 100-continue"))
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413") and b"100 Continue" not in answer


def test_an_endless_body_is_cut_off(start):
    client, service = start(max_upload_mb=0.1)
    with connected(client) as connection:
        connection.sendall(head(10**12))
        with pytest.raises(OSError):  # noqa: PT012, the server closes the connection
            while True:
                connection.sendall(b"x" * 100_000)
    assert service.uploads.n_bytes == 0 and is_well(client)


def test_slow_clients_time_out_and_block_nobody(start):
    client, service = start(max_upload_seconds=2)
    slow = [connected(client) for _ in range(40)]
    for connection in slow:
        connection.sendall(head(1000) + b"--b")
    assert is_well(client)
    for connection in slow:
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 408") and b"within 2 s" in answer
        connection.close()
    assert service.uploads.n_bytes == 0 and is_well(client)


def test_connections_that_send_nothing_are_closed(start, monkeypatch):
    monkeypatch.setattr(server, "_IDLE", 1.0)
    client, _ = start()
    silent, half = connected(client), connected(client)
    half.sendall(b"POST /predict HTTP/1.1\r\nHost: loc")
    with silent, half:
        assert read_all(silent) == read_all(half) == b""
    assert is_well(client)


def test_too_many_images_at_once_are_put_off(start, only_prompt):
    client, service = start(max_waiting=2)
    gate, started = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        started.set()
        assert gate.wait(60)

    blocking = service.worker.submit(only_prompt["prompt"].backbone, pixels(), wait)
    assert started.wait(60)
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(client.post("/predict", files=form(RED, RED)).status_code))
    waiting.start()
    while "slimprompt_admitted_images 2" not in client.get("/metrics").text:
        assert waiting.is_alive()
    response = client.post("/predict", files=form(RED))
    assert response.status_code == 429 and response.headers["retry-after"] == "1"
    assert client.get("/health").status_code == 200  # the event loop is free
    gate.set()
    waiting.join(60)
    blocking.result(60)
    assert answers == [200] and is_well(client)


def test_large_images_do_not_delay_small_requests(start):
    """Requests within all limits but the sum of pixels are refused before they are decoded; the largest allowed ones are decoded beside
    small ones, and only a few of them may wait. Decoding one of these images takes about a second.
    """
    client, service = start(max_request_megapixels=50)
    image = file_of(Image.new("RGB", (5000, 5000), "red"), compress_level=1)
    statuses: list[int] = []

    def send(n_images: int) -> None:
        statuses.append(client.post("/predict", files=form(*[image] * n_images)).status_code)

    large = [threading.Thread(target=send, args=(n_images,)) for n_images in (32, 2, 2, 2)]
    for thread in large:
        thread.start()
    seconds = []
    while len(seconds) < 60 and any(thread.is_alive() for thread in large):
        start_time = time.monotonic()
        assert client.post("/predict", files=form(RED)).status_code == 200
        seconds.append(time.monotonic() - start_time)
        time.sleep(0.05)
    for thread in large:
        thread.join(120)
    assert sorted(statuses) == [200, 200, 200, 413]
    assert len(seconds) > 5 and sorted(seconds)[int(0.95 * len(seconds))] < 1.0
    assert service.decoder.n_images == 0 and is_well(client)


def test_only_a_few_large_requests_wait(start):
    client, service = start()
    service.decoder._large_cost = 399e6  # as if they were being decoded
    response = client.post("/predict", files=form(file_of(Image.new("1", (2500, 2500)))))
    assert response.status_code == 429 and response.headers["retry-after"] == "1"
    assert is_well(client)


def pixels():
    return np.zeros((1, 32, 32, 3), np.uint8)


def test_a_hostile_crowd(start):
    """Malformed forms, JSON, images and bytes that are no HTTP, at the same time; every one is refused, the service lives."""
    client, service = start(max_images=3, max_classes=4, max_megapixels=1, max_upload_seconds=5)
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    statuses: list[int] = []

    def forms() -> None:
        for body, _ in UNUSABLE.values():
            statuses.append(client.post("/predict", content=body, headers=kind).status_code)

    def images() -> None:
        for data, status in REFUSED.values():
            found = client.post("/predict", files=form(data)).status_code
            statuses.append(422 if found == status else found)

    def nonsense() -> None:
        nested = b'{"images":' + b"[" * 100_000
        json_kind = {"Content-Type": "application/json"}
        statuses.append(client.post("/predict", content=nested, headers=json_kind).status_code)
        for data in (b"\x00" * 1000, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"A" * 100_000):
            with connected(client) as connection:
                connection.sendall(data)
        with connected(client) as connection:
            connection.sendall(head(1000) + b"--b")  # and leaves

    threads = [threading.Thread(target=work) for work in (forms, images, nonsense) * 3]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert client.get("/health").status_code == 200
    assert set(statuses) == {422} and len(statuses) == 3 * (len(UNUSABLE) + len(REFUSED) + 1)
    assert is_well(client)
    assert service.decoder.n_images == 0


def test_concurrent_requests_have_their_own_answers(start, photos):
    client, _ = start()
    paths = sorted(photos.glob("*/*.png"))
    expected = [client.post("/predict", files=form(path.read_bytes())).json() for path in paths]
    found: dict[int, object] = {}

    def ask(number: int) -> None:
        found[number] = client.post("/predict", files=form(paths[number].read_bytes())).json()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(paths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, answer in enumerate(expected):
        ours, theirs = (json.loads(json.dumps(one))["predictions"][0] for one in (found[number], answer))
        assert ours["answer"] == theirs["answer"]
        assert ours["classes"][0]["probability"] == pytest.approx(theirs["classes"][0]["probability"], abs=1e-4)


def test_addresses():
    with server.bind("127.0.0.1", 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        assert server.address(bound) == f"http://127.0.0.1:{port}" and server.is_loopback(bound)
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1 port {port}"):
            server.bind("127.0.0.1", port)
    with server.bind("0.0.0.0", 0) as bound:
        assert not server.is_loopback(bound)
    with pytest.raises(InputError, match="check --host"):
        server.bind("no.such.host.invalid", 8000)


def test_uploads_are_limited_in_total(start):
    client, service = start(max_upload_mb=0.05)
    service.uploads.n_bytes = 490_000  # as if ten large uploads were under way
    response = client.post("/predict", files=form(b"x" * 20_000))
    assert response.status_code == 503 and response.headers["retry-after"] == "1"
    assert service.uploads.n_bytes == 490_000
    service.uploads.n_bytes = 0
    assert is_well(client)
