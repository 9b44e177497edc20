"""torchvision's downloaders run against archives on a local server."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from slimprompt.data.benchmark import missing_images
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.catalogue import load_benchmark
from slimprompt.data.download import (
    download_annotations,
    download_images,
    extract_midframes,
    manual_steps,
    middle_frame,
)
from slimprompt.errors import InputError


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL that serves its files."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def archive(path: Path, files: dict[str, bytes]) -> str:
    """Write a .tar.gz file and return its md5."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def dtd_server(server: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    folder, address = server
    files = {f"dtd/images/class{n:02d}/{i}.jpg": b"image" for n in range(47) for i in range(10)}
    files["dtd/labels/train1.txt"] = b"class00/0.jpg\n"
    monkeypatch.setattr(datasets.DTD, "_MD5", archive(folder / "dtd-r1.0.1.tar.gz", files))
    monkeypatch.setattr(datasets.DTD, "_URL", f"{address}/dtd-r1.0.1.tar.gz")
    return folder / "dtd-r1.0.1.tar.gz"


def test_downloaded_files_have_the_layout_of_the_table(dtd_server: Path, tmp_path: Path) -> None:
    folder = tmp_path / "root" / "dtd"
    assert download_images(BENCHMARKS["dtd"], folder)
    assert [path.name for path in folder.iterdir()] == ["images"]
    assert len(list((folder / "images").glob("*/*.jpg"))) == 470
    assert download_images(BENCHMARKS["dtd"], folder) is False, "nothing is downloaded twice"


def test_aircraft_is_downloaded_with_its_lists(
    server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = server
    lines = "".join(f"{n:07d} variant {n}\n" for n in range(100)).encode()
    data = "fgvc-aircraft-2013b/data"
    files = {f"{data}/images_variant_{split}.txt": lines for split in ("train", "val", "trainval", "test")}
    files[f"{data}/variants.txt"] = "".join(f"variant {n}\n" for n in range(100)).encode()
    files |= {f"{data}/images/{n:07d}.jpg": b"image" for n in range(100)}
    archive(folder / "a.tar.gz", files)
    monkeypatch.setattr(datasets.FGVCAircraft, "_URL", f"{address}/a.tar.gz")
    assert download_images(BENCHMARKS["fgvc_aircraft"], tmp_path / "fgvc_aircraft")
    with pytest.warns(UserWarning, match="published split has"):
        benchmark = load_benchmark("fgvc_aircraft", tmp_path)
    assert benchmark.train[7] == ("0000007.jpg", 7, "variant 7")
    assert missing_images(benchmark) == []


def test_interrupted_extraction_is_repeated(dtd_server: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dtd"
    half = folder / ".download" / "dtd" / "dtd" / "images" / "class00"
    half.mkdir(parents=True)
    (half / "0.jpg").write_bytes(b"pic")
    download_images(BENCHMARKS["dtd"], folder)
    assert (folder / "images" / "class00" / "0.jpg").read_bytes() == b"image"
    assert len(list((folder / "images").glob("*/*"))) == 470


def test_existing_archive_is_reused(dtd_server: Path, tmp_path: Path) -> None:
    kept = tmp_path / "dtd" / ".download" / "dtd" / dtd_server.name
    kept.parent.mkdir(parents=True)
    dtd_server.rename(kept)  # it is no longer on the server
    assert download_images(BENCHMARKS["dtd"], tmp_path / "dtd")


def test_no_network_and_damaged_archive(dtd_server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(datasets.DTD, "_MD5", "0" * 32)
        with pytest.raises(InputError, match="downloading the images of DTD failed"):
            download_images(BENCHMARKS["dtd"], tmp_path / "dtd")
        assert not (tmp_path / "dtd" / ".download").exists(), "a damaged archive is not kept"
    dtd_server.unlink()
    with pytest.raises(InputError, match=r"downloading the images of DTD failed: .*404.*run the command again"):
        download_images(BENCHMARKS["dtd"], tmp_path / "dtd")
    assert not (tmp_path / "dtd" / "images").exists()


def test_torchvision_classes_exist() -> None:
    for info in BENCHMARKS.values():
        if info.torchvision:
            assert hasattr(datasets, info.torchvision[0])
        else:
            assert info.manual or info.site or info.rendered


def test_manual_steps(tmp_path: Path) -> None:
    info = BENCHMARKS["ucf101"]
    with pytest.raises(InputError, match="UCF101 cannot be downloaded automatically"):
        download_images(info, tmp_path / "ucf101")
    frames, split = manual_steps(info, tmp_path / "ucf101")
    assert "slimprompt data extract-midframes" in frames
    assert str(tmp_path / "ucf101" / "split_zhou_UCF101.json") in split
    (tmp_path / "ucf101" / "UCF-101-midframes").mkdir(parents=True)
    (tmp_path / "ucf101" / "split_zhou_UCF101.json").touch()
    assert manual_steps(info, tmp_path / "ucf101") == []


def test_images_next_to_the_split_file(tmp_path: Path) -> None:
    info, folder = BENCHMARKS["stanford_cars"], tmp_path / "stanford_cars"
    assert "cars_train" in manual_steps(info, folder)[0]
    (folder / "cars_train").mkdir(parents=True)
    assert download_images(info, folder) is False


def test_existing_annotations_are_not_downloaded(dtd_root: Path) -> None:
    assert download_annotations(BENCHMARKS["dtd"], dtd_root / "dtd") == ""


# --- frames ----------------------------------------------------------------------------------------------------------


def test_middle_frames(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    videos = tmp_path / "UCF-101"
    for action, n_frames in {"ApplyLipstick": 9, "YoYo": 4}.items():
        (videos / action).mkdir(parents=True)
        with av.open(str(videos / action / f"v_{action}_g01_c01.avi"), "w") as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width = stream.height = 64
            stream.pix_fmt = "yuv420p"
            for number in range(n_frames):
                pixels = np.full((64, 64, 3), 20 * number + 20, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
            container.mux(stream.encode())
    calls: list[int] = []
    assert extract_midframes(videos, tmp_path / "frames", advance=calls.append) == (2, 0)
    assert calls == [2, 2]
    frame = tmp_path / "frames" / "Apply_Lipstick" / "v_ApplyLipstick_g01_c01.jpg"
    assert frame.is_file()
    assert (tmp_path / "frames" / "Yo_Yo" / "v_YoYo_g01_c01.jpg").is_file()
    assert extract_midframes(videos, tmp_path / "frames") == (0, 2)
    brightness = np.asarray(middle_frame(videos / "ApplyLipstick" / "v_ApplyLipstick_g01_c01.avi")).mean()
    assert brightness == pytest.approx(20 * 4 + 20, abs=3), "frame 4 of 9"
    (videos / "YoYo" / "broken.avi").write_bytes(b"not a video")
    with pytest.raises(InputError, match=r"cannot read the video .*broken\.avi"):
        extract_midframes(videos, tmp_path / "frames")
    with pytest.raises(InputError, match="no videos in"):
        extract_midframes(tmp_path / "frames", tmp_path / "out")


def test_missing_video_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(InputError, match=r"pip install 'slimprompt\[video\]'"):
        extract_midframes(tmp_path, tmp_path / "out")
