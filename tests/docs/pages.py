"""Runs the code of a document, block by block, in a folder of its own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import NamedTuple

from tests.fork_server import Command, start_command

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


def run(command: str, folder: Path, source: Path) -> str:
    """What a command of a document prints; it must succeed."""
    process = start(command, folder, source)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, f"{command}\n{output}\n{errors}"
    return output


def start(command: str, folder: Path, source: Path) -> subprocess.Popen[str] | Command:
    """Start a command of a document; `slimprompt` without the seconds of its imports."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), os.environ.get("PYTHONPATH", "")))}
    words = shlex.split(command, comments=True)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = os.pathsep.join((str(source), value)) if name == "PYTHONPATH" else value
    if words[0] == "slimprompt":
        return start_command(words[1:], cwd=folder, environment=environment, fork_workers=True)
    program = sys.executable if words[0] == "python" else words[0]
    words = [name for word in words for name in (sorted(glob(word, root_dir=folder)) if "*" in word else [word])]
    pipe = subprocess.PIPE
    return subprocess.Popen([program, *words[1:]], cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)
