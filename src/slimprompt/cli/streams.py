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
    """Replace standard output and error by streams that do not fail; a closed stream is opened on the null device."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, `>&-`; another file must not get its number
            _occupy(number)
            stream = open(os.devnull, "r" if number == 0 else "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)
        elif number and isinstance(stream, io.TextIOWrapper) and _descriptor(stream) == number:
            with suppress(OSError):
                stream.flush()
            raw = _Output(number, "w", closefd=False)
            safe = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors="replace",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, safe)


def output_error() -> OSError | None:
    """Why standard output could not be written completely; None if it was, or if its reader did not want more of it."""
    stream = sys.stdout
    stream.flush()
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    error = raw.error if isinstance(raw, _Output) else None
    return None if error is None or error.errno == errno.EPIPE else error


def _descriptor(stream: io.TextIOWrapper) -> int | None:
    try:
        return stream.fileno()
    except OSError:  # a stream in memory, which a test or a notebook has put there
        return None


def _occupy(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
