"""Functions in forked children: the same results in the same order, and errors that arrive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest

from slimprompt.errors import InputError
from slimprompt.forked import default_workers, run_forked

needs_fork = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are forked on Linux only")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_results_are_in_order(workers: int) -> None:
    data = [bytes([number]) * 100_000 for number in range(7)]  # more than a pipe holds
    assert run_forked([partial(data.__getitem__, number) for number in range(7)], workers) == data
    assert run_forked([], workers) == []


@needs_fork
def test_they_run_in_children() -> None:
    assert os.getpid() not in run_forked([os.getpid] * 3, 3)
    assert run_forked([os.getpid], 3) == [os.getpid()]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_the_callers(workers: int) -> None:
    def fail() -> None:
        raise InputError("no such column")

    with pytest.raises(InputError, match="no such column") as caught:
        run_forked([int, fail, int], workers)
    if workers > 1:
        assert "in fail" in str(caught.value.__cause__)


@needs_fork
def test_a_killed_child_is_an_error() -> None:
    def end() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildProcessError, match="was killed"):
        run_forked([end, int, int], 2)


def test_a_process_with_threads_is_not_forked() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert default_workers() == 1
    assert run_forked([os.getpid] * 3) == [os.getpid()] * 3
    stop.set()
    thread.join()


@needs_fork
def test_a_child_has_no_children_of_its_own() -> None:
    assert run_forked([default_workers] * 2, 2) == [1, 1]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_function_that_has_ended_is_announced(workers: int) -> None:
    ended: list[int] = []
    run_forked([int] * 5, workers, advance=ended.append)
    assert sorted(ended) == [0, 1, 2, 3, 4]


@needs_fork
def test_a_child_that_is_ended_while_it_starts_is_silent() -> None:
    """The handlers of a command, which raise KeyboardInterrupt, are not for its children."""
    code = """
import signal
from slimprompt.forked import run_forked

def stop(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, stop)
for _ in range(40):
    run_forked([int, int], 2)
    try:
        run_forked([int, lambda: 1 // 0, *[int] * 6], 8)  # the first error ends all children
    except ZeroDivisionError:
        pass
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr == ""
