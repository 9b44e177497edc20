"""What is checked, and what a check reports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.data.catalogue import DATA_ROOT

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "skipped"
VERDICTS = (OK, WARNING, FAILED, SKIPPED)


class Outcome(NamedTuple):
    """One result of a check: its verdict, details for the reader, and the part of the check it is about, if any."""

    verdict: str
    details: str
    part: str = ""


@dataclass(frozen=True)
class Subject:
    """What is checked: a backbone on a device, and the folders of this machine."""

    name: str = "pocket"
    pretrained: str | None = None
    device: str = "auto"
    precision: str = "fp32"
    data_root: Path | None = None
    quick: bool = False

    @cached_property
    def backbone(self) -> Backbone:
        """The backbone on the chosen device, loaded once."""
        return load_backbone(self.name, self.pretrained, device=self.device, precision=self.precision)

    @cached_property
    def reference_backbone(self) -> Backbone:
        """The same weights on the CPU in fp32."""
        if (self.backbone.device.type, self.precision) == ("cpu", "fp32"):
            return self.backbone
        return load_backbone(self.name, self.pretrained, device="cpu", precision="fp32")

    @property
    def benchmarks(self) -> Path | None:
        """Folder of the benchmarks, or None if there is none."""
        given = self.data_root or os.environ.get(DATA_ROOT)
        return Path(given).expanduser() if given else None
