"""Time of `slimprompt predict` and `fit` on a few images, and until a worker process waits for its first run, compared with importing torch
and open_clip.

    python benchmarks/startup.py [--repeats 7] [--json FILE]

The commands run in turn, each in a process of its own; the first round is not counted. The model is the embedded pocket model, so that
the work itself takes a tenth of a second.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _output import make_parser, print_results
from PIL import Image

from slimprompt import Classifier, load_backbone

_WORKER = """
from multiprocessing import Pipe
from pathlib import Path
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.processes import _serve
ours, theirs = Pipe()
ours.close()  # a worker ends when its pipe is closed
_serve(theirs, RunEnvironment(Path("runs")))
"""


def save_model(folder: Path) -> tuple[Path, list[Path]]:
    """A zero-shot head on the pocket model, and its images: images/<class>/<image>."""
    names = ["red square", "blue square"]
    images = [folder / "images" / name / "0.png" for name in names]
    for image, name in zip(images, names, strict=True):
        image.parent.mkdir(parents=True)
        Image.new("RGB", (64, 64), name.split()[0]).save(image)
    classifier = Classifier(load_backbone("pocket"), method="zero-shot", cache=False).fit(images, names)
    return classifier.save(folder / "model"), images


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        model, images = save_model(Path(place))
        slimprompt = [sys.executable, "-m", "slimprompt"]
        prompt = [
            "--backbone",
            "pocket",
            "--shots",
            "1",
            "--set",
            "epochs=1",
            "--set",
            "views=0",
            "--no-calibration",
            "--no-cache",
        ]
        commands = {
            "import torch, open_clip": [sys.executable, "-c", "import torch, open_clip"],
            "import torch": [sys.executable, "-c", "import torch"],
            "slimprompt predict": [*slimprompt, "predict", str(model), str(images[0])],
            "slimprompt fit": [
                *slimprompt,
                "fit",
                f"{place}/images",
                *prompt,
                "--out",
                f"{place}/prompt",
                "--overwrite",
            ],
            "start of a worker": [sys.executable, "-c", _WORKER],
            "slimprompt --help": [*slimprompt, "--help"],
        }
        rounds = [{name: seconds(command) for name, command in commands.items()} for _ in range(options.repeats + 1)][
            1:
        ]
    floor = "import torch, open_clip"
    results = []
    for name in commands:
        median = statistics.median(one[name] for one in rounds)
        ratio = statistics.median(one[name] / one[floor] for one in rounds)
        print(f"{name}: {median:.2f} s, {ratio:.2f} of the floor")
        results.append({"command": name, "seconds": median, "ratio": ratio})
    print_results({"repeats": options.repeats, "results": results}, options.json)


if __name__ == "__main__":
    main()
