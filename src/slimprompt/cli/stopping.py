"""How a command that is stopped ends: with one message, the true one, and exit code 128 + signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """A command was stopped; the message says what is left of its work."""


@contextmanager
def resumable(what_is_left: str) -> Iterator[None]:
    """What is left if the block is stopped, in the place of the usual message."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(what_is_left) from None


def stop_on_signals() -> list[int]:
    """Let SIGTERM and SIGHUP stop a command as Ctrl-C does; returns a list to which a received signal is added.

    A signal that is ignored, as SIGHUP under nohup, stays ignored.
    """
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, stop)
    return received
