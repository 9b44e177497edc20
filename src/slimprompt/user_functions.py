"""Functions of the user, named `module:function`: bases and methods that are not part of slimprompt.

A name that is typed on the command line or stands in a grid is imported. A name in a saved model or a record is not: it is only looked
up among the modules that are imported already.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from slimprompt.errors import InputError

_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")


def is_user_function(name: object) -> bool:
    """Whether a name has the form `module:function`; the module need not exist.

    >>> is_user_function("my_bases:hadamard"), is_user_function("orthogonal")
    (True, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def function_name(function: Any) -> Any:
    """`module:function` for a function that was given in Python; any other value as it is."""
    if not callable(function):
        return function
    name = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    if (
        not is_user_function(name)
        or getattr(sys.modules.get(function.__module__), function.__qualname__, None) is not function
    ):
        raise InputError(
            f"{function!r} cannot be found by name: define it with def, outside of other functions and classes"
        )
    return name


def user_function(kind: str, name: str) -> Callable[..., Any]:
    """The function that `module:function` names, if its module is imported; `kind`, for messages, is "basis" or "method"."""
    module, _, function = name.partition(":")
    if module not in sys.modules:
        raise InputError(f"cannot use the {kind} {name!r}: {module} is not imported; import it first")
    found = getattr(sys.modules[module], function, None)
    if not callable(found):
        functions = inspect.getmembers(sys.modules[module], inspect.isfunction)
        names = [key for key, value in functions if value.__module__ == module]
        listing = f"its functions are {', '.join(names)}" if names else "it has no functions"
        raise InputError(f"cannot use the {kind} {name!r}: {module} has no function {function}; {listing}")
    return cast(Callable[..., Any], found)


def import_user_function(kind: str, name: object) -> None:
    """Import the module of a name that the user typed; nothing for a name of slimprompt. Modules of the current folder are found."""
    if not isinstance(name, str) or not is_user_function(name):
        return
    module = name.partition(":")[0]
    if module.endswith(".py"):
        raise InputError(f"a {kind} of your own is named module:function, without .py: {name.replace('.py:', ':', 1)}")
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)
    try:
        import_module(module)
    except Exception as error:  # the module may raise anything
        message = f"cannot import {module} for the {kind} {name!r}: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            message += ". It must be in the current folder or on Python's path"
        raise InputError(message) from error
    user_function(kind, name)
