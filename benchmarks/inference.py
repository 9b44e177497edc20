"""What a prediction costs beyond the image tower, and how soon the command line answers.

    python benchmarks/inference.py [--images 128] [--classes 100] [--backbone ViT-B-32] [--json FILE]

A classifier in a warm process predicts pictures from disk; beside it the image tower alone on ready pixels, in turn, best of three.
Then `slimprompt --help` in fresh processes, best of five, beside a Python that does nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bank import draw
from text_encoder import names

from slimprompt import PromptClassifier, load_backbone, start_prompt
from slimprompt.allocator import keep_freed_memory
from slimprompt.images.files import open_image


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--backbone", default="ViT-B-32")
    parser.add_argument("--json", help="write the results here too")
    options = parser.parse_args()
    keep_freed_memory()
    backbone = load_backbone(options.backbone, "random:0", device="cpu")
    prompt = start_prompt("fixed-B", width=backbone.text_width, seed=0, rank=4, basis="orthogonal")
    classifier = PromptClassifier(backbone)
    text = seconds(lambda: classifier.set_prompt(backbone, prompt, names(options.classes)))
    with tempfile.TemporaryDirectory() as folder:
        paths = draw(Path(folder), options.images, 400)
        pixels = torch.stack([backbone.eval_view(open_image(path)) for path in paths[:32]])
        tower = whole = float("inf")
        for _ in range(3):
            tower = min(tower, seconds(lambda: [backbone.encode_images(pixels) for _ in range(0, len(paths), 32)]))
            whole = min(whole, seconds(lambda: classifier.predict(paths)))
    start = {
        what: min(seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(5))
        for what, command in {
            "python": [sys.executable, "-c", "pass"],
            "help": [sys.executable, "-c", "from slimprompt.cli import main; main()", "--help"],
        }.items()
    }
    result = {
        "backbone": backbone.name,
        "images": options.images,
        "classes": options.classes,
        "share_of_the_image_tower": tower / whole,
        "images_per_s": options.images / whole,
        "text_features_once_seconds": text,
        "help_seconds": start["help"],
        "python_seconds": start["python"],
    }
    print(
        f"{backbone.name}: {options.images / whole:.1f} images/s, of which the image tower is {100 * tower / whole:.0f} %; "
        f"the features of {options.classes} classes took {text:.2f} s, once\n"
        f"slimprompt --help: {start['help']:.2f} s (an empty Python {start['python']:.2f} s)"
    )
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
