"""Standard streams to which printing never fails, so that a closed pipe or terminal does not end a command before its work.

A character that the terminal lacks is replaced. What cannot be written is dropped, and the error is remembered.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress


class _Output(io.FileIO):
    """A file descriptor that remembers its first error instead of raising it."""

    error: OSError | None = None

    def write(self, data: object) -> int:
        """Write what can be written and claim the rest."""
        if self.error is None:
            try:
                return super().write(data) or 0  # type: ignore[arg-type]
            except OSError as error:
                self.error = error
        return len(memoryview(data))  # type: ignore[arg-type]


def safe_streams() -> None:
    """Replace standard output and error by streams that do not fail; a closed one is opened on the null device."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, `>&-`: the next file that is opened would get its number
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
        elif number and isinstance(stream, io.TextIOWrapper) and _descriptor(stream) == number:
            with suppress(OSError):
                stream.flush()
            raw = io.BufferedWriter(_Output(number, "w", closefd=False))
            line_by_line = stream.line_buffering
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, "replace", line_buffering=line_by_line))


def _descriptor(stream: io.TextIOWrapper) -> int | None:
    try:
        return stream.fileno()
    except OSError:  # a stream in memory, which a test or a notebook has put there
        return None


def output_error() -> OSError | None:
    """Why standard output could not be written completely; None if it was, or if its reader did not want more of it."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    error = raw.error if isinstance(raw, _Output) else None
    return None if error is None or error.errno == errno.EPIPE else error
