"""Runs an action in a forked child that is killed with SIGKILL just before one of its file operations.

File operations are those that Python reports to audit hooks: opening a file for writing, creating, renaming and deleting files
and folders. Only operations below the watched folder count. The child is forked after the imports, so that a kill costs the
time of the action, not the time to load the libraries.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.fork_server import fork_context

_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}


def run_campaign(campaign: Callable[..., Any], *arguments: object) -> Any:
    """What a function of a test module returns in a process of its own, which begins with loaded libraries and forks children."""
    context = fork_context()
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_campaign, args=(send, dict(os.environ), campaign, arguments), daemon=True)
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"{campaign.__name__} ended with {process.exitcode}; the reason is on stderr") from None


def _campaign(
    send: Connection, environment: dict[str, str], campaign: Callable[..., Any], arguments: tuple[object, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    send.send(campaign(*arguments))


def count_operations(action: Callable[[], object], watched: Path) -> int:
    """Run the action undisturbed; the number of its file operations below `watched`."""

    def counted() -> int:
        watch = Watch(watched, None)
        action()
        return watch.count

    return int(value_of(counted))


def kill_before(number: int, action: Callable[[], object], watched: Path) -> bool:
    """Run the action and kill it just before file operation `number`, counted from 1; False if it ended before."""

    def watching() -> None:
        Watch(watched, number)
        action()

    return run_in_child(watching)


def chosen_operations(total: int, most: int, seed: int) -> Iterator[int]:
    """All operations, or a sample of `most` of them."""
    numbers = range(1, total + 1)
    yield from numbers if total <= most else sorted(random.Random(seed).sample(numbers, most))


def value_of(action: Callable[[], Any]) -> Any:
    """What the action returns in a forked child: a small value, which a pipe holds."""
    receive, send = multiprocessing.Pipe(duplex=False)
    assert not run_in_child(lambda: send.send(action())), "the action was killed"
    return receive.recv()


def run_in_child(action: Callable[[], object]) -> bool:
    """Run the action in a forked child; whether it was killed. An exception of the action is an error here."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        exit_after(action)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the action failed in the child"
    return False


def exit_after(action: Callable[[], object]) -> None:
    """End this process after the action, with code 1 if it raises an exception."""
    try:
        action()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def kill_this_process() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


class Watch:
    """An audit hook of this process; it cannot be removed, so it belongs in a child."""

    def __init__(self, watched: Path, kill_before: int | None, kill: Callable[[], object] = kill_this_process) -> None:
        self.count = 0
        self._watched, self._kill_before, self._kill = os.path.realpath(watched) + os.sep, kill_before, kill
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in _OPERATIONS or not self._counts(event, arguments):
            return
        self.count += 1
        if self.count == self._kill_before:
            self._kill()

    def _counts(self, event: str, arguments: tuple[object, ...]) -> bool:
        path = arguments[0]
        if not isinstance(path, (str, os.PathLike)) or (event == "open" and not _writes(arguments[2])):
            return False
        return os.path.abspath(path).startswith(self._watched)


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
