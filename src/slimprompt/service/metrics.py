"""Counters of the service in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

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
        """All metrics.

        Parameters
        ----------
        n_waiting
            Requests in the queue of the worker.
        n_admitted
            Images that are admitted and not yet answered.
        """
        lines = _metric("requests_total", "counter", "Requests by HTTP status.")
        lines += [f'slimprompt_requests_total{{status="{code}"}} {n}' for code, n in sorted(self.statuses.items())]
        lines += _metric("images_total", "counter", "Images that were answered.", self.n_images)
        lines += _metric("encoded_images_total", "counter", "Images that the image tower encoded.", self.n_encoded)
        lines += _metric("batches_total", "counter", "Batches that the image tower encoded.", self.n_batches)
        lines += _metric("predict_seconds", "histogram", "Duration of prediction requests, with the upload.")
        n_requests = 0
        for bound, n in zip((*map(str, _BOUNDS), "+Inf"), self._seconds, strict=True):
            n_requests += n
            lines.append(f'slimprompt_predict_seconds_bucket{{le="{bound}"}} {n_requests}')
        lines.append(f"slimprompt_predict_seconds_sum {self._total_seconds:.6f}")
        lines.append(f"slimprompt_predict_seconds_count {n_requests}")
        lines += _metric("queue_requests", "gauge", "Requests in the queue of the worker.", n_waiting)
        lines += _metric("admitted_images", "gauge", "Images that are decoded, wait or are encoded.", n_admitted)
        memory = psutil.Process().memory_info().rss
        lines += _metric("resident_memory_bytes", "gauge", "Memory of the process.", memory)
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, value: int | None = None) -> list[str]:
    lines = [f"# HELP slimprompt_{name} {text}", f"# TYPE slimprompt_{name} {kind}"]
    return lines if value is None else [*lines, f"slimprompt_{name} {value}"]
