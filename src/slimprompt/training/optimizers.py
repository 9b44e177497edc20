"""SGD, Adam and AdamW of torch, without the import of torch's compiler and without records for torch's profiler.

The first optimizer of a process imports `torch._dynamo`, which takes about as long as `import torch`: methods of optimizers are
wrapped for compiled code. A record for the profiler takes as long as a step on a small tensor. The classes here have the methods
without these wrappers, and so compute the same; hooks on steps are not called.
"""

from __future__ import annotations

from inspect import unwrap
from typing import TypeVar

import torch

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def _plain(optimizer: type[_Optimizer]) -> type[_Optimizer]:
    step = torch.no_grad()(unwrap(optimizer.step))  # all that is left of its wrapper in code that is not compiled
    step.hooked = True  # else torch wraps it for the profiler
    methods = {"add_param_group": unwrap(optimizer.add_param_group), "zero_grad": _zero_grad, "step": step}
    return type(optimizer.__name__, (optimizer,), methods)


def _zero_grad(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


SGD = _plain(torch.optim.SGD)
Adam = _plain(torch.optim.Adam)
AdamW = _plain(torch.optim.AdamW)
