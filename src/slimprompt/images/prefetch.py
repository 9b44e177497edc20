"""Tasks that are computed on threads a little ahead of their consumer, and results that are stored behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def prefetched(
    function: Callable[[T], R], tasks: Iterable[T], workers: int, ahead: int | None = None
) -> Iterator[tuple[T, R]]:
    """Yield (task, function(task)) in order, computed ahead on threads; Pillow releases the interpreter lock.

    Parameters
    ----------
    function
        What to compute; an exception is raised when its result is due.
    tasks
        Its arguments, read lazily.
    workers
        Number of threads.
    ahead
        Most tasks that are computed or waiting to be consumed; default: two per thread.
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


@contextmanager
def written_behind(function: Callable[..., object], most: int = 2) -> Iterator[Callable[..., None]]:
    """Yield a function that calls `function` with its arguments on another thread, in order.

    All calls have ended when the block ends, also by an exception. An exception of a call is raised by a later one, or at the end.

    Parameters
    ----------
    function
        What to call.
    most
        Most calls that wait; the next one waits until there are fewer.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[object]] = deque()

        def call(*arguments: object) -> None:
            waiting.append(pool.submit(function, *arguments))
            if len(waiting) > most:
                waiting.popleft().result()

        yield call
        while waiting:
            waiting.popleft().result()
