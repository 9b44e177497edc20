"""A faster start of commands and workers: packages that open_clip imports but no command uses are left out.

`import open_clip` also imports torch's compiler (through one function of torchvision and one decorator of timm), transformers and
wandb where they are installed: more than half of the time until an image can be classified. While open_clip and torchvision are
imported, these packages have a stand-in or look as if they were not installed; afterwards they can be imported as usual. Only the
command line and worker processes do this: `import slimprompt` in a program of your own leaves the imports of others alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
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
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _load(load, module)  # type: ignore[method-assign]
        return spec


def _load(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    before = set(sys.modules)
    try:
        with _stand_ins():
            load(module)
    except Exception:  # another version of a package needs more of them: import everything
        for name in set(sys.modules) - before:
            if name.startswith((*_WRAPPED, "timm")):
                del sys.modules[name]
        load(module)


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
