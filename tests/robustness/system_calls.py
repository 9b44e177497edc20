"""Runs an action in a forked child that is killed with SIGKILL just before one of the system calls by which it changes files.

SQLite writes from C, which audit hooks do not see. The child is traced with ptrace, so this needs Linux on x86-64 or aarch64 and
the permission to trace one's own children. All threads of the child are traced.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.robustness.kills import exit_after

_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_TRACESYSGOOD, _TRACECLONE, _EXITKILL = 1, 8, 0x100000
_WALL = 0x40000000  # wait for threads too
_ENTRY = 1
#: struct ptrace_syscall_info at the entry of a system call: op, arch, instruction and stack pointer, number, arguments.
_INFO = struct.Struct("=B3xIQQQ6Q")
#: Numbers of the system calls that change a file given by its descriptor, and of those that remove or rename one.
_NUMBERS = {
    "x86_64": ({1, 18, 74, 75, 77}, {82, 87, 263, 264, 316}),  # write, pwrite64, fsync, fdatasync, ftruncate
    "aarch64": ({64, 68, 82, 83, 46}, {35, 38, 276}),
}


def can_trace() -> bool:
    """Whether children can be traced here."""
    if sys.platform != "linux" or platform.machine() not in _NUMBERS:
        return False
    child = os.fork()
    if child == 0:
        os._exit(1 if _ptrace(_TRACEME, 0) else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def kill_before_call(number: int | None, action: Callable[[], object], watched: Path) -> int:
    """Run the action and kill it just before call `number` that changes a file below `watched`, counted from 1.

    Returns the number of calls that were made; with `number` None, or if there are fewer, the action ends undisturbed.
    """
    child = os.fork()
    if child == 0:
        _ptrace(_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        exit_after(action)
    os.waitpid(child, 0)
    _ptrace(_SETOPTIONS, child, data=_TRACESYSGOOD | _TRACECLONE | _EXITKILL)
    _ptrace(_SYSCALL, child)
    calls, threads = 0, {child}
    while True:
        thread, status = os.waitpid(-1, _WALL)
        if not os.WIFSTOPPED(status):
            if thread != child:
                continue
            assert os.waitstatus_to_exitcode(status) == 0, "the action failed in the child"
            return calls
        passed_on = 0
        if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80:
            if _changes_a_file(child, thread, watched):
                if calls + 1 == number:
                    os.kill(child, signal.SIGKILL)
                    while (ended := os.waitpid(-1, _WALL))[0] != child or os.WIFSTOPPED(ended[1]):
                        pass
                    return calls
                calls += 1
        elif status >> 16 == 0 and thread in threads:  # neither a new thread nor its first stop
            passed_on = os.WSTOPSIG(status)
        threads.add(thread)
        with suppress(ProcessLookupError):  # the process is about to end
            _ptrace(_SYSCALL, thread, data=passed_on)


def kill_at_size(n_bytes: int, action: Callable[[], object]) -> bool:
    """Run the action and kill it in the write that makes a file larger than `n_bytes`, after its first part; whether it was killed."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
        exit_after(action)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGXFSZ), "the action failed in the child"
    return code != 0


def _changes_a_file(child: int, thread: int, watched: Path) -> bool:
    """Whether a thread of the child is about to change a file below `watched`."""
    by_file, by_name = _NUMBERS[platform.machine()]
    call, first = _entered(thread)
    return call in by_name or (call in by_file and _is_below(child, first, watched))


def _entered(thread: int) -> tuple[int, int]:
    """Number and first argument of the call that the thread is about to make; (-1, 0) if it returns from one."""
    buffer = ctypes.create_string_buffer(128)
    _ptrace(_GET_SYSCALL_INFO, thread, address=len(buffer), data=ctypes.addressof(buffer))
    operation, _, _, _, number, first, *_ = _INFO.unpack_from(buffer.raw)
    return (number, first) if operation == _ENTRY else (-1, 0)


def _is_below(child: int, descriptor: int, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/{child}/fd/{descriptor}").startswith(os.path.realpath(folder) + os.sep)
    except OSError:
        return False


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.restype = ctypes.c_long
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return library


def _ptrace(request: int, process: int, *, address: int = 0, data: int = 0) -> int:
    found = int(_library().ptrace(request, process, address, data))
    if found < 0 and request != _TRACEME:
        raise OSError(ctypes.get_errno(), "ptrace")
    return found
