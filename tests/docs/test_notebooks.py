"""The notebooks run from top to bottom on the pocket model, and are stored with small outputs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", ())]


def printed(notebook: dict[str, Any]) -> str:
    return "".join("".join(output.get("text", "")) for output in outputs(notebook))


def test_there_are_three() -> None:
    assert [path.stem[0] for path in NOTEBOOKS] == ["1", "2", "3"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_with_small_outputs(path: Path) -> None:
    """Every cell was executed in order, nothing failed, and nothing tells of the machine that executed it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs(notebook))
    assert path.stat().st_size < 100_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    """In a kernel of its own."""
    pytest.importorskip("nbclient", reason="nbclient is not installed (pip install 'slimprompt[docs]')")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (pip install 'slimprompt[docs]')")
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "tools" / "run_notebooks.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = printed(tool.execute(path, tmp_path))
    expected = {
        "1_own_images": ["24 classes", "learned prompt", "checkered brown square", "model.safetensors"],
        "2_compare_methods": ["36 runs made, 0 existed, 0 failed", "zero-shot", "joint r4", "report"],
        "3_your_own_study": ["12 runs made, 0 existed, 0 failed", "unit dataset: n = 3", "unit run: n = 6"],
    }
    for words in expected[path.stem]:
        assert words in text
