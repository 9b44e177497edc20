"""Command-line options and output that the benchmark scripts share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that prints the docstring of the script unchanged and has the option --json."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    return parser


def print_results(results: object, path: Path | None) -> None:
    """Print results as one line of JSON, and write them to `path` if it is given."""
    print(json.dumps(results))
    if path:
        path.write_text(json.dumps(results, indent=1))
