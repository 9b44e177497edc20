"""Commands with closed streams, a reader that goes, and terminals that lack characters: they end well and save their work."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimprompt.lab.records import store_run
from slimprompt.saved import read_model
from tests.conftest import draw
from tests.lab.test_records import failed, spec
from tests.robustness.commands import STREAMS, Step, run_job

pytestmark = pytest.mark.slow

#: Encoding → environment variables that need a true start of Python, encoding of the streams.
ENCODINGS = {"C locale": ({"LC_ALL": "C"}, ""), "latin": (None, "iso-8859-1")}
NAMES = ["café “Ü”", "дом"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for name, colour in zip(NAMES, ("red", "blue"), strict=True):
        for number in range(3):
            draw(root / name / f"bild-ä{number}.png", colour, number)
    return root


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_commands_end_well_and_save_their_work(encoding: str, photos: Path, tiny_folder: str, tmp_path: Path) -> None:
    """`fit`, then `predict` with its prompt, then `runs list`, on each kind of streams in the encoding that lacks more."""
    kinds = STREAMS if encoding == "latin" else STREAMS[:1]
    variables, of_streams = ENCODINGS[encoding]
    runs = tmp_path / "runs"
    store_run(runs, spec(), failed("no image “Ü дом”"))
    steps: list[Step] = []
    for number, streams in enumerate(kinds):
        out = str(tmp_path / str(number))
        where = ("--backbone", tiny_folder, "--device", "cpu", "--out", out)
        few = ("--shots", "2", "--set", "epochs=1", "--set", "views=0", "--n-ctx", "4", "--rank", "2")
        fit, predict = ["fit", str(photos), *where, *few], ["predict", out, str(photos), "--device", "cpu"]
        for command in (fit, predict, ["runs", "list", "--runs", str(runs)]):
            steps.append({"commands": [command], "streams": streams, "encoding": of_streams})
    done, _ = run_job(steps, tmp_path, variables)
    assert [one.code for one in done] == [0] * len(steps), done
    for number, streams in enumerate(kinds):
        assert read_model(tmp_path / str(number)).description.class_names == NAMES
        outputs = [one.output for one in done[3 * number : 3 * number + 3]]
        assert not any(sign in "".join(outputs) for sign in ("Traceback", "Error", "Exception", "bug in slimprompt"))
        if streams in ("", "2>&-"):
            for output, part in zip(outputs, ("saved to", "probability", "1 runs in"), strict=True):
                assert part in output
            shown = "café “Ü”" if encoding == "C locale" else "caf\\xe9 ?\\xdc?"
            assert shown in outputs[1]
        elif streams == "| head -1":
            # `fit` also says on standard error, which is not in the pipe, how much it has to do.
            piped = [
                [line for line in output.splitlines() if not line.startswith("encoding up to")] for output in outputs
            ]
            assert all(len(lines) == 1 for lines in piped), outputs
        elif streams != ">&-":
            assert outputs == ["", "", ""]
