"""Runs on Ray: on this machine, or on all machines of a cluster that share the runs folder.

Each worker is an actor, so it keeps its loaded backbone and its GPU from one batch to the next. Run folders are written
completely or not at all and complete runs are never replaced, so a repeated run loses and duplicates nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from slimprompt import __version__
from slimprompt.cluster import connect, first_line, gpus_per_worker, import_ray, most_cpus, workers_that_fit
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.pool import Worker, WorkerDied, WorkerPool, prepare_worker
from slimprompt.lab.records import Record, find_run
from slimprompt.lab.run import Batch, make_runs

_NO_NODE_SECONDS = 120  # how long a cluster without a machine is waited for


class RayExecutor(WorkerPool):
    """Executes batches on actors that hold `environment.threads` CPUs and `gpus` GPUs each.

    `address` is "auto" or "host:port" of a running cluster; None starts Ray on this machine for the duration of the study. `gpus` may be
    a fraction; None is one if the device allows it and the cluster has GPUs, otherwise none.
    """

    def __init__(self, environment: RunEnvironment, *, address: str | None = None, gpus: float | None = None) -> None:
        # Absolute paths mean the same in every process.
        super().__init__(
            replace(
                environment,
                runs=environment.runs.absolute(),
                data_root=environment.data_root and environment.data_root.absolute(),
                cache=environment.cache and environment.cache.absolute(),
                executor="ray",
            )
        )
        ray = self._ray = import_ray(loopback=address is None)
        self._started_here = connect(ray, address)
        # A lost machine of a cluster may come back; Ray that was started for this study does not.
        self._patience = 0 if self._started_here and address is None else _NO_NODE_SECONDS
        self._gpus = gpus_per_worker(ray, environment.device, gpus)
        if not self.slots:
            largest = most_cpus(ray)
            self.close()
            raise InputError(
                f"no machine of the Ray cluster has {environment.threads} CPUs and {self._gpus:g} GPUs for one run (the most "
                f"CPUs are {largest:g}); give fewer --threads or --gpus"
            )

    @property
    def slots(self) -> int:
        """Number of workers that fit on the cluster now; machines that join are used."""
        return workers_that_fit(self._ray, self._environment.threads, self._gpus)

    def collect(self) -> list[Record]:
        """Wait for the first worker that has finished its batch."""
        records = super().collect()
        if find_run(self._environment.runs, records[0].spec) is None:
            raise InputError(
                f"a run was executed on another machine, but its folder {records[0].folder} is not visible here: --runs "
                "must be a folder that all machines of the cluster share"
            )
        return records

    def close(self) -> None:
        """End all workers, and stop Ray if it was started here."""
        super().close()
        if self._started_here:
            self._ray.shutdown()

    def _start(self) -> Worker:
        options = {"num_cpus": self._environment.threads, "num_gpus": self._gpus, "max_restarts": 0}
        return _ActorWorker(self._ray, self._ray.remote(**options)(RunWorker).remote(self._environment, __version__))

    def _wait(self, workers: Sequence[Any]) -> Worker:
        deadline = time.monotonic() + self._patience
        while not workers:
            if time.monotonic() > deadline:
                raise InputError(
                    "the Ray cluster has no machine left on which a run fits; re-run the command to resume"
                )
            time.sleep(0.5)
            self._dispatch()
            workers = [*self._starting, *self._running]
        pending = {worker.answer: worker for worker in workers}
        (done, *_), _ = self._ray.wait(list(pending), num_returns=1)
        return pending[done]


class _ActorWorker(Worker):
    """An actor, and the reference to its next answer."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.answer = actor.ready.remote()

    def send(self, batch: Batch) -> None:
        """Call the actor."""
        self.answer = self._actor.make.remote(batch)

    def receive(self) -> Any:
        """What the call returned."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(self.answer)
        except errors.RayTaskError as error:
            if isinstance(error.as_instanceof_cause(), InputError):
                return InputError(str(error.cause))
            raise
        except errors.RayError as error:  # the worker or its node died
            raise WorkerDied(f"by {type(error).__name__}: {first_line(error)}") from None

    def stop(self) -> None:
        """Kill the actor."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


class RunWorker:
    """The actor: executes batches with inputs that it keeps."""

    def __init__(self, environment: RunEnvironment, version: str) -> None:
        self._version, self._loaded = version, prepare_worker(environment)

    def ready(self) -> None:
        """Raise an error if this machine has another version of slimprompt than the study's."""
        if self._version != __version__:
            raise InputError(f"a machine has slimprompt {__version__}, but the study was started with {self._version}")

    def make(self, batch: Batch) -> list[Record]:
        """Execute a batch."""
        return make_runs(batch, self._loaded)
