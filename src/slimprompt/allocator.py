"""How this process's memory is kept."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let freed memory be used again instead of going back to the system; says whether that could be set.

    Every step frees and takes the same few hundred megabytes. By default the C library gives large blocks back at once, so that
    the system must clear and map each page again. It is a setting of the whole process: for commands and workers, not for
    somebody's program that imports this package.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    largest = 2**31 - 1
    return bool(mallopt(_M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(_M_TRIM_THRESHOLD, largest))
