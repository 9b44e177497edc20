from __future__ import annotations

import pytest
import torch

from slimprompt.training import optimizers


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
        ("SGD", {}),
        ("Adam", {"weight_decay": 0.1}),
        ("AdamW", {"betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}),
    ],
)
def test_the_same_bytes_as_torch(name: str, settings: dict):
    """Also after changes of the learning rate and of the state, which the training loop makes."""
    generator = torch.Generator().manual_seed(0)
    start, target = torch.randn(2, 5, 3, generator=generator)
    found = []
    for module in (torch.optim, optimizers):
        weight = start.clone().requires_grad_()
        optimizer = getattr(module, name)([weight], lr=0.1, **settings)
        assert isinstance(optimizer, torch.optim.Optimizer)
        for step in range(6):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            (weight - target).pow(4).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert weight.grad is None and weight.requires_grad and torch.is_grad_enabled()
            if step == 3:
                optimizer.state.clear()
        found.append(weight.detach())
    assert torch.equal(*found) and not torch.equal(found[0], start)
