"""Build the wheel, install it in an empty environment, and run `slimprompt quickstart` from it.

    python tools/try_wheel.py [--extras lab] [--keep FOLDER]

Prints how long the installation took and the size of the environment. Needs the package `build`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(*command: object, **options: object) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder; hard links and symbolic links count once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for path in folder.rglob("*"):
        facts = path.lstat()
        if path.is_file() and not path.is_symlink() and (facts.st_dev, facts.st_ino) not in seen:
            seen.add((facts.st_dev, facts.st_ino))
            total += facts.st_size
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default="", help="comma-separated extras to install")
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.keep or Path(temporary)).resolve()
        run(sys.executable, "-m", "build", "--outdir", work / "dist", ROOT)
        (wheel,) = (work / "dist").glob("*.whl")
        venv.create(work / "env", with_pip=True)
        scripts = work / "env" / ("Scripts" if os.name == "nt" else "bin")
        start = time.perf_counter()
        run(
            scripts / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            f"{wheel}[{options.extras}]" if options.extras else wheel,
        )
        seconds, size = time.perf_counter() - start, size_of(work / "env")
        print(
            f"installed in {seconds:.0f} s; the environment takes {size / 1e9:.1f} GB, the wheel {wheel.stat().st_size / 1e6:.1f} MB"
        )
        outside = {"cwd": work, "env": {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}}
        run(scripts / "slimprompt", "--version", **outside)
        run(scripts / "slimprompt", "quickstart", **outside)


if __name__ == "__main__":
    main()
