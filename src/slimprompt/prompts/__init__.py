"""Prompts `P = B A`: the variants, the module, and how they start."""
