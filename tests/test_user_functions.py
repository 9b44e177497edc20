from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slimprompt.errors import InputError
from slimprompt.user_functions import function_name, import_user_function, is_user_function, user_function


def first() -> int:
    return 1


@pytest.mark.parametrize(
    "name", ["gda", "", ":", "m:", ":f", "m:f:g", "my bases:f", "m:f.g", "1m:f", "m:1f", "m: f", "m:f\n", None, 3]
)
def test_other_names(name: object) -> None:
    assert not is_user_function(name)


@pytest.mark.parametrize("kind", ["basis", "method"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("antigravity:fly", r"antigravity is not imported; import it first"),
        (f"{__name__}:frist", "has no function frist; its functions are .*first"),
    ],
)
def test_a_name_without_a_function_never_imports_code(kind: str, name: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"^cannot use the {kind} '{name}': .*{reason}"):
        user_function(kind, name)
    assert "antigravity" not in sys.modules


def test_a_function_is_named_by_its_module() -> None:
    assert function_name(first) == f"{__name__}:first"
    assert function_name("orthogonal") == "orthogonal" and function_name(None) is None
    with pytest.raises(InputError, match="cannot be found by name: define it with def"):
        function_name(lambda: 1)


def test_a_name_that_was_typed_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_functions_here.py").write_text("def nearest(task):\n    return 1\n")
    (tmp_path / "my_broken_functions.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    import_user_function("method", "my_functions_here:nearest")
    assert user_function("method", "my_functions_here:nearest")(None) == 1
    import_user_function("method", "gda")
    import_user_function("basis", None)
    for name, reason in {
        "my_functions_here:farthest": "has no function farthest; its functions are nearest",
        "my_broken_functions:nearest": "cannot import my_broken_functions .* ZeroDivisionError",
        "no_such_module:nearest": "must be in the current folder or on Python's path",
        "my_functions_here.py:nearest": r"without \.py: my_functions_here:nearest$",
    }.items():
        with pytest.raises(InputError, match=reason):
            import_user_function("method", name)
