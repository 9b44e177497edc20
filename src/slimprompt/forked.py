"""Several functions at the same time, in forked copies of this process."""

from __future__ import annotations

import gc
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

#: Signals that stop a command.
_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def run_forked(
    functions: Sequence[Callable[[], Result]],
    workers: int | None = None,
    *,
    advance: Callable[[int], object] = lambda number: None,
) -> list[Result]:
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
    advance
        Called in this process with the number of each function that has ended, from 0.

    Raises
    ------
    Exception
        The first exception of a function.
    """
    workers = min(workers or default_workers(), len(functions))
    if workers < 2 or not sys.platform.startswith("linux"):
        return [_run_here(number, function, advance) for number, function in enumerate(functions)]
    context = multiprocessing.get_context("fork")
    taken = context.Value("i", 0)
    pipes: list[Connection] = []
    children = []
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_work, args=(functions, taken, theirs), daemon=True)
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # until the child has its own handlers
            try:
                child.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
            pipes.append(ours)
            children.append(child)
        return _collect(pipes, len(functions), advance)
    finally:
        for child in children:
            child.terminate()
            child.join()


def _run_here(number: int, function: Callable[[], Result], advance: Callable[[int], object]) -> Result:
    result = function()
    advance(number)
    return result


def _work(functions: Sequence[Callable[[], object]], taken: Any, pipe: Connection) -> None:
    """Run functions until none is left; what a child executes."""
    for number in _STOPPING:  # they end a child without a message; the parent says what is needed
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # as on all systems where children are forked
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    gc.freeze()  # the garbage collector would visit, and thereby copy, all that is shared with the parent
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


def _collect(pipes: list[Connection], count: int, advance: Callable[[int], object]) -> list[Any]:
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
            advance(number)
    return [found[number] for number in range(count)]


def default_workers() -> int:
    """One per core that this process may use; 1 if it has threads, which a fork does not copy, or may have no children."""
    if threading.active_count() > 1 or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
