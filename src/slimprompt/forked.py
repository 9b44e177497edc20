"""Functions at the same time, in forked copies of this process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Result = TypeVar("Result")

#: In a child: the functions of the parent, which are inherited and not sent.
_functions: Sequence[Callable[[], Any]] = ()


def run_forked(
    functions: Sequence[Callable[[], Result]], advance: Callable[[int], object] = lambda number: None
) -> list[Result]:
    """The results of the functions, in their order; `advance` is called here with the number of each one that has ended.

    A child sees all data of this process, and sends its results, so large ones cost time. Only for functions that use no threads,
    so not for torch. The first error of a function is raised, a killed child is one too.
    """
    workers = min(default_workers(), len(functions))
    results: dict[int, Result] = {}
    if workers < 2 or sys.platform != "linux":
        for number, function in enumerate(functions):
            results[number] = function()
            advance(number)
        return list(results.values())
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin, (functions,)) as pool:
        numbers = {pool.submit(_run, number): number for number in range(len(functions))}
        try:
            for future in as_completed(numbers):
                results[numbers[future]] = future.result()
                advance(numbers[future])
        except BrokenProcessPool:
            raise ChildProcessError("a process that computed a part of the result was killed") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[number] for number in range(len(functions))]


def default_workers() -> int:
    """CPU count; 1 where forking is unsafe."""
    if threading.active_count() > 1 or multiprocessing.parent_process() or not hasattr(os, "sched_getaffinity"):
        return 1
    return len(os.sched_getaffinity(0))


def _begin(functions: Sequence[Callable[[], Any]]) -> None:
    global _functions
    _functions = functions
    for number in (getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP")):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # ends a child without a message; the parent says what is needed
    gc.freeze()  # the garbage collector would visit, and thereby copy, all that is shared with the parent


def _run(number: int) -> Any:
    return _functions[number]()
