from __future__ import annotations

import sys

import pytest
from slimprompt.own_functions import is_own, own_function

from slimprompt.errors import InputError


def first() -> int:
    return 1


@pytest.mark.parametrize("name", ["my_bases:cosine", "package.module:f", "_m1:_f"])
def test_names_of_functions(name: str) -> None:
    assert is_own(name)


@pytest.mark.parametrize(
    "name", ["gda", "", ":", "m:", ":f", "m:f:g", "my bases:f", "m:f.g", "1m:f", "m:1f", "m: f", "m:f\n", None, 3]
)
def test_other_names(name: object) -> None:
    assert not is_own(name)


def test_the_function_of_an_imported_module() -> None:
    assert own_function("basis", f"{__name__}:first") is first


@pytest.mark.parametrize("kind", ["basis", "method"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("antigravity:fly", r"antigravity is not imported; import it first \(--import antigravity\)"),
        (f"{__name__}:frist", "has no frist; its functions are .*first"),
    ],
)
def test_a_name_without_a_function_never_imports_code(kind: str, name: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"^cannot use the {kind} '{name}': .*{reason}"):
        own_function(kind, name)
    assert "antigravity" not in sys.modules


def test_the_name_of_a_file_is_not_that_of_a_module() -> None:
    with pytest.raises(InputError, match=r"named module:function, without \.py: my_methods:nearest_mean$"):
        own_function("method", "my_methods.py:nearest_mean")
