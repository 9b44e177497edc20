"""Counters of the service in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate

import psutil

#: Upper bounds of the histogram of seconds.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Requests by status, images, batches and seconds. Each counter is changed by one thread only."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.n_images = 0
        """Images that were answered."""
        self.n_encoded = 0
        self.n_batches = 0
        self._seconds = [0] * (len(_BOUNDS) + 1)
        self._total_seconds = 0.0

    def add_batch(self, n_images: int) -> None:
        """Count a batch of the image tower."""
        self.n_batches += 1
        self.n_encoded += n_images

    def add_seconds(self, seconds: float) -> None:
        """Count the duration of a prediction request."""
        self._seconds[bisect_left(_BOUNDS, seconds)] += 1
        self._total_seconds += seconds

    def text(self, *, n_waiting: int, n_admitted: int) -> str:
        """All metrics, with the number of requests in the queue and of images in progress."""
        requests = [f'{{status="{code}"}} {n}' for code, n in sorted(self.statuses.items())]
        bounds = zip((*map(str, _BOUNDS), "+Inf"), accumulate(self._seconds), strict=True)
        seconds = [f'_bucket{{le="{bound}"}} {n}' for bound, n in bounds]
        seconds += [f"_sum {self._total_seconds:.6f}", f"_count {sum(self._seconds)}"]
        memory = psutil.Process().memory_info().rss
        metrics: list[tuple[str, str, str, list[str]]] = [
            ("requests_total", "counter", "Requests by HTTP status.", requests),
            ("images_total", "counter", "Images that were answered.", [f" {self.n_images}"]),
            ("encoded_images_total", "counter", "Images that the image tower encoded.", [f" {self.n_encoded}"]),
            ("batches_total", "counter", "Batches that the image tower encoded.", [f" {self.n_batches}"]),
            ("predict_seconds", "histogram", "Duration of prediction requests, with the upload.", seconds),
            ("queue_requests", "gauge", "Requests in the queue of the worker.", [f" {n_waiting}"]),
            ("admitted_images", "gauge", "Images that are decoded, wait or are encoded.", [f" {n_admitted}"]),
            ("resident_memory_bytes", "gauge", "Memory of the process.", [f" {memory}"]),
        ]
        lines = []
        for name, kind, text, values in metrics:
            lines += [f"# HELP slimprompt_{name} {text}", f"# TYPE slimprompt_{name} {kind}"]
            lines += [f"slimprompt_{name}{value}" for value in values]
        return "\n".join(lines) + "\n"
