"""MLflow: one run of an experiment per run, on a tracking server or in a local store."""

from __future__ import annotations

import os
import re
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slimprompt.errors import InputError
from slimprompt.tracking import TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient

_TAG = "slimprompt.run"
#: Limits of one request, and of the value of a parameter.
_METRICS, _PARAMS, _VALUE = 1000, 100, 500


class MLflow:
    """Writes runs to an experiment; the id of a run is its tag `slimprompt.run`."""

    def __init__(self, client: MlflowClient, experiment: str) -> None:
        self._client, self._experiment = client, experiment

    @cached_property
    def _ids(self) -> set[str]:
        """Ids of the runs that were written completely."""
        found: set[str] = set()
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [self._experiment], "attributes.status = 'FINISHED'", max_results=1000, page_token=token
            )
            found |= {run.data.tags[_TAG] for run in page if _TAG in run.data.tags}
            token = page.token
            if not token:
                return found

    def has(self, run_id: str) -> bool:
        """Whether a finished run has this id."""
        return run_id in self._ids

    def write(self, run: TrackedRun) -> None:
        """Write a run: its settings as parameters, its curve and metrics as metrics."""
        from mlflow.entities import Metric, Param

        now = int(1000 * time.time())
        steps = [*run.steps(), (max(0, len(run.curve) - 1), dict(run.metrics))]
        metrics = [
            Metric(_key(name), float(value), now, step) for step, values in steps for name, value in values.items()
        ]
        params = [Param(_key(name), str(value)[:_VALUE]) for name, value in run.known_settings.items()]
        created = self._client.create_run(self._experiment, run_name=run.name, tags={_TAG: run.id}).info.run_id
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(created, params=params[start : start + _PARAMS])
        for start in range(0, len(metrics), _METRICS):
            self._client.log_batch(created, metrics=metrics[start : start + _METRICS])
        self._client.set_terminated(created)
        self._ids.add(run.id)


def connect(target: str) -> MLflow:
    """The tracker for a tracking URI; empty: the one that MLflow is configured with. The experiment is `slimprompt`.

    The environment variables MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME are respected.
    """
    from mlflow import MlflowClient

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "slimprompt"
    try:
        client = MlflowClient(tracking_uri=target or None)
        experiment: Any = client.get_experiment_by_name(name)
        return MLflow(client, experiment.experiment_id if experiment else client.create_experiment(name))
    except Exception as error:  # MLflow has error types of its own
        raise InputError(
            f"MLflow cannot be used at {target or 'its default place'}: {' '.join(str(error).split())[:600]} -- Give a server, such as "
            "--log mlflow:http://127.0.0.1:5000; databases need the whole package: pip install mlflow"
        ) from None


def _key(name: str) -> str:
    """A name with the characters that MLflow allows: `accuracy@dtd` → `accuracy_dtd`."""
    return re.sub(r"[^\w\-. :/]", "_", name)
