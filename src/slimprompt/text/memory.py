"""Which chunks of classes keep their activations for the backward pass, and how much memory that may take.

A chunk whose activations are not kept computes its forward pass a second time in the backward pass, which makes it about
1.5 times as slow. The choice changes neither features nor gradients, not even by rounding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from slimprompt.text.kernels.block import BlockLayout, FrozenBlock


def activation_bytes(blocks: Sequence[FrozenBlock], layout: BlockLayout, n_rows: int, itemsize: int) -> int:
    """Bytes that the blocks save for the backward pass of one prompt; an upper bound, as the outer blocks save less.

    Parameters
    ----------
    blocks
        All blocks of the tower.
    layout
        Layout of a block in which all rows are query rows.
    n_rows
        Rows of the chunk.
    itemsize
        Bytes of one number.
    """
    mlp_width, width = blocks[0].mlp_width, blocks[0].width
    masks = [group.mask for group in (layout.prefix_group, *layout.groups) if group]  # (n · a, p + t) each
    by_row = n_rows * (2 * width + mlp_width)  # input and middle of the block, input of the activation
    by_padded_row = sum(len(mask) for mask in masks) * 3 * width  # queries, keys and values
    weights = sum(mask.numel() for mask in masks) * blocks[0].n_heads
    return len(blocks) * (by_row + by_padded_row + weights) * itemsize


def chunks_that_fit(n_bytes: Sequence[int], budget: int) -> int:
    """Number of chunks, counted from the last one, whose activations fit into the budget beside those of the first.

    The first chunk computes the prefix and is always kept. The backward pass begins with the last chunk, so the kept ones
    are released before the others are computed again.

    Parameters
    ----------
    n_bytes
        Bytes of the activations of each chunk.
    budget
        Bytes that all of them may occupy.
    """
    left, n_kept = budget - n_bytes[0], 0
    for needed in reversed(n_bytes[1:]):
        left -= needed
        if left < 0:
            break
        n_kept += 1
    return n_kept


def activation_budget(device: torch.device) -> int:
    """Bytes that the activations of a text pass may occupy: half of the memory that this process can count on.

    On a GPU this is its free memory. On the CPU it is threads / cores of the available memory, because a study runs one
    worker per `threads` cores. Other devices do not report it: the budget is 0.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) // 2
    if device.type == "cpu":
        share = min(1.0, torch.get_num_threads() / (os.cpu_count() or 1))
        return int(available_memory() * share / 2)
    return 0


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can still allocate, within the limits of its container or batch job (Linux).

    Parameters
    ----------
    proc, cgroups
        Where the kernel shows processes and control groups.
    """
    import psutil

    return min((int(psutil.virtual_memory().available), *_left_in_control_groups(proc, cgroups)))


def _left_in_control_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Limit minus use of the process's control group and of those that contain it, version 1 or 2."""
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, limit, used = (
            (cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            if controllers
            else (cgroups, "memory.max", "memory.current")
        )
        group = root / path.strip("/")
        # A container may show its own group as the root.
        for folder in (group, *group.parents):
            if folder.is_relative_to(root) and (folder / limit).is_file():
                allowed = (folder / limit).read_text(encoding="utf-8").strip()
                if allowed != "max":
                    yield max(0, int(allowed) - int((folder / used).read_text(encoding="utf-8")))
