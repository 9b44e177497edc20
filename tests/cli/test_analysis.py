"""`slimprompt tables`, `claims`, `compare` and `geometry` as a user types them."""

import json
import os
import re
import shutil

import pytest
from typer.testing import CliRunner

from slimprompt.cli import app
from slimprompt.errors import InputError
from slimprompt.lab.records import FAILED, load_records, store_run
from slimprompt.lab.spec import RunSpec
from tests.synthetic_runs import METHOD_EFFECTS, write_methods, write_run, write_study

BASE = {"backbone": "pocket", "dataset": "dtd", "shots": 1, "seed": 1, "n_ctx": 8}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    grid = {"backbones": ("pocket",), "datasets": ("dtd", "food101"), "seeds": (1, 2)}
    return write_study(tmp_path_factory.mktemp("runs"), **grid)


@pytest.fixture(scope="module")
def method_runs(tmp_path_factory):
    return write_methods(tmp_path_factory.mktemp("methods"))


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_failed_runs_are_named(runs, tmp_path):
    assert "failed run" not in invoke("tables", runs, "--only", "headline").stderr
    spec = RunSpec(**{**BASE, "seed": 99}, variant="dense")
    shutil.copytree(runs, tmp_path / "runs")
    store_run(tmp_path / "runs", spec, {"status": FAILED, "error": "out of memory"})
    shown = invoke("tables", tmp_path / "runs", "--only", "headline").stderr
    assert "note: 1 failed run left out; `slimprompt runs list" in shown


def test_geometry_prints_medians_chance_and_displacement(runs):
    output = invoke("geometry", runs, "--draws", 50).output
    assert "chance: 50 random pairs" in output
    assert "Displacement from the initial factors" in output
    assert next(line.split()[:2] for line in output.splitlines() if line.startswith("seed")) == ["seed", "A"]


def test_geometry_as_json_and_as_files(runs, tmp_path):
    content = json.loads(
        invoke("geometry", runs, "--format", "json", "--draws", 20, "--by", "rank", "--out", tmp_path).stdout
    )
    assert {row["axis"] for row in content["medians"]} == {"seed", "dataset", "shots", "rank"}
    assert {"rank", "factor", "overlap", "start_overlap", "n"} <= set(content["medians"][0])
    assert {row["factor"] for row in content["displacement"]} == {"A", "B", "BA"}
    assert {path.name for path in tmp_path.iterdir()} == {".contents", "pairs.csv", "displacement.csv", "chance.csv"}


def test_geometry_of_base_class_runs_on_request(runs):
    def n_pairs(*arguments):
        content = json.loads(
            invoke("geometry", runs, "--format", "json", "--draws", 20, "--by", "class_subset", *arguments).stdout
        )
        return {(row["class_subset"], row["axis"]): row["n"] for row in content["medians"] if row["factor"] == "B"}

    default, base = n_pairs(), n_pairs("--where", "class_subset=base")
    assert {subset for subset, _ in default} == {"all"}
    assert {subset for subset, _ in base} == {"base"}
    assert n_pairs("--where", "class_subset=all,base") == default | base


def test_table_and_claims_use_the_same_geometry(runs):
    default = invoke("tables", runs, "--only", "factor_geometry").stdout
    assert "runs on all classes" in default
    assert default == invoke("tables", runs, "--only", "factor_geometry", "--where", "class_subset=all").stdout
    base = invoke("tables", runs, "--only", "factor_geometry", "--where", "class_subset=base").stdout
    assert "runs on base classes" in base
    name = ("--name", "b_overlap_across_tasks", "--format", "json")
    default = invoke("claims", runs, *name).stdout
    assert default == invoke("claims", runs, *name, "--where", "class_subset=all").stdout
    assert default != invoke("claims", runs, *name, "--where", "class_subset=base").stdout


def test_geometry_of_a_single_run_has_no_pairs(tmp_path):
    write_run(tmp_path, BASE | {"variant": "joint", "rank": 2})
    assert "no two joint runs" in invoke("geometry", tmp_path, "--draws", 10).output


def test_claims_on_runs(runs):
    output = invoke("claims", runs).output
    assert "harmonic_wins" in output
    assert re.search(r"\d hold, \d violated, \d+ undecided, \d+ not applicable", output)
    assert re.search(r"\(n = \d datasets\)", output)
    assert re.search(r"\(n = \d+ cells\)", output)
    assert "needs r8, r2;" in output
    verbose = invoke("claims", runs, "--name", "harmonic_wins", "--verbose").output
    assert "compared:" in verbose and "DTD, 4-shot" in verbose
    assert "rank_saturation" not in verbose


def test_claims_on_the_published_tables():
    content = json.loads(invoke("claims", "--published", "--format", "json").stdout)
    found = {(one["name"], one["scope"]): one for one in content}
    assert found["harmonic_wins", "RN50"]["value"] == found["harmonic_wins", "RN50"]["paper"] == "17 of 21"
    assert found["harmonic_gain", "RN50"]["numbers"][0] | {"low": 0, "high": 0} == {
        "at": "1-shot",
        "value": pytest.approx(4.21, abs=0.01),
        "n": 7,
        "low": 0,
        "high": 0,
    }
    only = json.loads(invoke("claims", "--published", "--format", "json", "--name", "seen_wins").stdout)
    assert [(one["name"], one["scope"]) for one in only] == [("seen_wins", "RN50"), ("seen_wins", "ViT-B/16")]


def test_compare_two_prompts(runs):
    output = invoke("compare", runs, "joint r4", "dense m8", "--unit", "run").output
    assert "one difference per matched pair of runs" in output
    (first, second) = json.loads(invoke("compare", runs, "joint r4", "dense m8", "--format", "json").stdout)
    assert (first["backbone"], first["shots"], second["shots"]) == ("pocket", 1, 4)
    assert first["n"] == 2 and set(first["cells"]) == {"DTD", "Food101"}


def test_names_of_runs_list_are_names_of_compare(runs, method_runs):
    """Transfers with their source, quoted words, methods: whatever `runs list` prints."""
    for folder in (runs, method_runs):
        names = {record.spec.label for record in load_records(folder)}
        listed = invoke("runs", "list", folder).output
        for name in names:
            shown = [line for line in listed.splitlines() if f" {name} " in line]
            assert shown, name
            if name != "joint r4":
                rows = json.loads(invoke("compare", folder, name, "joint r4", "--format", "json").stdout)
                assert rows and all(row["n"] for row in rows)


def test_one_source_or_all_of_them(tmp_path):
    """From DTD the transfer is 1 better than random, from Food101 3 better."""
    common = {"backbone": "pocket", "dataset": "pocket-toy", "shots": 1, "seed": 1, "n_ctx": 8, "rank": 4}
    for basis, source, accuracy in (("random", None, 50.0), ("source", "dtd", 51.0), ("source", "food101", 53.0)):
        fields = {**common, "variant": "fixed-B", "basis": basis, "source": source}
        write_run(tmp_path, fields, metrics={"accuracy": accuracy})
    for name, expected in (("source", 2.0), ("source from dtd", 1.0), ("source from food101", 3.0)):
        (row,) = json.loads(
            invoke("compare", tmp_path, f"fixed-B {name} r4", "fixed-B random r4", "--format", "json").stdout
        )
        assert row["mean"] == expected


def test_tables_are_printed_or_written(runs, tmp_path):
    printed = invoke("tables", runs, "--only", "headline").output
    assert "| pocket | 1 |" in printed and printed.count("###") == 1
    output = invoke("tables", runs, "--out", tmp_path, "--format", "csv, markdown", "--compare-published").output
    assert "files in" in output
    assert (tmp_path / "headline.csv").exists() and (tmp_path / "tables.md").exists()
    assert not (tmp_path / "tables.xlsx").exists()


def test_an_output_folder_holds_exactly_these_tables(runs, tmp_path):
    out = tmp_path / "out"
    invoke("tables", runs, "--out", out, "--format", "csv")
    assert (out / "b_ablation_rank2_pocket.csv").exists()
    invoke("tables", runs, "--out", out, "--format", "csv", "--where", "rank=4")
    assert not (out / "b_ablation_rank2_pocket.csv").exists()  # of other runs
    invoke("tables", runs, "--out", out, "--format", "csv", "--only", "headline")
    assert {path.name for path in out.iterdir()} == {".contents", "headline.csv", "cells.csv"}
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"thesis\.tex.*another folder"):
        invoke("tables", runs, "--out", out)
    with pytest.raises(InputError, match=r"thesis\.tex"):
        invoke("geometry", runs, "--draws", 10, "--out", out)
    assert (out / "headline.csv").exists() and (out / "thesis.tex").read_text() == "mine"


def test_a_table_of_accuracies_reads_no_factors(runs, tmp_path):
    copy = shutil.copytree(runs, tmp_path / "runs")
    for path in copy.glob("*/factors.safetensors"):
        path.write_bytes(b"damaged")
    assert "| pocket | 1 |" in invoke("tables", copy, "--only", "headline").output
    assert "pocket: 4 of 4" in invoke("claims", copy, "--name", "harmonic_wins").output
    with pytest.raises(InputError, match=r"factors\.safetensors"):
        invoke("tables", copy, "--only", "factor_geometry")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_in_a_runs_folder_are_left_out(runs, tmp_path, kind):
    copy = shutil.copytree(runs, tmp_path / "runs")
    (copy / "zzz").mkdir()
    if kind == "pipe":
        os.mkfifo(copy / "zzz" / "record.json")
    else:
        (copy / "zzz" / "record.json").symlink_to("/dev/zero")
    commands = [["tables"], ["claims"], ["geometry"], ["compare"], ["runs", "list"]]
    further = {"tables": ["--only", "headline"], "geometry": ["--draws", "10"], "compare": ["joint r4", "dense m8"]}
    for command in commands:
        arguments = [*command, copy, *further.get(command[0], [])]
        if command[0] != "runs":
            with pytest.warns(UserWarning, match="1 damaged run folder"):
                invoke(*arguments)
        else:
            assert "expected a regular file" in " ".join(invoke(*arguments).output.split())


@pytest.mark.parametrize("name", ["factors.safetensors", "curve.csv"])
def test_a_pipe_as_a_file_of_a_run_is_an_error(runs, tmp_path, name):
    copy = shutil.copytree(runs, tmp_path / "runs")
    record = next(one for one in load_records(copy) if one.spec.variant == "joint" and one.spec.class_subset == "all")
    (record.folder / name).unlink()
    os.mkfifo(record.folder / name)
    command = ["geometry", copy, "--draws", "10"] if name.startswith("factors") else ["runs", "show", record.folder]
    with pytest.raises(InputError, match=f"{name}.*expected a regular file|{name}.*pipe"):
        invoke(*command)


def test_published_tables_are_printed():
    assert "| ViT-B/16 | 1 | 68.22 | 68.14 | **70.07** | +1.93 |" in invoke("tables", "--published").output


def test_compare_two_methods(method_runs):
    (one, _) = json.loads(invoke("compare", method_runs, "gda", "tip-adapter", "--format", "json").stdout)
    assert one["mean"] == pytest.approx(METHOD_EFFECTS["gda"] - METHOD_EFFECTS["tip-adapter"])
    assert one["n"] == 2
    output = invoke("compare", method_runs, "joint r4", "zero-shot", "--metric", "cross_dataset").output
    assert [line.split()[2] for line in output.splitlines() if line.startswith("RN50")] == ["3", "3"]  # datasets


def test_quotation_marks_in_a_name_are_optional(method_runs):
    first, second, third = (
        json.loads(invoke("compare", method_runs, name, "joint r4", "--format", "json").stdout)
        for name in (
            "joint r4 anchored at “a photo of a”",
            "joint r4 anchored at 'a photo of a'",
            "joint r4 anchored at a photo of a",
        )
    )
    assert first == second == third


def test_new_classes_cannot_be_compared_without_new_names(method_runs):
    with pytest.raises(InputError, match="no cell of these runs has both 'gda' and 'zero-shot' with metric 'unseen'"):
        invoke("compare", method_runs, "gda", "zero-shot", "--metric", "unseen")


def test_tables_of_methods_are_printed(method_runs):
    output = invoke("tables", method_runs, "--only", "methods", "--compare-published").output
    assert "| RN50 | tip-adapter | 71.6 ± 0.3 (" in output
    assert "Published tip-adapter: alpha and beta tuned on the whole validation split" in output
    assert (
        "| RN50 | DTD | 1 | zero-shot | 52.6 ± 0.3 | — |"
        in invoke("tables", method_runs, "--only", "cross_dataset").output
    )


def test_geometry_and_claims_ignore_methods(method_runs):
    medians = json.loads(invoke("geometry", method_runs, "--format", "json", "--draws", 20).stdout)
    assert {row["variant"] for row in medians["displacement"]} == {"joint"}
    assert sum("left out" in note for note in medians["notes"]) == 3  # words, cross-dataset, base classes
    assert "not applicable" in invoke("claims", method_runs).output


def test_where_selects_runs(runs):
    output = invoke("tables", runs, "--only", "rank_sweep", "--where", "dataset=dtd", "--where", "shots=4").output
    assert "| DTD | 4 |" in output and "Food101" not in output


def test_mixed_settings_are_reported_on_standard_error(tmp_path):
    write_run(tmp_path, BASE | {"variant": "dense"})
    write_run(tmp_path, BASE | {"variant": "joint", "rank": 2, "recipe": {"epochs": 5}})
    result = invoke("tables", tmp_path, "--only", "headline")
    assert "the runs mix recipe.epochs" in result.stderr
    assert "mix" not in result.stdout


def test_a_negative_seed_is_refused(runs):
    result = CliRunner().invoke(app, ["geometry", str(runs), "--seed", "-1"])
    assert result.exit_code == 2 and "--seed" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["tables", "RUNS", "--where", "variant=jont"],
            "no run has variant=jont: they have dense, fixed-A, fixed-B, joint",
        ),
        (["claims"], "give either a folder of runs or --published"),
        (["claims", "RUNS", "--published"], "give either a folder of runs or --published"),
        (["claims", "--published", "--where", "shots=1"], "--where is for runs: leave it out with --published"),
        (["tables", "--published", "--compare-published"], "--compare-published is for runs"),
        (["claims", "RUNS", "--name", "harmonic"], "unknown claim 'harmonic'"),
        (["claims", "nowhere", "--name", "harmonic_win"], "did you mean 'harmonic_wins'"),
        (["claims", "nowhere"], "no runs folder at nowhere"),
        (["tables", "RUNS", "--where", "shots=99"], "no complete runs that meet shots=99"),
        (["tables", "RUNS", "--where", "shot=1"], "did you mean 'shots'"),
        (["tables", "RUNS", "--only", "headlines"], "did you mean 'headline'"),
        (["tables", "RUNS", "--format", "latexx"], "did you mean 'latex'"),
        (["tables", "RUNS", "--format", "latex"], "needs --out"),
        (["geometry", "RUNS", "--by", "seeds"], "unknown column to group by"),
        (["geometry", "RUNS", "--variant", "dense"], "unknown variant"),
        (["compare", "RUNS", "joint r3", "dense m8"], "unknown method of these runs 'joint r3'"),
        (["compare", "RUNS", "joint r4", "dense m8", "--metric", "acc"], "unknown metric"),
        (["compare", "RUNS", "joint r4", "dense m8", "--unit", "fold"], "unknown unit"),
        (["compare", "RUNS", "joint r4", "dense m8", "--margin", "0"], "above 0"),
        (["compare", "RUNS", "dense m4", "dense m8", "--metric", "seen"], "no cell of these runs has both"),
    ],
)
def test_errors(runs, arguments, message):
    with pytest.raises(InputError, match=message):
        invoke(*[str(runs) if argument == "RUNS" else argument for argument in arguments])
