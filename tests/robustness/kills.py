"""Runs an action in a forked child that is killed with SIGKILL just before one of its file operations.

File operations are those that Python reports to audit hooks: opening a file for writing, creating, renaming and deleting files
and folders. Only operations below the watched folder count. The child is forked after the imports, so that a kill costs the
time of the action, not the time to load the libraries.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.fork_server import start_command

_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}


def run_campaign(module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object that a module of the tests prints last, in a process of its own that begins with loaded libraries."""
    command = start_command(arguments, environment=environment, module=module, fork_workers=True)
    output, errors = command.communicate(timeout=None if "SLIMPROMPT_KILLS" in os.environ else 900)
    assert command.returncode == 0, errors
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def count_operations(action: Callable[[], object], watched: Path) -> int:
    """Run the action undisturbed; the number of its file operations below `watched`."""
    read, write = os.pipe()

    def counted() -> None:
        watch = Watch(watched, None)
        action()
        os.write(write, str(watch.count).encode())

    assert not run_in_child(counted), "the action was killed"
    os.close(write)
    with os.fdopen(read) as pipe:
        return int(pipe.read())


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


def run_in_child(action: Callable[[], object]) -> bool:
    """Run the action in a forked child; whether it was killed. An exception of the action is an error here."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the action failed in the child"
    return False


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
        if not isinstance(path, (str, os.PathLike)):
            return False
        if event == "open" and not _writes(arguments):
            return False
        return os.path.abspath(path).startswith(self._watched)


def _writes(arguments: tuple[object, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
