"""Commands with closed streams, a reader that goes, and terminals that lack characters: they end well and save their work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slimprompt.lab.records import store_run
from slimprompt.saved import read_model
from tests.conftest import draw
from tests.fork_server import start_command
from tests.lab.test_records import failed, spec

pytestmark = pytest.mark.slow

#: What happens to the streams of a command, as the shell would write it; the numbers of the streams that are closed.
STREAMS = {"": (), ">&-": (1,), "2>&-": (2,), "<&- >&- 2>&-": (0, 1, 2), "| head -1": ()}
NAMES = ["café “Ü”", "дом"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for name, colour in zip(NAMES, ("red", "blue"), strict=True):
        for number in range(3):
            draw(root / name / f"bild-ä{number}.png", colour, number)
    return root


def run(streams: str, command: list[str], environment: dict[str, str]) -> str:
    """What a command printed, which must end well."""
    changed: dict[int, int | None] = dict.fromkeys(STREAMS[streams])
    if streams == "| head -1":
        with subprocess.Popen(["head", "-n", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdin is not None
            started = start_command(command, environment=environment, streams={1: reader.stdin.fileno()})
            output = reader.communicate()[0]
    else:
        started, output = start_command(command, environment=environment, streams=changed), ""
    printed, errors = started.communicate(timeout=300)
    assert started.returncode == 0, errors
    return output + printed + errors


@pytest.mark.parametrize("streams", [*STREAMS, "C locale"])
def test_commands_end_well_and_save_their_work(streams: str, photos: Path, tiny_folder: str, tmp_path: Path) -> None:
    """`fit`, then `predict` with its prompt, then `runs list`, on each kind of streams, which lack characters."""
    store_run(tmp_path / "runs", spec(), failed("no image “Ü дом”"))
    out, device = str(tmp_path / "model"), ("--device", "cpu")
    few = ("--shots", "2", "--set", "epochs=1", "--set", "views=0", "--n-ctx", "4", "--rank", "2")
    fit = ["fit", str(photos), "--backbone", tiny_folder, "--out", out, *device, *few]
    commands = [fit, ["predict", out, str(photos), *device], ["runs", "list", "--runs", str(tmp_path / "runs")]]
    if streams == "C locale":  # read when Python starts
        environment = os.environ | {"LC_ALL": "C", "PYTHONPATH": os.pathsep.join(sys.path)}
        outputs = [
            subprocess.run(
                [sys.executable, "-m", "slimprompt", *command], env=environment, check=True, capture_output=True
            ).stdout.decode()
            for command in commands
        ]
    else:
        outputs = [run(streams, command, os.environ | {"PYTHONIOENCODING": "iso-8859-1"}) for command in commands]
    assert read_model(tmp_path / "model").description.class_names == NAMES
    assert not any(sign in "".join(outputs) for sign in ("Traceback", "Error", "Exception", "bug in slimprompt"))
    if streams in ("", "2>&-", "C locale"):
        assert all(outputs)
        assert ("café “Ü”" if streams == "C locale" else "caf\\xe9 ?\\xdc?") in outputs[1]
    elif streams == "| head -1":
        # `fit` also says on standard error, which is not in the pipe, how much it has to do.
        piped = [[line for line in output.splitlines() if not line.startswith("encoding up to")] for output in outputs]
        assert all(len(lines) == 1 for lines in piped), outputs
    elif streams != ">&-":
        assert outputs == ["", "", ""]
