"""The worker: images of several requests in one batch, errors that concern one request, a clean stop."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.images.encoding import encode_pixels
from slimprompt.service.batching import Worker


def pixels(n_images: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n_images, 32, 32, 3), dtype=np.uint8)


class Blocked:
    """A worker that is busy with a first request until `release`."""

    def __init__(self, backbone: Backbone, batch_size: int) -> None:
        self.batches: list[int] = []
        self.gate, self.started = threading.Event(), threading.Event()
        self.worker = Worker(batch_size, lambda: 100, self.batches.append)
        self.worker.start()

        def wait(_: torch.Tensor) -> None:
            self.started.set()
            assert self.gate.wait(60)

        self.first = self.worker.submit(backbone, pixels(1, 0), wait)
        assert self.started.wait(60)

    def release(self) -> None:
        self.gate.set()
        self.first.result(60)


@pytest.mark.parametrize(("batch_size", "expected"), [(32, [1, 6]), (4, [1, 4, 2]), (3, [1, 3, 3])])
def test_requests_that_wait_are_encoded_together(tiny: Backbone, batch_size: int, expected: list[int]) -> None:
    busy = Blocked(tiny, batch_size)
    jobs = [pixels(n, seed) for seed, n in enumerate((3, 1, 2))]
    futures = [busy.worker.submit(tiny, job, lambda features: features.clone()) for job in jobs]
    assert busy.worker.n_waiting == 3
    busy.release()
    for job, future in zip(jobs, futures, strict=True):
        torch.testing.assert_close(future.result(60), encode_pixels(tiny, job), atol=1e-5, rtol=0)
    busy.worker.stop()
    assert busy.batches == expected


def test_an_error_concerns_its_request_alone(tiny: Backbone) -> None:
    busy = Blocked(tiny, 32)

    def refuse(_: torch.Tensor) -> None:
        raise InputError("no")

    good, bad = busy.worker.submit(tiny, pixels(1, 1), len), busy.worker.submit(tiny, pixels(1, 2), refuse)
    busy.release()
    assert good.result(60) == 1
    with pytest.raises(InputError):
        bad.result(60)
    busy.worker.stop()


def test_a_batch_that_fails_does_not_end_the_worker(tiny: Backbone) -> None:
    busy = Blocked(tiny, 32)
    failing = busy.worker.submit(tiny, np.zeros((1, 5, 5, 3), np.uint8), len)  # the model takes 32 × 32 pixels
    busy.release()
    assert failing.exception(60) is not None
    assert busy.worker.is_running
    assert busy.worker.submit(tiny, pixels(2, 3), len).result(60) == 2
    busy.worker.stop()
    assert not busy.worker.is_running


def test_stopping_answers_what_waits(tiny: Backbone) -> None:
    busy = Blocked(tiny, 2)
    futures = [busy.worker.submit(tiny, pixels(1, seed), len) for seed in range(5)]
    stopping = threading.Thread(target=busy.worker.stop)
    stopping.start()
    busy.release()
    stopping.join(60)
    assert [future.result(60) for future in futures] == [1] * 5


def test_one_request_is_not_kept_waiting_for_others(tiny: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing else admitted, the worker does not wait: here it would wait for ever."""
    monkeypatch.setattr("slimprompt.service.batching._WAIT", 1e6)
    worker = Worker(32, lambda: 1, lambda _: None)
    worker.start()
    assert worker.submit(tiny, pixels(1, 0), len).result(60) == 1
    worker.stop()
