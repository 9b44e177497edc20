"""The page about extending runs from top to bottom; its patches are applied to a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from slimprompt.lab.records import load_records
from tests.conftest import entries_of
from tests.docs.pages import ROOT, blocks, commands, run


def run_page(copy: Path, folder: Path) -> str:
    """Everything that the commands of the page print; files and commands are in `folder`, patches are applied to `copy`."""
    printed = []
    for block in blocks(ROOT / "docs" / "extending.md"):
        if block.language == "diff":
            done = subprocess.run(["git", "apply", "-"], input=block.text, cwd=copy, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        elif block.language == "python":
            assert block.file, "code of this page is saved in files"
            path = folder / block.file
            assert not path.exists()
            path.write_text(block.text)
        elif block.language == "sh":
            printed += [run(command, folder, copy / "src") for command in commands(block)]
    return "\n".join(printed)


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    copy, folder = tmp_path / "repository", tmp_path / "work"
    folder.mkdir()
    for name in ("src", "tests/data"):
        shutil.copytree(ROOT / name, copy / name)  # with the bytecode, which is valid for copies
    printed = run_page(copy, folder)
    # the benchmark has its published sizes, and a prompt was fitted to it
    assert "1152 images" in printed.replace(",", "")
    assert (folder / "shapes-prompt" / "model.safetensors").is_file()
    facts = "from tests.data.test_catalogue import test_table_has_the_published_facts as check; check()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (copy / "src", copy)))}
    for package in ("tests", "tests/data"):
        (copy / package / "__init__.py").touch()
    shutil.copy(ROOT / "tests" / "conftest.py", copy / "tests")
    subprocess.run([sys.executable, "-c", facts], cwd=copy, env=environment, check=True)
    # the method was compared with the others, saved and evaluated, and run in a study
    assert entries_of(folder / "my-head")["method"] == "my_methods:nearest_mean"
    assert re.search(
        r"^all methods without a prompt on the same .*^cross-modal .*^my_methods:nearest_mean ",
        printed,
        re.MULTILINE | re.DOTALL,
    )
    methods = Counter(record.spec.label for record in load_records(folder / "method-runs"))
    prompts = ("dense m16", "joint r4", "fixed-B orthogonal r4")
    assert methods == dict.fromkeys(("zero-shot", "gda", "my_methods:nearest_mean", *prompts), 4)
    assert "my_methods:nearest_mean − gda" in printed
    # the basis was run and compared
    bases = [record.spec.basis for record in load_records(folder / "basis-runs")]
    assert sorted(bases) == ["my_bases:cosine"] * 4 + ["orthogonal"] * 4
    assert "fixed-B my_bases:cosine r4 − fixed-B orthogonal r4" in printed
    # the claim was checked
    assert "A cosine basis is as good as an orthogonal one. pocket: " in printed
    assert "(n = 2), undecided" in printed or "(n = 2), holds" in printed
    # the paper of one's own has its study, table, claim and report
    assert len(load_records(folder / "sketch-runs")) == 3
    assert "### Accuracy on sketches" in printed and "| pocket-sketch | 4 | " in printed
    assert "Rank 2 loses at most ten points to a dense prompt." in printed
    assert "Accuracy on sketches" in (folder / "sketch-report" / "index.html").read_text()
    # the executor made its runs
    assert "6 runs by jobs" in printed
    assert len(load_records(folder / "job-runs")) == 6
