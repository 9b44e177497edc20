"""Independent random streams from one seed.

Every use of randomness in a run has a name ("start", "basis", "order", "view", …). Two variants of one seed draw
the same start, see the same images in the same order and the same views, whatever else they draw.
"""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *names: object) -> int:
    """A 63-bit seed that depends on `seed` and on every name; 0 is a seed like any other.

    >>> stream_seed(1, "start") == stream_seed(1, "start"), stream_seed(1, "start") == stream_seed(1, "order")
    (True, False)
    """
    key = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(key.encode(errors="surrogateescape")).digest()[:8], "little") >> 1
