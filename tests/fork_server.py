"""`slimprompt …` in a process of its own, forked from a server that has loaded the libraries once for all test processes.

A command that is started by `start_command` is a real process: it has its own session, streams, environment, working folder
and signals, and only the seconds of the imports are missing. What depends on the start of Python itself, such as
PYTHONIOENCODING, or is read when a library is imported, such as HF_ENDPOINT, needs a true start by `subprocess`.

`forked_python` is the same for scripts and kernels: a program to use in place of Python.

    python -m tests.fork_server <descriptor of a listening socket>
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TextIO

_MOST = 2**18  # bytes of a message
_HUGE_PAGE = 2**21
_MADV_COLLAPSE = 25
#: Most of what every process of Ray imports. Ray itself does not work in forks of a process that has imported it.
_LIBRARIES_OF_RAY = ("google.protobuf.json_format", "jsonschema", "msgpack", "pdb", "pydantic.v1", "requests")


class Server:
    """A connection to the server, and the exit codes of the commands that it has reported.

    The processes of pytest-xdist share the server: the first that needs it starts it, and it ends when none is connected.
    """

    def __init__(self) -> None:
        self.name = f"slimprompt-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID') or secrets.token_hex(8)}"
        self.codes: dict[int, int] = {}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(f"\0{self.name}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:  # it is there
                    raise
            else:
                listener.listen()
                _start_server(listener.fileno())
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while self.socket.connect_ex(f"\0{self.name}") == errno.ECONNREFUSED:  # another process is about to listen
            time.sleep(0.01)

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Start a command; its process id."""
        socket.send_fds(self.socket, [json.dumps(request).encode()], list(descriptors))
        while "started" not in (answer := self._receive(None)):
            pass
        return int(answer["started"])

    def wait(self, process: int, timeout: float | None) -> int | None:
        """The exit code of a command, None if it runs longer; negative if a signal has ended it."""
        end = None if timeout is None else time.monotonic() + timeout
        while process not in self.codes:
            left = None if end is None else end - time.monotonic()
            if not self._receive(None if left is None else max(0.0, left)) and left is not None and left <= 0:
                return None
        return self.codes[process]

    def _receive(self, timeout: float | None) -> dict[str, int]:
        if not select.select([self.socket], [], [], timeout)[0]:
            return {}
        answer: dict[str, int] = json.loads(self.socket.recv(_MOST) or b"null")
        assert answer, "the fork server has ended"
        if "ended" in answer:
            self.codes[answer["ended"]] = answer["code"]
        return answer


def _start_server(listener: int) -> None:
    # Its libraries have no threads (OMP_NUM_THREADS of conftest.py), so children can be forked from it.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.fork_server", str(listener)]
    subprocess.run(command, env=environment, pass_fds=[listener], check=True)


@cache
def server() -> Server:
    """The connection of this test process; its commands end with it."""
    return Server()


_folders: list[tempfile.TemporaryDirectory[str]] = []  # a folder is removed when its object is


@cache
def forked_python() -> str:
    """A program that is used like `python`, and runs in a fork of the server; see `forked_python.py`.

    In the fork, `sys.executable` is this program too.
    """
    _folders.append(tempfile.TemporaryDirectory(prefix="forked-python-"))
    program = Path(_folders[-1].name) / "python"
    words = [sys.executable, "-IS", str(Path(__file__).with_name("forked_python.py")), server().name, str(program)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return str(program)


def fork_of(process: int) -> list[int]:
    """The process that a running `forked_python` stands for, which is not below it in the process tree; none for others."""
    try:
        name = Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return []
    return [int(name)] if name.isdigit() else []


class Command:
    """A running command, with the members of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, stdout: TextIO, stderr: TextIO | None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; None if it is still running."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; its exit code."""
        if (code := self._wait(timeout)) is None:
            raise subprocess.TimeoutExpired("slimprompt", timeout or 0.0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self.returncode = server().wait(self.pid, timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both streams to their ends, and wait."""
        streams = [self.stdout] if self.stderr is None else [self.stdout, self.stderr]
        texts = dict.fromkeys(streams, b"")
        unread = {stream for stream in streams if not stream.closed}
        end = None if timeout is None else time.monotonic() + timeout
        while unread:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = select.select(list(unread), [], [], left)[0]
            if not ready:
                raise subprocess.TimeoutExpired("slimprompt", timeout or 0.0)
            for stream in ready:
                if part := os.read(stream.fileno(), 65536):
                    texts[stream] += part
                else:
                    stream.close()
                    unread.remove(stream)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        output, *errors = (text.decode() for text in texts.values())
        return output, "".join(errors)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def start_command(
    arguments: Sequence[object],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    one_stream: bool = False,
    background: bool = False,
    fork_workers: bool = False,
    streams: Mapping[int, int | None] | None = None,
    module: str = "",
) -> Command:
    """Start `slimprompt …` with pipes as its streams.

    Parameters
    ----------
    arguments
        The command line after `slimprompt`.
    cwd
        Working folder; by default that of this process.
    environment
        All environment variables; by default those of this process. If another slimprompt is found in a folder of PYTHONPATH, it is
        imported instead.
    one_stream
        Write errors to standard output.
    background
        Ignore SIGINT and SIGHUP, as in the background of a script or under nohup.
    fork_workers
        Fork worker processes and Ray's processes too, where a true command starts Python anew for each of them.
    streams
        Standard stream (0, 1 or 2) → descriptor that it is instead of a pipe, None if it is closed.
    module
        Run the function `main` of this module of the tests instead of `slimprompt`.
    """
    pipes = [os.pipe() for _ in range(1 if one_stream else 2)]
    request = {
        "arguments": [str(one) for one in arguments],
        "cwd": str(cwd or Path.cwd()),
        "environment": dict(os.environ if environment is None else environment),
        "background": background,
        "fork_workers": forked_python() if fork_workers else "",
        "closed": [number for number, descriptor in (streams or {}).items() if descriptor is None],
        "module": module,
    }
    with open(os.devnull) as nothing:
        descriptors = {0: nothing.fileno(), 1: pipes[0][1], 2: pipes[-1][1]}
        descriptors |= {number: one for number, one in (streams or {}).items() if one is not None}
        pid = server().start(request, list(descriptors.values()))
    for _, write in pipes:
        os.close(write)
    opened = [os.fdopen(read, encoding="utf-8") for read, _ in pipes]
    return Command(pid, opened[0], None if one_stream else opened[1])


# --- the server process ------------------------------------------------------------------------------------------------


def _become(request: dict[str, Any], descriptors: Sequence[int]) -> int:
    """In a forked child: run the command; its exit code."""
    import types

    from tests.robustness.commands import run_command
    from tests.shortcuts import copy_rendered_benchmarks, do_not_wait_for_the_disk

    do_not_wait_for_the_disk()
    os.setsid()
    numbers = request.get("descriptors", range(len(descriptors)))
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 256) for descriptor in descriptors]
    os.closerange(3, 256)
    for number, descriptor in zip(numbers, moved, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if number in request.get("closed", ()):
            os.close(number)
            setattr(sys, name, None)  # as Python finds it
        else:
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    copy_rendered_benchmarks()
    _set_path([one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one])
    sys.modules["__main__"] = types.ModuleType("__main__")  # worker processes would import the module of the real one
    if request.get("fork_workers"):
        make_context = multiprocessing.get_context

        def fork_for_spawn(method: str | None = None) -> Any:
            return make_context("fork" if method == "spawn" else method)

        multiprocessing.get_context = fork_for_spawn  # type: ignore[assignment]
        sys.executable = request["fork_workers"]
    ignored = request.get("background")
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    if request.get("python"):
        return _run_python(request["python"], request["arguments"])
    if not request["module"]:
        return run_command(request["arguments"])
    sys.argv = [request["module"], *request["arguments"]]
    try:
        importlib.import_module(request["module"]).main()
        sys.stdout.flush()
        return 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1


def _set_path(folders: list[str]) -> None:
    """Folders of PYTHONPATH come first; a slimprompt in them that is not the loaded one is imported anew."""
    import slimprompt

    sys.path[:0] = folders
    found = PathFinder.find_spec("slimprompt", sys.path)
    if found and found.origin and not os.path.samefile(found.origin, slimprompt.__file__):
        for name in [name for name in sys.modules if name.partition(".")[0] == "slimprompt"]:
            del sys.modules[name]


def _run_python(program: str, arguments: list[str]) -> int:
    """`python …` in this process; its exit code."""
    atexit._clear()  # what libraries have registered belongs to the server
    sys.executable = program
    if "matplotlib" in sys.modules and "MPLBACKEND" in os.environ:  # it reads the variable when it is imported
        sys.modules["matplotlib"].rcParams["backend"] = os.environ["MPLBACKEND"]
    code: object = 0
    try:
        if arguments[0] == "-m":
            sys.argv, sys.path[:0] = arguments[1:], [os.getcwd()]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv, sys.path[:0] = ["-c", *arguments[2:]], [""]
            exec(compile(arguments[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
        else:
            sys.argv, sys.path[:0] = arguments, [os.path.dirname(os.path.abspath(arguments[0]))]
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as stop:
        code = stop.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code or 0)  # type: ignore[call-overload]


@cache
def use_huge_pages() -> None:
    """Gather the memory of this process in pages of 2 MB, where Linux can: a fork of it then takes 20 ms instead of 50.

    Most of a fork is the copy of the page table, which has an entry for every page. What a fork writes to is copied by 4 kB as
    always. It takes a second, once in this process and its forks.
    """
    with suppress(OSError, AttributeError):  # not Linux
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, access, _, _, file, *_ = line.split()
            first, end = (int(address, 16) for address in addresses.split("-"))
            first, end = -(-first // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
            if access.startswith("rw") and file == "0" and first < end:
                madvise(first, end - first, _MADV_COLLAPSE)


def _fork(request: dict[str, Any], descriptors: list[int]) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        code = _become(request, descriptors)
    finally:
        os._exit(code)


def main() -> None:
    """Fork a child for every request, and report its end."""
    if os.fork():
        os._exit(0)  # the server is no child of the test process that starts it: the others fork from it too
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and this process when their socket is closed
    listener = socket.socket(fileno=int(sys.argv[1]))
    import slimprompt.cli
    from slimprompt.startup import import_lightly
    from tests.robustness.commands import load_libraries
    from tests.shortcuts import read_vocabulary_once

    import_lightly()  # as the commands that are forked
    load_libraries()
    read_vocabulary_once()
    with suppress(ImportError):  # an extra
        import slimprompt.service.app
        import slimprompt.service.server  # noqa: F401
    for name in _LIBRARIES_OF_RAY:
        with suppress(ImportError):  # an extra
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would read, and so copy, all objects of the libraries
    use_huge_pages()
    clients: dict[int, socket.socket] = {}  # test processes, and processes of `forked_python.py`, by descriptor
    running: dict[int, tuple[int, int | None]] = {}  # descriptor of a child → its process id, descriptor of its client
    while True:
        ready = select.select([listener, *clients, *running], [], [])[0]
        for watched in [one for one in ready if one in running]:
            child, client = running.pop(watched)
            os.close(watched)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if client is not None:
                with suppress(BrokenPipeError):  # a client that was killed
                    clients[client].send(json.dumps({"ended": child, "code": code}).encode())
        for client in [one for one in ready if one in clients]:
            message, descriptors = b"", []
            with suppress(ConnectionResetError):  # a client that has ended without reading all answers
                message, descriptors, _, _ = socket.recv_fds(clients[client], _MOST, 64)
            if message:
                child = _fork(json.loads(message), descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                running[os.pidfd_open(child)] = child, client
                with suppress(BrokenPipeError):
                    clients[client].send(json.dumps({"started": child}).encode())
            else:  # a test process or a `python` that has ended
                clients.pop(client).close()
                for watched, (child, its_client) in running.items():
                    if its_client == client:
                        signal.pidfd_send_signal(watched, signal.SIGKILL)
                        running[watched] = child, None
        if listener in ready:
            connection, _ = listener.accept()
            clients[connection.fileno()] = connection
        elif not clients:
            os._exit(0)  # nothing is open, and cleaning up takes long


if __name__ == "__main__":
    main()
