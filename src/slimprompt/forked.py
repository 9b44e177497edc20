"""Several functions at the same time, in forked copies of this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


def run_forked(functions: Sequence[Callable[[], Result]], workers: int | None = None) -> list[Result]:
    """The results of the functions, in their order.

    Every child takes the next function that nobody has begun. Children see all data of this process and return their results
    through a pipe, so large results cost time. Only for functions that use no threads, so not for torch. On other systems than
    Linux, and with one worker, the functions run here.

    Parameters
    ----------
    functions
        Functions without arguments.
    workers
        Number of children; `default_workers()` if None.

    Raises
    ------
    Exception
        The first exception of a function.
    """
    workers = min(workers or default_workers(), len(functions))
    if workers < 2 or not sys.platform.startswith("linux"):
        return [function() for function in functions]
    context = multiprocessing.get_context("fork")
    taken = context.Value("i", 0)
    pipes: list[Connection] = []
    children = []
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_work, args=(functions, taken, theirs), daemon=True)
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        return _collect(pipes, len(functions))
    finally:
        for child in children:
            child.terminate()
            child.join()


def _work(functions: Sequence[Callable[[], object]], taken: Any, pipe: Connection) -> None:
    """Run functions until none is left; what a child executes."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # they end a child without a message; the parent says what is needed
        number = getattr(signal, name)
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(functions):
            return
        result, error, trace = None, None, ""
        try:
            result = functions[number]()
        except Exception as caught:
            error, trace = caught, traceback.format_exc()
        try:
            pipe.send((number, result, error, trace))
        except OSError:
            return  # the parent has ended


def _collect(pipes: list[Connection], count: int) -> list[Any]:
    """The results of all children."""
    found: dict[int, Any] = {}
    while len(found) < count:
        for ready in wait(pipes):
            pipe = cast(Connection, ready)
            try:
                answer: tuple[int, Any, Any, str] = pipe.recv()
            except EOFError:
                pipes.remove(pipe)
                if not pipes and len(found) < count:
                    raise ChildProcessError("a process that computed a part of the result was killed") from None
                continue
            number, result, error, trace = answer
            if error is not None:
                raise error from RuntimeError(f"in a forked child:\n{trace}")
            found[number] = result
    return [found[number] for number in range(count)]


def default_workers() -> int:
    """One per core that this process may use; 1 if it has threads, which a fork does not copy, or may have no children."""
    if threading.active_count() > 1 or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
