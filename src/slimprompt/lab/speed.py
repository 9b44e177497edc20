"""The speed of a backbone on this machine: seconds per training step and per image."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimprompt.clip.backbone import Backbone

_PROMPT_BATCH = 4  # a typical number of prompts trained together


@dataclass(frozen=True)
class Speed:
    """Measured on this machine with the threads of one run: a step takes `step + token · tokens` seconds."""

    backbone: str
    step: float
    token: float
    image: float
    """Seconds per encoded view, decoding included."""
    embed_dim: int
    text_width: int


def measure_speed(backbone: Backbone, name: str, *, image_size: int, seconds: float = 0.5) -> Speed:
    """Seconds per training step of one prompt in a prompt batch, and per image: the fastest of the calls within `seconds`."""
    import numpy as np
    import torch
    from PIL import Image
    from torch.nn import functional as F

    from slimprompt.images.views import train_view
    from slimprompt.prompts.start import start_prompt
    from slimprompt.text.encoder import SharedPrefixTextEncoder
    from slimprompt.training.optimizers import SGD

    embed_dim = backbone.embed_dim
    prompt = start_prompt("joint", width=backbone.text_width, seed=0, n_ctx=16, rank=4).to(backbone.device)
    optimizer = SGD(prompt.parameters(), lr=1e-6, momentum=0.9)

    def step(n_classes: int) -> tuple[int, float]:
        encode = SharedPrefixTextEncoder(backbone, ["large red square"] * n_classes, prompt.n_ctx)
        images, labels = torch.randn(32, embed_dim), torch.arange(32) % n_classes

        def once() -> None:
            text = F.normalize(encode(prompt().expand(_PROMPT_BATCH, -1, -1)), dim=-1).flatten(0, 1)
            loss = F.cross_entropy(images.to(text.device) @ text.T, labels.to(text.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # waits for the device

        return encode.n_tokens, _fastest(once, seconds) / _PROMPT_BATCH

    (few, short), (many, long) = step(4), step(24)
    token = max((long - short) / (many - few), 0.0)

    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (image_size // 8, image_size // 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((image_size, image_size)).save(file, "JPEG")
    view = train_view(Image.open(file).convert("RGB"), backbone.preprocess, 0)
    # .cpu() waits for the device before the clock is read
    encode = _fastest(lambda: backbone.encode_images(view[None]).cpu(), seconds)
    if 16 * encode < seconds:  # small models are faster on batches
        batch = view[None].expand(32, -1, -1, -1)
        encode = _fastest(lambda: backbone.encode_images(batch).cpu(), seconds) / 32
    decode = _fastest(lambda: train_view(Image.open(file).convert("RGB"), backbone.preprocess, 0), 0.05)
    return Speed(name, max(short - token * few, 0.0), token, encode + decode, embed_dim, backbone.text_width)


def _fastest(function: Callable[[], Any], seconds: float) -> float:
    """Seconds of the fastest call within about `seconds`, of at least two: the first one may load code."""
    best, calls, end = math.inf, 0, time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        function()
        now = time.perf_counter()
        best, calls = min(best, now - begin), calls + 1
        if calls > 1 and now >= end:
            return best
