"""Arithmetic on accuracies; needs no torch, so that reports read it without loading a model."""

from __future__ import annotations


def harmonic_mean(base: float, new: float) -> float:
    """H = 2 S U / (S + U) of the accuracies on base and new classes; 0 where both are 0."""
    return 2 * base * new / (base + new) if base + new > 0 else 0.0
