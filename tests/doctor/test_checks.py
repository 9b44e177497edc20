"""Checks of a machine: they pass on a sound one, and each fails on the fault that it is there to find."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import open_clip
import pytest
import torch

from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.data.benchmark import Benchmark
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.doctor import machine, numerics, zero_shot
from slimprompt.doctor.checks import CHECKS, Check, run_checks
from slimprompt.doctor.subject import FAILED, OK, SKIPPED, Outcome, Subject
from slimprompt.errors import InputError


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)
    return Subject(device="cpu", quick=True)


def only(outcomes: Iterator[Outcome]) -> Outcome:
    (outcome,) = outcomes
    return outcome


@pytest.mark.parametrize(("name", "precision"), [("pocket", "fp32"), ("pocket-rn", "fp32"), ("pocket", "bf16")])
def test_nothing_fails_on_a_sound_machine(subject: Subject, name: str, precision: str) -> None:
    findings = list(run_checks(CHECKS, replace(subject, name=name, precision=precision)))
    assert {finding.verdict for finding in findings} <= {OK, SKIPPED}
    assert [finding.check.split(":")[0] for finding in findings if finding.verdict == OK] == [
        "versions",
        "machine",
        "cache directory",
        "backbone",
        "text features",
        "training step",
        "image features",
    ]


@pytest.mark.slow
def test_nothing_fails_on_a_true_size_model(subject: Subject, model_config: Callable[[str, dict], str]) -> None:
    """The text tower of ViT-B-16, and the first two layers of the image tower of ViT-M-32, which is faster."""
    vision = open_clip.get_model_config("ViT-M-32")["vision_cfg"] | {"layers": 2}
    name = model_config("text-of-ViT-B-16", open_clip.get_model_config("ViT-B-16") | {"vision_cfg": vision})
    findings = list(run_checks(CHECKS, replace(subject, name=name, pretrained="random:0")))
    assert {finding.verdict for finding in findings} <= {OK, SKIPPED}


def test_a_check_that_raises_is_a_failure_and_the_others_run(subject: Subject) -> None:
    def broken(subject: Subject) -> Iterator[Outcome]:
        yield Outcome(OK, "the first part", "part")
        raise RuntimeError("out of\nmemory")

    checks = (Check("broken", broken), Check("refused", _refused), CHECKS[0])
    findings = list(run_checks(checks, subject))
    assert [(one.check, one.verdict) for one in findings] == [
        ("broken: part", OK),
        ("broken", FAILED),
        ("refused", FAILED),
        ("versions", OK),
    ]
    assert [one.details for one in findings[1:3]] == ["RuntimeError: out of memory", "give something else"]


def _refused(subject: Subject) -> Iterator[Outcome]:
    raise InputError("give something else")


def test_without_a_backbone_its_checks_are_skipped(subject: Subject) -> None:
    findings = {one.check: one for one in run_checks(CHECKS, replace(subject, name="pockt"))}
    assert findings["backbone"].verdict == FAILED and "did you mean 'pocket'" in findings["backbone"].details
    for check in CHECKS:
        if check.needs_backbone and check.name != "backbone":
            assert findings[check.name].verdict == SKIPPED


def broken_backbone(change: str) -> Backbone:
    """The pocket model with one changed weight."""
    backbone = load_backbone("pocket", device="cpu")
    model = copy.deepcopy(backbone.model)
    with torch.no_grad():
        dict(model.named_parameters())[change].mul_(1.5)
    return replace(backbone, model=model)


def test_a_device_with_a_wrong_text_tower_is_found(subject: Subject) -> None:
    """The training step is compared with sound weights on the CPU."""
    vars(subject)["reference_backbone"] = load_backbone("pocket", device="cpu")
    vars(subject)["backbone"] = broken_backbone("transformer.resblocks.1.mlp.c_fc.weight")
    assert only(numerics.check_training(subject)).verdict == FAILED


def test_a_wrong_encoder_is_found(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    from slimprompt.text.encoder import SharedPrefixTextEncoder

    def with_wrong_positions(self: SharedPrefixTextEncoder, context: torch.Tensor) -> torch.Tensor:
        return right(self, context.roll(1, dims=-2))

    right = SharedPrefixTextEncoder.__call__
    monkeypatch.setattr(SharedPrefixTextEncoder, "__call__", with_wrong_positions)
    for check in (numerics.check_text, numerics.check_training):
        assert only(check(subject)).verdict == FAILED


def test_features_that_are_not_a_number_are_a_failure(subject: Subject) -> None:
    assert numerics._compared(subject, features=1e-9, gradients=float("nan")).verdict == FAILED
    assert numerics._compared(subject, gradients=float("nan"), features=1e-9).verdict == FAILED


def test_image_features_that_depend_on_the_batch_are_found(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Backbone.encode_images
    monkeypatch.setattr(Backbone, "encode_images", lambda self, pixels: right(self, pixels - pixels.mean(0)))
    assert only(numerics.check_images(subject)).verdict == FAILED


def test_a_cache_directory_that_cannot_be_written_is_a_failure(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(tmp_path / "file"))
    outcome = only(machine.check_cache(subject))
    assert outcome.verdict == FAILED and "SLIMPROMPT_CACHE" in outcome.details


def test_a_damaged_weight_file_is_found(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".cache" / "clip" / "RN50.pt"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"half a download")
    rows = {outcome.part: outcome for outcome in machine.check_weights(replace(subject, quick=False))}
    assert rows["RN50"].verdict == FAILED and f"{file} (damaged" in rows["RN50"].details


def test_the_data_root_must_be_a_folder(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        list(machine.check_data(replace(subject, data_root=tmp_path / "nowhere")))
    assert "no benchmark" in only(machine.check_data(replace(subject, data_root=tmp_path))).details


def test_published_accuracies_are_of_known_benchmarks() -> None:
    rows = zero_shot.published_accuracies()
    assert len({(row.backbone, row.dataset, row.class_subset) for row in rows}) == len(rows) == 30
    assert {(row.backbone, row.class_subset) for row in rows} == {
        ("RN50", "all"),
        ("ViT-B-16", "base"),
        ("ViT-B-16", "new"),
    }
    for row in rows:
        assert row.dataset in BENCHMARKS and 0 < row.accuracy < 100 and row.source


def test_zero_shot_needs_all_test_images(subject: Subject, data_root: Path) -> None:
    row = next(row for row in zero_shot.published_accuracies() if row.dataset == "dtd")
    outcome = zero_shot._compare(load_backbone("pocket", device="cpu"), row, data_root)
    assert outcome == Outcome(SKIPPED, "0 of 1,692 test images", "dtd")


def test_zero_shot_accuracy_decides_by_the_tolerance(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in zero_shot.published_accuracies() if row.dataset == "oxford_pets")
    backbone = load_backbone("pocket", device="cpu")
    for distance, verdict in ((0.99, OK), (-0.99, OK), (1.01, FAILED), (-1.01, FAILED)):
        monkeypatch.setattr(zero_shot, "zero_shot_accuracy", lambda *_, found=row.accuracy + distance: found)
        assert zero_shot._compare(backbone, row, data_root).verdict == verdict


def test_zero_shot_is_measured_on_the_published_classes(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: dict[str, int] = {}

    def note_classes(_: Backbone, benchmark: Benchmark) -> float:
        measured[row.class_subset] = len(benchmark.class_names)
        return row.accuracy

    monkeypatch.setattr(zero_shot, "zero_shot_accuracy", note_classes)
    backbone = load_backbone("pocket", device="cpu")
    rows = [row for row in zero_shot.published_accuracies() if row.dataset == "oxford_pets"]
    titles = []
    for row in rows:
        titles.append(zero_shot._compare(backbone, row, data_root).part)
    assert measured == {"all": 37, "base": 19, "new": 18}
    assert titles == ["oxford_pets", "oxford_pets, base classes", "oxford_pets, new classes"]


def test_zero_shot_is_for_openai_weights(subject: Subject, tiny: Backbone, tmp_path: Path) -> None:
    assert only(zero_shot.check_zero_shot(subject)).verdict == SKIPPED
    for name, pretrained, openai in (
        ("RN50", "openai", True),
        ("ViT-B-16", "openai", True),
        ("RN50", "yfcc15m", False),
        ("RN101", "openai", False),
        ("RN50", str(tmp_path / "RN50.pt"), False),
    ):
        assert zero_shot._has_openai_weights(replace(tiny, name=name, pretrained=pretrained)) == openai
