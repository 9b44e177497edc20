"""Runs on Ray: on this machine, or on all machines of a cluster that share the runs folder.

Each worker is an actor, so it keeps its loaded backbone and its GPU from one prompt batch to the next. If a worker or its node
dies, its runs are tried again on another one. Run folders are written completely or not at all and complete runs are never
replaced, so a repeated run loses and duplicates nothing.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slimprompt import __version__
from slimprompt.allocator import keep_freed_memory
from slimprompt.cluster import connect, first_line, gpus_per_worker, import_ray, most_cpus, workers_that_fit
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import ATTEMPTS, retries
from slimprompt.lab.records import FAILED, Record, find_run, store_run
from slimprompt.lab.run import make_runs
from slimprompt.lab.run_cache import RunCache
from slimprompt.lab.spec import RunSpec
from slimprompt.startup import import_lightly

_NO_NODE_SECONDS = 120  # how long a cluster without a machine is waited for


class RayExecutor:
    """Executes prompt batches on actors that hold `environment.threads` CPUs and `gpus` GPUs each.

    Parameters
    ----------
    environment
        Where and with what the runs are executed.
    address
        "auto" or "host:port" of a running cluster; None starts Ray on this machine for the duration of the study.
    gpus
        GPUs of each worker; may be a fraction. None: one if the device allows it and the cluster has GPUs, otherwise none.
    """

    def __init__(self, environment: RunEnvironment, *, address: str | None = None, gpus: float | None = None) -> None:
        ray = self._ray = import_ray()
        self._queue: deque[Sequence[RunSpec]] = deque()
        self._starting: dict[Any, Any] = {}  # reference to `ready` → worker
        self._running: dict[Any, tuple[Any, Sequence[RunSpec]]] = {}  # reference to `make` → worker and its runs
        self._idle: list[Any] = []
        self._attempts: Counter[str] = Counter()
        self._failed_starts = 0
        self._started_here = connect(ray, address)
        # A lost machine of a cluster may come back; Ray that was started for this study does not.
        self._patience = 0 if self._started_here and address is None else _NO_NODE_SECONDS
        # Absolute paths mean the same in every process.
        self._environment = replace(
            environment,
            runs=environment.runs.absolute(),
            data_root=environment.data_root and environment.data_root.absolute(),
            cache=environment.cache and environment.cache.absolute(),
            executor="ray",
        )
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

    def submit(self, specs: Sequence[RunSpec]) -> None:
        """Give a prompt batch to an idle worker, or queue it until one is idle or has started."""
        self._queue.append(specs)
        self._dispatch()

    def collect(self) -> list[Record]:
        """Wait for the first worker that has finished its runs."""
        errors = self._ray.exceptions
        while True:
            done = self._wait()
            if done in self._starting:
                self._finish_start(done)
                continue
            worker, specs = self._running.pop(done)
            try:
                records: list[Record] = self._ray.get(done)
            except errors.RayTaskError as error:
                if isinstance(error.as_instanceof_cause(), InputError):  # no backbone, no data, no disk: stop the study
                    raise InputError(str(error.cause)) from None
                raise
            except errors.RayError as error:  # the worker or its node died
                given_up = self._retry(specs, error)
                if given_up:
                    return given_up
                continue
            self._idle.append(worker)
            self._dispatch()
            if find_run(self._environment.runs, specs[0]) is None:
                raise InputError(
                    f"a run was executed on another machine, but its folder {records[0].folder} is not visible here: --runs "
                    "must be a folder that all machines of the cluster share"
                )
            return records

    def close(self) -> None:
        """End all workers, and stop Ray if it was started here."""
        for worker in (*self._idle, *self._starting.values(), *(worker for worker, _ in self._running.values())):
            self._ray.kill(worker)
        self._queue, self._idle, self._starting, self._running = deque(), [], {}, {}
        if self._started_here:
            self._ray.shutdown()

    def _dispatch(self) -> None:
        """Give queued batches to idle workers, and start workers for the rest as far as they fit."""
        while self._queue and self._idle:
            worker, specs = self._idle.pop(), self._queue.popleft()
            self._attempts.update(spec.fingerprint for spec in specs)
            self._running[worker.make.remote(specs)] = worker, specs
        workers = len(self._idle) + len(self._starting) + len(self._running)
        for _ in range(min(len(self._queue) - len(self._starting), self.slots - workers)):
            options = {"num_cpus": self._environment.threads, "num_gpus": self._gpus, "max_restarts": 0}
            worker = self._ray.remote(**options)(RunWorker).remote(self._environment, __version__)
            self._starting[worker.ready.remote()] = worker

    def _wait(self) -> Any:
        """The first reference that is ready."""
        deadline = time.monotonic() + self._patience
        while not (references := [*self._starting, *self._running]):
            if time.monotonic() > deadline:
                raise InputError(
                    "the Ray cluster has no machine left on which a run fits; re-run the command to resume"
                )
            time.sleep(0.5)
            self._dispatch()
        (done, *_), _ = self._ray.wait(references, num_returns=1)
        return done

    def _finish_start(self, reference: Any) -> None:
        worker = self._starting.pop(reference)
        try:
            self._ray.get(reference)
            self._idle.append(worker)
            self._failed_starts = 0
        except self._ray.exceptions.RayTaskError as error:
            raise InputError(str(error.cause)) from None
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS:
                raise InputError(f"Ray cannot start a worker: {first_line(error)}") from None
        self._dispatch()

    def _retry(self, specs: Sequence[RunSpec], error: Exception) -> list[Record]:
        """Queue the runs of a dead worker again; returns the records of those that were tried too often."""
        again, given_up = retries(specs, self._attempts)
        self._queue.extend(again)
        self._dispatch()
        reason = f"the worker of this run died {ATTEMPTS} times: {type(error).__name__}: {first_line(error)}"
        return [store_run(self._environment.runs, spec, {"status": FAILED, "error": reason}) for spec in given_up]


class RunWorker:
    """The actor: executes prompt batches with a run cache that it keeps."""

    def __init__(self, environment: RunEnvironment, version: str) -> None:
        keep_freed_memory()
        import_lightly()
        import slimprompt.clip.backbone  # noqa: F401  # the slow imports: before the first run, and once

        self._version, self._cache = version, RunCache(environment)

    def ready(self) -> None:
        """Raise an error if this machine has another version of slimprompt than the study's."""
        if self._version != __version__:
            raise InputError(f"a machine has slimprompt {__version__}, but the study was started with {self._version}")

    def make(self, specs: Sequence[RunSpec]) -> list[Record]:
        """Execute a prompt batch."""
        return make_runs(specs, self._cache)
