"""Connect to Ray, on this machine or on a running cluster, and count the workers that fit on it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from slimprompt.errors import InputError

#: Whether Ray accepts connections from other machines; read when ray is imported.
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def import_ray(*, loopback: bool = False) -> Any:
    """The package ray, or the error that says how to install it.

    With `loopback`, a Ray that this process starts listens on this machine only: Ray does so on macOS and Windows, and on Linux if this
    variable is 0 when it is imported.
    """
    given = os.environ.get(_CLUSTERS)
    if loopback and given is None:
        os.environ[_CLUSTERS] = "0"
    try:
        import ray
    except ImportError:
        raise InputError(
            "the Ray executor needs the package ray: pip install 'slimprompt[ray]', or leave out --executor ray"
        ) from None
    finally:
        if given is None:
            os.environ.pop(_CLUSTERS, None)
    return ray


def connect(ray: Any, address: str | None) -> bool:
    """Connect to a cluster unless this process is connected already; whether it was connected here."""
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


def _warn_if_reachable(ray: Any) -> None:
    addresses = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if any(not ip_address(address).is_loopback for address in addresses):
        warnings.warn(
            f"Ray accepts connections from other machines at {', '.join(sorted(addresses))}, and whoever reaches it can run code: "
            "set RAY_AUTH_MODE=token, or import ray only after slimprompt has started it",
            stacklevel=1,
        )


def _init(ray: Any, address: str | None) -> None:
    try:
        if address is None:
            # Results are written to disk, so the object store is as small as Ray allows.
            quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
            ray.init(address="local", object_store_memory=80_000_000, **quiet)
            _warn_if_reachable(ray)
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
