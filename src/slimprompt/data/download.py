"""Download benchmarks into the layout of the table, and extract frames from videos."""

from __future__ import annotations

import gzip
import importlib.util
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slimprompt.data.benchmarks import BenchmarkInfo
from slimprompt.data.check import in_threads
from slimprompt.errors import InputError
from slimprompt.files import new_file

_ARCHIVES = (".tar", ".gz", ".tgz", ".zip", ".rar")
_VIDEOS = (".avi", ".mp4", ".mkv", ".mov", ".webm")


def download_images(info: BenchmarkInfo, folder: Path) -> bool:
    """Download the images of a benchmark through torchvision to its folder; False if they already exist.

    Archives stay in `<folder>/.download` until everything is extracted, so that an interrupted download can resume.
    """
    if _has_images(info, folder):
        return False
    if info.torchvision is None:
        raise InputError(f"the images of {info.title} cannot be downloaded automatically")
    from torchvision import datasets

    name, unpacked = info.torchvision
    lists = info.source.needs if info.source.drive is None else ()
    work = folder / ".download"
    try:
        work.mkdir(parents=True, exist_ok=True)
        _keep_archives(work)
        getattr(datasets, name)(root=str(work), download=True)
        for entry in (*lists, info.images):  # the images last: they mark the download as complete
            if not (folder / entry).exists():
                shutil.move(work / unpacked / entry, folder / entry)
        shutil.rmtree(work)
    except Exception as error:  # network, checksum, archive and disk errors have no common class
        damaged = not isinstance(error, OSError) or isinstance(error, gzip.BadGzipFile)
        if damaged:  # do not resume from this archive
            shutil.rmtree(work, ignore_errors=True)
        raise InputError(
            f"downloading the images of {info.title} failed: {error}; run the command again to resume"
        ) from error
    return True


def download_annotations(info: BenchmarkInfo, folder: Path) -> str:
    """Download the annotation file that is published on Google Drive, if it is missing; returns its name, or nothing."""
    name, file_id = info.source.drive or ("", "")
    if not name or (folder / name).is_file():
        return ""
    if importlib.util.find_spec("gdown") is None:
        raise InputError(f"downloading {name} from Google Drive needs the package gdown: pip install gdown")
    from torchvision.datasets.utils import download_file_from_google_drive

    with new_file(folder / name) as draft:
        try:
            download_file_from_google_drive(file_id, str(folder), filename=draft.name)
        except Exception as error:  # gdown raises its own errors and those of requests and urllib
            raise InputError(f"downloading {name} failed: {error}") from error
    return name


def manual_steps(info: BenchmarkInfo, folder: Path) -> list[str]:
    """Instructions for everything that is missing in `folder` and has to be downloaded by hand."""
    steps = []
    if not _has_images(info, folder):
        steps.append(info.manual or f"Download the images from {info.site} and extract them to {folder / info.images}.")
    name, file_id = info.source.drive or ("", "")
    if name and not (folder / name).is_file():
        steps.append(f"Save https://drive.google.com/file/d/{file_id}/view as {folder / name}.")
    return steps


def _has_images(info: BenchmarkInfo, folder: Path) -> bool:
    if info.images == ".":  # the images are in folders next to the split file
        return any(path.is_dir() and not path.name.startswith(".") for path in folder.glob("*"))
    return (folder / info.images).is_dir()


def _keep_archives(work: Path) -> None:
    """Delete all but the archives: torchvision would take a partly extracted folder for a complete one."""
    for path in sorted(work.rglob("*"), reverse=True):  # contents before their folder
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.suffix.lower() not in _ARCHIVES:
            path.unlink()


def extract_midframes(
    videos: Path, out: Path, *, workers: int | None = None, advance: Callable[[int], None] = lambda total: None
) -> tuple[int, int]:
    """Save frame ⌊n/2⌋ of each video: `videos/ApplyLipstick/v_x.avi` → `out/Apply_Lipstick/v_x.jpg`.

    Existing frames are kept; returns the numbers of frames written and kept. `advance` is called after each video, with the number of
    videos to do; by default there is one thread per core.
    """
    _video_library()
    if not videos.is_dir():
        raise InputError(f"no such folder: {videos}; expected {videos}/<class>/<video>")
    found = sorted(path for path in videos.glob("*/*") if path.suffix.lower() in _VIDEOS)
    if not found:
        raise InputError(f"no videos in {videos}: expected {videos}/<class>/<video>, ending in {', '.join(_VIDEOS)}")
    frames = [out / underscored(path.parent.name) / f"{path.stem}.jpg" for path in found]
    todo = [pair for pair in zip(found, frames, strict=True) if not pair[1].is_file()]
    for _ in in_threads(_write_midframe, todo, workers):
        advance(len(todo))
    return len(todo), len(found) - len(todo)


def underscored(camel_case: str) -> str:
    """`ApplyEyeMakeup` → `Apply_Eye_Makeup`; another name is kept.

    >>> [underscored(name) for name in ("ApplyEyeMakeup", "YoYo", "diving")]
    ['Apply_Eye_Makeup', 'Yo_Yo', 'diving']
    """
    return "_".join(re.findall("[A-Z][^A-Z]*", camel_case)) or camel_case


def _write_midframe(pair: tuple[Path, Path]) -> None:
    video, frame = pair
    with new_file(frame) as draft:
        middle_frame(video).save(draft, format="JPEG", quality=95)


def middle_frame(video: Path) -> Any:
    """Frame ⌊n/2⌋ of the n frames of a video, as a PIL image.

    The video is decoded twice, the first time to count: the frame count in the header is often wrong or absent.
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
