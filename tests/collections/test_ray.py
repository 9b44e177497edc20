"""Collections on Ray: the rows of one process, resumed in both directions, and errors that do not wait."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from slimprompt.cluster import import_ray
from slimprompt.collections import ray as collections_ray
from slimprompt.collections.inputs import open_collection
from slimprompt.collections.parts import FinishedPart, Part
from slimprompt.collections.predict import (
    Advance,
    LocalPredictor,
    PartPredictor,
    PredictionSpec,
    Summary,
    predict_collection,
)
from slimprompt.collections.ray import RayPredictor, _cpus_per_worker, _without_working_directory
from slimprompt.errors import InputError
from tests.collections.test_predict import Stopping, files
from tests.hub_server import Hub, Repository

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the package ray is not installed: pip install 'slimprompt[ray]'"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray with two CPUs, which all tests share."""
    ray = import_ray(loopback=True)

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(address="local", num_cpus=2, num_gpus=0, object_store_memory=80_000_000, **quiet)
    yield
    ray.shutdown()


def predict(predictor: type[PartPredictor], spec: PredictionSpec, given: Path, target: Path) -> Summary:
    collection = open_collection([str(given)])
    return predict_collection(collection, target, lambda: predictor(spec), part_size=4)


@pytest.mark.slow
@needs_ray
@pytest.mark.usefixtures("cluster")
def test_ray_resumes_a_local_command_and_gives_its_bytes(
    spec: PredictionSpec, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two waves, with an unreadable image, relative paths, and a model and images that are read by the workers."""
    monkeypatch.setattr(collections_ray, "_WAVE", 2)
    monkeypatch.chdir(images.parent)
    (tmp_path / "model").symlink_to(spec.model)
    folder = Path("images")
    (folder / "bad.png").write_text("no image")
    try:
        predict(LocalPredictor, spec, folder, tmp_path / "local")
        with pytest.raises(KeyboardInterrupt):
            predict_collection(open_collection([folder]), tmp_path / "ray", lambda: Stopping(spec, 2), part_size=4)
        linked = replace(spec, model=str(tmp_path / "model"))
        summary = predict(RayPredictor, linked, folder, tmp_path / "ray")
    finally:
        (folder / "bad.png").unlink()
    assert (summary.answers.total(), summary.answers[None], summary.predicted) == (19, 1, 11)
    assert files(tmp_path / "ray") == files(tmp_path / "local")


class KillsOneWorker(RayPredictor):
    """Kills a worker process after the first finished part."""

    killed = 0

    def predict_parts(self, parts: Iterator[Part], advance: Advance) -> Iterator[FinishedPart]:
        for part in super().predict_parts(parts, advance):
            if not self.killed:
                below = psutil.Process().children(recursive=True)
                worker = next(one for one in below if "ray::MapWorker" in " ".join(one.cmdline()))
                KillsOneWorker.killed = worker.pid
                worker.kill()
            yield part


@pytest.mark.slow
@needs_ray
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_is_replaced(spec: PredictionSpec, images: Path, tmp_path: Path) -> None:
    for kind in (LocalPredictor, KillsOneWorker):
        collection = open_collection([images])
        predict_collection(collection, tmp_path / kind.__name__, lambda kind=kind: kind(spec), part_size=1)
    assert KillsOneWorker.killed
    assert files(tmp_path / "KillsOneWorker") == files(tmp_path / "LocalPredictor")


@pytest.mark.slow
@needs_ray
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_cannot_start_is_one_clear_error(
    spec: PredictionSpec, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collections_ray, "__version__", "0.0")
    with pytest.raises(
        InputError, match=r"a worker on .* cannot start: it has slimprompt .*, but .* started with 0\.0"
    ):
        predict(RayPredictor, spec, images, tmp_path / "p.csv")


@pytest.mark.slow
@needs_ray
@pytest.mark.usefixtures("cluster")
def test_a_request_that_no_machine_can_satisfy_is_refused_at_once(spec: PredictionSpec) -> None:
    with pytest.raises(InputError, match=r"has 640 CPUs and 0 GPUs .*the most CPUs are 2.*fewer --cpus"):
        RayPredictor(spec, cpus=640)
    with pytest.raises(InputError, match="1 CPUs and 2 GPUs for one worker"):
        RayPredictor(spec, gpus=2)


def test_workers_read_models_and_weights_from_their_own_working_directory(
    models: Path, tiny_folder: str, tmp_path: Path, local_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path.name: path.read_bytes() for path in (models / "prompt").iterdir()}
    local_hub.repositories["user/name"] = repository = Repository()
    repository.commit(files)
    folder = Path(tiny_folder.removeprefix("local-dir:"))
    monkeypatch.chdir(folder.parent)
    specs = [
        PredictionSpec("hf:user/name", pretrained="tiny/open_clip_model.safetensors"),
        PredictionSpec(os.path.relpath(models / "prompt"), pretrained="tiny"),
        PredictionSpec(str(models / "prompt"), pretrained="openai"),
    ]
    found = [_without_working_directory(spec) for spec in specs]
    monkeypatch.chdir(tmp_path)
    for spec in found:
        assert {path.name: path.read_bytes() for path in Path(spec.model).iterdir()} == files
    weights = [str(folder / "open_clip_model.safetensors"), str(folder), "openai"]
    assert [spec.pretrained for spec in found] == weights


def test_cpus_are_shared_by_the_gpus_of_a_machine() -> None:
    machines = [{"CPU": 16.0, "GPU": 2.0}, {"CPU": 12.0, "GPU": 2.0}, {"CPU": 2.0}]
    ray = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": one} for one in machines])
    assert [_cpus_per_worker(ray, gpus) for gpus in (0.0, 0.5, 1.0, 2.0)] == [1, 3, 6, 12]
