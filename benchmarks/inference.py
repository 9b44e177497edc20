"""Prediction speed compared with the image tower alone, and the start-up time of the command line.

    python benchmarks/inference.py [--images 128] [--classes 100] [--backbone ViT-B-32] [--json FILE]

A classifier that is already loaded predicts images from disk; the image tower alone encodes preprocessed pixels. Both are
measured alternately, best of three. Then `slimprompt --help` and an empty Python script run in new processes, best of five.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from _output import make_parser, print_results
from bank import BATCH, seconds, write_images
from text_encoder import names

from slimprompt import PromptClassifier, load_backbone, start_prompt
from slimprompt.allocator import keep_freed_memory
from slimprompt.images.decode import open_image

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "help": [sys.executable, "-c", "from slimprompt.cli import main; main()", "--help"],
}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--backbone", default="ViT-B-32")
    options = parser.parse_args()
    keep_freed_memory()
    backbone = load_backbone(options.backbone, "random:0", device="cpu")
    prompt = start_prompt("fixed-B", width=backbone.text_width, seed=0, rank=4, basis="orthogonal")
    classifier = PromptClassifier(backbone)
    text = seconds(lambda: classifier.set_prompt(backbone, prompt, names(options.classes)))
    with tempfile.TemporaryDirectory() as folder:
        paths = write_images(Path(folder), options.images, 400)
        pixels = torch.stack([backbone.eval_view(open_image(path)) for path in paths[:BATCH]])
        tower = whole = float("inf")
        for _ in range(3):
            tower = min(tower, seconds(lambda: [backbone.encode_images(pixels) for _ in range(0, len(paths), BATCH)]))
            whole = min(whole, seconds(lambda: classifier.predict(paths)))
    start = {
        name: min(seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(5))
        for name, command in COMMANDS.items()
    }
    print(
        f"{backbone.name}: {options.images / whole:.1f} images/s, {100 * tower / whole:.0f} % of the time in the image "
        f"tower; the text features of {options.classes} classes took {text:.2f} s once\n"
        f"slimprompt --help: {start['help']:.2f} s (an empty Python script: {start['python']:.2f} s)"
    )
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
    print_results(result, options.json)


if __name__ == "__main__":
    main()
