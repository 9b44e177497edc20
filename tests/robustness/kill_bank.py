"""Kills writers of a feature bank inside SQLite's writes to its file and journal, and looks at what they leave.

    python -m tests.robustness.kill_bank <images> <backbone> <folder> <most kills>

In every case a new bank gets three views of all images, one transaction each. The writer is killed before a system call that
changes one of the bank's files, or inside one, after a part of a page was written. Then a process opens the bank, or has had it open
since before: every stored feature is compared with a fresh one, and the missing ones are encoded.

Prints one JSON object: the numbers of system calls and of kills, the features found after each kill, and what was wrong.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.images import store
from slimprompt.images.bank import FeatureBank
from tests.robustness.kills import chosen_operations
from tests.robustness.system_calls import kill_at_size, kill_before_call

VIEWS = ("", "1/0", "1/1")


class Campaign:
    """The cases of one backbone on some images."""

    def __init__(self, images: Path, backbone: Backbone, folder: Path) -> None:
        self.images = sorted(images.rglob("*.png"))
        self.backbone, self.folder = backbone, folder
        self.found: list[int] = []
        self.wrong: list[str] = []
        self._fresh = self._in_child(self._fresh_features)

    def write(self, folder: Path) -> None:
        """What is killed."""
        bank = self._open(folder)
        for view in VIEWS:
            bank.build(self.images, [view])

    def case(self, name: str, kill: Callable[[Path], object], *, held: bool) -> None:
        """Kill a writer of a new bank, then check the bank in another process, which has it open before if `held`."""
        folder = self.folder / name
        folder.mkdir()
        holder = self._start_holder(folder) if held else None
        kill(folder)
        result = holder() if holder else self._in_child(lambda: self._check(self._open(folder)))
        if isinstance(result, int):
            self.found.append(result)
            shutil.rmtree(folder)
        else:
            self.wrong.append(f"{name}: {result}")

    def _open(self, folder: Path | None) -> FeatureBank:
        return FeatureBank(self.backbone, folder, workers=1, show_progress=False)

    def _fresh_features(self) -> dict[str, str]:
        bank = self._open(None)
        bank.build(self.images, VIEWS)
        return self._rows(bank)

    def _rows(self, bank: FeatureBank) -> dict[str, str]:
        names = [(image, f"upright:{view}") for image in bank.hashes(self.images) for view in VIEWS]
        rows = {(image, view): bank.store.read([image], view) for image, view in names}
        found = {f"{image}/{view}": row.tobytes().hex() for (image, view), row in rows.items() if row is not None}
        assert len(found) == len(bank)
        return found

    def _check(self, bank: FeatureBank) -> int:
        """The number of features found; all of them, and those that are encoded now, must be the fresh ones."""
        stored = self._rows(bank)
        assert stored.items() <= self._fresh.items(), "a stored feature is not the fresh one"
        assert len(stored) % len(self.images) == 0, "a transaction was stored in part"
        with closing(sqlite3.connect(str(bank.path))) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        for view in VIEWS:
            bank.features(self.images, view)
        assert self._rows(bank) == self._fresh, "the missing features were not encoded"
        return len(stored)

    def _start_holder(self, folder: Path) -> Callable[[], Any]:
        """A child that opens the bank now and checks it when the returned function is called."""
        ready, go, result = os.pipe(), os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go[1])
            bank = self._open(folder)
            len(bank)
            os.write(ready[1], b"1")
            os.read(go[0], 1)
            _answer(lambda: self._check(bank), result[1])
        os.read(ready[0], 1)

        def finish() -> Any:
            os.write(go[1], b"1")
            found = _result(child, *result)
            for descriptor in (*ready, *go):
                os.close(descriptor)
            return found

        return finish

    @staticmethod
    def _in_child(action: Callable[[], Any]) -> Any:
        """Its result, or the traceback of its exception; this process itself never opens a bank, so that it can be forked."""
        pipe = os.pipe()
        child = os.fork()
        if child == 0:
            _answer(action, pipe[1])
        return _result(child, *pipe)


def _answer(action: Callable[[], Any], pipe: int) -> None:
    try:
        found = action()
    except BaseException:
        found = traceback.format_exc()
    with os.fdopen(pipe, "w") as stream:
        json.dump(found, stream)
    os._exit(0)


def _result(child: int, read: int, write: int) -> Any:
    os.close(write)
    with os.fdopen(read) as stream:
        found = json.load(stream)
    os.waitpid(child, 0)
    return found


def main() -> None:
    """All cases."""
    images, name, folder, most = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    store._PAGE = 512  # a transaction changes several pages
    campaign = Campaign(images, load_backbone(name, device="cpu"), folder)
    undisturbed = folder / "undisturbed"
    undisturbed.mkdir()
    total = kill_before_call(None, lambda: campaign.write(undisturbed), undisturbed)
    for number in chosen_operations(total, most, seed=0):

        def kill(place: Path, number: int = number) -> None:
            kill_before_call(number, lambda: campaign.write(place), place)

        campaign.case(f"call-{number}", kill, held=number % 3 == 0)
    (file,) = undisturbed.glob("*-*.sqlite")
    for n_bytes in sorted(random.Random(0).sample(range(file.stat().st_size), most // 4)):

        def tear(place: Path, n_bytes: int = n_bytes) -> None:
            assert kill_at_size(n_bytes, lambda: campaign.write(place))

        campaign.case(f"torn-{n_bytes}", tear, held=False)
    print(json.dumps({"calls": total, "found": campaign.found, "wrong": campaign.wrong}))


if __name__ == "__main__":
    main()
