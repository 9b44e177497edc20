"""Runs as Ray tasks: on this machine, or on all machines of a cluster that share the runs folder.

Ray repeats a task if its worker or node dies. Run folders are written completely or not at all and complete runs are never
replaced, so a repeated task loses and duplicates nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from slimprompt import __version__
from slimprompt.allocator import keep_freed_memory
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import ATTEMPTS
from slimprompt.lab.records import FAILED, Record, find_run, store_run
from slimprompt.lab.run import make_runs
from slimprompt.lab.run_cache import RunCache
from slimprompt.lab.spec import RunSpec


class RayExecutor:
    """Executes each prompt batch as a task that needs `environment.threads` CPUs.

    Parameters
    ----------
    environment
        Where and with what the runs are executed.
    address
        "auto" or "host:port" of a running cluster; None starts Ray on this machine for the duration of the study.
    gpus
        GPUs that each task needs; may be a fraction.
    """

    def __init__(self, environment: RunEnvironment, *, address: str | None = None, gpus: float = 0.0) -> None:
        try:
            import ray
        except ImportError:
            raise InputError(
                "the Ray executor needs the package ray: pip install 'slimprompt[ray]', or leave out --executor ray"
            ) from None
        self._ray = ray
        # Absolute paths mean the same in every process.
        self._environment = replace(
            environment,
            runs=environment.runs.absolute(),
            data_root=environment.data_root and environment.data_root.absolute(),
            cache=environment.cache and environment.cache.absolute(),
            executor="ray",
        )
        self._started_here = not ray.is_initialized()
        if self._started_here:
            _connect(ray, address)
        self._cpus = environment.threads
        task = ray.remote(num_cpus=environment.threads, num_gpus=gpus, max_retries=ATTEMPTS - 1)
        self._task = task(_make)
        self._running: dict[Any, Sequence[RunSpec]] = {}

    @property
    def slots(self) -> int:
        """Twice what fits on the cluster now, so that its queue is never empty and joining machines find work."""
        return max(4, 2 * int(self._ray.cluster_resources().get("CPU", 1)) // self._cpus)

    def submit(self, specs: Sequence[RunSpec]) -> None:
        """Queue a prompt batch with Ray."""
        self._running[self._task.remote(specs, self._environment, __version__)] = specs

    def collect(self) -> list[Record]:
        """Wait for the first task that has ended."""
        while True:
            (done, *_), _ = self._ray.wait(list(self._running), num_returns=1)
            specs = self._running.pop(done)
            try:
                records: list[Record] = self._ray.get(done)
            except self._ray.exceptions.RayTaskError as error:
                cause = error.as_instanceof_cause()
                if isinstance(cause, InputError):  # no run can succeed there: no backbone, no data, no disk
                    raise InputError(str(error.cause)) from None
                raise
            except (self._ray.exceptions.RaySystemError, self._ray.exceptions.RayError) as error:
                if len(specs) > 1:  # one of them may be the cause: repeat them one by one
                    for spec in specs:
                        self.submit([spec])
                    continue
                reason = (
                    f"Ray gave up after {ATTEMPTS} tries: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
                )
                return [store_run(self._environment.runs, specs[0], {"status": FAILED, "error": reason})]
            if find_run(self._environment.runs, specs[0]) is None:
                raise InputError(
                    f"a run was executed on another machine, but its folder {records[0].folder} is not visible here: --runs must "
                    "be a folder that all machines of the cluster share"
                )
            return records

    def close(self) -> None:
        """Cancel unfinished tasks, and stop Ray if it was started here."""
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._running = {}
        if self._started_here:
            self._ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    try:
        if address is None:
            # Results are written to disk, so the object store is as small as Ray allows.
            quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
            ray.init(address="local", object_store_memory=80_000_000, **quiet)
            return
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit() and "://" not in address:  # Ray itself would retry for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        if address is None:
            raise InputError(f"cannot start Ray on this machine: {reason}") from None
        raise InputError(
            f"cannot reach a Ray cluster at {address!r}: {reason}. Start one with `ray start --head`, or leave out --address "
            "to use this machine alone; for a cluster with token authentication set RAY_AUTH_MODE=token"
        ) from None


def _make(specs: Sequence[RunSpec], environment: RunEnvironment, version: str) -> list[Record]:
    """The task: execute a prompt batch with the run cache that the worker process keeps for the next one."""
    if version != __version__:
        raise InputError(f"this machine has slimprompt {__version__}, but the study was started with {version}")
    return make_runs(specs, _run_cache(environment))


@lru_cache(maxsize=1)
def _run_cache(environment: RunEnvironment) -> RunCache:
    keep_freed_memory()
    return RunCache(environment)
