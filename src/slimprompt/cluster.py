"""Connect to Ray, on this machine or on a running cluster, and count the workers that fit on it."""

from __future__ import annotations

import inspect
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from slimprompt.errors import InputError


def import_ray() -> Any:
    """The package ray, or the error that says how to install it."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "the Ray executor needs the package ray: pip install 'slimprompt[ray]', or leave out --executor ray"
        ) from None
    return ray


def connect(ray: Any, address: str | None) -> bool:
    """Connect to a cluster unless this process is connected already; whether it was connected here.

    Parameters
    ----------
    ray
        The package.
    address
        "auto" or "host:port" of a running cluster; None starts Ray on this machine.
    """
    if ray.is_initialized():
        return False
    with _sigterm_handler_kept():
        _init(ray, address)
    return True


def nodes(ray: Any) -> list[dict[str, float]]:
    """The resources of each machine that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def gpus_per_worker(ray: Any, device: str, given: float | None) -> float:
    """GPUs of each worker: the given number, else one if the device allows it and the cluster has GPUs."""
    if given is not None:
        return given
    may_use_gpus = device.split(":")[0] in ("auto", "cuda")
    return float(may_use_gpus and ray.cluster_resources().get("GPU", 0) >= 1)


def workers_that_fit(ray: Any, cpus: float, gpus: float) -> int:
    """Number of workers with these resources that fit on the cluster now."""
    fits = 0
    for node in nodes(ray):
        by_cpus = int(node.get("CPU", 0) // cpus)
        fits += min(by_cpus, int(node.get("GPU", 0) / gpus)) if gpus else by_cpus
    return fits


def most_cpus(ray: Any) -> float:
    """CPUs of the machine that has the most."""
    return max((node.get("CPU", 0) for node in nodes(ray)), default=0)


def first_line(error: BaseException) -> str:
    """The first line of an error of Ray, which often prints a page."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _sigterm_handler_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces by its own and then by one that dumps a native stack."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:  # from Ray's handler: the signal arrived while Ray was starting
        if callable(handler):
            handler(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def loopback_only(ray: Any) -> Iterator[None]:
    """While Ray is started: it listens on this machine's loopback address only, as it does by default on macOS and Windows.

    On Linux it would accept connections from other machines, and whoever reaches Ray can run code.
    """
    constants = ray._private.ray_constants
    before = getattr(constants, "ENABLE_RAY_CLUSTER", True)  # private: another version may not have it
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def without_unused_processes(ray: Any) -> Iterator[None]:
    """While Ray is started: it leaves out three processes that do nothing for one command, and the seconds of their start.

    They are the autoscaler's, which adds machines to clusters; the one that sends logs to the driver, which does not print them; and
    the server of the dashboard, which Ray starts for its usage statistics even if there is no dashboard.
    """
    parameter, services = ray._private.parameter, ray._private.services
    params, start_server = parameter.RayParams, getattr(services, "start_api_server", None)
    unused = {"no_monitor": True, "include_log_monitor": False}
    known = inspect.signature(params).parameters  # private: another version may not have them
    parameter.RayParams = partial(params, **{name: value for name, value in unused.items() if name in known})
    if start_server is not None:
        services.start_api_server = lambda *_, **__: (None, None)  # no address and no process, as if it could not start
    try:
        yield
    finally:
        parameter.RayParams = params
        if start_server is not None:
            services.start_api_server = start_server


def _init(ray: Any, address: str | None) -> None:
    try:
        if address is None:
            # Results are written to disk, so the object store is as small as Ray allows.
            quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
            with loopback_only(ray), without_unused_processes(ray):
                ray.init(address="local", object_store_memory=80_000_000, **quiet)
            return
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit() and "://" not in address:  # Ray itself would retry for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        if address is None:
            raise InputError(f"cannot start Ray on this machine: {first_line(error)}") from None
        raise InputError(
            f"cannot reach a Ray cluster at {address!r}: {first_line(error)}. Start one with `ray start --head`, or leave out "
            "--address to use this machine alone; for a cluster with token authentication set RAY_AUTH_MODE=token"
        ) from None
