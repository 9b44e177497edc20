"""The Ray executor on a real cluster of two nodes on loopback, in which a worker process and then a node are killed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.executors.ray import RayExecutor
from slimprompt.lab.records import load_records
from slimprompt.lab.run import Batch
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.study import Ended, Event, with_sources
from slimprompt.paper.studies import Grid, study_specs
from tests.conftest import QUICK_HEALTH_CHECKS, complete_study, fingerprints
from tests.lab.conftest import note_imports, noted_imports

# Not imported here: Ray reads its settings when it is imported, and a fixture of all tests makes them.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="the package ray is not installed: pip install 'slimprompt[ray]'",
    ),
]


def _command(process: int) -> list[str]:
    """The command line of a process; one empty word if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


class Node:
    """`ray start --block`: one node, with one CPU; processes that nobody needs are left out."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = (
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", "--num-gpus=0"),
            *("--node-ip-address=127.0.0.1", "--object-store-memory=80000000", "--disable-usage-stats"),
            *("--include-log-monitor=false", *arguments),
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | QUICK_HEALTH_CHECKS
        self._log = (folder / f"node-{time.monotonic_ns()}.log").open("w+")
        self.process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=subprocess.STDOUT)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def wait_until_started(self) -> None:
        deadline = time.monotonic() + 60
        while "Ray runtime started" not in self.log():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def descendants(self) -> list[int]:
        """Process ids, the node's own first."""
        node = psutil.Process(self.process.pid)
        return [one.pid for one in (node, *node.children(recursive=True))]

    def workers(self) -> list[int]:
        """Processes that are making a run right now."""
        busy = []
        for process in self.descendants():
            if "ray::RunWorker.make" in _command(process)[0]:
                busy.append(process)
        return busy

    def raylet(self) -> int:
        """The process that starts and supervises the workers of the node."""
        (found,) = (process for process in self.descendants() if _command(process)[0].endswith("/raylet"))
        return found

    def kill(self) -> None:
        for process in self.descendants():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        self._log.close()


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, Path, Node]]:
    """The address, the folder and the first node of a cluster, which no test kills; every process is ended afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Unix sockets in it need a short path
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node = Node(folder, "--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false", "--no-monitor")
    try:
        node.wait_until_started()
        yield f"127.0.0.1:{port}", folder, node
    finally:
        node.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(head: tuple[str, Path, Node]) -> Iterator[tuple[str, list[Node]]]:
    """The address of two nodes, and the nodes; the second one is the test's own."""
    address, folder, first = head
    second = Node(folder, f"--address={address}")
    try:
        second.wait_until_started()  # otherwise the first node may make all runs
        yield address, [first, second]
    finally:
        if second.process.returncode is None:
            second.kill()


def test_a_request_that_no_machine_can_satisfy_is_refused_at_once(
    head: tuple[str, Path, Node], environment: RunEnvironment
) -> None:
    import ray

    with pytest.raises(InputError, match=r"no machine of the Ray cluster has 640 CPUs .*fewer --threads"):
        RayExecutor(replace(environment, threads=640), address=head[0])
    assert not ray.is_initialized()


class KillWorkerAndNode:
    """Kills the worker of the first node, and the whole second node or its raylet after a third of the runs.

    While the first node starts another worker, which takes seconds, the second one makes all the runs. It kills in a thread beside
    the study: the events do not tell which worker is in the middle of a run.
    """

    def __init__(self, nodes: list[Node], lost: str, total: int) -> None:
        self.first, self.second = nodes
        self.lost, self.total, self.ended_runs = lost, total, 0
        self.killed: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self.disturb)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Ended):
            self.ended_runs += 1
        elif self._thread.ident is None:  # the first batch
            self._thread.start()

    def disturb(self) -> None:
        if self.wait_until(lambda: bool(self.first.workers() and self.second.workers())):
            for worker in self.first.workers():
                self.killed.append(worker)
                os.kill(worker, signal.SIGKILL)
        if self.wait_until(lambda: self.ended_runs > self.total / 3 and bool(self.second.workers())):
            self.killed.append(self.second.process.pid)
            self.second.kill() if self.lost == "node" else os.kill(self.second.raylet(), signal.SIGKILL)

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until it holds; False if the study was over before."""
        while not condition():
            if self._over.wait(0.005):
                return False
        return True

    def join(self) -> None:
        """End the thread; the study is over."""
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("lost", ["node", "raylet"])
def test_two_nodes_give_the_bytes_of_one_process_even_if_a_worker_and_a_node_are_killed(
    lost: str,
    cluster: tuple[str, list[Node]],
    small_grid: Callable[..., Grid],
    environment: RunEnvironment,
    tmp_path: Path,
) -> None:
    """Of a study in which some runs need others."""
    address, nodes = cluster
    recipe = {"epochs": 20, "views": 2, "batch_size": 4}
    specs = study_specs(small_grid(study="fixed-basis", shots=[2], seeds=[1, 2], recipe=recipe))
    inline = replace(environment, runs=environment.runs.with_name("inline"))
    complete_study(specs, inline.runs, InlineExecutor(inline))
    watch = KillWorkerAndNode(nodes, lost, len(with_sources(specs)))
    executor = RayExecutor(replace(environment, cache=tmp_path / "cache"), address=address)
    outcome = complete_study(specs, environment.runs, executor, watch)
    watch.join()
    assert outcome.failed == []
    assert len(watch.killed) == 2, "a worker and a node were not killed, so nothing was tested"
    assert len(outcome.complete) == watch.total == len(load_records(environment.runs))
    assert fingerprints(environment.runs) == fingerprints(inline.runs)
    assert {record.facts["executor"] for record in load_records(environment.runs)} == {"ray"}


def test_no_other_machine_can_reach_a_ray_that_is_started_here() -> None:
    """Whoever reaches Ray can run code. In a process of its own, which has not imported ray before."""
    code = (
        "import psutil\nfrom slimprompt.cluster import connect, import_ray\n"
        "connect(import_ray(loopback=True), None)\n"
        "children = psutil.Process().children(recursive=True)\n"
        "found = {c.laddr.ip for p in children for c in p.net_connections('inet') if c.status == 'LISTEN'}\n"
        "print({ip.removeprefix('::ffff:') for ip in found})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip().endswith("{'127.0.0.1'}"), done.stderr
    assert "accepts connections" not in done.stderr


def test_executors_share_a_ray_and_workers_stay_alive(
    run_spec: Callable[..., RunSpec], environment: RunEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other executors use the Ray of this machine, and workers make one prompt batch after the other; they import what runs use."""
    import ray

    basis = note_imports(tmp_path, monkeypatch)
    with pytest.raises(InputError, match="cannot reach a Ray cluster at '127.0.0.1:1'"):
        RayExecutor(environment, address="127.0.0.1:1")
    with closing(RayExecutor(environment)) as executor:
        with pytest.raises(InputError, match="unknown benchmark 'dtdd'"):
            complete_study([run_spec(dataset="dtdd")], environment.runs, RayExecutor(environment))
        with pytest.raises(InputError, match="2 GPUs for one run"):
            RayExecutor(environment, gpus=2)
        assert ray.is_initialized()
        executor.submit(Batch([run_spec()]))
        executor.collect()
        (worker,) = executor._idle
        executor.submit(Batch([run_spec(variant="dense")]))
        executor.collect()
        assert executor._idle == [worker]
        outcome = complete_study([run_spec(variant="fixed-B", basis=basis)], environment.runs, executor)
        assert len(outcome.complete) == 1
        assert not ray.is_initialized()  # the executor that started it has ended it
    (imported,) = noted_imports(tmp_path).values()
    assert "open_clip" in imported and not {"transformers", "wandb"} & imported


@pytest.mark.parametrize(("device", "expected"), [("auto", (1.0, 2)), ("cuda", (1.0, 2)), ("cpu", (0.0, 8))])
def test_the_gpu_share_is_inferred_from_the_cluster(
    device: str, expected: tuple[float, int], environment: RunEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster of two machines with four CPUs, one of which has two GPUs."""
    import ray

    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    executor = RayExecutor(replace(environment, device=device))
    assert (executor._gpus, executor.slots) == expected
