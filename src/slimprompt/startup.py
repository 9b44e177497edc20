"""A faster start of commands and workers: what is imported on the way but not used is left out.

`import open_clip` also imports torch's compiler (through one function of torchvision and one decorator of timm), transformers and
wandb where they are installed: more than half of the time until an image can be classified. No command compiles, builds a text
tower of Hugging Face, or logs through timm. So while open_clip and torchvision are imported, these packages have a stand-in or look
as if they were not installed; afterwards they can be imported as usual. Only the command line and worker processes do this:
`import slimprompt` in a program of your own leaves the imports of others alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_WRAPPED = ("open_clip", "torchvision")
_HIDDEN = ("transformers", "wandb")


def import_lightly() -> None:
    """From now on, import open_clip and torchvision without the packages that no command uses."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _WRAPPED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LightLoader(spec.loader)
        return spec


class _LightLoader(Loader):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # package resources ask the loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        before = set(sys.modules)
        try:
            with _stand_ins():
                self.loader.exec_module(module)
        except Exception:  # another version of a package needs more of them: import everything
            for name in set(sys.modules) - before:
                if name.startswith(_WRAPPED) or name.startswith("timm"):
                    del sys.modules[name]
            self.loader.exec_module(module)


@contextmanager
def _stand_ins() -> Iterator[None]:
    """While inside, torch's compiler is a stand-in that compiles nothing, and unused optional packages seem not to be there."""
    compiler, details = ModuleType("torch._dynamo"), ModuleType("torch._dynamo.utils")
    compiler.disable = _unchanged  # type: ignore[attr-defined]
    details.is_compile_supported = lambda device: False  # type: ignore[attr-defined]
    modules: dict[str, Any] = {one.__name__: one for one in (compiler, details)} | dict.fromkeys(_HIDDEN)
    added = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)


def _unchanged(function: Callable | None = None, *_: Any, **__: Any) -> Any:
    """The function itself, also as a decorator with arguments."""
    return _unchanged if function is None else function
