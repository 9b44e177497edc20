"""Tasks that are computed on threads a little ahead of their consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def prefetched(
    function: Callable[[T], R], tasks: Iterable[T], workers: int, ahead: int | None = None
) -> Iterator[tuple[T, R]]:
    """Yield (task, function(task)) in order, computed ahead on threads; Pillow releases the interpreter lock.

    At most `ahead` tasks, by default two per thread, are computed or wait to be consumed. An exception is raised when its result is
    due.
    """
    ahead = 2 * workers if ahead is None else ahead
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[tuple[T, Future[R]]] = deque()
        try:
            for task in tasks:
                waiting.append((task, pool.submit(function, task)))
                if len(waiting) > ahead:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
