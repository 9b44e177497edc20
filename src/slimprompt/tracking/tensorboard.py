"""TensorBoard: one folder of event files per run, which appears completely or not at all."""

from __future__ import annotations

import re
from pathlib import Path

from slimprompt.files import check_writable, draft_folder, publish
from slimprompt.tracking import TrackedRun


class TensorBoard:
    """Writes `<folder>/<name>-<id>`: the curve and the metrics as scalars, the settings as hyperparameters."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, run_id: str) -> bool:
        """Whether there is a folder of this run."""
        return any(self._folder.glob(f"*-{run_id}"))

    def write(self, run: TrackedRun) -> None:
        """Write the event files of a run."""
        from torch.utils.tensorboard import SummaryWriter

        name = re.sub(r"[^\w.-]+", "-", run.name).strip("-.")[:80]
        with draft_folder(self._folder / f"{name}-{run.id}") as draft:
            with SummaryWriter(str(draft)) as writer:
                for epoch, values in run.steps():
                    for title, value in values.items():
                        writer.add_scalar(title, value, epoch)
                settings = run.known_settings.items()
                texts = {name: str(value) if isinstance(value, bool) else value for name, value in settings}  # not 1.0
                writer.add_hparams(texts, dict(run.metrics), run_name=".")
            publish(draft, self._folder / f"{name}-{run.id}")


def connect(target: str) -> TensorBoard:
    """The tracker for a folder; empty: `logs`."""
    folder = Path(target or "logs")
    check_writable(folder)
    return TensorBoard(folder)
