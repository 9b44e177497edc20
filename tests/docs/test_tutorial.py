"""The tutorial runs from top to bottom, with its service and its Python code."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, commands, run, start

PORT = "8765"
ACCURACY = re.compile(r" +([\d.]+) %$", re.MULTILINE)


def accuracies(printed: str) -> dict[str, float]:
    """Row of the printed table → accuracy."""
    found = (ACCURACY.search(line) for line in printed.splitlines())
    return {match.string[: match.start()]: float(match[1]) for match in found if match}


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install 'slimprompt[onnx]')")
    pytest.importorskip("fastapi", reason="fastapi is not installed (pip install 'slimprompt[serve]')")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    source, service, printed = ROOT / "src", None, {}
    try:
        for block in blocks(ROOT / "docs" / "tutorial.md"):
            if block.language == "python":
                (tmp_path / "same.py").write_text(block.text)
                printed["python"] = run("python same.py", tmp_path, source)
            for command in commands(block) if block.language == "sh" else ():
                mine = command.replace(PORT, port)
                if command.startswith("slimprompt serve"):
                    service = start(mine, tmp_path, source)
                    continue
                # curl waits until the service listens
                mine = mine.replace("curl ", "curl -s --retry 120 --retry-connrefused --retry-delay 1 ")
                printed[command] = run(mine, tmp_path, source)
    finally:
        if service is not None:
            service.send_signal(signal.SIGTERM)
            service.communicate(timeout=30)
    assert service is not None
    shown = next(block.text for block in blocks(ROOT / "docs" / "tutorial.md") if block.language == "text")
    first = next(text for command, text in printed.items() if command.startswith("slimprompt fit"))
    for line, accuracy in accuracies(shown).items():  # rounding depends on the processor, and training amplifies it
        assert accuracies(first)[line] == pytest.approx(accuracy, abs=1)
    assert (tmp_path / "my-prompt" / "model.safetensors").is_file()
    assert (tmp_path / "evaluation.html").is_file()
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 577
    assert (tmp_path / "classifier.onnx").is_file()
    answers = [text for command, text in printed.items() if command.startswith("curl")]
    assert json.loads(answers[0]) == {"status": "ok"}
    assert json.loads(answers[1])["predictions"][0]["answer"] == "checkered_brown_square"
    assert "checkered_brown_square" in printed["python"]
