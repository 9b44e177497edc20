"""The plain pass of an image tower with prompts, by open_clip's own blocks: what `image_tower` is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def plain_image_features(tower: Any, pixels: Tensor, first: int = 0, rows: Tensor | None = None) -> Tensor:
    """Pixels (n, 3, height, width) → features (n, embed_dim), not normalised.

    Before block first + i, rows[i] (n_ctx, width) are put after the tokens, in the place of the rows that were there.
    """
    x = tower._embeds(pixels)  # (n, n_tokens, width)
    n_tokens = x.shape[1]
    for index, block in enumerate(tower.transformer.resblocks):
        if rows is not None and first <= index < first + len(rows):
            x = torch.cat([x[:, :n_tokens], rows[index - first].expand(len(x), -1, -1)], 1)
        x = block(x)
    return tower.ln_post(x)[:, 0] @ tower.proj
