"""The pages that can be tried offline: their blocks of commands run from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, commands, run

#: Page → files that its commands leave.
LEFT = {
    "trust": ("my-prompt/model.safetensors",),
    "curation": ("my-gda/model.safetensors", "suggestions.html", "findings.html"),
    "continue": ("larger-prompt/model.safetensors",),
    "collections": ("predictions.csv",),
    "production": ("classifier.onnx", "classes.safetensors", "to-push/README.md"),
}


@pytest.mark.slow
@pytest.mark.parametrize("page", LEFT)
def test_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install 'slimprompt[onnx]')")
    for block in blocks(ROOT / "docs" / f"{page}.md"):
        for command in commands(block) if block.language == "sh" else ():
            run(command, tmp_path, ROOT / "src")
    for name in LEFT[page]:
        assert (tmp_path / name).is_file(), name
