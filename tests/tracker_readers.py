"""Reading back what the trackers wrote, with the packages themselves."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple


class Written(NamedTuple):
    """A run as a tracker holds it."""

    name: str
    settings: dict[str, str]
    """As text."""
    metrics: dict[str, float]
    """The last value of each."""
    curves: dict[str, list[tuple[int, float]]]
    """(epoch, value) of each curve."""


def read_tensorboard(folder: Path) -> list[Written]:
    """The run folders, which may still be written to."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    found = []
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        events = EventAccumulator(str(path))
        events.Reload()
        scalars = {
            tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
        }
        settings = {}
        with suppress(KeyError):  # they are written with the result
            started = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
            hparams = plugin_data_pb2.HParamsPluginData.FromString(started).session_start_info.hparams
            settings = {name: _plain(getattr(value, value.WhichOneof("kind"))) for name, value in hparams.items()}
        metrics = {tag: rows[-1][1] for tag, rows in scalars.items() if not tag.startswith("train/")}
        curves = {tag: rows for tag, rows in scalars.items() if tag.startswith("train/")}
        found.append(Written(path.name, settings, metrics, curves))
    return found


def read_mlflow(uri: str, experiment: str = "slimprompt") -> list[Written]:
    """The runs of an experiment."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = []
    for run in client.search_runs([client.get_experiment_by_name(experiment).experiment_id]):
        names = [name for name in run.data.metrics if name.startswith("train/")]
        history = {name: client.get_metric_history(run.info.run_id, name) for name in names}
        curves = {name: [(one.step, one.value) for one in values] for name, values in history.items()}
        metrics = {name: value for name, value in run.data.metrics.items() if name not in names}
        found.append(Written(run.info.run_name, dict(run.data.params), metrics, curves))
    return found


def _plain(value: Any) -> str:
    """TensorBoard and JSON have whole numbers as 4.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
