"""Memory allocation settings of the process."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_freed_memory() -> bool:
    """Keep freed memory in the process for reuse, instead of returning it to the operating system; whether that was possible.

    Every training step frees and allocates the same few hundred megabytes. By default glibc returns large blocks to the
    operating system at once, which must then clear and map each page again. The setting applies to the whole process, so
    only commands and workers call this function, never the library on import. Other C libraries do not have it.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    largest = 2**31 - 1
    return bool(mallopt(_M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(_M_TRIM_THRESHOLD, largest))
