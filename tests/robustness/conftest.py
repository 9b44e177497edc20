"""Shortcuts for tests that load backbones and write runs often."""

from tests.shortcuts import shortcuts  # noqa: F401
