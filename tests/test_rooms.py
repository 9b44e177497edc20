"""The packages are ordered: a file imports only from its own package and from those above it."""

from __future__ import annotations

import ast
from pathlib import Path

import slimprompt

SOURCE = Path(slimprompt.__file__).parent

#: From top to bottom; modules on one line do not import each other.
ROOMS = (
    ("errors", "startup"),
    ("seeds", "extras", "files", "progress", "allocator", "cluster", "forked", "user_functions"),
    ("spreadsheet",),
    ("names",),
    ("clip",),
    ("images",),
    ("prompts",),
    ("text",),
    ("training",),
    ("tracking",),
    ("methods",),
    ("pocket",),
    ("data",),
    ("calibration",),
    ("scores",),
    ("hub",),
    ("saved",),
    ("estimator", "continued"),
    ("classifier",),
    ("fit", "coop"),
    ("comparison",),
    ("export",),
    ("collections",),
    ("curation",),
    ("lab",),
    ("analysis",),
    ("report",),
    ("service",),
    ("paper",),
    ("quickstart",),
    ("doctor",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_rooms(path: Path) -> set[str]:
    """Rooms of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "slimprompt":
            names += [f"slimprompt.{alias.name}" for alias in node.names]
        parts = [name.split(".") for name in names]
        found |= {part[1] for part in parts if part[0] == "slimprompt" and len(part) > 1}
    return found & LEVEL.keys()


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def test_a_file_imports_only_from_rooms_above() -> None:
    assert len(FILES) > 200
    below = {}
    for path in FILES:
        room = room_of(path)
        assert room in LEVEL, f"{room} is not in the list of rooms"
        below[path] = {other for other in imported_rooms(path) if other != room and LEVEL[other] >= LEVEL[room]}
    assert {path: rooms for path, rooms in below.items() if rooms} == {}


def test_every_room_exists_and_is_documented() -> None:
    text = (SOURCE.parents[1] / "docs" / "structure.md").read_text(encoding="utf-8")
    for room in LEVEL:
        assert (SOURCE / room).is_dir() or (SOURCE / f"{room}.py").is_file(), room
        assert f"{room}/" in text or f"{room}.py" in text, room
