"""Weights & Biases: one run of a project per run, on its server or, with WANDB_MODE=offline, in a folder."""

from __future__ import annotations

import os
from pathlib import Path

from slimprompt.errors import InputError
from slimprompt.files import check_writable
from slimprompt.tracking import TrackedRun

#: File beside the data of a run that was written completely.
_MARK = "complete"
#: Seconds to wait for the server.
_TIMEOUT = 30


class WandB:
    """Writes runs to a project; the id of a run is also its id there, so that a run cannot be there twice."""

    def __init__(self, folder: Path, project: str) -> None:
        self._folder, self._project = folder, project

    def has(self, run_id: str) -> bool:
        """Whether this run was written from this folder."""
        return any(self._folder.glob(f"wandb/*run-*-{run_id}/{_MARK}"))

    def write(self, run: TrackedRun) -> None:
        """Write a run: its settings as config, its curve as history, its metrics as summary."""
        import wandb

        written = wandb.init(
            project=self._project,
            id=run.id,
            name=run.name,
            dir=str(self._folder),
            config=run.known_settings,
            resume="allow",
            settings=wandb.Settings(silent=True, console="off", init_timeout=_TIMEOUT),
        )
        place = Path(written.dir).parent
        for epoch, values in run.steps():
            written.log(values, step=epoch)
        written.summary.update(dict(run.metrics))
        written.finish()
        if place.is_dir():  # not with WANDB_MODE=disabled
            (place / _MARK).touch()


def connect(target: str) -> WandB:
    """The tracker that keeps its files in a folder; empty: the current one. The project is WANDB_PROJECT or `slimprompt`.

    Raises
    ------
    InputError
        If a server would be needed and nobody is logged in; nothing is asked on the terminal.
    """
    import wandb

    folder = Path(target or ".")
    check_writable(folder)
    wandb.setup(settings=wandb.Settings(silent=True, console="off"))  # silent: no questions
    if os.environ.get("WANDB_MODE", "online") == "online":
        try:
            wandb.login()
        except wandb.errors.Error as error:
            raise InputError(
                f"Weights & Biases cannot be used: {error} Log in first (wandb login), or set WANDB_MODE=offline to write to {folder}"
            ) from None
    folder.mkdir(parents=True, exist_ok=True)
    return WandB(folder, os.environ.get("WANDB_PROJECT") or "slimprompt")
