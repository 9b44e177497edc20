"""The extras of pyproject.toml, and what an installation without them can do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import slimprompt
import slimprompt.cli
from slimprompt.data import load_benchmark
from slimprompt.extras import EXTRAS, explain_mismatch

ROOT = Path(slimprompt.__file__).parents[2]

#: Names on the index that differ from the name of the import.
_INDEX_NAMES = {"python_multipart": "python-multipart", "mlflow": "mlflow-skinny"}

#: Commands run in one process in which the packages of all extras cannot be found; each prints its exit code.
#: The quickstart makes fewer and shorter runs. The command line and the tokenizer are built once.
_WITHOUT_EXTRAS = """
import sys
from functools import cache
from importlib.machinery import PathFinder

from slimprompt.extras import EXTRAS

hidden = {package for packages in EXTRAS.values() for package in packages}


class Finder:
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)


if __name__ == "__main__":
    sys.meta_path = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
    from slimprompt.cli import main
    from slimprompt import quickstart as job

    job.SHOTS, job.SEEDS = (1,), (1,)
    job.RECIPE = job.RECIPE.model_copy(update={"epochs": 2})
    import open_clip.factory, typer.main

    open_clip.factory.SimpleTokenizer = cache(open_clip.factory.SimpleTokenizer)
    typer.main.get_command = cache(typer.main.get_command)
    for line in sys.stdin.read().splitlines():
        print("$", line, flush=True)
        sys.argv = ["slimprompt", *line.split()]
        try:
            main()
        except SystemExit as stop:
            print("exit code", stop.code or 0, flush=True)
"""


def without_extras(folder: Path, *commands: str) -> dict[str, tuple[int, str]]:
    """Exit code and output of each command in an installation without extras."""
    script = folder / "without_extras.py"
    script.write_text(_WITHOUT_EXTRAS)
    done = subprocess.run(
        [sys.executable, script],
        input="\n".join(commands),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    found = {}
    for part in ("\n" + done.stdout).split("\n$ ")[1:]:
        command, _, output = part.partition("\n")
        text, _, code = output.rpartition("exit code ")
        found[command] = int(code), text
    assert list(found) == list(commands), done.stdout
    return found


def test_pyproject_lists_the_same_packages() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    # The exporter to ONNX needs a newer torch than the rest.
    listed = {name: {entry.partition(">=")[0] for entry in extras[name]} - {"torch"} for name in EXTRAS}
    assert listed == {name: {_INDEX_NAMES.get(one, one) for one in packages} for name, packages in EXTRAS.items()}
    (every,) = extras["all"]
    assert set(every.removeprefix("slimprompt[").removesuffix("]").split(",")) == set(EXTRAS)


def test_the_tool_works_without_extras(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    images, model = (
        "data pocket --out images",
        "fit photos --backbone pocket --shots 2 --set epochs=2 --set views=1 --out model",
    )
    works = ("evaluate model photos", "predict model photos --out rows.csv", "suggest model photos --n 3")
    page = "suggest model photos --n 3 --report page.html"
    refused = (
        "fit photos --backbone pocket --out other --report page2.html",
        "claims --published",
        "predict model photos --out rows.parquet",
        "export model --onnx model.onnx",
        "serve model",
    )
    quickstart = "quickstart --workers 1"
    load_benchmark("pocket-sketch")  # renders the images of the first and the last command
    found = without_extras(tmp_path, images, model, *works, page, *refused, quickstart)
    for command in (images, model, *works, page, quickstart):
        assert found[command][0] == 0, found[command][1]
    for command, extra in zip(refused, ("lab", "lab", "parquet", "onnx", "serve"), strict=True):
        code, text = found[command]
        assert code == 2 and f"pip install 'slimprompt[{extra}]'" in text, command
    assert not (tmp_path / "other").exists()
    # the quickstart prints its table and says what the page needs
    text = found[quickstart][1]
    assert "fixed orthogonal B" in text
    assert "pip install 'slimprompt[lab]'" in text and not (tmp_path / "quickstart" / "report").exists()
    assert (tmp_path / "quickstart" / "model.safetensors").exists()


def test_a_torchvision_of_another_torch_is_explained(capsys: pytest.CaptureFixture) -> None:
    """The error is the one that `import torchvision` raises if its operators cannot be loaded."""
    assert explain_mismatch(RuntimeError("operator aten::nms does not exist")) is None

    def fail() -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    with pytest.raises(SystemExit, match="2"):
        slimprompt.cli.main(fail)
    message = " ".join(capsys.readouterr().err.split())
    assert "do not fit together" in message and "install both with one command" in message
