"""Every kind of input gives its images in order, lazily, and with the pixels of the files."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slimprompt.collections.inputs import Item, open_collection
from slimprompt.errors import InputError
from slimprompt.images.decode import image_files, open_image


def names(*given: object, column: str | None = None) -> list[str]:
    return [item.image for item in open_collection([str(one) for one in given], column)]


def refuse(*given: object, column: str | None = None) -> None:
    with pytest.raises(InputError):
        names(*given, column=column)


def unreadable(item: Item, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        item.place.open(item.image)


def check_pixels(given: object, paths: list[Path], column: str | None = None) -> list[str]:
    """The images have the pixels of the files, also after they were sent elsewhere; returns their names."""
    items = pickle.loads(pickle.dumps(list(open_collection([str(given)], column))))
    for item, path in zip(items, paths, strict=True):
        assert np.array_equal(item.place.open(item.image), open_image(path)), item
    return [item.image for item in items]


def write_tar(path: Path, files: list[Path]) -> Path:
    with tarfile.open(path, "w") as tar:
        for number, file in enumerate(files):
            tar.add(file, f"{number:06d}.png")
            label = tarfile.TarInfo(f"{number:06d}.cls")
            label.size = 1
            tar.addfile(label, io.BytesIO(b"0"))
    return path


def test_folders_and_files_are_those_of_predict_on_a_few(images: Path, paths: list[Path], tmp_path: Path) -> None:
    assert names(images, paths[3]) == [str(path) for path in image_files([images, paths[3]])]
    assert check_pixels(images, paths) == [str(path) for path in paths]
    refuse(tmp_path / "none.png")
    refuse(images, tmp_path / "a folder without images")
    refuse(images, column="path")  # which is for tables


def test_hidden_members_of_a_tar_file_are_left_out(paths: list[Path], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("./cats/a.png", "./cats/._a.png", "__MACOSX/cats/._b.png", "__MACOSX/b.png"):
            tar.add(paths[0], name)
    assert names(tmp_path / "a.tar") == [f"{tmp_path}/a.tar/./cats/a.png"]


def test_links_in_a_tar_file_are_unreadable_rows(paths: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(paths[0].read_bytes())
    os.link(tmp_path / "a.png", tmp_path / "b.png")
    (tmp_path / "c.png").symlink_to("a.png")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in "abc":
            tar.add(tmp_path / f"{name}.png", f"{name}.png")
    whole, *links = open_collection([tmp_path / "a.tar"])
    assert np.array_equal(whole.place.open(whole.image), open_image(paths[0]))
    for item, name in zip(links, "bc", strict=True):
        unreadable(item, rf"a\.tar/{name}\.png is a link to a\.png: pack the files themselves")


def test_a_folder_is_listed_one_level_at_a_time(
    images: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: (listed.append(str(folder)), real(folder))[1])
    collection = open_collection([images])
    listed.clear()
    assert [item.image for item in islice(collection, 2)] == [str(path) for path in paths[:2]]
    assert listed == [str(images), str(paths[0].parent)]


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_csv_files(images: Path, paths: list[Path], delimiter: str) -> None:
    table = images.parent / "list.csv"
    values = [str(paths[0].relative_to(images.parent)), "", str(paths[1]), "images/missing.png"]
    lines = [f"label{delimiter}path", *(f"x{delimiter}{value}" for value in values), ""]
    table.write_text("\n".join(lines), encoding="utf-8-sig")
    items = list(open_collection([table]))
    assert [item.image for item in items] == values
    assert np.array_equal(items[0].place.open(""), open_image(paths[0]))
    assert np.array_equal(items[2].place.open(""), open_image(paths[1]))
    unreadable(items[1], "has no path")
    unreadable(items[3], "no such image")
    assert names(table, column="label") == ["x"] * 4
    refuse(table, column="pth")


def test_csv_files_that_cannot_be_used(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("file,label\na.png,x\n")
    refuse(table)
    assert names(table, column="file") == ["a.png"]
    table.write_text("Image,Path\n1,a.png\n")
    assert names(table) == ["a.png"]
    table.write_text("Path,image\n1,a.png\n")
    assert names(table) == ["a.png"]
    table.write_bytes(b"path\ncaf\xe9.png\n")
    refuse(table)
    table.write_text("path\n")
    refuse(table)


def test_parquet_files_with_paths_bytes_or_both(images: Path, paths: list[Path], tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = images.parent / "t.parquet"
    relative = [str(path.relative_to(images.parent)) for path in paths]
    for values in (pa.array(relative), pa.array(relative).dictionary_encode()):  # as pandas writes categories
        parquet.write_table(pa.table({"path": values, "n": list(range(len(paths)))}), table)
        assert check_pixels(table, paths) == relative
    content = [path.read_bytes() for path in paths]
    table = tmp_path / "bytes.parquet"
    both = [{"bytes": None, "path": str(paths[0])}, *({"bytes": one, "path": "x.png"} for one in content[1:])]
    columns = {"image": content, "picture": both, "n": list(range(len(paths)))}
    parquet.write_table(pa.table(columns), table, row_group_size=5)
    numbered = [f"{table}[{row}]" for row in range(len(paths))]
    assert check_pixels(table, paths) == check_pixels(table, paths, "picture") == numbered
    refuse(table, column="n")
    (tmp_path / "no.parquet").write_bytes(b"PAR1 and then nothing")
    refuse(tmp_path / "no.parquet")


def test_webdataset_shards(paths: list[Path], tmp_path: Path) -> None:
    for number in range(3):
        write_tar(tmp_path / f"{number:02d}.tar", paths[6 * number : 6 * number + 6])
    expected = [f"{tmp_path}/{number:02d}.tar/{one:06d}.png" for number in range(3) for one in range(6)]
    for pattern in ("{00..02}.tar", "*.tar", "{00,01,02}.tar", "0{0..2}.ta*"):
        assert names(tmp_path / pattern) == expected
    assert check_pixels(tmp_path / "{00..02}.tar", paths) == expected
    refuse(tmp_path / "{00..03}.tar")
    refuse(tmp_path / "x*.tar")
    refuse(tmp_path / "{05..01}.tar")


def test_a_shard_that_breaks_off_ends_with_an_unreadable_row(paths: list[Path], tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar", paths)
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    *whole, broken, end = open_collection([shard])
    assert 3 < len(whole) < len(paths)
    for item, path in zip(whole, paths, strict=False):
        assert np.array_equal(item.place.open(item.image), open_image(path))
    unreadable(broken, "ends within it")
    unreadable(end, "cannot read the tar file")
    with tarfile.open(write_tar(tmp_path / "c.tar", paths)) as tar:
        start = tar.getmembers()[6].offset
    content = (tmp_path / "c.tar").read_bytes()
    for damaged in (content[: start + 100], content[:start] + b"damaged" + content[start + 7 :]):
        (tmp_path / "c.tar").write_bytes(damaged)
        *whole, end = open_collection([tmp_path / "c.tar"])
        assert len(whole) == 3  # and their labels
        unreadable(end, "the header at byte .* is damaged")
    (tmp_path / "no.tar").write_bytes(b"nothing" * 1000)
    refuse(tmp_path / "no.tar")
    (tmp_path / "b.tar.gz").touch()
    refuse(tmp_path / "b.tar.gz")


def test_stamps_change_with_the_content(paths: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(paths[0].read_bytes())
    shard = write_tar(tmp_path / "a.tar", paths[:2])
    before = [item.place.stamp() for item in open_collection([path, shard])]
    assert before == [item.place.stamp() for item in open_collection([path, shard])]
    Image.open(paths[1]).resize((50, 50)).save(path)
    write_tar(tmp_path / "a.tar", [paths[0], path])
    after = [item.place.stamp() for item in open_collection([path, shard])]
    assert len(set(before) | set(after)) == 6
