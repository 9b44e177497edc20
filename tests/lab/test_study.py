from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slimprompt import Prompt, start_prompt
from slimprompt.analysis.frame import Measurements, observations
from slimprompt.errors import InputError
from slimprompt.files import json_checksum
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import default_workers, worker_devices
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.executors.pool import ATTEMPTS, retries
from slimprompt.lab.executors.processes import ProcessExecutor
from slimprompt.lab.records import Record, find_run, load_records, read_record, remove_run, store_run
from slimprompt.lab.run import Batch, SetupError, batch_key
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.study import Ended, Event, Started, with_sources
from slimprompt.paper.studies import Grid, study_specs
from slimprompt.report.methods_tables import methods_tables
from tests.conftest import complete_study, fingerprints, run_folders
from tests.robustness.kills import exit_after, run_campaign

MakeGrid = Callable[..., Grid]
MakeSpec = Callable[..., RunSpec]


class Pretend:
    """An executor that stores made-up records, to look at the order in which runs are started."""

    def __init__(self, runs: Path, slots: int = 1, failing: Callable[[RunSpec], bool] = lambda _: False) -> None:
        self.runs, self.slots, self.failing = runs, slots, failing
        self.submitted: list[RunSpec] = []
        self.together: list[list[RunSpec]] = []
        self.groups: list[list[RunSpec]] = []
        self._running: list[list[RunSpec]] = []
        self.closed = False

    def submit(self, batch: Batch) -> None:
        specs = batch.specs
        self.submitted += specs
        self.groups.append(list(specs))
        self._running.append(list(specs))
        self.together.append([spec for group in self._running for spec in group])

    def collect(self) -> list[Record]:
        specs = self._running.pop(random.Random(len(self.submitted)).randrange(len(self._running)))
        return [self._store(spec) for spec in specs]

    def _store(self, spec: RunSpec) -> Record:
        fails = self.failing(spec)
        fields = (
            {"status": "failed", "error": "told to"} if fails else {"status": "complete", "metrics": {"accuracy": 1}}
        )
        return store_run(self.runs, spec, fields)

    def close(self) -> None:
        self.closed = True


class Noted:
    """The runs that were started."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.started += [spec.fingerprint for spec in event.specs]


# --- what may start when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3, 50])
def test_sources_are_complete_before_their_dependants_start(small_grid: MakeGrid, tmp_path: Path, slots: int) -> None:
    specs = study_specs(small_grid())
    executor = Pretend(tmp_path, slots)
    outcome = complete_study(specs, tmp_path, executor)
    assert len(outcome.complete) == len(with_sources(specs)) == len(executor.submitted)
    assert executor.closed
    assert max(map(len, executor.together)) <= slots
    for running in executor.together:
        waiting_for = {source.fingerprint for spec in running if (source := spec.source_spec())}
        assert waiting_for.isdisjoint(spec.fingerprint for spec in running)


def test_no_two_runs_encode_the_same_images_at_once(small_grid: MakeGrid, tmp_path: Path) -> None:
    executor = Pretend(tmp_path, slots=50)
    complete_study(study_specs(small_grid()), tmp_path, executor)
    first = executor.together[: len({spec.dataset for spec in executor.submitted})]
    assert len({spec.dataset for spec in first[-1]}) == len(
        first[-1]
    )  # one per dataset until its test images are there
    assert max(map(len, executor.together)) > 5  # and many together after that


def test_a_failed_source_fails_its_dependants_with_the_reason(small_grid: MakeGrid, tmp_path: Path) -> None:
    specs = with_sources(study_specs(small_grid()))
    bad = next(spec for spec in specs if spec.variant == "joint" and spec.class_subset == "all" and spec.shots == 2)
    dependants = [spec for spec in specs if spec.source_spec() == bad]
    assert len(dependants) == 3  # learned basis, and both factors as a source
    watch = Noted()
    outcome = complete_study(specs, tmp_path, Pretend(tmp_path, failing=lambda spec: spec == bad), watch)
    assert {record.spec.fingerprint for record in outcome.failed} == {spec.fingerprint for spec in [bad, *dependants]}
    for record in outcome.failed[1:]:
        assert record.error == f"its source run failed: {bad.title} ({bad.fingerprint}): told to"
    assert {spec.fingerprint for spec in dependants}.isdisjoint(watch.started)
    # the same study again: the source is tried again, then what needs it
    again = Pretend(tmp_path)
    assert complete_study(specs, tmp_path, again).failed == []
    assert {spec.fingerprint for spec in again.submitted} == {spec.fingerprint for spec in [bad, *dependants]}
    assert again.submitted[0] == bad


def change_record(record: Record, **entries: Any) -> None:
    """Replace entries of a record on disk."""
    path = record.folder / "record.json"
    data = json.loads(path.read_text())
    del data["checksum"]
    path.write_text(json.dumps({**data, **entries, "checksum": json_checksum(data | entries)}))


@pytest.mark.usefixtures("quick_workers")
def test_runs_of_other_weights_are_not_mixed(run_spec: MakeSpec, environment: RunEnvironment) -> None:
    """Nothing is stored, however often the study is repeated, also if it does not contain the runs of the other weights."""
    first, second = run_spec(), run_spec(seed=2)
    (record,) = complete_study([first], environment.runs, InlineExecutor(environment)).complete
    change_record(record, backbone_fingerprint="0" * 64)
    removal = rf"runs rm --runs {environment.runs} --where backbone_fingerprint={'0' * 64}`"
    for specs in ([first, second], [first, second], [second]):
        with pytest.raises(InputError, match=f"made with other weights of .* than the present ones.*{removal}"):
            complete_study(specs, environment.runs, InlineExecutor(environment))
    with pytest.raises(InputError, match="made with other weights"):
        complete_study([second, run_spec(seed=3)], environment.runs, ProcessExecutor(environment, 2))
    assert run_folders(environment.runs) == [first.fingerprint]


def test_runs_on_changed_images_are_not_mixed(
    run_spec: MakeSpec, environment: RunEnvironment, collections: dict[str, str], tmp_path: Path
) -> None:
    own = Path(shutil.copytree(collections["warm"], tmp_path / "own"))
    first, second = (run_spec(dataset=str(own), seed=seed) for seed in (1, 2))
    complete_study([first], environment.runs, InlineExecutor(environment))
    image = own / "test" / "red disc" / "8.png"
    content = image.read_bytes()
    image.unlink()
    removal = rf"runs rm --runs {environment.runs} --where dataset={own}`"
    for specs in ([first], [first, second], [second]):
        with pytest.raises(InputError, match=f"made with other images of {own} than the present ones.*{removal}"):
            complete_study(specs, environment.runs, InlineExecutor(environment))
    assert run_folders(environment.runs) == [first.fingerprint]
    image.write_bytes(content)
    assert len(complete_study([first], environment.runs, InlineExecutor(environment)).present) == 1


def test_changed_images_that_runs_are_only_evaluated_on(
    run_spec: MakeSpec, environment: RunEnvironment, collections: dict[str, str], tmp_path: Path
) -> None:
    own = Path(shutil.copytree(collections["cold"], tmp_path / "own images"))
    spec = run_spec(evaluate_on=(str(own),))
    complete_study([spec], environment.runs, InlineExecutor(environment))
    (own / "test" / "blue disc" / "8.png").unlink()
    with pytest.raises(InputError, match=rf"runs rm --runs {environment.runs} --where 'evaluate_on={own}'`"):
        complete_study([spec], environment.runs, InlineExecutor(environment))


@pytest.mark.usefixtures("quick_workers")
def test_what_cannot_be_had_stops_the_study(run_spec: MakeSpec, environment: RunEnvironment) -> None:
    specs = [run_spec(dataset="dtdd", seed=seed) for seed in range(3)]
    for executor in (InlineExecutor(environment), ProcessExecutor(environment, 2)):
        with pytest.raises(SetupError, match="unknown benchmark 'dtdd'"):
            complete_study(specs, environment.runs, executor)
    assert not environment.runs.exists()


def test_benchmarks_with_only_test_images_are_refused_before_anything_runs(run_spec: MakeSpec, tmp_path: Path) -> None:
    """As a dataset to train on, and as the source of a transfer; being evaluated on is no reason."""
    good = run_spec(evaluate_on=("imagenet_sketch",))
    transferred = run_spec(variant="fixed-B", basis="source", source="imagenetv2")
    for specs in ([good, run_spec(dataset="imagenet_sketch")], [good, transferred]):
        executor = Pretend(tmp_path)
        with pytest.raises(InputError, match="which has only test images"):
            complete_study(specs, tmp_path, executor)
        assert executor.submitted == []
    assert len(complete_study([good], tmp_path, Pretend(tmp_path)).complete) == 1


# --- together ----------------------------------------------------------------------------------------------------


def test_groups_see_the_same_images_and_keep_their_order(small_grid: MakeGrid, tmp_path: Path) -> None:
    specs = with_sources(study_specs(small_grid()))
    executor = Pretend(tmp_path, slots=3)
    outcome = complete_study(specs, tmp_path, executor, prompt_batch=4)
    assert len(outcome.complete) == len(specs)
    assert max(map(len, executor.groups)) == 4
    for group in executor.groups:
        assert len({batch_key(spec) for spec in group}) == 1
        assert {spec.source_spec() for spec in group}.isdisjoint(group)
    other = Pretend(tmp_path / "other", slots=1)
    complete_study(specs, tmp_path / "other", other, prompt_batch=4)
    assert sorted(map(str, other.groups)) == sorted(map(str, executor.groups))  # whatever the executor


def test_an_interrupted_batch_is_completed_with_the_same_prompts(run_spec: MakeSpec, tmp_path: Path) -> None:
    specs = [run_spec(rank=rank) for rank in (1, 2, 3, 4)] + [run_spec(rank=rank, seed=2) for rank in (1, 2)]
    names = [spec.fingerprint for spec in specs]
    for spec, batch in ((specs[1], names[:3]), (specs[4], [names[4], "0" * 16])):  # the second is of another study
        store_run(tmp_path, spec, {"status": "complete", "metrics": {"accuracy": 1}, "prompt_batch": batch})
    executor, watch = Pretend(tmp_path), Noted()
    outcome = complete_study(specs, tmp_path, executor, watch, prompt_batch=3)
    assert executor.groups == [specs[:3], specs[3:4], specs[5:6]]
    missing = [names[index] for index in (0, 2, 3, 5)]
    assert [record.spec.fingerprint for record in outcome.complete] == missing
    assert watch.started == missing
    # batches smaller than the interrupted one were asked for
    (tmp_path / "other").mkdir()
    store_run(tmp_path / "other", specs[1], {"status": "complete", "metrics": {}, "prompt_batch": names[:3]})
    executor = Pretend(tmp_path / "other")
    complete_study(specs[:3], tmp_path / "other", executor, prompt_batch=2)
    assert executor.groups == [[specs[0], specs[2]]]


def test_complete_runs_of_a_batch_are_trained_again_but_kept(run_spec: MakeSpec, environment: RunEnvironment) -> None:
    specs = [run_spec(rank=rank) for rank in (1, 2, 3)]
    executor = InlineExecutor(environment)
    executor.submit(Batch(specs))
    before = executor.collect()
    contents = fingerprints(environment.runs)
    kept = (before[0].folder / "record.json").read_bytes()
    remove_run(before[1].folder)
    executor.submit(Batch(specs))
    after = executor.collect()
    assert [record.facts["trained_together"] for record in after] == [3, 3, 3]
    assert after[1].facts["prompt_batch"] == [spec.fingerprint for spec in specs]
    assert (after[0].folder / "record.json").read_bytes() == kept
    assert fingerprints(environment.runs) == contents


def test_a_batch_is_retried_whole_and_separated_in_its_last_attempt(run_spec: MakeSpec) -> None:
    batch = [run_spec(rank=rank) for rank in (1, 2)]
    attempts: Counter[str] = Counter()
    expected = [([batch], []), ([[batch[0]], [batch[1]]], []), ([], batch)]
    for again, given_up in expected:
        attempts.update(spec.fingerprint for spec in batch)
        assert retries(batch, attempts) == (again, given_up)


def test_one_run_s_failure_is_not_its_neighbours(
    run_spec: MakeSpec, environment: RunEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = run_spec(variant="fixed-B", basis="svd"), run_spec(variant="fixed-B", basis="learned")
    executor = InlineExecutor(environment)
    executor.submit(Batch([good, bad]))
    first, second = executor.collect()
    assert first.complete
    assert not second.complete and "which does not exist" in str(second.error)

    def start_with_nan(variant: str, **options: Any) -> Prompt:
        prompt = start_prompt(variant, **options)
        return Prompt(prompt.B, prompt.A * float("nan"), prompt.trainable) if variant == "joint" else prompt

    monkeypatch.setattr("slimprompt.methods.prompt.start_prompt", start_with_nan)
    executor.submit(Batch([run_spec(variant="joint"), run_spec(variant="dense", rank=None)]))
    first, second = executor.collect()
    assert not first.complete and "the loss became nan at step 1" in str(first.error)
    assert second.complete and second.facts["trained_together"] == 1
    (note,) = second.facts["notes"]
    assert "trained alone" in note and "the loss became nan at step 1" in note


# --- processes -------------------------------------------------------------------------------------------------------


Undisturbed = dict[int, Path]


@pytest.fixture(scope="module")
def undisturbed() -> Undisturbed:
    """By prompt batch, made by the first test that needs it: the folder of the runs of the small grid, in this process."""
    return {}


def reference(undisturbed: Undisturbed, grid: Grid, tmp_path: Path, prompt_batch: int = 1) -> Path:
    if prompt_batch not in undisturbed:
        environment = RunEnvironment(runs=tmp_path / "undisturbed", cache=tmp_path / "undisturbed cache", device="cpu")
        outcome = complete_study(
            study_specs(grid), environment.runs, InlineExecutor(environment), prompt_batch=prompt_batch
        )
        assert outcome.failed == []
        undisturbed[prompt_batch] = environment.runs
    return undisturbed[prompt_batch]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("prompt_batch", [1, 4])
def test_processes_give_the_bytes_of_one_process_even_if_one_is_killed(
    small_grid: MakeGrid, environment: RunEnvironment, tmp_path: Path, undisturbed: Undisturbed, prompt_batch: int
) -> None:
    grid = small_grid(shots=[2])
    expected = reference(undisturbed, grid, tmp_path, prompt_batch)
    executor = ProcessExecutor(replace(environment, cache=tmp_path / "own cache"), 2)

    killed: list[int] = []

    def kill_once(event: Event) -> None:
        if isinstance(event, Ended) and not killed and executor._running:
            killed.append(next(iter(executor._running)).process.pid)
            os.kill(killed[0], signal.SIGKILL)

    outcome = complete_study(study_specs(grid), environment.runs, executor, kill_once, prompt_batch=prompt_batch)
    assert killed
    assert outcome.failed == []
    assert fingerprints(environment.runs) == fingerprints(expected)


def kill_and_restart(grid: Grid, runs: Path, kills: int) -> int:
    """Kill a study at random moments until it has ended; how often it was begun."""
    rng = random.Random(3)
    for attempt in range(1, 1000):
        child = os.fork()
        if child == 0:
            exit_after(
                lambda: complete_study(study_specs(grid), runs, InlineExecutor(RunEnvironment(runs=runs, device="cpu")))
            )
        if attempt <= kills:
            time.sleep(0.02 * 30 ** rng.random())  # 0.02 to 0.6 s, mostly short: fast machines soon reach the end
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            return attempt if status == 0 else 0
    return 0


@pytest.mark.slow
def test_killed_again_and_again_and_restarted(
    small_grid: MakeGrid, environment: RunEnvironment, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    grid = small_grid(shots=[2])
    expected = reference(undisturbed, grid, tmp_path)
    assert run_campaign(kill_and_restart, grid, environment.runs, 12) > 3  # it was killed several times before it ended
    assert fingerprints(environment.runs) == fingerprints(expected)
    assert not [name for name in run_folders(environment.runs) if name.startswith(".")]  # nothing half written is left


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_prompt_batches_equal_separate_runs(
    small_grid: MakeGrid, environment: RunEnvironment, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    grid = small_grid(shots=[2])
    alone = reference(undisturbed, grid, tmp_path)
    outcome = complete_study(study_specs(grid), environment.runs, ProcessExecutor(environment, 2), prompt_batch=8)
    assert outcome.failed == []
    assert max(record.facts["trained_together"] for record in outcome.complete) > 2
    for record in outcome.complete:
        other = read_record(alone / record.spec.fingerprint)
        assert other.facts["trained_together"] == 1
        assert record.facts["steps"] == other.facts["steps"]
        for name, values in record.factors().items():
            assert values == pytest.approx(other.factors()[name], rel=1e-3, abs=1e-5)
        assert record.curve().loss.tolist() == pytest.approx(other.curve().loss.tolist(), rel=1e-3)


@pytest.mark.usefixtures("quick_workers")
def test_a_run_whose_process_always_dies_is_given_up(run_spec: MakeSpec, environment: RunEnvironment) -> None:
    executor = ProcessExecutor(environment, 1)
    victims: set[int] = set()
    ended = threading.Event()

    def kill_all() -> None:
        while not ended.is_set():
            for worker in list(executor._running):
                if worker.process.pid and worker.process.pid not in victims:
                    victims.add(worker.process.pid)
                    os.kill(worker.process.pid, signal.SIGKILL)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        outcome = complete_study([run_spec()], environment.runs, executor)
    finally:
        ended.set()
        killer.join()
    (record,) = outcome.failed
    assert len(victims) == ATTEMPTS
    assert record.error is not None and f"{ATTEMPTS} times, the last time by signal 9 (SIGKILL)" in record.error


@pytest.mark.usefixtures("quick_workers")
def test_an_exception_of_a_worker_is_recorded_with_its_traceback(
    run_spec: MakeSpec, environment: RunEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is raised, and without trying again; the study goes on."""
    (tmp_path / "breaking.py").write_text(
        "from slimprompt.lab import provenance\n"
        "def origin(environment):\n    raise KeyError('no such entry')\n"
        "provenance.origin = origin\n"
        "def basis(p0, rank, generator):\n    return p0[:, :rank]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    specs = [run_spec(variant="fixed-B", basis="breaking:basis"), run_spec(dataset=run_spec().dataset, seed=2)]
    outcome = complete_study(specs[:1], environment.runs, ProcessExecutor(environment, 1))
    (record,) = outcome.failed
    assert record.error == "KeyError: 'no such entry'"
    assert "breaking.py" in record.facts["traceback"]
    assert len(complete_study(specs[1:], environment.runs, ProcessExecutor(environment, 1)).complete) == 1


def test_default_workers_fill_the_machine(environment: RunEnvironment) -> None:
    cores = os.cpu_count() or 1
    assert 1 <= default_workers(environment) <= cores
    assert default_workers(replace(environment, threads=2 * cores)) == 1
    assert default_workers(replace(environment, device="cuda")) == 1


@pytest.mark.usefixtures("quick_workers")
def test_the_record_names_the_executor_that_ran(run_spec: MakeSpec, environment: RunEnvironment) -> None:
    executors = {"inline": InlineExecutor(environment), "processes": ProcessExecutor(environment, 1)}
    for seed, (name, executor) in enumerate(executors.items()):
        outcome = complete_study([run_spec(seed=seed)], environment.runs, executor)
        assert [record.facts["executor"] for record in outcome.complete] == [name]


@pytest.mark.parametrize(
    ("device", "devices", "workers"),
    [
        ("auto", ["cuda:0", "cuda:1", "cuda:2"], 3),
        ("cuda", ["cuda:0", "cuda:1", "cuda:2"], 3),
        ("cuda:1", ["cuda:1"], 1),
    ],
)
def test_one_worker_per_gpu(
    device: str, devices: list[str], workers: int, environment: RunEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    environment = replace(environment, device=device)
    assert worker_devices(environment) == devices
    assert default_workers(environment) == workers


def test_workers_are_spread_over_the_gpus(
    run_spec: MakeSpec, environment: RunEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class NoProcess:
        """Stands for a worker process; this machine has no GPUs."""

        def __init__(self, _context: Any, environment: RunEnvironment) -> None:
            self.device = environment.device
            self.pipe, _ = multiprocessing.Pipe()
            started.append(environment.device)

    monkeypatch.setattr("slimprompt.lab.executors.processes.worker_devices", lambda _: ["cuda:0", "cuda:1"])
    monkeypatch.setattr("slimprompt.lab.executors.processes.WorkerProcess", NoProcess)
    executor = ProcessExecutor(environment, 4)
    for seed in range(4):
        executor.submit(Batch([run_spec(seed=seed)]))
    assert started == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_a_method_of_your_own_in_every_executor(
    run_spec: MakeSpec, environment: RunEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a basis; the records are read and shown in tables without the module."""
    (tmp_path / "own_methods.py").write_text(
        "from slimprompt.methods.head import FittedHead, Head\n"
        "def twice(task):\n"
        "    return FittedHead(Head(task.class_names, 2 * task.class_features, 1.0), n_trained=7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    fields = {"variant": None, "rank": None, "n_ctx": None, "recipe": {}}
    spec, other = (run_spec(method="own_methods:twice", seed=seed, **fields) for seed in (1, 2))
    outcome = complete_study([spec, other], environment.runs, ProcessExecutor(environment, 2))
    assert [record.spec.label for record in outcome.complete] == ["own_methods:twice"] * 2
    assert "own_methods" not in sys.modules
    records = [record for record in load_records(environment.runs) if record.complete]
    assert [record.facts["trainable_parameters"] for record in records] == [7, 7]
    assert all(record.metrics["accuracy"] == record.metrics["zero_shot_accuracy"] for record in records)
    tables = {name: make() for name, make in methods_tables(Measurements.of(observations(records))).items()}
    (row,) = tables["methods"].rows
    assert row.labels[1] == "own_methods:twice"
    inline = replace(environment, runs=tmp_path / "inline")
    outcome = complete_study([spec], inline.runs, InlineExecutor(inline))
    (here,) = outcome.complete
    there = find_run(environment.runs, spec)
    assert there is not None and there.metrics == here.metrics
