"""The one thread that runs the models, on the images of several requests at once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slimprompt.clip.backbone import Backbone
from slimprompt.images.encoding import encode_pixels

#: Seconds that the worker waits for images of other requests that are being decoded.
_WAIT = 0.005


class _Job(NamedTuple):
    backbone: Backbone
    views: np.ndarray  # uint8 (n_images, height, width, 3)
    answer: Callable[[Tensor], Any]
    future: Future[Any]


class Worker:
    """Encodes images in batches across requests, then answers each request from its image features.

    A batch is what waits in the queue when the thread is free, up to `batch_size` images; if more images have been admitted than wait
    (`n_admitted`), it waits a few milliseconds for them. `on_batch` is called with the size of each batch. An error of one answer concerns
    its request alone.
    """

    def __init__(self, batch_size: int, n_admitted: Callable[[], int], on_batch: Callable[[int], None]) -> None:
        self._batch_size, self._n_admitted, self._on_batch = batch_size, n_admitted, on_batch
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="slimprompt-worker", daemon=True)
        self._stopping = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what is in the queue and end the thread."""
        self._stopping = True
        self._queue.put(None)
        self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether submitted images will be answered."""
        return self._thread.is_alive() and not self._stopping

    @property
    def n_waiting(self) -> int:
        """Number of requests in the queue."""
        return self._queue.qsize()

    def submit(self, backbone: Backbone, views: np.ndarray, answer: Callable[[Tensor], Any]) -> Future[Any]:
        """Encode 8-bit eval views (n_images, height, width, 3) in a batch with others; the future holds `answer(features)`.

        The answer is computed in the thread, from the image features (n_images, embed_dim).
        """
        future: Future[Any] = Future()
        self._queue.put(_Job(backbone, views, answer, future))
        return future

    def _run(self) -> None:
        with torch.inference_mode():
            while jobs := self._take():
                for backbone in {id(job.backbone): job.backbone for job in jobs}.values():
                    self._answer(backbone, [job for job in jobs if job.backbone is backbone])

    def _take(self) -> list[_Job]:
        """The jobs of the next batch; empty if the thread should end."""
        jobs: list[_Job] = []
        n_images, end = 0, float("inf")
        while n_images < min(self._batch_size, max(self._n_admitted(), 1)):
            try:
                job = self._queue.get(timeout=max(0.0, end - time.monotonic()) if jobs else None)
            except queue.Empty:
                break
            if job is None:
                if jobs:
                    self._queue.put(None)  # for the next call
                break
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)
                n_images += len(job.views)
                end = min(end, time.monotonic() + _WAIT)
        return jobs

    def _answer(self, backbone: Backbone, jobs: list[_Job]) -> None:
        try:
            views = np.concatenate([job.views for job in jobs])
            encoded = []
            for start in range(0, len(views), self._batch_size):
                batch = views[start : start + self._batch_size]
                encoded.append(encode_pixels(backbone, batch))
                self._on_batch(len(batch))
            features = torch.cat(encoded).split([len(job.views) for job in jobs])
        except Exception as error:  # such as a device that is out of memory: the next batch may succeed
            for job in jobs:
                job.future.set_exception(error)
            return
        for job, own in zip(jobs, features, strict=True):
            try:
                job.future.set_result(job.answer(own))
            except Exception as error:
                job.future.set_exception(error)
