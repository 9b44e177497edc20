"""Arms: what tables, figures and claims compare, in the vocabulary of the published tables, and how it is named there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from slimprompt.lab.spec import RunSpec

#: open_clip's names of the paper's two backbones → their names in the tables.
BACKBONE_TITLES = {
    "ViT-B-16": "ViT-B/16",
    "ViT-B-16-quickgelu": "ViT-B/16",
    "RN50": "RN50",
    "RN50-quickgelu": "RN50",
}


class Arm(NamedTuple):
    """A kind of prompt, in the vocabulary of the published tables, or another method."""

    method: str
    """dense, factorized, fixed-B or fixed-A (the last two only in the transfer study); with an empty basis or "source", the label of
    a prompt beyond the paper (`joint r4 depth 3`) or the name of another method (`tip-adapter`)."""
    basis: str
    """identity, best (dense), trainable, gaussian, orthogonal, svd, learned, source-A/B or random-A/B; empty if undefined; source for
    a prompt beyond the paper with a factor from another dataset."""
    rank: int
    """Rank r, or the number of context tokens of a dense prompt; 0 if undefined."""


def dense(n_ctx: int) -> Arm:
    """The dense prompt of `n_ctx` tokens."""
    return Arm("dense", "identity", n_ctx)


#: The best of the dense prompts over all lengths.
BEST_DENSE = Arm("dense", "best", 0)


def joint(rank: int) -> Arm:
    """The low-rank prompt that trains both factors."""
    return Arm("factorized", "trainable", rank)


def fixed_basis(basis: str, rank: int) -> Arm:
    """The low-rank prompt that trains A over the fixed basis B."""
    return Arm("factorized", basis, rank)


#: Frozen factors of the transfer study, in the order of the paper's main table.
TRANSFER_MODES = ("source-B", "random-B", "source-A", "random-A")


def transfer(mode: str, rank: int) -> Arm:
    """The prompt of the transfer study whose frozen factor is `mode`, one of `TRANSFER_MODES`."""
    return Arm(f"fixed-{mode[-1]}", mode, rank)


def arm_of(spec: RunSpec) -> Arm:
    """The arm that a run belongs to."""
    if spec.variant is None or spec.beyond:
        label = spec.model_copy(update={"source": None}).label  # the source is part of the cell
        return Arm(label, "source" if spec.source else "", 0)
    if spec.variant == "dense":
        return dense(spec.n_ctx)
    rank = spec.rank or 0
    if spec.variant == "joint":
        return joint(rank)
    if spec.basis in ("source", "random"):
        return transfer(f"{spec.basis}-{spec.variant[-1]}", rank)
    if spec.variant == "fixed-B":
        return fixed_basis(str(spec.basis), rank)
    return Arm(spec.variant, str(spec.basis), rank)


def arm_label(arm: Arm) -> str:
    """Short name of an arm: `dense m16`, `joint r4`, `fixed-B orthogonal r4`, `fixed-A source r4`, `tip-adapter`."""
    if arm.basis in ("", "source"):
        return arm.method
    if arm == BEST_DENSE:
        return "dense, best length"
    if arm.method == "dense":
        return f"dense m{arm.rank}"
    if arm.basis == "trainable":
        return f"joint r{arm.rank}"
    if arm.method == "factorized":
        return f"fixed-B {arm.basis} r{arm.rank}"
    return f"{arm.method} {arm.basis.removesuffix('-A').removesuffix('-B')} r{arm.rank}"


def backbone_title(spec: RunSpec) -> str:
    """The backbone's name in tables: `ViT-B/16` for OpenAI's weights, with the name of the weights for all others."""
    title = BACKBONE_TITLES.get(spec.backbone, spec.backbone)
    weights = spec.pretrained
    if weights is None or weights == "openai" or Path(weights).stem == spec.backbone.removesuffix("-quickgelu"):
        return title  # OpenAI's own checkpoint files are called ViT-B-16.pt and RN50.pt
    return f"{title} ({Path(weights).name})"


def dataset_title(name: str) -> str:
    """The dataset's name in tables; the path of a folder or CSV file is returned unchanged."""
    from slimprompt.data.benchmarks import BENCHMARKS

    return BENCHMARKS[name].title if name in BENCHMARKS else name
