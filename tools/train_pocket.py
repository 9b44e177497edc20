"""Train a pocket CLIP on rendered images with captions, and evaluate it on the held-out benchmarks.

    python tools/train_pocket.py --model pocket
    python tools/train_pocket.py --model pocket-rn

loss = ½ (CE over rows + CE over columns) of exp(s) I Tᵀ, where I and T are the unit-length features of a batch of images
and captions. Writes <out>/<model>.json (open_clip architecture), .safetensors (fp16, with the used vocabulary rows only)
and .facts.json (hash and fingerprint, preprocessing, training command, zero-shot accuracy on the held-out benchmarks).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from slimprompt.pocket.benchmarks import IMAGE_SIZE, POCKET_BENCHMARKS, seen_scene, seen_style
from slimprompt.pocket.captions import caption, vocabulary
from slimprompt.pocket.images import Scene, Style, render
from slimprompt.seeds import stream_seed

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # as in CLIP
_TEXT = {"context_length": 48, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 4}
ARCHITECTURES: dict[str, dict[str, object]] = {
    "pocket": {
        "embed_dim": 128,
        "vision_cfg": {
            "image_size": 48,
            "layers": 4,
            "width": 128,
            "head_width": 32,
            "mlp_ratio": 2.0,
            "patch_size": 8,
        },
        "text_cfg": _TEXT,
    },
    "pocket-rn": {
        "embed_dim": 128,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
        "text_cfg": _TEXT,
    },
}
Images = NDArray[np.uint8]


def scene_and_style(seed: int, index: int) -> tuple[Scene, Style, np.random.Generator]:
    """Scene and style of pre-training image `index`, and the generator to render it with."""
    # The name of the stream decides the training data and must not change.
    rng = np.random.default_rng(stream_seed(seed, "pre-training picture", index))
    return seen_scene(rng), seen_style(rng), rng


def pretraining_image(seed: int, index: int, size: int) -> Images:
    """Pre-training image `index`, (size, size, 3): rendered like a benchmark image; half of the images are cropped."""
    scene, style, rng = scene_and_style(seed, index)
    image = Image.fromarray(render(scene, style, IMAGE_SIZE, rng))
    side = IMAGE_SIZE * (rng.uniform(0.7, 1.0) if rng.random() < 0.5 else 1.0)
    left, top = rng.uniform(0, IMAGE_SIZE - side), rng.uniform(0, IMAGE_SIZE - side)
    box = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box))


def _render_range(job: tuple[Path, int, int, int, int, int]) -> int:
    path, total, size, seed, start, stop = job
    images = np.memmap(path, np.uint8, "r+", shape=(total, size, size, 3))
    for index in range(start, stop):
        images[index] = pretraining_image(seed, index, size)
    return stop - start


def render_images(path: Path, total: int, size: int, seed: int, workers: int, tell: Callable[[int], None]) -> Images:
    """Render `total` images to a memory-mapped array (total, size, size, 3) and return it."""
    np.memmap(path, np.uint8, "w+", shape=(total, size, size, 3))
    jobs = [(path, total, size, seed, i, min(i + 500, total)) for i in range(0, total, 500)]
    if workers == 1:
        for job in jobs:
            tell(_render_range(job))
    else:
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            for done in pool.imap_unordered(_render_range, jobs):
                tell(done)
    return np.memmap(path, np.uint8, "r", shape=(total, size, size, 3))


def build(architecture: str) -> torch.nn.Module:
    """A new open_clip model with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{architecture}.json"
        path.write_text(json.dumps(ARCHITECTURES[architecture]))
        open_clip.add_model_config(path)
        return open_clip.create_model(architecture, pretrained=None)


def normalised(images: Images) -> Tensor:
    """uint8 (n, h, w, 3) → float (n, 3, h, w), normalised with CLIP's mean and standard deviation."""
    x = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def text_features(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """Text features (n, embed_dim) of tokens (n, length).

    Positions after the longest text are skipped. This is exact, because attention is causal.
    """
    length = int(tokens.argmax(1).max()) + 1
    tokens = tokens[:, :length]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length])
    x = model.ln_final(x[torch.arange(len(x)), tokens.argmax(1)])
    return x @ model.text_projection


def text_features_by_length(model: torch.nn.Module, tokens: Tensor, chunks: int = 3) -> Tensor:
    """`text_features`, computed in chunks of similar length to reduce padding."""
    order = tokens.argmax(1).argsort()
    features = torch.cat([text_features(model, tokens[chunk]) for chunk in order.chunk(chunks)])
    return features[order.argsort()]


def train(
    model: torch.nn.Module,
    images: Images,
    *,
    steps: int,
    batch_size: int,
    lr: float,
    seed: int,
    tell: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train in place with AdamW and a one-cycle learning rate; returns the loss of each step."""
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    rng = np.random.default_rng(stream_seed(seed, "pre-training order"))
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    epochs = math.ceil(steps * batch_size / len(images))
    order = np.concatenate([rng.permutation(len(images)) for _ in range(epochs)])
    losses: list[float] = []
    model.train()
    for step in range(steps):
        chosen = order[step * batch_size : (step + 1) * batch_size]
        texts = [caption(*scene_and_style(seed, int(i))[:2], rng) for i in chosen]
        pixels = normalised(images[chosen])
        flip = torch.from_numpy(rng.random(batch_size) < 0.5)
        pixels[flip] = pixels[flip].flip(-1)
        image = F.normalize(model.visual(pixels), dim=-1)
        text = F.normalize(text_features_by_length(model, tokenizer(texts, 48)), dim=-1)
        logits = model.logit_scale.exp() * image @ text.T  # (batch, batch)
        target = torch.arange(batch_size)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        losses.append(loss.item())
        tell(step, losses[-1])
    model.eval()
    return losses


@torch.no_grad()
def zero_shot(model: torch.nn.Module, images: Tensor, labels: Tensor, names: Sequence[str], template: str) -> float:
    """Zero-shot accuracy in [0, 1]."""
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    text = F.normalize(text_features(model, tokenizer([template.format(n) for n in names], 48)), dim=-1)
    image = F.normalize(torch.cat([model.visual(batch) for batch in images.split(200)]), dim=-1)
    return float(((image @ text.T).argmax(1) == labels).float().mean())


def held_out_report(model: torch.nn.Module, size: int) -> dict[str, dict[str, float]]:
    """Zero-shot accuracy on the test images of every pocket benchmark: plain template, style template, and chance."""
    report = {}
    for name, benchmark in POCKET_BENCHMARKS.items():
        names = benchmark.class_names
        test = [(label, number) for label in range(len(names)) for number in benchmark.numbers["test"]]
        rendered = [Image.fromarray(benchmark.image(label, number)) for label, number in test]
        resized = [np.asarray(image.resize((size, size), Image.Resampling.BICUBIC)) for image in rendered]
        images = normalised(np.stack(resized))
        labels = torch.tensor([label for label, _ in test])
        report[name] = {
            "plain": round(zero_shot(model, images, labels, names, benchmark.templates[0]), 4),
            "style": round(zero_shot(model, images, labels, names, benchmark.style_template), 4),
            "chance": round(1 / len(names), 4),
        }
    return report


def save(model: torch.nn.Module, name: str, out: Path, facts: dict[str, object]) -> None:
    """Write the architecture, the weights and the facts file."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    rows = tokenizer(vocabulary(), 48).unique()  # includes 0: the padding token is "!", which captions use
    state = {key: value.detach() for key, value in model.state_dict().items() if key != "attn_mask"}
    state["token_embedding.weight"] = state["token_embedding.weight"][rows]
    tensors = {key: (v.half() if v.is_floating_point() else v).contiguous() for key, v in state.items()}
    tensors["token_embedding.rows"] = rows.long()
    weights = out / f"{name}.safetensors"
    save_file(tensors, weights)
    weights.chmod(0o644)
    (out / f"{name}.json").write_text(json.dumps(ARCHITECTURES[name], indent=2) + "\n")
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    header = {
        "sha256": sha256,
        "fingerprint": sha256,  # names the weights in saved prompts; any hash of them would do
        "mean": MEAN,
        "std": STD,
        "interpolation": "bicubic",
    }
    (out / f"{name}.facts.json").write_text(json.dumps(header | facts, indent=2) + "\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=sorted(ARCHITECTURES), default="pocket")
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    # The facts files of the embedded models store commands with --pictures.
    parser.add_argument("--images", "--pictures", type=int, default=60_000, help="number of images to render")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    models = Path(__file__).parent.parent / "src" / "slimprompt" / "clip" / "models"
    parser.add_argument("--out", type=Path, default=models, help="folder for the model files")
    cache = Path(tempfile.gettempdir()) / "slimprompt-pocket"
    parser.add_argument("--cache", type=Path, default=cache, help="folder for the rendered images")
    return parser.parse_args(arguments)


def render_and_train(options: argparse.Namespace, model: torch.nn.Module, size: int) -> list[float]:
    """Render the images and train the model on them, with progress bars; returns the loss of each step."""
    options.cache.mkdir(parents=True, exist_ok=True)
    path = options.cache / f"{options.model}-{options.images}-{options.seed}.bin"
    started = time.perf_counter()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        rendering = progress.add_task("rendering images", total=options.images)
        images = render_images(
            path, options.images, size, options.seed, options.threads, lambda n: progress.advance(rendering, n)
        )
        training = progress.add_task("training", total=options.steps)

        def tell(step: int, loss: float) -> None:
            progress.update(training, advance=1, description=f"training, loss {loss:.3f}")
            if step % 100 == 0:
                progress.console.print(f"step {step}: loss {loss:.3f}, {time.perf_counter() - started:.0f} s")

        return train(
            model,
            images,
            steps=options.steps,
            batch_size=options.batch_size,
            lr=options.lr,
            seed=options.seed,
            tell=tell,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(stream_seed(options.seed, "pre-training weights", options.model))
    model = build(options.model)
    size = int(ARCHITECTURES[options.model]["vision_cfg"]["image_size"])  # type: ignore[index]
    started = time.perf_counter()
    losses = render_and_train(options, model, size)
    minutes = (time.perf_counter() - started) / 60
    model.half().float()  # evaluate the weights as they are stored
    report = held_out_report(model, size)
    table = Table(
        "benchmark", "plain %", "style named %", "chance %", title=f"{options.model}: held-out zero-shot accuracy"
    )
    for name, row in report.items():
        table.add_row(name, *(f"{100 * row[key]:.1f}" for key in ("plain", "style", "chance")))
    Console().print(table)
    settings = ("model", "steps", "batch_size", "lr", "images", "seed", "threads")
    flags = " ".join(f"--{key.replace('_', '-')} {getattr(options, key)}" for key in settings)
    facts = {
        "command": f"python tools/train_pocket.py {flags}",
        "minutes": round(minutes, 1),
        "final_loss": round(float(np.mean(losses[-50:])), 4),
        "held_out": report,
    }
    save(model, options.model, options.out, facts)


if __name__ == "__main__":
    main()
