"""Functions of the user's own, named `module:function`: bases and methods that are not part of slimprompt.

A name never imports code, because it may come from someone else's grid or saved model. The user imports the module (`--import`).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, cast

from slimprompt.errors import InputError

_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")


def is_own(name: object) -> bool:
    """Whether a name has the form `module:function`; the module need not exist.

    >>> is_own("my_bases:hadamard"), is_own("orthogonal")
    (True, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def own_function(kind: str, name: str) -> Callable[..., Any]:
    """The function that a name `module:function` stands for; an `InputError` if its module has not been imported.

    Parameters
    ----------
    kind
        What the function is used as, for messages: "basis" or "method".
    name
        Its name, `module:function`.
    """
    module, _, function = name.partition(":")
    if module not in sys.modules:
        if module.endswith(".py"):
            name = name.replace(".py:", ":", 1)
            raise InputError(f"a {kind} of your own is named module:function, without .py: {name}")
        raise InputError(
            f"cannot use the {kind} {name!r}: {module} is not imported; import it first (--import {module})"
        )
    found = getattr(sys.modules[module], function, None)
    if found is None:
        names = [key for key, value in vars(sys.modules[module]).items() if inspect.isfunction(value)]
        listing = f"its functions are {', '.join(names)}" if names else "it has no functions"
        raise InputError(f"cannot use the {kind} {name!r}: {module} has no {function}; {listing}")
    return cast(Callable[..., Any], found)
