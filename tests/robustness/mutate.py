"""Damage to files: bit flips, deletions, insertions, truncations, and swaps of JSON values by others of another type."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        10**30,
        1e308,
        float("nan"),
        float("inf"),
        [],
        {},
        [[[[]]]],
        {"a": {"b": [1]}},
        ["cat", "cat"],
    ),
    *("", "x" * 3000, "\ud800", "a\0b", "<|endoftext|>", "../../etc/passwd", "=1+1", "[/red]"),
)


def mutations(content: bytes, number: int, rng: random.Random) -> Iterator[bytes]:
    """`number` damaged versions of a file; every third one of a JSON file is valid JSON with a swapped or missing value."""
    data = _json(content)
    for index in range(number):
        yield _change_value(data, rng) if data is not None and index % 3 else _change_bytes(content, rng)


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _change_bytes(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 4, 32))):
        place = rng.randrange(len(data)) if data else 0
        kind = rng.choice(("flip", "flip", "set", "delete", "insert", "cut", "repeat"))
        if not data or kind == "insert":
            data[place:place] = rng.randbytes(rng.choice((1, 4, 64)))
        elif kind == "flip":
            data[place] ^= 1 << rng.randrange(8)
        elif kind == "set":
            data[place] = rng.choice((0, 255, 128, ord('"'), ord("["), ord("-"), ord("9")))
        elif kind == "delete":
            del data[place : place + rng.choice((1, 8, 256))]
        elif kind == "cut":
            del data[place:]
        else:
            data[place:place] = data[place : place + rng.choice((1, 16, 512))]
    return bytes(data)


def _change_value(data: Any, rng: random.Random) -> bytes:
    data = copy.deepcopy(data)
    places = list(_places(data))
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(places) if places else ({}, None)
        if rng.random() < 0.25 and key in holder if isinstance(holder, dict) else False:
            del holder[key]
        elif key is not None and (isinstance(holder, dict) or key < len(holder)):
            holder[key] = copy.deepcopy(rng.choice(_VALUES))
    return json.dumps(data).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(items):
        yield value, key
        yield from _places(child)
