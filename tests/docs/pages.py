"""Runs the code of a document, block by block, in a folder of its own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Block(NamedTuple):
    """One block of code of a document."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name that a block with a first line `# file: NAME` is saved under."""
        found = re.match(r"# file: (\S+)\n", self.text)
        return found and found[1]


def blocks(page: Path) -> list[Block]:
    """The blocks of a document that have a language, in order."""
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)]


def commands(block: Block) -> Iterator[str]:
    """The commands of a block, without comments and installations."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith(("#", "pip install")):
            yield line


def command_environment(source: Path) -> dict[str, str]:
    """The environment of a command: this Python, and slimprompt from a source folder."""
    path = os.pathsep.join((str(source), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def arguments(command: str, source: Path, environment: dict[str, str]) -> list[str]:
    """The words of a command; variables before it are added to the environment."""
    words = shlex.split(command, comments=True)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = os.pathsep.join((str(source), value)) if name == "PYTHONPATH" else value
    programs = {"slimprompt": [sys.executable, "-P", "-m", "slimprompt"], "python": [sys.executable]}
    return [*programs.get(words[0], [words[0]]), *words[1:]]


def run(command: str, folder: Path, source: Path) -> str:
    """What a command of a document prints; it must succeed."""
    environment = command_environment(source)
    words = arguments(command, source, environment)
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
