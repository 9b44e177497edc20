"""Continue the training of the pocket model at a fixed logit scale, by default CLIP's 100, and write it as a model folder.

    python tools/train_at_clip_scale.py --out pocket-100
    slimprompt fit photos/ --backbone local-dir:pocket-100

The pocket model learned a logit scale of 22. Trained on at 100, its features move closer together. Recipes and methods can be tried
on it that depend on this scale. It is still a toy.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import open_clip
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from train_pocket import ARCHITECTURES, MEAN, STD, held_out_report, render_images, text_features, train

from slimprompt import load_backbone
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.progress import progress

MODEL = "pocket"


def train_at_scale(
    scale: float, cache: Path, *, steps: int, batch_size: int, lr: float, n_images: int, seed: int
) -> torch.nn.Module:
    """The pocket model, trained on at this logit scale on newly rendered images, which are stored in the folder `cache`."""
    model = load_backbone(MODEL, device="cpu").model.requires_grad_(True)
    model.logit_scale.data.fill_(math.log(scale))
    model.logit_scale.requires_grad_(False)
    size: int = ARCHITECTURES[MODEL]["vision_cfg"]["image_size"]  # type: ignore[index]
    with progress("rendering", n_images, "images") as advance:
        images = render_images(cache / "images.bin", n_images, size, seed, torch.get_num_threads(), advance)
    with progress("training", steps, "steps") as advance:
        train(model, images, steps=steps, batch_size=batch_size, lr=lr, seed=seed, tell=lambda *_: advance())
    return model


def save_folder(model: torch.nn.Module, out: Path) -> None:
    """Write the files that open_clip and `local-dir:` read."""
    out.mkdir(parents=True, exist_ok=True)
    preprocess = {"mean": MEAN, "std": STD, "interpolation": "bicubic"}
    config = {"model_cfg": ARCHITECTURES[MODEL], "preprocess_cfg": preprocess}
    (out / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")
    state = {key: value.detach().contiguous() for key, value in model.state_dict().items() if key != "attn_mask"}
    save_file(state, out / "open_clip_model.safetensors")


@torch.no_grad()
def mean_cosine(model: torch.nn.Module) -> float:
    """Mean cosine between the zero-shot features of two different classes, over the pocket benchmarks."""
    means = []
    for benchmark in POCKET_BENCHMARKS.values():
        texts = [benchmark.templates[0].format(name) for name in benchmark.class_names]
        features = F.normalize(text_features(model, open_clip.get_tokenizer("ViT-B-32")(texts, 48)), dim=-1)
        cosines = features @ features.T  # (n_classes, n_classes)
        means.append(float(cosines.fill_diagonal_(0).sum()) / (len(texts) * (len(texts) - 1)))
    return sum(means) / len(means)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--logit-scale", type=float, default=100.0)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--images", type=int, default=30_000, help="number of images to render")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as cache:
        model = train_at_scale(
            options.logit_scale,
            Path(cache),
            steps=options.steps,
            batch_size=options.batch_size,
            lr=options.lr,
            n_images=options.images,
            seed=options.seed,
        )
    save_folder(model, options.out)
    before = mean_cosine(load_backbone(MODEL, device="cpu").model)
    print(f"mean cosine between the zero-shot features of two classes: {mean_cosine(model):.2f}, before {before:.2f}")
    size: int = ARCHITECTURES[MODEL]["vision_cfg"]["image_size"]  # type: ignore[index]
    for name, accuracy in held_out_report(model, size).items():
        print(f"{name}: zero-shot {100 * accuracy['plain']:.1f} %, chance {100 * accuracy['chance']:.1f} %")


if __name__ == "__main__":
    main()
