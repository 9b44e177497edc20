"""Files and folders that are written completely or not at all; locks, hashes and the cache directory.

A writer first creates a temporary entry beside the target, named `.<target>.<host>.<process>.<random>.tmp`, flushes it to
disk and then renames it. A reader therefore never sees half a file. The name tells which process wrote it, so that what a
killed process left behind is deleted by the next process that writes to the same folder. File modes follow the umask.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from slimprompt.errors import InputError

#: A temporary name keeps this many bytes of the target's name, so that it is not too long where the target's is not.
_KEPT_NAME = 100
#: Begins the random part of this process's temporary names: after a restart of a container, a process may have the
#: number of the killed one.
_PROCESS = secrets.token_hex(4)


def cache_dir() -> Path:
    """Cache directory: the environment variable SLIMPROMPT_CACHE, else `~/.cache/slimprompt`. It is not created here."""
    given = os.environ.get("SLIMPROMPT_CACHE")
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "slimprompt"


def sha256(content: bytes | Path) -> str:
    """Hexadecimal sha256 of some bytes, or of a file's content."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def json_checksum(content: Mapping[str, Any]) -> str:
    """sha256 of plain JSON data, whatever the order of its keys and its layout in a file."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return sha256(text.encode("utf-8", "surrogatepass"))  # a path that is not UTF-8 holds surrogates


def json_text(content: Mapping[str, Any]) -> str:
    """Plain JSON data as the text of a file: readable, with escapes only for what UTF-8 cannot hold."""
    return json.dumps(content, indent=1, ensure_ascii=False).encode(errors="backslashreplace").decode() + "\n"


def lock(path: Path) -> AbstractContextManager[Any]:
    """An exclusive lock on the file `path`, across processes and machines that share the disk; use it in a `with`."""
    from filelock import FileLock

    return FileLock(path)


@contextmanager
def locked_folder(folder: Path, what: str) -> Iterator[None]:
    """Create a folder, and hold an exclusive lock on its file `.lock`; the block may delete the folder.

    An `InputError` at once if another command holds the lock; `what` is what that one does with the folder.
    """
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = FileLock(path)
            held.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another command is {what}; wait until it has ended, or choose another name") from None
        except FileNotFoundError:
            continue  # its last owner has just deleted the folder
        except OSError as error:
            raise cannot_write(folder, error) from None
        if path.exists():
            break
        held.release()  # of a file that was deleted in between
    try:
        yield
    finally:
        held.release()


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `target` when the block ends without an error.

    An `InputError` if the file system refuses, or `target` is a pipe or a device; it is then unchanged.
    """
    draft = _temporary(target)
    try:
        if target.exists():
            check_regular(target)  # a rename would put a file in the place of /dev/null
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers_once(target.parent.resolve())
        yield draft
        _flush(draft)
        draft.replace(target)
        _flush(target.parent)
    except OSError as error:
        raise cannot_write(target, error) from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def write_file(target: Path, content: str | bytes) -> Path:
    """Write a whole file atomically; text is stored as UTF-8."""
    with new_file(target) as draft:
        # A file name that is not UTF-8 is written with escapes.
        draft.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    return target


@contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `target`, to be filled and given to `publish`; it is deleted otherwise."""
    draft = _temporary(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers_once(target.parent.resolve())
        draft.mkdir()
        yield draft
    except OSError as error:
        raise cannot_write(target, error) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def publish(draft: Path, target: Path) -> None:
    """Flush a draft folder to disk and rename it to `target`; a folder that is there already is deleted.

    Only for targets whose old content is worthless: a process that is killed between the two renames leaves no folder.
    """
    for path in draft.rglob("*"):
        _flush(path)
    if target.exists():
        replaced = _temporary(target)
        target.rename(replaced)
        draft.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        draft.rename(target)
    _flush(target.parent)


def check_writable(target: Path, n_bytes: int = 100_000) -> None:
    """Raise an error unless a file or folder of this size can be written at `target`, by writing to the same disk.

    Nothing is left behind, and missing folders above the target are not created.
    """
    target = target.resolve()
    try:
        with suppress(FileNotFoundError):
            target.lstat()  # a name that is too long, or a file where a folder is expected
        place = next(folder for folder in (target, *target.parents) if folder.is_dir())
        _remove_leftovers_once(place)  # the probe of a killed command, say
        probe = _temporary(place / "probe")
        try:
            probe.write_bytes(bytes(n_bytes))
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(target, error) from None


def remove_folder(folder: Path) -> None:
    """Delete a folder; a reader sees all of it or nothing."""
    removed = _temporary(folder)
    folder.rename(removed)
    shutil.rmtree(removed)


def remove_leftovers(folder: Path) -> int:
    """Delete temporary entries left in `folder` by dead processes of this machine; returns how many there were."""
    removed = 0
    for path in folder.glob(".*.tmp"):
        parts = path.name.split(".")  # "", target…, host, process, random, "tmp"
        if len(parts) >= 6 and parts[-4] == _host() and parts[-3].isdigit() and not _is_written(*parts[-3:-1]):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            removed += 1
    return removed


@lru_cache(maxsize=64)
def _remove_leftovers_once(folder: Path) -> None:
    """Once per process and folder: a runs folder has many entries."""
    with suppress(OSError):
        remove_leftovers(folder)


def cannot_write(target: Path, error: OSError) -> InputError:
    """The error for a file or folder that the file system refuses to write."""
    return InputError(f"{target} cannot be written: {error.strerror or error}")


def _temporary(target: Path) -> Path:
    kept = target.name.encode("utf-8", "replace")[:_KEPT_NAME].decode("utf-8", "ignore")
    return target.with_name(f".{kept}.{_host()}.{os.getpid()}.{_PROCESS}{secrets.token_hex(4)}.tmp")


def _host() -> str:
    return socket.gethostname().replace(".", "-") or "localhost"


def _flush(path: Path) -> None:
    """Force a file, or the entries of a folder, to disk, so that a crash of the machine leaves no empty files."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_written(process: str, random: str) -> bool:
    """Whether the process that named a temporary entry is still running."""
    import psutil

    if int(process) == os.getpid():
        return random.startswith(_PROCESS)
    try:
        return len(process) < 10 and psutil.Process(int(process)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def check_regular(path: Path) -> None:
    """Raise an `InputError` unless `path` is a regular file: reading a pipe or a device may never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise cannot_read(path, error) from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise InputError(f"{path} is {kind}; expected a regular file")


def read_text(path: Path, *, most: int = 256 * 2**20) -> str:
    """Content of a UTF-8 text file, which must be a regular file of at most `most` bytes; otherwise an `InputError`."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise InputError(f"{path} is larger than {most / 1e6:,.0f} MB, the limit for such a file")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a UTF-8 text file: {error}") from None
    except OSError as error:
        raise cannot_read(path, error) from None


def read_json(path: Path, *, most: int = 256 * 2**20) -> Any:
    """The value in a JSON file; a file that is not JSON, or nested too deeply, is an `InputError`."""
    text = read_text(path, most=most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{path} is not a readable JSON file: {reason}") from None


def check_folder(folder: Path) -> None:
    """`check_writable` for a folder: a file of that name is an error."""
    check_writable(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder")


def check_files(*targets: Path | None, read: Iterable[Path | None] = ()) -> None:
    """`check_writable` for files with different names, which are neither folders, devices nor what the command reads.

    None stands for no file.
    """
    given = [target for target in targets if target is not None]
    kept = {os.path.realpath(path) for path in read if path is not None}
    for target in given:
        check_writable(target)
        if target.is_dir():
            raise InputError(f"{target} is a folder; give the name of a file")
        if target.exists():
            check_regular(target)
        if os.path.realpath(target) in kept:
            raise InputError(f"{target} is one of the inputs; choose another name for the output")
    if len({target.resolve() for target in given}) < len(given):
        raise InputError(f"{given[-1]} is given as the name of two files; give two names")


def check_outputs(
    *, table: Path | None = None, page: Path | None = None, overwrite: bool = False, read: Iterable[Path | None] = ()
) -> None:
    """`check_files` for a table and a page that a user has named; a file that exists is an error unless `overwrite` is true."""
    check_files(table, page, read=read)
    for path, suffixes, kind in ((table, (".csv",), "a CSV file"), (page, (".html", ".htm"), "an HTML page")):
        if path is not None and path.suffix.lower() not in suffixes:
            raise InputError(f"{path} would be written as {kind}; give a name that ends in {' or '.join(suffixes)}")
        if path is not None and path.exists() and not overwrite:
            raise InputError(f"{path} exists already; choose another name, or add --overwrite")


def path_seen_from(folder: Path, path: Path) -> str:
    """A path as a cell of a table in `folder`, since readers of tables start there; an absolute path is kept.

    >>> path_seen_from(Path("results"), Path("photos/cat.jpg"))
    '../photos/cat.jpg'
    """
    if path.is_absolute():
        return str(path)
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive of Windows
        return str(path.absolute())


def cannot_read(path: Path, error: OSError | ValueError) -> InputError:
    """The error for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"no such file: {path}")
    return InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")
