"""SGD, Adam and AdamW of torch, without the import of torch's compiler.

The first optimizer of a process imports `torch._dynamo`, which takes about as long as `import torch`: methods of optimizers are
wrapped for compiled code. The classes here have the methods without these wrappers, and so compute the same.
"""

from __future__ import annotations

from inspect import unwrap
from typing import TypeVar

import torch

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def _uncompiled(optimizer: type[_Optimizer]) -> type[_Optimizer]:
    methods = {name: unwrap(getattr(optimizer, name)) for name in ("add_param_group", "zero_grad")}
    step = torch.no_grad()(unwrap(optimizer.step))  # all that is left of its wrapper in code that is not compiled
    return type(optimizer.__name__, (optimizer,), {**methods, "step": step})


SGD = _uncompiled(torch.optim.SGD)
Adam = _uncompiled(torch.optim.Adam)
AdamW = _uncompiled(torch.optim.AdamW)
