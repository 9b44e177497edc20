from __future__ import annotations

import sys
from typing import Any

import pytest

from slimprompt.errors import InputError
from slimprompt.lab.spec import RunSpec, parse_spec

JOINT: dict[str, Any] = {"backbone": "ViT-B-16", "dataset": "dtd", "shots": 4, "seed": 1, "variant": "joint", "rank": 4}


def test_fingerprint_names_the_same_run_forever() -> None:
    # Run folders are named by it: a change here orphans every run made before.
    assert RunSpec(**JOINT).fingerprint == "b77aedd3f0413a71"
    assert RunSpec(**JOINT, recipe={"epochs": 50}).fingerprint == "9c41e9ffee2c5202"
    assert RunSpec(**JOINT, evaluate_on=["food101"]).fingerprint == "44ecf3f2b5ed89c9"


def test_every_field_changes_the_fingerprint() -> None:
    changes: list[dict[str, Any]] = [
        {"backbone": "RN50"},
        {"pretrained": "openai"},
        {"dataset": "food101"},
        {"class_subset": "base"},
        {"shots": 1},
        {"seed": 0},
        {"rank": 2},
        {"n_ctx": 8},
        {"position": "middle"},
        {"precision": "bf16"},
        {"variant": "fixed-B", "basis": "svd"},
        {"variant": "fixed-B", "basis": "source", "source": "food101"},
        {"recipe": {"epochs": 50}},
        {"recipe": {"views": 0}},
        {"recipe": {"anchor": 8}},
        {"recipe": {"prograd": True}},
        {"recipe": {"class_weights": "balanced"}},
        {"words": "a photo of a"},
        {"words": "a photo of a", "anchored": True},
        {"depth": 2},
        {"tower": "both", "n_ctx_image": 4},
        {"tower": "both", "n_ctx_image": 4, "image_blocks": "0:2"},
        {"tower": "both", "share_basis": True},
        {"variant": "fixed-B", "basis": "learned", "source_depth": 2},
        {"method": "gda", "variant": None, "rank": None},
        {"evaluate_on": ["food101"]},
    ]
    specs = [RunSpec(**JOINT), *(RunSpec(**JOINT | change) for change in changes)]
    assert len({spec.fingerprint for spec in specs}) == len(specs)
    assert {name for change in changes for name in change} == set(RunSpec.model_fields)


def test_fields_at_their_defaults_leave_the_fingerprint_alone() -> None:
    """So that a field can be added without renaming runs."""
    recipe = {"anchor": 0.0, "prograd": False, "class_weights": "none"}
    defaults = {"words": None, "anchored": False, "depth": 1, "method": "prompt", "evaluate_on": (), "recipe": recipe}
    defaults |= {"source_depth": None, "n_ctx": 16, "precision": "fp32"}
    assert RunSpec(**JOINT | defaults).fingerprint == RunSpec(**JOINT).fingerprint

    class Extended(RunSpec):
        tower: str = "text"

    assert Extended(**JOINT).fingerprint == RunSpec(**JOINT).fingerprint
    assert Extended(**JOINT, tower="image").fingerprint != RunSpec(**JOINT).fingerprint


METHOD = {name: value for name, value in JOINT.items() if name not in ("variant", "rank")} | {"method": "tip-adapter"}


def test_a_method_is_one_run_per_sample() -> None:
    spec = parse_spec(METHOD)
    assert parse_spec(spec.model_dump(mode="json")) == spec
    defaults = {"n_ctx": None, "position": "end", "recipe": {}, "depth": 1}
    assert parse_spec(METHOD | defaults).fingerprint == spec.fingerprint
    assert (spec.is_prompt, spec.label, spec.source_spec()) == (False, "tip-adapter", None)
    assert spec.title == "ViT-B-16 dtd 4-shot seed 1: tip-adapter"
    unused = {name for name, value in spec.flat().items() if value is None}
    assert {"variant", "n_ctx", "position", "recipe.epochs"} < unused
    assert unused.isdisjoint({"method", "shots", "precision"})


def test_a_method_of_the_users_own_is_read_without_its_module() -> None:
    spec = parse_spec(METHOD | {"method": "antigravity:fly"})
    assert (spec.is_prompt, spec.label) == (False, "antigravity:fly")
    assert parse_spec(spec.model_dump(mode="json")) == spec
    with pytest.raises(InputError, match=r"antigravity:fly cannot classify other datasets .*: prompt, zero-shot$"):
        parse_spec(METHOD | {"method": "antigravity:fly", "evaluate_on": ["food101"]})
    assert "antigravity" not in sys.modules


def test_fingerprints_of_methods() -> None:
    # As those of prompts, they name the run folders.
    assert parse_spec(METHOD).fingerprint == "d5e606c2b495b74e"
    assert parse_spec(METHOD | {"method": "my_methods:nearest_mean"}).fingerprint == "794420aa7e5dc7c5"


def test_the_order_of_other_datasets_does_not_matter() -> None:
    one, other = (
        parse_spec(JOINT | {"evaluate_on": names}) for names in (["food101", "eurosat"], ["eurosat", "food101"])
    )
    assert one == other
    learned = {"variant": "fixed-B", "basis": "learned"}
    assert parse_spec(JOINT | learned | {"evaluate_on": ["food101"]}).source_spec() == RunSpec(**JOINT)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "tip-adaptor"},
        {"variant": "joint", "rank": 4},
        {"recipe": {"epochs": 5}},
        {"method": "prompt", "variant": None},
        {"evaluate_on": ["food101"]},
        {"method": "zero-shot", "evaluate_on": ["dtd"]},
        {"method": "zero-shot", "evaluate_on": ["eurosat"], "class_subset": "base"},
    ],
)
def test_refuses_a_method_with_a_reason(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        parse_spec(METHOD | change)


def test_one_backbone_has_one_name() -> None:
    assert RunSpec(**JOINT | {"backbone": "ViT-B/16"}) == RunSpec(**JOINT)
    assert RunSpec(**JOINT | {"backbone": "hf-hub:timm/ViT-B-16"}).backbone == "hf-hub:timm/ViT-B-16"


def test_learned_basis_needs_its_joint_run() -> None:
    spec = RunSpec(**JOINT | {"variant": "fixed-B", "basis": "learned", "class_subset": "base", "seed": 3})
    assert spec.source_spec() == RunSpec(**JOINT | {"class_subset": "base", "seed": 3})


def test_transfer_needs_the_joint_run_of_its_source() -> None:
    spec = RunSpec(**JOINT | {"variant": "fixed-A", "basis": "source", "source": "food101"})
    assert spec.source_spec() == RunSpec(**JOINT | {"dataset": "food101"})
    assert RunSpec(**JOINT | {"variant": "fixed-A", "basis": "random"}).source_spec() is None


@pytest.mark.parametrize(
    "change",
    [
        {"variant": "dense"},
        {"rank": 17},
        {"basis": "svd"},
        {"variant": "fixed-A", "basis": "gaussian"},
        {"variant": "fixed-B", "basis": "source"},
        {"variant": "fixed-B", "basis": "source", "source": "dtd"},
        {"anchored": True},
        {"anchored": True, "words": "a photo of a", "depth": 2},
        {"words": "a photo", "n_ctx": 2},
        {"source_depth": 3},
        {"variant": "fixed-A", "basis": "source", "source": "a", "source_depth": 3},
        {"words": "a photo of a", "anchored": True, "variant": "fixed-B", "basis": "learned", "source_depth": 3},
        {"rnak": 4},
    ],
)
def test_refuses_with_a_reason(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        parse_spec(JOINT | change)


def test_the_depth_of_the_source_is_named_only_if_it_differs() -> None:
    learned = JOINT | {"variant": "fixed-B", "basis": "learned"}
    same = RunSpec(**learned, depth=3, source_depth=3)
    assert same == RunSpec(**learned, depth=3) and same.source_depth is None
    assert RunSpec(**learned, source_depth=1).fingerprint == RunSpec(**learned).fingerprint
    deep = RunSpec(**learned, depth=3, source_depth=1)
    assert deep.label == "fixed-B learned r4 depth 3 B of depth 1"
    assert deep.source_spec() == RunSpec(**JOINT)
    shallow = RunSpec(**learned, source_depth=3)
    assert shallow.label == "fixed-B learned r4 B of depth 3"
    assert shallow.source_spec() == RunSpec(**JOINT, depth=3)
