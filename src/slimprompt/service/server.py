"""The HTTP server: binding, signals, and connections that send nothing."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from slimprompt.errors import InputError

#: Names under which a service on the loopback interface is addressed.
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
#: Seconds that a stopped server waits for running requests.
_SHUTDOWN = 60
#: Seconds within which a connection must begin a request.
_IDLE = 15.0


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, on a free port if `port` is 0; an `InputError` if the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"the address {host} cannot be used ({error.strerror or error}); check --host") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InputError(
            f"cannot listen on {host} port {port} ({error.strerror or error}); choose another --port, or 0 for a free one"
        ) from None
    return bound


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def address(bound: socket.socket) -> str:
    """`http://127.0.0.1:8000`."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: FastAPI) -> uvicorn.Server:
    """A server that prints nothing but errors; call `serve(server, socket)`."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # logs each malformed form
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN,
    )
    return _Server(config)


def serve(server: uvicorn.Server, bound: socket.socket) -> None:
    """Serve until a signal arrives; running requests are finished, then the signal takes its usual effect."""
    asyncio.run(server.serve(sockets=[bound]))


class _Server(uvicorn.Server):
    """Finishes running requests also on SIGHUP, as on SIGINT and SIGTERM, unless it is ignored."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        hangup = getattr(signal, "SIGHUP", None)  # Windows has none
        in_main = threading.current_thread() is threading.main_thread()  # signals reach the main thread only
        if hangup is None or not in_main or signal.getsignal(hangup) is signal.SIG_IGN:
            with super().capture_signals():
                yield
            return
        with super().capture_signals():  # which raises the captured signals again at its end
            before = signal.signal(hangup, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(hangup, before)


class _Protocol(H11Protocol):
    """Closes connections that begin no request, which uvicorn keeps for ever."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(_IDLE, self._close_if_idle, self.cycle)

    def _close_if_idle(self, before: Any) -> None:
        if self.transport.is_closing():
            return
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is before:
            self.transport.close()
        else:
            self.loop.call_later(_IDLE, self._close_if_idle, self.cycle)
