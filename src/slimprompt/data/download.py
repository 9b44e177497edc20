"""Fetching a benchmark into the layout of the catalogue, as far as it can be fetched, and frames out of videos."""

from __future__ import annotations

import gzip
import importlib.util
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from slimprompt.data.catalogue import BenchmarkInfo
from slimprompt.data.splits import underscored
from slimprompt.errors import InputError
from slimprompt.storage import new_file

_ARCHIVES = (".tar", ".gz", ".tgz", ".zip", ".rar")
_VIDEOS = (".avi", ".mp4", ".mkv", ".mov", ".webm")


def download_images(row: BenchmarkInfo, folder: Path) -> bool:
    """Fetch the pictures of a benchmark into its folder through torchvision; False if they are there already.

    Archives are kept in `<folder>/.download` until all is unpacked, so that an interrupted download goes on from them.
    """
    if _has_images(row, folder):
        return False
    if row.download is None:
        raise InputError(f"the images of {row.title} cannot be fetched automatically")
    from torchvision import datasets

    work = folder / ".download"
    try:
        work.mkdir(parents=True, exist_ok=True)
        _keep_archives(work)
        getattr(datasets, row.download.dataset)(root=str(work), download=True)
        for piece in reversed(row.download.pieces):  # the images last: once they are there, nothing is fetched again
            if not (folder / piece).exists():
                shutil.move(work / row.download.unpacked / piece, folder / piece)
        shutil.rmtree(work)
    except Exception as error:  # network, checksum, archive and disk: each library has its own kinds
        if not isinstance(error, OSError) or isinstance(
            error, gzip.BadGzipFile
        ):  # a damaged archive: never use it again
            shutil.rmtree(work, ignore_errors=True)
        raise InputError(
            f"fetching the images of {row.title} failed: {error}; run the command again to go on"
        ) from error
    return True


def download_annotations(row: BenchmarkInfo, folder: Path) -> list[str]:
    """Fetch the annotation files that are published on Google Drive and not there yet; the names of those fetched."""
    wanted = [(name, file_id) for name, file_id in row.drive_files if not (folder / name).is_file()]
    if wanted and importlib.util.find_spec("gdown") is None:
        names = " and ".join(name for name, _ in wanted)
        raise InputError(f"fetching {names} from Google Drive needs the package gdown: pip install gdown")
    for name, file_id in wanted:
        from torchvision.datasets.utils import download_file_from_google_drive

        with new_file(folder / name) as draft:
            try:
                download_file_from_google_drive(file_id, str(folder), filename=draft.name)
            except Exception as error:  # gdown raises errors of its own, of requests and of urllib
                raise InputError(f"fetching {name} failed: {error}") from error
    return [name for name, _ in wanted]


def by_hand(row: BenchmarkInfo, folder: Path) -> list[str]:
    """What a person can do for what is missing in `folder`, step by step."""
    steps = []
    if not _has_images(row, folder):
        steps.append(row.manual or f"Fetch the images from {row.site} and unpack them as {folder / row.images}.")
    steps += [
        f"Save https://drive.google.com/file/d/{file_id}/view as {folder / name}."
        for name, file_id in row.drive_files
        if not (folder / name).is_file()
    ]
    return steps


def _has_images(row: BenchmarkInfo, folder: Path) -> bool:
    if row.images == ".":  # the pictures are in folders beside the split file
        return any(path.is_dir() and not path.name.startswith(".") for path in folder.glob("*"))
    return (folder / row.images).is_dir()


def _keep_archives(work: Path) -> None:
    """Remove everything that a broken-off unpacking left; torchvision takes a half unpacked folder for a whole one."""
    for path in sorted(work.rglob("*"), reverse=True):  # contents before their folder
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.suffix.lower() not in _ARCHIVES:
            path.unlink()


def extract_midframes(
    videos: Path, out: Path, *, workers: int | None = None, advance: Callable[[int], None] = lambda total: None
) -> tuple[int, int]:
    """`videos/ApplyLipstick/v_x.avi` → `out/Apply_Lipstick/v_x.jpg`: frame ⌊n/2⌋ of n. Frames that are there are kept.

    Returns the numbers of frames written and kept. `advance` is called with the total after each video.
    """
    _video_library()
    if not videos.is_dir():
        raise InputError(f"no such folder: {videos}; expected {videos}/<class>/<video>")
    found = sorted(path for path in videos.glob("*/*") if path.suffix.lower() in _VIDEOS)
    if not found:
        raise InputError(f"no videos in {videos}: expected {videos}/<class>/<video>, ending in {', '.join(_VIDEOS)}")
    frames = [out / (underscored(path.parent.name) or path.parent.name) / f"{path.stem}.jpg" for path in found]
    todo = [(video, frame) for video, frame in zip(found, frames, strict=True) if not frame.is_file()]
    try:
        for folder in sorted({frame.parent for frame in frames}):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error}") from None
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        try:
            for _ in pool.map(lambda pair: _write_midframe(*pair), todo):
                advance(len(todo))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return len(todo), len(found) - len(todo)


def _write_midframe(video: Path, frame: Path) -> None:
    with new_file(frame) as draft:
        middle_frame(video).save(draft, format="JPEG", quality=95)


def middle_frame(video: Path) -> Any:
    """Frame ⌊n/2⌋ of the n frames of a video, as a PIL image.

    The video is decoded twice, once to count: the frame count in the file's header is often wrong or absent.
    """
    av = _video_library()
    try:
        with av.open(str(video)) as container:
            count = sum(1 for _ in container.decode(video=0))
        with av.open(str(video)) as container:
            for index, frame in enumerate(container.decode(video=0)):
                if index == count // 2:
                    return frame.to_image()
    except (av.error.FFmpegError, OSError, IndexError) as error:
        raise InputError(f"cannot read the video {video}: {error}") from None
    raise InputError(f"the video {video} has no frames")


def _video_library() -> Any:
    try:
        import av
    except ImportError:
        raise InputError("reading videos needs PyAV: pip install 'slimprompt[video]' (or: pip install av)") from None
    return av
