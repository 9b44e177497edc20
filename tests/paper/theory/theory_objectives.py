"""Objectives F(P) that can be solved by hand, with the interface `slimprompt.paper.theory.objective.Objective`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


class Quadratic:
    """F(P) = ½ Σ h (P − P*)²: gradient h (P − P*), curvature h, L = max h, minimum 0. One example."""

    title = "toy <loss>"
    n_examples = 1
    lower_bound = 0.0

    def __init__(self, h: np.ndarray, target: np.ndarray) -> None:
        self.h, self.target = h, target
        self.shape = (h.shape[0], h.shape[1])

    def gradients(self, prompt: np.ndarray, groups: Sequence[np.ndarray | None]) -> tuple[float, list[np.ndarray]]:
        slope = self.h * (prompt - self.target)
        return float(0.5 * np.sum(self.h * (prompt - self.target) ** 2)), [slope for _ in groups]

    def curvature(self, prompt: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda v: self.h * v


class Centres:
    """F(P) = mean_i ½‖P − C_i‖²: L = 1, and a batch of b sampled with replacement has σ² = mean‖C_i − C̄‖² / b."""

    def __init__(self, centres: np.ndarray) -> None:
        self.title = "toy <loss>"
        self.centres = centres  # (n, m, d)
        self.n_examples = len(centres)
        self.shape = (centres.shape[1], centres.shape[2])
        self.variance = float(((centres - centres.mean(0)) ** 2).sum(axis=(1, 2)).mean())
        self.lower_bound = 0.5 * self.variance

    def gradients(self, prompt: np.ndarray, groups: Sequence[np.ndarray | None]) -> tuple[float, list[np.ndarray]]:
        value = 0.5 * float(((prompt - self.centres) ** 2).sum(axis=(1, 2)).mean())
        chosen = [self.centres if group is None else self.centres[group] for group in groups]
        return value, [prompt - some.mean(0) for some in chosen]

    def curvature(self, prompt: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda v: v


class DoubleWell:
    """F(P) = Σ (p² − 1)²/4: curvature 3p² − 1, which is −1 at p = 0 and 2 at the minima p = ±1."""

    title = "toy <loss>"
    n_examples = 1
    lower_bound = 0.0

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape

    def gradients(self, prompt: np.ndarray, groups: Sequence[np.ndarray | None]) -> tuple[float, list[np.ndarray]]:
        slope = prompt * (prompt**2 - 1)
        return float(0.25 * np.sum((prompt**2 - 1) ** 2)), [slope for _ in groups]

    def curvature(self, prompt: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda v: np.abs(3 * prompt**2 - 1) * v
