"""`slimprompt theory` as a user types it."""

import numpy as np
import pytest
from typer.testing import CliRunner

from slimprompt.cli import app
from slimprompt.errors import InputError
from tests.synthetic_runs import write_run

SMALL = ["--m", "4", "--d", "12", "--r", "1", "--trials", "100"]


def run(*arguments):
    result = CliRunner().invoke(app, ["theory", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_table_of_statements():
    result = run(*SMALL, "--no-encoder")
    assert result.exit_code == 0
    assert "Residual, random B fixed (P* spread)" in result.output
    line = next(line for line in result.output.splitlines() if line.startswith("Dimension gap"))
    assert line.split() == ["Dimension", "gap", "=", "3", "3", "holds"]
    assert "Corollary to the letter, random B fixed: violated." in result.output
    assert "2 violated, 0 undecided, 3 not applicable" in result.output
    assert "Add --out FOLDER" in result.output


def test_verbose_shows_all_claims():
    short, long = run(*SMALL, "--no-encoder").output, run(*SMALL, "--no-encoder", "--verbose").output
    claim = "Training A with B0 of rank r fixed moves P in r·d dimensions."
    assert claim in long and claim not in short


def test_statements_on_the_loss_and_page(tiny, photos, tmp_path):
    """All parts on a real text tower and a folder of images."""
    out = tmp_path / "page"
    result = run(
        *SMALL,
        *("--backbone", tiny.name, "--pretrained", "random:0", "--device", "cpu"),
        *("--benchmark", str(photos), "--shots", "2", "--steps", "3", "--out", str(out)),
    )
    assert "loss: tiny-for-tests, 3 classes, 6 images" in result.output
    assert "Curvature share of δ*, random B" in result.output and "Stochastic gradients" in result.output
    assert (out / "theory.html").is_file() and (out / "theory-descent.svg").is_file()
    assert "Convergence with A fixed" in result.output and (out / "theory-descent-fixed-a.svg").is_file()
    assert "Descent inequality" in (out / "statements.csv").read_text(encoding="utf-8")


def test_runs_are_read(tmp_path):
    for seed in (1, 2):
        start, end = np.random.default_rng(seed).standard_normal((2, 4, 12))
        factors = {"B0": np.eye(4), "A0": start, "B": np.eye(4), "A": end}
        cell = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "n_ctx": 4, "seed": seed, "variant": "dense"}
        write_run(tmp_path, cell, factors=factors)
    result = run(*SMALL, "--no-encoder", "--runs", str(tmp_path))
    assert "Trained prompts" in result.output and "svd B, displacement P* − P0 (pocket)" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--m", "4", "--d", "12", "--r", "5"], "1 ≤ r ≤ m < d; given: r = 5, m = 4, d = 12"),
        (["--m", "12", "--d", "12", "--r", "2"], "1 ≤ r ≤ m < d"),
        ([*SMALL, "--damping", "0"], "damping must be above 0"),
        ([*SMALL, "--no-encoder", "--runs", "nowhere"], "no runs folder at nowhere"),
        ([*SMALL, "--backbone", "pockett"], "did you mean 'pocket'"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(InputError, match=message):
        run(*arguments)


def test_empty_runs_folder_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no complete runs"):
        run(*SMALL, "--no-encoder", "--runs", str(tmp_path))


def test_output_folder_is_checked_first(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        run(*SMALL, "--out", str(tmp_path / "file"))
