"""Writers of a feature bank are killed inside SQLite's writes to its file and journal; what they leave is whole transactions.

In every case a new bank gets three views of all images, one transaction each. The writer is killed before a system call that
changes one of the bank's files, or inside one, after a part of a page was written. Then a process opens the bank, or has had it open
since before: every stored feature is compared with a fresh one, and the missing ones are encoded.
`SLIMPROMPT_KILLS=1000 pytest tests/robustness/test_bank_kills.py` takes all calls instead of a sample.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.images import store
from slimprompt.images.bank import FeatureBank
from tests.conftest import draw
from tests.robustness.kills import chosen_operations, exit_after, run_campaign, value_of
from tests.robustness.system_calls import can_trace, kill_at_size, kill_before_call

VIEWS = ("", "1/0", "1/1")
N_IMAGES = 24  # of a transaction
_MOST = int(os.environ.get("SLIMPROMPT_KILLS", "24"))


class Campaign(NamedTuple):
    """The cases of one backbone on some images."""

    images: list[Path]
    backbone: Backbone
    fresh: dict[str, str]

    def open(self, folder: Path | None) -> FeatureBank:
        return FeatureBank(self.backbone, folder, workers=1, show_progress=False)

    def write(self, folder: Path) -> None:
        """What is killed."""
        bank = self.open(folder)
        for view in VIEWS:
            bank.build(self.images, [view])

    def rows(self, bank: FeatureBank) -> dict[str, str]:
        names = [(image, f"upright:{view}") for image in bank.hashes(self.images) for view in VIEWS]
        rows = {(image, view): bank.store.read([image], view) for image, view in names}
        found = {f"{image}/{view}": row.tobytes().hex() for (image, view), row in rows.items() if row is not None}
        assert len(found) == len(bank)
        return found

    def fresh_rows(self) -> dict[str, str]:
        bank = self.open(None)
        bank.build(self.images, VIEWS)
        return self.rows(bank)

    def check(self, bank: FeatureBank) -> int:
        """The number of features found; all of them, and those that are encoded now, must be the fresh ones."""
        stored = self.rows(bank)
        assert stored.items() <= self.fresh.items(), "a stored feature is not the fresh one"
        assert len(stored) % len(self.images) == 0, "a transaction was stored in part"
        with closing(sqlite3.connect(str(bank.path))) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        for view in VIEWS:
            bank.features(self.images, view)
        assert self.rows(bank) == self.fresh, "the missing features were not encoded"
        return len(stored)

    def case(self, folder: Path, kill: Callable[[], object], *, held: bool) -> int:
        """Kill a writer of a new bank, then check the bank in another process, which has it open before if `held`."""
        folder.mkdir()
        if held:
            ours, theirs = multiprocessing.Pipe()
            child = os.fork()
            if child == 0:
                bank = self.open(folder)
                theirs.send(len(bank))
                theirs.recv()
                exit_after(lambda: theirs.send(self.check(bank)))
            ours.recv()
            kill()
            ours.send("killed")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, folder.name
            found: int = ours.recv()
        else:
            kill()
            found = value_of(lambda: self.check(self.open(folder)))
        shutil.rmtree(folder)
        return found


def kill_bank(images: Path, name: str, folder: Path, most: int) -> tuple[int, list[int]]:
    """The number of system calls, and the features found after each kill; this process itself never opens a bank."""
    store._PAGE = 512  # a transaction changes several pages
    campaign = Campaign(sorted(images.rglob("*.png")), load_backbone(name, device="cpu"), {})
    campaign = campaign._replace(fresh=value_of(campaign.fresh_rows))
    undisturbed = folder / "undisturbed"
    undisturbed.mkdir()
    total = kill_before_call(None, lambda: campaign.write(undisturbed), undisturbed)
    (file,) = undisturbed.glob("*-*.sqlite")
    found = []
    for number in chosen_operations(total, most, seed=0):
        place = folder / f"call-{number}"

        def kill(place: Path = place, number: int = number) -> None:
            kill_before_call(number, lambda: campaign.write(place), place)

        found.append(campaign.case(place, kill, held=number % 3 == 0))
    for n_bytes in sorted(random.Random(0).sample(range(file.stat().st_size), most // 4)):
        place = folder / f"torn-{n_bytes}"

        def tear(place: Path = place, n_bytes: int = n_bytes) -> None:
            assert kill_at_size(n_bytes, lambda: campaign.write(place))

        found.append(campaign.case(place, tear, held=False))
    return total, found


@pytest.mark.slow
@pytest.mark.skipif(not can_trace(), reason="system calls of children cannot be traced here")
def test_a_feature_bank_killed_inside_the_writes_of_sqlite_has_only_whole_transactions(
    tiny_folder: str, tmp_path: Path
) -> None:
    for number in range(N_IMAGES):
        draw(tmp_path / "images" / "red" / f"{number}.png", ["red", "blue", "green", "pink"][number % 4], number)
    (tmp_path / "banks").mkdir()
    calls, found = run_campaign(kill_bank, tmp_path / "images", tiny_folder, tmp_path / "banks", _MOST)
    assert calls > 20
    assert len(found) == min(_MOST, calls) + _MOST // 4
    assert {0, N_IMAGES, 2 * N_IMAGES} <= set(found) <= {0, N_IMAGES, 2 * N_IMAGES, 3 * N_IMAGES}
