"""Adapt CLIP from a few images with a low-rank text prompt `P = B A`."""

__version__ = "0.1.0"
