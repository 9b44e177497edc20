"""Reading back what the trackers wrote, with the packages themselves."""

from __future__ import annotations

import json
import struct
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


def read_wandb(folder: Path) -> list[Written]:
    """Offline runs."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its service writes in the background; this waits for it
    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        name, settings, summary, curves = "", {}, {}, {}
        for data in _log_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.HasField("run"):
                name = record.run.display_name
                updates = {one.key: json.loads(one.value_json) for one in record.run.config.update}
                settings |= {key: _plain(value) for key, value in updates.items() if key != "_wandb"}
            items = {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
            step = int(items.get("_step", record.history.step.num))
            for key, value in items.items():
                if key.startswith("train/"):
                    curves.setdefault(key, []).append((step, value))
            for one in record.summary.update:
                summary[one.key or ".".join(one.nested_key)] = json.loads(one.value_json)
        metrics = {key: value for key, value in summary.items() if not key.startswith(("_", "train/"))}
        found.append(Written(name, settings, metrics, curves))
    return found


def _plain(value: Any) -> str:
    """TensorBoard and JSON have whole numbers as 4.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _log_records(data: bytes) -> list[bytes]:
    """The records of a LevelDB log: blocks of 32 KiB, parts with a header of checksum, length and kind."""
    records, part, position = [], b"", 7  # after the header of the file
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        if kind == 0:
            break
        part += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(part)
            part = b""
    return records
