"""The command line in this process, and a prompt that several tests use."""

import io
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from tests.conftest import TINY

_MODEL = ["--backbone", TINY, "--pretrained", "random:0", "--device", "cpu"]
_ANY_VARIANT = [*_MODEL, "--set", "epochs=2", "--set", "views=1"]
QUICK = [*_ANY_VARIANT, "--n-ctx", "4", "--rank", "2"]
QUICK_DENSE = [*_ANY_VARIANT, "--n-ctx", "4", "--variant", "dense"]
QUICK_WORDS = [*_ANY_VARIANT, "--rank", "2"]


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def run(tiny):
    """`slimprompt …` in this process: exit code and both streams."""
    from slimprompt.cli import main

    def call(*arguments):
        stdout, stderr, argv = io.StringIO(), io.StringIO(), sys.argv
        sys.argv = ["slimprompt", *map(str, arguments)]
        code: object = 0
        try:
            with redirect_stdout(stdout), redirect_stderr(stderr):
                main()
        except SystemExit as stop:
            code = stop.code
        except Exception:  # only with --debug
            stderr.write(traceback.format_exc())
            code = 1
        finally:
            sys.argv = argv
        return Result(int(code or 0), stdout.getvalue(), stderr.getvalue())

    return call


def ok(result):
    assert result.returncode == 0, result.stderr
    return result.stdout


def failed(result, *parts):
    assert result.returncode == 2, result.stdout + result.stderr
    message = " ".join(result.stderr.split())
    for part in parts:
        assert part in message, message
    assert "Traceback" not in result.stderr
    return message
