"""CLIP models: loading, weight files, and the embedded pocket models."""
