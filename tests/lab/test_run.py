from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slimprompt.clip import backbone as backbone_module
from slimprompt.clip.backbone import Backbone
from slimprompt.data import base_new, few_shot, load_folder, read_manifest
from slimprompt.files import json_checksum
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.inputs import KnownInputs
from slimprompt.lab.records import complete_runs, find_run
from slimprompt.lab.run import Batch, LoadedInputs, SetupError, batch_key, make_run, make_runs
from slimprompt.lab.spec import RunSpec
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.start import initial_context, start_prompt
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.text.words import word_embeddings
from slimprompt.training.evaluation import accuracy
from tests.conftest import draw, fingerprints, run_folders

MakeSpec = Callable[..., RunSpec]


@pytest.fixture
def loaded(environment: RunEnvironment) -> LoadedInputs:
    return LoadedInputs(environment)


def test_a_run_folder_is_whole(run_spec: MakeSpec, loaded: LoadedInputs) -> None:
    spec = run_spec()
    record = make_run(spec, loaded)
    assert record.error is None
    assert record.folder == loaded.environment.runs / spec.fingerprint
    assert run_folders(loaded.environment.runs) == [spec.fingerprint]
    data = json.loads((record.folder / "record.json").read_text())
    assert data["status"] == "complete"
    assert data["trainable_parameters"] == 2 * (4 + 32)
    assert data["n_classes"] == {"train": 5, "test": 5}
    assert data["n_images"] == {"train": 10, "test": 20}
    assert data["chance"] == {"accuracy": 20.0}
    assert data["steps"] == 3 * 2
    assert set(data["times"]) == {"setup", "features", "training", "evaluation", "total"}
    assert data["peak_memory_mb"] > 10
    assert data["threads"] == 1
    assert data["versions"]["torch"] == version("torch")
    assert data["notes"] == []
    assert data["machine"]["cores"] >= 1
    assert data["git"] is None or len(data["git"]["commit"]) == 40
    assert len(record.curve()) == 3
    assert record.curve()["lr"].tolist() == [spec.recipe.lr_at(epoch) for epoch in range(3)]


KEPT = {"epochs": 3, "views": 2, "batch_size": 4, "anchor": 8.0, "prograd": True}


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({"words": "a photo of a", "n_ctx": None}, 2 * (4 + 32)),
        ({"words": "a photo of a", "n_ctx": None, "anchored": True}, 2 * (4 + 32)),
        ({"variant": "fixed-B", "basis": "orthogonal", "depth": 3}, 2 * 32 * 3),
        ({"variant": "dense", "depth": 2, "recipe": KEPT}, 4 * 32 * 2),
    ],
    ids=["word start", "anchored", "deep", "deep, kept close"],
)
def test_runs_beyond_the_paper(
    run_spec: MakeSpec, loaded: LoadedInputs, fields: dict[str, Any], parameters: int
) -> None:
    spec = run_spec(**fields, class_subset="base")
    record = make_run(spec, loaded)
    assert record.error is None
    assert record.facts["trainable_parameters"] == parameters
    factors = {name: torch.from_numpy(value).float() for name, value in record.factors().items()}
    backbone = loaded.bank(spec.model).backbone
    words = word_embeddings(backbone, spec.words) if spec.words else None
    if spec.anchored:
        assert not factors["A0"].any()
        torch.testing.assert_close(factors["W"], words)
    else:
        assert "W" not in factors
    context = factors["B"] @ factors["A"] + factors.get("W", 0)
    evaluated = loaded.evaluations(spec)["unseen"].eval_set
    encode = SharedPrefixTextEncoder(backbone, evaluated.class_names, 4, depth=spec.depth)
    with torch.inference_mode():
        assert record.metrics["unseen"] == accuracy(evaluated.features, encode(context), evaluated.labels)


def test_deep_runs_form_prompt_batches_and_lend_their_basis(run_spec: MakeSpec, loaded: LoadedInputs) -> None:
    deep = {"depth": 2}
    specs = [run_spec(**deep), run_spec(variant="dense", **deep), run_spec(variant="fixed-A", basis="svd", **deep)]
    assert len({batch_key(spec) for spec in specs}) == 1
    assert batch_key(run_spec()) != batch_key(specs[0])
    records = make_runs(Batch(specs), loaded)
    assert [(record.error, record.facts["trained_together"]) for record in records] == [(None, 3)] * 3
    learned = make_run(run_spec(variant="fixed-B", basis="learned", **deep), loaded)
    assert learned.facts["source_run"] == specs[0].fingerprint
    assert np.array_equal(learned.factors()["B"], records[0].factors()["B"])


def test_base_split_draws_first_then_cuts(run_spec: MakeSpec, loaded: LoadedInputs) -> None:
    spec = run_spec(class_subset="base", shots=3, recipe={"epochs": 4, "views": 2, "batch_size": 4, "lr": 0.5})
    record = make_run(spec, loaded)
    drawn = few_shot(load_folder(spec.dataset), 3, 1)
    base, new = base_new(drawn)
    manifest = read_manifest(record.folder / "manifest.json")
    assert [(item.path, item.label) for item in manifest.train] == [(item.path, item.label) for item in base.train]
    assert manifest.class_names == ("brown disc", "orange disc", "pink disc")
    factors = record.factors()
    context = torch.from_numpy(factors["B"] @ factors["A"]).float()
    bank = loaded.bank(spec.model)
    for name, part in (("seen", base), ("unseen", new)):
        with torch.inference_mode():
            text = SharedPrefixTextEncoder(bank.backbone, part.class_names, spec.n_ctx)(context)
        features = bank.features([part.path(item) for item in part.test])
        assert record.metrics[name] == accuracy(features, text, torch.tensor([item.label for item in part.test]))
    seen, unseen = record.metrics["seen"], record.metrics["unseen"]
    assert record.metrics["harmonic"] == pytest.approx(2 * seen * unseen / (seen + unseen))
    assert record.facts["n_classes"] == {"train": 3, "seen": 3, "unseen": 2}
    assert {"zero_shot_seen", "zero_shot_unseen", "zero_shot_harmonic"} <= set(record.metrics)


def test_a_folder_without_test_images_is_judged_on_what_the_draw_left(
    run_spec: MakeSpec, loaded: LoadedInputs, photos: Path
) -> None:
    one, two = (make_run(run_spec(dataset=str(photos), shots=shots), loaded) for shots in (2, 4))
    assert (one.facts["n_images"], two.facts["n_images"]) == ({"train": 6, "test": 12}, {"train": 12, "test": 6})


def test_the_same_spec_gives_the_same_bytes(run_spec: MakeSpec, tmp_path: Path) -> None:
    specs = [
        run_spec(),
        run_spec(variant="fixed-B", basis="learned"),
        run_spec(variant="dense"),
        run_spec(class_subset="base"),
    ]
    made = []
    for turn in ("first", "second"):
        # Another cache each time: the features are encoded again, in another order.
        environment = RunEnvironment(runs=tmp_path / turn, cache=tmp_path / f"{turn} cache", device="cpu")
        loaded = LoadedInputs(environment)
        for spec in specs if turn == "first" else [specs[3], specs[0], specs[2], specs[1]]:
            make_run(spec, loaded)
        made.append(fingerprints(environment.runs))
    assert made[0] == made[1]
    assert len(made[0]) == 4


def test_every_variant_of_a_seed_starts_from_the_same_p0(run_spec: MakeSpec, loaded: LoadedInputs) -> None:
    p0 = initial_context(4, 32, seed=1).numpy()
    dense = make_run(run_spec(variant="dense"), loaded).factors()
    assert np.array_equal(dense["B0"], np.eye(4)) and np.array_equal(dense["A0"], p0)
    full = make_run(run_spec(rank=4), loaded).factors()
    assert np.allclose(full["B0"] @ full["A0"], p0, atol=1e-6)


def test_learned_basis_and_transfers_take_over_the_trained_factor(
    run_spec: MakeSpec, loaded: LoadedInputs, collections: dict[str, str]
) -> None:
    joint = make_run(run_spec(), loaded).factors()
    learned = make_run(run_spec(variant="fixed-B", basis="learned"), loaded)
    assert np.array_equal(learned.factors()["B"], joint["B"])
    assert learned.facts["source_run"] == run_spec().fingerprint
    target = {"dataset": collections["cold"], "basis": "source", "source": collections["warm"]}
    source_b = make_run(run_spec(variant="fixed-B", **target), loaded).factors()
    source_a = make_run(run_spec(variant="fixed-A", **target), loaded).factors()
    own: Prompt = start_prompt("joint", width=32, seed=1, n_ctx=4, rank=2)
    assert np.array_equal(source_b["B"], joint["B"]) and np.array_equal(source_a["A"], joint["A"])
    assert np.array_equal(source_b["A0"], own.A.detach().numpy())  # the trained factor keeps its own start
    assert np.array_equal(source_a["B0"], own.B.detach().numpy())


def test_a_run_without_its_source_fails_with_the_reason(run_spec: MakeSpec, loaded: LoadedInputs) -> None:
    record = make_run(run_spec(variant="fixed-B", basis="learned"), loaded)
    assert record.status == "failed"
    assert record.error is not None and "joint r2" in record.error and "which does not exist" in record.error


def test_a_source_of_other_weights_is_refused(run_spec: MakeSpec, loaded: LoadedInputs) -> None:
    source = make_run(run_spec(), loaded)
    path = source.folder / "record.json"
    data = json.loads(path.read_text())
    del data["checksum"]
    data["backbone_fingerprint"] = "0" * 64
    path.write_text(json.dumps(data | {"checksum": json_checksum(data)}))
    batch = Batch([run_spec(variant="fixed-B", basis="learned")], KnownInputs(complete_runs(path.parents[1])))
    with pytest.raises(SetupError, match="other weights"):
        make_runs(batch, LoadedInputs(loaded.environment))


def test_a_failure_is_kept_and_tried_again(run_spec: MakeSpec, loaded: LoadedInputs, tmp_path: Path) -> None:
    for colour in ("red", "green"):
        for number in range(4):
            draw(tmp_path / "own" / colour / f"{number}.png", colour, number)
    broken = tmp_path / "own" / "red" / "0.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:60])
    spec = run_spec(dataset=str(tmp_path / "own"), shots=1)
    failed = make_run(spec, loaded)
    assert failed.status == "failed"
    assert failed.error is not None and "red/0.png" in failed.error
    assert "Traceback" in failed.facts["traceback"]
    assert [path.name for path in failed.folder.iterdir()] == ["record.json"]
    broken.write_bytes(whole)
    fresh = LoadedInputs(loaded.environment)
    assert make_run(spec, fresh).complete
    assert find_run(loaded.environment.runs, spec) == make_run(spec, fresh)


@pytest.mark.parametrize("fields", [{"precision": "bf16"}, {"position": "middle"}, {"position": "front"}])
def test_precision_and_position_reach_the_model(
    run_spec: MakeSpec, loaded: LoadedInputs, fields: dict[str, str]
) -> None:
    plain, other = make_run(run_spec(), loaded), make_run(run_spec(**fields), loaded)
    assert other.error is None
    assert np.array_equal(plain.factors()["A0"], other.factors()["A0"])
    assert not np.array_equal(plain.factors()["A"], other.factors()["A"])


def test_a_complete_run_is_never_made_again(run_spec: MakeSpec, loaded: LoadedInputs) -> None:
    record = make_run(run_spec(), loaded)
    changed = (record.folder / "record.json").stat().st_mtime_ns
    assert make_run(run_spec(), LoadedInputs(loaded.environment)) == record
    assert (record.folder / "record.json").stat().st_mtime_ns == changed


@pytest.mark.parametrize(
    "fields", [{"backbone": "ViT-B-61", "pretrained": "openai"}, {"dataset": "dtdd"}, {"dataset": "dtd"}]
)
def test_what_cannot_be_had_at_all_stops(
    run_spec: MakeSpec, loaded: LoadedInputs, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]
) -> None:
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)
    with pytest.raises(SetupError):
        make_run(run_spec(**fields), loaded)
    assert not loaded.environment.runs.exists()


def test_what_the_reader_warns_of_is_recorded(run_spec: MakeSpec, environment: RunEnvironment, tmp_path: Path) -> None:
    items: dict[str, list[list[object]]] = {"train": [], "val": [], "test": []}
    for label in range(47):
        for part in items:
            name = f"{part}{label}.jpg"
            draw(tmp_path / "dtd" / "images" / name, "red", label)
            items[part].append([name, label, f"class {label}"])
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(items))
    record = make_run(run_spec(dataset="dtd", shots=1), LoadedInputs(replace(environment, data_root=tmp_path)))
    assert record.complete
    (note,) = record.facts["notes"]
    assert "not comparable with published ones" in note


def test_classes_with_too_few_images_are_recorded(run_spec: MakeSpec, loaded: LoadedInputs) -> None:
    enough, few = (make_run(run_spec(shots=shots), loaded) for shots in (1, 1000))
    assert enough.facts["notes"] == []
    names = "brown disc (5), orange disc (5), pink disc (5), …"
    assert few.facts["notes"] == [f"{few.spec.dataset}: fewer than 1000 images, all used: {names}"]


def test_missing_pictures_stop(run_spec: MakeSpec, environment: RunEnvironment, tmp_path: Path) -> None:
    (tmp_path / "dtd").mkdir()
    items = {part: [[f"a/{i}.jpg", i, f"class {i}"] for i in range(47)] for part in ("train", "val", "test")}
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(items))
    with pytest.raises(SetupError, match="141 of 141 images of dtd are missing"):
        make_run(run_spec(dataset="dtd"), LoadedInputs(replace(environment, data_root=tmp_path)))


def test_runs_of_a_process_share_what_is_the_same(
    run_spec: MakeSpec, loaded: LoadedInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(run_spec(), loaded)
    for again in (Backbone, "encode_images"), (backbone_module, "load_backbone"):
        monkeypatch.setattr(*again, lambda *_, **__: pytest.fail("encoded or loaded again"))
    assert make_run(run_spec(variant="dense"), loaded).complete
