"""Functions in forked children: the same results in the same order, and errors that arrive."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial

import pytest

from slimprompt import forked
from slimprompt.errors import InputError
from slimprompt.forked import default_workers, run_forked

needs_fork = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are forked on Linux only")


@pytest.fixture(params=[1, pytest.param(2, marks=needs_fork), pytest.param(5, marks=needs_fork)])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(forked, "default_workers", lambda: request.param)
    return request.param


def test_the_results_are_in_order(workers: int) -> None:
    data = [bytes([number]) * 100_000 for number in range(7)]  # more than a pipe holds
    ended: list[int] = []
    assert run_forked([partial(data.__getitem__, number) for number in range(7)], ended.append) == data
    assert sorted(ended) == list(range(7))
    assert run_forked([]) == []


def test_an_error_is_the_callers(workers: int) -> None:
    def fail() -> None:
        raise InputError("no such column")

    with pytest.raises(InputError, match="no such column"):
        run_forked([int, fail, int])


@needs_fork
def test_a_killed_child_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "default_workers", lambda: 2)
    with pytest.raises(ChildProcessError, match="was killed"):
        run_forked([lambda: os.kill(os.getpid(), signal.SIGKILL), int, int])


@needs_fork
def test_an_interrupt_ends_the_children(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(forked, "default_workers", lambda: 2)
    begin = time.monotonic()

    def stop(number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_forked([int, *[partial(time.sleep, 0.5)] * 20], stop)
    assert time.monotonic() - begin < 5
    assert capfd.readouterr() == ("", "")


def test_a_process_with_threads_is_not_forked() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert default_workers() == 1
    assert run_forked([os.getpid] * 3) == [os.getpid()] * 3
    stop.set()
    thread.join()


@needs_fork
def test_a_child_has_no_children_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "default_workers", lambda: 2)
    assert run_forked([default_workers] * 2) == [1, 1]
