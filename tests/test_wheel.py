"""The wheel: what it contains and what it says about itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import slimprompt

ROOT = Path(slimprompt.__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("build", reason="build is not installed (pip install 'slimprompt[dev]')")
    pytest.importorskip("hatchling", reason="hatchling is not installed (pip install 'slimprompt[dev]')")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("slimprompt is installed without its source")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_contents(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "slimprompt").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    contained = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert contained == expected
    for needed in ("py.typed", "clip/models/pocket.safetensors"):
        assert f"slimprompt/{needed}" in contained


def test_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Version"] == slimprompt.__version__
    assert metadata["Requires-Python"] == ">=3.10" and metadata["License-Expression"] == "MIT"
    assert {"lab", "ray", "serve", "onnx", "video", "all"} <= set(metadata.get_all("Provides-Extra", []))
    core = [entry for entry in metadata.get_all("Requires-Dist", []) if "extra ==" not in entry]
    assert not [entry for entry in core if entry.startswith(("pandas", "matplotlib", "openpyxl", "ray"))]
    entry_points = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert "slimprompt = slimprompt.cli:main" in entry_points
