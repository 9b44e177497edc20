from __future__ import annotations

import csv
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from slimprompt.data.catalogue import benchmark_info
from slimprompt.errors import InputError
from slimprompt.lab.grid import unused_values
from slimprompt.lab.studies import STUDIES as LAB_STUDIES
from slimprompt.lab.study import with_sources
from slimprompt.paper.studies import (
    CATALOGUE,
    PAPER,
    PAPER_PAIRS,
    POCKET,
    STUDIES,
    make_grid,
    parse_backbone,
    read_grid,
    study_specs,
    transfer_pairs,
)


def published() -> list[dict[str, str]]:
    text = (files("slimprompt.paper") / "published.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def test_the_papers_grid_has_3540_runs() -> None:
    counts = {name: len(study(PAPER)) for name, study in STUDIES.items()}
    assert counts == {
        "headline": 378,  # dense-16, dense-4, joint r=4, on 7 datasets × 3 shots × 3 seeds × 2 backbones
        "rank-sweep": 504,
        "fixed-basis": 2016,  # 4 bases × 4 ranks
        "base-to-new": 630,  # 5 prompts
        "transfer": 138,
        "geometry": 504,
        "all": 3540,
    }
    every = with_sources(study_specs(PAPER))
    kinds = Counter("transfer" if s.basis in ("source", "random") else s.class_subset for s in every)
    assert kinds == {"all": 2772, "base": 630, "transfer": 138}
    assert len({spec.fingerprint for spec in every}) == 3540


def test_transfer_runs_are_16_pairs_and_7_shared_controls() -> None:
    specs = STUDIES["transfer"](PAPER)
    assert Counter((spec.variant, spec.basis) for spec in specs) == {
        ("fixed-B", "source"): 16 * 3,
        ("fixed-A", "source"): 16 * 3,
        ("fixed-B", "random"): 7 * 3,
        ("fixed-A", "random"): 7 * 3,
    }
    assert {(spec.backbone, spec.shots, spec.rank) for spec in specs} == {("ViT-B-16", 16, 4)}
    joint = {spec.fingerprint for spec in STUDIES["headline"](PAPER)}
    assert all(source.fingerprint in joint for spec in specs if (source := spec.source_spec()))


def test_transfer_pairs_are_the_published_ones() -> None:
    rows = [row for row in published() if row["table"] == "transfer_four_modes"]
    assert set(PAPER_PAIRS) == {
        (benchmark_info(row["source"]).name, benchmark_info(row["dataset"]).name) for row in rows
    }
    assert len(PAPER_PAIRS) == 16


def test_every_published_cell_has_its_runs() -> None:
    """Each row of a table of accuracies is the mean over the seeds of runs that `all` makes."""
    cells = set()
    for spec in study_specs(PAPER):
        rank = str(spec.rank or spec.n_ctx)
        arm = (spec.variant, spec.basis or "", rank)
        cells.add((spec.backbone, spec.dataset, spec.class_subset, *arm, spec.shots, spec.source))
    tables = {"base2new": "base", "base2new_full": "base", "b_ablation": "all", "transfer_four_modes": "all"}
    checked = 0
    for row in published():
        if row["table"] not in tables or row["dataset"] == "Average" or row["basis"] == "best":
            continue
        if row["metric"].startswith("delta"):
            continue
        source = benchmark_info(row["source"]).name if row["basis"] == "source" else None
        dataset, backbone = benchmark_info(row["dataset"]).name, row["backbone"].replace("/", "-")
        shots = int(float(row["shots"]))
        subset = tables[row["table"]]
        cell = (backbone, dataset, subset, row["variant"], row["basis"], row["rank"], shots, source)
        assert cell in cells, row
        checked += 1
    assert checked > 1000


def test_the_pocket_world_has_every_kind_of_run() -> None:
    paper = {(s.class_subset, s.variant, s.basis, s.rank, s.shots) for s in study_specs(PAPER)}
    pocket = {(s.class_subset, s.variant, s.basis, s.rank, s.shots) for s in study_specs(POCKET)}
    assert pocket == paper
    assert len(POCKET.seeds) == 3  # tables show a standard deviation
    assert {spec.backbone for spec in study_specs(POCKET)} == {"pocket", "pocket-rn"}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_a_pure_function(name: str) -> None:
    assert STUDIES[name](PAPER) == STUDIES[name](PAPER)


def test_axes_can_be_narrowed_and_replaced() -> None:
    grid = make_grid(
        {"datasets": ["DTD", "Oxford Pets"], "shots": 1, "seeds": [0], "backbones": "ViT-B/16=laion2b_s34b_b88k"}
    )
    specs = STUDIES["headline"](grid)
    assert len(specs) == 2 * 3
    assert {(s.dataset, s.shots, s.seed, s.backbone, s.pretrained) for s in specs} == {
        (dataset, 1, 0, "ViT-B-16", "laion2b_s34b_b88k") for dataset in ("dtd", "oxford_pets")
    }


def test_a_study_takes_its_own_values_where_the_grid_has_them() -> None:
    both = make_grid({"ranks": [1, 4], "shots": [1, 16]})
    assert {s.rank for s in STUDIES["headline"](both)} == {None, 4}
    assert {s.rank for s in STUDIES["base-to-new"](both)} == {None, 4}
    assert {(s.rank, s.shots) for s in STUDIES["transfer"](both)} == {(4, 16)}
    other = make_grid({"ranks": [2], "shots": [1], "bases": ["svd"], "backbones": ["RN50"]})
    assert {s.rank for s in STUDIES["headline"](other)} == {None, 2}
    assert {s.basis for s in STUDIES["base-to-new"](other)} == {None, "svd"}
    assert {(s.rank, s.shots, s.backbone) for s in STUDIES["transfer"](other)} == {(2, 1, "RN50")}


@pytest.mark.parametrize(
    ("study", "fields", "expected"),
    [
        (
            "base-to-new",
            {"ranks": [2, 4], "bases": ["orthogonal", "gaussian"]},
            {"ranks": ["2"], "bases": ["gaussian"], "short_ctx": ["4"]},
        ),
        (
            "transfer",
            {"shots": [1, 16], "bases": "svd", "ranks": 2},
            {"backbones": ["RN50"], "shots": ["1"], "bases": ["svd"], "short_ctx": ["4"]},
        ),
        ("baselines", {"ranks": [2, 8], "bases": "svd"}, {"ranks": ["8"], "short_ctx": ["4"]}),
        ("beyond", {"methods": ["gda", "zero-shot", "my_methods:f"]}, {"methods": ["gda", "my_methods:f"]}),
        ("cross-dataset", {"shots": [1, 4]}, {"ranks": ["1", "2", "8"]}),
        ("headline", {"pairs": [["dtd", "food101"]], "bases": "svd", "ranks": 4}, {"pairs": ["dtd → food101"]}),
        ("all", {"shots": [1, 16], "ranks": [2, 3]}, {}),
    ],
)
def test_values_that_no_run_uses(study: str, fields: dict[str, Any], expected: dict[str, list[str]]) -> None:
    grid = make_grid({"study": study, **fields})
    assert expected.items() <= unused_values(grid, study_specs(grid)).items()


def test_every_value_of_the_papers_grid_is_used() -> None:
    assert unused_values(PAPER, study_specs(PAPER)) == {}


@pytest.mark.parametrize("name", ["ViT-B/16", "ViT-B-16-quickgelu", "ViT-L-14"])
def test_transfers_are_on_the_vision_transformers_of_the_grid(name: str) -> None:
    specs = STUDIES["transfer"](make_grid({"backbones": ["RN50-quickgelu", name]}))
    assert {spec.backbone for spec in specs} == {name.replace("/", "-")}


def test_transfers_between_other_datasets_go_round_in_a_ring() -> None:
    grid = make_grid({"datasets": ["pocket-sketch", "pocket-night", "eurosat", "dtd"]})
    assert transfer_pairs(grid) == [
        ("dtd", "pocket-sketch"),
        ("eurosat", "pocket-sketch"),
        ("pocket-sketch", "pocket-night"),
        ("dtd", "pocket-night"),
        ("pocket-night", "eurosat"),
        ("pocket-sketch", "eurosat"),
        ("eurosat", "dtd"),
        ("pocket-night", "dtd"),
    ]
    two = make_grid({"datasets": ["pocket-sketch", "pocket-night"]})
    assert transfer_pairs(two) == [("pocket-night", "pocket-sketch"), ("pocket-sketch", "pocket-night")]
    given = make_grid({"datasets": ["dtd"], "pairs": [["Food101", "dtd"]]})
    assert transfer_pairs(given) == [("food101", "dtd")]


def test_a_study_without_runs_says_so() -> None:
    assert study_specs(make_grid({"study": "all", "datasets": "dtd"}))  # the others have runs
    with pytest.raises(InputError, match="a transfer needs a source and a target among the datasets"):
        study_specs(make_grid({"study": "transfer", "datasets": "dtd"}))
    with pytest.raises(InputError, match="there are no runs in transfer on dtd, food101.* `pairs` in a grid file"):
        study_specs(make_grid({"study": "transfer", "datasets": ["dtd", "food101"]}))


def test_sources_come_before_their_dependants_and_are_added() -> None:
    grid = make_grid({"study": "transfer", "seeds": 1})
    asked = study_specs(grid)
    ordered = with_sources(asked)
    place = {spec.fingerprint: index for index, spec in enumerate(ordered)}
    assert len(ordered) == len(asked) + 7
    assert all(place[need.fingerprint] < place[spec.fingerprint] for spec in ordered if (need := spec.source_spec()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rnaks": [4]}, "unknown grid field 'rnaks'; did you mean 'ranks'"),
        ({"datasets": ["dtdd"]}, "unknown benchmark 'dtdd'; did you mean 'dtd'"),
        ({"bases": ["orthogonl"]}, "unknown basis 'orthogonl'; did you mean 'orthogonal'"),
        ({"methods": ["tip-adaptor"]}, "unknown method 'tip-adaptor'; did you mean 'tip-adapter'"),
        ({"methods": ["prompt"]}, "unknown method 'prompt'"),
        ({"methods": []}, "methods: at least one value is needed"),
        ({"methods": [f"m:f{number}" for number in range(2000)]}, "2,000 methods are more than 100,000 runs"),
        ({"study": ["hedline"]}, "unknown study 'hedline'; did you mean 'headline'"),
        ({"ranks": [32]}, "rank 32 does not fit: it must be between 1 and the number of context tokens, n_ctx=16"),
        (
            {"study": ["rank-sweep"], "n_ctx": 4},
            r"rank 8 .* n_ctx=4\. The ranks of the grid are 1, 2, 4, 8; give others",
        ),
        ({"shots": [0]}, "shots.0: Input should be greater than or equal to 1"),
        ({"seeds": []}, "at least one value is needed"),
        ({"recipe": {"epoch": 3}}, "unknown recipe field 'epoch'; did you mean 'epochs'"),
        ({"recipe": "papr"}, "unknown recipe 'papr'; did you mean 'paper'"),
        ({"backbones": ["=openai"]}, "is not a backbone: write NAME or NAME=WEIGHTS"),
    ],
)
def test_a_wrong_grid_is_refused_with_a_reason(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        study_specs(make_grid(fields))


def test_only_ranks_that_a_study_uses_must_fit() -> None:
    specs = study_specs(make_grid({"study": ["headline"], "n_ctx": 4}))
    assert {(spec.rank, spec.n_ctx) for spec in specs} == {(None, 4), (4, 4)}


def test_grid_files(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("study: [headline, rank-sweep]\npocket: true\nshots: 1\nranks: [2, 4]\nrecipe: {epochs: 5}\n")
    grid = read_grid(path, seeds=[7])
    assert (grid.study, grid.shots, grid.ranks, grid.seeds) == (("headline", "rank-sweep"), (1,), (2, 4), (7,))
    assert grid.backbones == POCKET.backbones
    assert grid.recipe == POCKET.recipe.model_copy(update={"epochs": 5})
    assert {spec.rank for spec in study_specs(grid)} == {None, 2, 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datasts: [dtd]", "'datasts'; did you mean 'datasets'"),
        ("- dtd", "is not a grid"),
        ("study: [", "cannot read the grid file"),
        ("pocket: perhaps", "pocket must be true or false"),
        ("study: &a [all]\ndatasets: *a", "uses the alias \\*a; write the values out"),
        ("study: " + "[" * 50_000, "nested too deeply"),
        ("study: " + "- " * 5_000, "cannot read the grid file"),
        ("datasets: " + "a" * 2**20, "larger than 1 MB"),
        ("datasets: 5", "datasets.0: Input should be a valid string \\(given: 5\\)"),
        ("study: 5", "study.0: Input should be a valid string"),
        ("recipe: {5: 3}", "unknown recipe field 5"),
        ("recipe: 5", "recipe: Input should be a valid dictionary"),
        ("pairs: 5", r"pairs: write a list of \[source, target\], such as \[\[dtd, food101\]\] \(given: 5\)"),
        ("pairs: [[dtd]]", r"pairs: write a list of \[source, target\]"),
        ("pairs: [dtd, food101]", r"pairs: write a list of \[source, target\]"),
        ("seeds: 1-3", r"seeds: write whole numbers, such as 1 or \[1, 2, 3\] \(given: \['1-3'\]\)"),
        ("ranks: [4, {}]", "ranks: write whole numbers"),
        (
            "shots: 1\nseeds: 2\nshots: 4",
            "cannot read the grid file .*: 'shots' is given 2 times; give every field once",
        ),
        ("recipe: {epochs: 1, epochs: 2}", "'epochs' is given 2 times"),
        ("seeds: 0x" + "f" * 5000, "seeds.0: Input should be less than"),
        ("seeds: 2024-13-77", "cannot read the grid file|write whole numbers"),
        (f"seeds: {list(range(5000))}\nshots: {list(range(1, 500))}", "5,000 seeds × .* are more than 100,000 runs"),
        ("datasets: " + "a" * 5000, "unknown benchmark 'aaaa"),
        ('datasets: "a\\0b"', "unknown benchmark"),
    ],
)
def test_a_wrong_grid_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_grid(path)
    assert len(str(caught.value)) < 700
    with pytest.raises(InputError, match="cannot read the grid file"):
        read_grid(tmp_path / "nothing.yaml")


def test_backbone_names() -> None:
    assert parse_backbone("hf-hub:org/model") == ("hf-hub:org/model", None)
    assert parse_backbone("pocket-rn") == ("pocket-rn", None)
    assert parse_backbone("ViT-B/16=/w/ViT-B-16.pt") == ("ViT-B-16", "/w/ViT-B-16.pt")


def test_the_documentation_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    for name, study in CATALOGUE.studies.items():
        assert f"| `{name}` | {len(study(PAPER)):,} |" in text
    pocket = [f"{len(study(POCKET)):,}" for study in LAB_STUDIES.values()]
    assert f"`--pocket` {pocket[0]}, {pocket[1]} and {pocket[2]} runs" in " ".join(text.split())
    assert f"{len(STUDIES['all'](POCKET)):,} runs" in text
    assert f"The recipe is `fast`: {POCKET.recipe.describe()}." in " ".join(text.split())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-photos").mkdir()
    (tmp_path / "grid.yaml").write_text(text.split("```yaml\n")[1].split("```")[0])
    grid = read_grid(tmp_path / "grid.yaml")
    assert grid.datasets == ("dtd", "oxford_pets", "my-photos")
    assert len(study_specs(grid)) == (2 * 3 * 2 * 3) * 3 + 4 * 3
