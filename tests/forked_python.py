"""`python …` as a fork of a process that has loaded the libraries; `forked_python` of `fork_server.py` gives the program that starts this.

    python -IS tests/forked_python.py <name of the server's socket> <program> [-m <module> | -c <code> | <file>] …

This process asks the server for a fork with its own streams, other inherited descriptors, environment and working folder, passes
signals on, and ends as the fork does. If it is killed, the server kills the fork. Its name, as `ps` and /proc show it, is the process
id of the fork. Other options of Python than -u and -B need a true start, and get one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

_MOST = 2**18  # bytes of a message


def _inherited() -> list[int]:
    """Descriptors that the caller has passed on, beyond the standard streams."""
    numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    return [number for number in numbers if number > 2 and _is_inheritable(number)]


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # that of the listing itself
        return False


def main() -> None:
    """Ask for a fork, and wait for its end."""
    name, program, *arguments = sys.argv[1:]
    while arguments[:1] in (["-u"], ["-B"]):  # of Ray, which flushes its logs itself, and of multiprocessing
        del arguments[0]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-m", "-c")):
        os.execv(sys.executable, [sys.executable, *arguments])
    inherited = [0, 1, 2, *_inherited()]
    request = {
        "arguments": arguments,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "python": program,
        "descriptors": inherited,
    }
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.connect(f"\0{name}")
    socket.send_fds(channel, [json.dumps(request).encode()], inherited)
    fork = json.loads(channel.recv(_MOST))["started"]
    with open("/proc/self/comm", "w") as comm:
        comm.write(str(fork))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: os.kill(fork, got))
    for descriptor in inherited:  # who reads the output waits for the fork only
        os.close(descriptor)
    code = json.loads(channel.recv(_MOST) or b'{"code": 99}')["code"]
    if code < 0:
        with suppress(OSError):  # nobody can choose what SIGKILL does
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
