"""`slimprompt …` in a process of its own, forked by `multiprocessing`'s fork server, which has loaded the libraries.

A command that is started by `start_command` is a real process: it has its own session, streams, environment, working folder
and signals, and only the seconds of the imports are missing. What depends on the start of Python itself, such as
LC_ALL, or is read when a library is imported, such as HF_ENDPOINT, needs a true start by `subprocess`.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import selectors
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from multiprocessing import forkserver, process
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, TextIO
from unittest import mock


@cache
def fork_context() -> Any:
    """The context whose processes begin with loaded libraries; the first call starts the server, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.loaded_libraries"])
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "SLIMPROMPT_TESTS_FORK_SERVER": "1"}
    with mock.patch.dict(os.environ, variables):
        forkserver.ensure_running()
    return context


class Command:
    """A running command, with the members of `subprocess.Popen` that tests use."""

    def __init__(self, started: process.BaseProcess, stdout: TextIO, stderr: TextIO | None) -> None:
        self._process, self.stdout, self.stderr = started, stdout, stderr
        self.pid = started.pid or 0

    @property
    def returncode(self) -> int | None:
        """The exit code; None if it is still running, negative if a signal has ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """As `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; its exit code."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("slimprompt", timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both streams to their ends, and wait."""
        texts: dict[TextIO, bytes] = {}
        with selectors.DefaultSelector() as unread:
            for stream in filter(None, (self.stdout, self.stderr)):
                texts[stream] = b""
                if not stream.closed:
                    unread.register(stream, selectors.EVENT_READ)
            while unread.get_map():
                ready = unread.select(timeout)
                if not ready:
                    raise subprocess.TimeoutExpired("slimprompt", timeout or 0.0)
                for key, _ in ready:
                    if part := os.read(key.fd, 65536):
                        texts[key.fileobj] += part  # type: ignore[index]
                    else:
                        unread.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
        self.wait(timeout)
        output, *errors = (text.decode(errors="backslashreplace") for text in texts.values())
        return output, "".join(errors)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class _Descriptor:
    """A descriptor as an argument of a process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _received, (DupFd(self.number),)


def _received(sent: Any) -> int:
    number: int = sent.detach()
    return number


def start_command(
    arguments: Sequence[object],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    one_stream: bool = False,
    fork_workers: bool = False,
    streams: Mapping[int, int | None] | None = None,
    module: str = "",
) -> Command:
    """Start `slimprompt …` with pipes as its streams.

    Parameters
    ----------
    arguments
        The command line after `slimprompt`.
    cwd, environment
        Working folder and all environment variables; by default those of this process. If another slimprompt is found in a folder
        of PYTHONPATH, it is imported instead.
    one_stream
        Write errors to standard output.
    fork_workers
        Fork worker processes too, where a true command starts Python anew for each of them.
    streams
        Standard stream (0, 1 or 2) → descriptor that it is instead of a pipe, None if it is closed.
    module
        Run the function `main` of this module of the tests instead of `slimprompt`.
    """
    context = fork_context()
    pipes = [os.pipe() for _ in range(1 if one_stream else 2)]
    with open(os.devnull) as nothing:
        numbers = {0: nothing.fileno(), 1: pipes[0][1], 2: pipes[-1][1], **(streams or {})}
        given = {number: None if one is None else _Descriptor(one) for number, one in numbers.items()}
        where = (str(cwd or Path.cwd()), dict(os.environ if environment is None else environment))
        rest = ([str(one) for one in arguments], module, *where, fork_workers)
        started = context.Process(target=_run, args=(given, *rest), daemon=True)  # it ends with the tests
        started.start()
    for _, write in pipes:
        os.close(write)
    opened = [os.fdopen(read, encoding="utf-8") for read, _ in pipes]
    return Command(started, opened[0], None if one_stream else opened[1])


def _run(
    streams: dict[int, int | None],
    arguments: list[str],
    module: str,
    cwd: str,
    environment: dict[str, str],
    fork_workers: bool,
) -> None:
    """In the forked process: the command."""
    os.setsid()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        descriptor = streams[number]
        if descriptor is None:
            os.close(number)
            setattr(sys, name, None)  # as Python finds it
        else:
            os.dup2(descriptor, number)
            encoding, errors = environment.get("PYTHONIOENCODING", "utf-8"), ("strict", "strict", "backslashreplace")
            stream = open(number, "w" if number else "r", encoding=encoding, errors=errors[number], closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    for descriptor in set(streams.values()) - {None}:
        os.close(descriptor)  # type: ignore[arg-type]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    _set_path([one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one])
    sys.modules["__main__"] = types.ModuleType("__main__")  # worker processes would import the module of the real one
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    if fork_workers:
        make_context = multiprocessing.get_context
        multiprocessing.get_context = lambda method=None: make_context(  # type: ignore[assignment]
            "fork" if method == "spawn" else method
        )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = [module or "slimprompt", *arguments]
    importlib.import_module(module or "slimprompt.cli").main()


def _set_path(folders: list[str]) -> None:
    """Folders of PYTHONPATH come first; a slimprompt in them that is not the loaded one is imported anew."""
    sys.path[:0] = folders
    found = PathFinder.find_spec("slimprompt", sys.path)
    if found and found.origin and not os.path.samefile(found.origin, sys.modules["slimprompt"].__file__ or ""):
        for name in [name for name in sys.modules if name.partition(".")[0] == "slimprompt"]:
            del sys.modules[name]
