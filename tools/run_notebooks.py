"""Execute the notebooks from top to bottom, each in an empty folder, and store their outputs: `make notebooks`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, executed in a folder; a cell that fails raises an error."""
    notebook = nbformat.read(path, as_version=4)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm asks for a package that is not needed
    }
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata.clear()  # times of execution would differ in every commit
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    return notebook


def main() -> None:
    """Execute all notebooks, or those given."""
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(execute(path, Path(folder)), path)
        print(f"executed {path}")


if __name__ == "__main__":
    main()
