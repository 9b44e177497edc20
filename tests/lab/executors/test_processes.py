"""The start of worker processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.processes import WorkerProcess


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_during_the_start_of_a_worker_waits_until_it_has_started(
    number: signal.Signals, environment: RunEnvironment
) -> None:
    events: list[str] = []

    class Process:
        def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None: ...

        def start(self) -> None:
            events.append("starting")
            os.kill(os.getpid(), number)
            events.append("started")

    pipe = SimpleNamespace(close=lambda: None)
    before = signal.signal(number, lambda *_: events.append("signal"))
    try:
        WorkerProcess(SimpleNamespace(Pipe=lambda: (pipe, pipe), Process=Process), environment)
        expected = ["starting", "started"] + ([] if number == signal.SIGINT else ["signal"])
        assert events == expected
        os.kill(os.getpid(), number)  # the handler of before is back
        assert events == [*expected, "signal"]
    finally:
        signal.signal(number, before)
