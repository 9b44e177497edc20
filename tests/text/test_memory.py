"""Activations that are kept for the backward pass, and the memory that they may take."""

import pytest
import torch

from slimprompt import SharedPrefixTextEncoder
from slimprompt.text.memory import activation_budget, available_memory, chunks_that_fit
from tests.text.conftest import NAMES, random_context


@pytest.mark.parametrize("position", ["end", "middle"])
@pytest.mark.parametrize("n_prompts", [1, 3])
def test_estimated_activations_bound_what_is_saved(tiny, position, n_prompts):
    names = [f"{name} {number}" for name in NAMES for number in range(20)]
    encoder = SharedPrefixTextEncoder(tiny, names, 6, position)
    storages = {}

    def count(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        features = encoder(random_context(tiny, n_prompts, 6))
    assert features.requires_grad
    constants = {tensor.untyped_storage().data_ptr() for tensor in tiny.model.state_dict().values()}
    saved = sum(size for pointer, size in storages.items() if pointer not in constants)
    estimate = n_prompts * encoder._chunks[0].activation_bytes
    assert saved < estimate < 1.6 * saved  # three layers, of which the first and the last save less


def test_the_last_chunks_that_fit_beside_the_first_are_kept():
    assert chunks_that_fit([5, 1, 2, 3], 4) == 0  # not even the first
    assert chunks_that_fit([5, 1, 2, 3], 7) == 0
    assert chunks_that_fit([5, 1, 2, 3], 8) == 1
    assert chunks_that_fit([5, 1, 2, 3], 10) == 2
    assert chunks_that_fit([5, 1, 2, 3], 11) == 3
    assert chunks_that_fit([5], 100) == 0


def test_a_batch_of_prompts_keeps_fewer_chunks(tiny):
    encoder = SharedPrefixTextEncoder(tiny, NAMES, 4, chunk_size=1)
    encoder._budget = sum(chunk.activation_bytes for chunk in encoder._chunks)
    assert encoder.kept_chunks() == 4
    assert 0 < encoder.kept_chunks(2) < 4
    assert encoder.kept_chunks(10) == 0


def test_the_budget_is_half_of_the_share_of_one_worker(monkeypatch):
    monkeypatch.setattr("slimprompt.text.memory.available_memory", lambda: 8000)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert activation_budget(torch.device("cpu")) == 1000
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert activation_budget(torch.device("cpu")) == 4000
    assert activation_budget(torch.device("meta")) == 0


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used"),
    [
        ("0::/job/step", "job", "memory.max", "memory.current"),
        ("0::/job/step", "", "memory.max", "memory.current"),
        ("4:memory:/job/step", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
    ids=["version 2", "version 2, container", "version 1"],
)
def test_limits_of_control_groups_count(tmp_path, line, folder, limit, used):
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(f"9:cpu:/elsewhere\n{line}\n")
    group = cgroups / folder
    (group / "step").mkdir(parents=True)
    (group / limit).write_text("5000\n")
    (group / used).write_text("1500\n")
    assert available_memory(proc, cgroups) == 3500
    (group / used).write_text("6000\n")
    assert available_memory(proc, cgroups) == 0
    (group / limit).write_text("max\n" if limit == "memory.max" else f"{2**63 - 4096}\n")
    assert available_memory(proc, cgroups) > 10_000
    assert available_memory(tmp_path / "no such folder", cgroups) > 10_000
