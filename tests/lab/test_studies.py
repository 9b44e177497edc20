from __future__ import annotations

from collections import Counter

import pytest

from slimprompt.errors import InputError
from slimprompt.lab.grid import unused_values
from slimprompt.lab.studies import STUDIES
from slimprompt.lab.study import with_sources
from slimprompt.methods.table import METHODS
from slimprompt.paper.studies import CATALOGUE, PAPER, POCKET, make_grid, studies_of, study_specs

BEYOND = [
    "joint r4 from “a photo of a”",
    "joint r4 anchored at “a photo of a”",
    "joint r4 anchor 8",
    "joint r4 prograd",
    "fixed-B orthogonal r4 depth 3",
]
MAIN = ["dense m16", "joint r4", "fixed-B orthogonal r4"]


def test_the_studies_have_these_runs() -> None:
    cells = 7 * 3 * 3 * 2  # datasets, shots, seeds, backbones
    labels = {name: Counter(spec.label for spec in study(PAPER)) for name, study in STUDIES.items()}
    assert labels["baselines"] == dict.fromkeys([*METHODS, *MAIN], cells)
    assert labels["beyond"] == dict.fromkeys(["zero-shot", *MAIN[1:], *BEYOND], 2 * cells)
    own = [f"fixed-B {basis} r4{end}" for basis in ("orthogonal", "random", "learned") for end in ("", " depth 3")]
    moved = [f"fixed-B {basis} r4{end}" for basis in ("learned",) for end in (" B of depth 3", " depth 3 B of depth 1")]
    transferred = [label for label in labels["basis-transfer"] if " from " in label]
    arms = ["joint r4", "joint r4 depth 3", *own, *moved]
    assert {label: labels["basis-transfer"][label] for label in arms} == dict.fromkeys(arms, 7 * 3 * 2)
    assert len(labels["basis-transfer"]) == len(arms) + len(transferred) == len(arms) + 7 * 4
    assert {labels["basis-transfer"][label] for label in transferred} == {3 * 2}
    assert labels["cross-dataset"] == dict.fromkeys(["zero-shot", *MAIN, *BEYOND], 3 * 2)


def test_baselines_has_the_methods_of_the_grid() -> None:
    grid = make_grid(
        {"study": "baselines", "methods": ["gda", "my_methods:nearest_mean", "gda"], "seeds": 1, "shots": 1}
    )
    labels = Counter(spec.label for spec in study_specs(grid))
    assert labels == dict.fromkeys(["gda", "my_methods:nearest_mean", *MAIN], 7 * 2)
    assert "methods" not in unused_values(grid, study_specs(grid))
    assert make_grid({"methods": "clap"}).methods == ("clap",)
    assert study_specs(make_grid({"study": "baselines", "methods": list(METHODS)})) == study_specs(
        make_grid({"study": "baselines"})
    )


def test_cross_dataset_trains_on_the_first_dataset_with_16_shots() -> None:
    specs = STUDIES["cross-dataset"](POCKET)
    assert {(spec.dataset, spec.shots) for spec in specs} == {(POCKET.datasets[0], 16)}
    assert {spec.evaluate_on for spec in specs} == {tuple(sorted(POCKET.datasets[1:]))}


def test_cross_dataset_prefers_imagenet() -> None:
    grid = make_grid({"datasets": ["dtd", "imagenet", "food101"], "shots": [1]})
    specs = STUDIES["cross-dataset"](grid)
    assert {(spec.dataset, spec.evaluate_on, spec.shots) for spec in specs} == {("imagenet", ("dtd", "food101"), 1)}


def test_basis_transfer_has_a_source_and_a_target() -> None:
    with pytest.raises(InputError, match="basis-transfer needs at least two datasets.*the only one is dtd"):
        study_specs(make_grid({"study": "basis-transfer", "datasets": "dtd"}))
    grid = make_grid({"study": "basis-transfer", "pairs": [["dtd", "food101"]], "seeds": 1, "backbones": "RN50"})
    specs = study_specs(grid)
    assert {(spec.source, spec.dataset, spec.shots) for spec in specs if spec.basis == "source"} == {
        ("dtd", "food101", 16)
    }
    assert {spec.dataset for spec in specs} == {"food101"}
    added = [spec.title for spec in with_sources(specs) if spec not in specs]
    assert added == ["RN50 dtd 16-shot seed 1: joint r4", "RN50 dtd 16-shot seed 1: joint r4 depth 3"]


def test_baselines_share_their_prompts_with_the_paper() -> None:
    paper = {spec.fingerprint for spec in study_specs(PAPER)}
    assert all(spec.fingerprint in paper for spec in STUDIES["baselines"](PAPER) if spec.is_prompt)


def test_a_grid_replaces_rank_and_position() -> None:
    grid = make_grid({"ranks": [8], "bases": ["svd"], "position": "middle", "datasets": "dtd", "shots": 1, "seeds": 1})
    specs = STUDIES["beyond"](grid)
    assert {spec.rank for spec in specs if spec.words} == {4}  # as many as there are words
    assert {spec.rank for spec in specs if spec.is_prompt and not spec.words} == {8}
    assert {spec.position for spec in specs if spec.is_prompt} == {"middle"}
    assert {spec.position for spec in specs if not spec.is_prompt} == {"end"}


def test_all_stays_the_papers() -> None:
    assert set(STUDIES).isdisjoint(studies_of(make_grid({"study": "all"})))
    both = make_grid({"study": ["all", "baselines"]})
    assert {"headline", "baselines"} < set(studies_of(both)) < set(CATALOGUE.studies)
    assert len(study_specs(both)) == 3540 + 9 * 126
