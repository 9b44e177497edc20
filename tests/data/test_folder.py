from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from slimprompt.data import check_benchmark, load_eval_folder, load_folder
from slimprompt.errors import InputError
from slimprompt.spreadsheet import csv_text

Touch = Callable[..., Path]


@pytest.fixture
def touch(tmp_path: Path) -> Touch:
    """Creates empty files below a folder `photos`; reading a folder opens no image."""
    base = tmp_path / "photos"
    base.mkdir()

    def create(*names: str) -> Path:
        for name in names:
            path = base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return base

    return create


def paths(items: tuple) -> list[str]:
    return [item.path for item in items]


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_class_folders(touch: Touch) -> None:
    base = touch("red_panda/b.JPG", "red_panda/a.png", "otter/1.jpeg", "otter/notes.txt", "readme.md", ".DS_Store")
    benchmark = load_folder(base)
    assert benchmark.class_names == ("otter", "red_panda")
    assert [tuple(item) for item in benchmark.train] == [
        ("otter/1.jpeg", 0, "otter"),
        ("red_panda/a.png", 1, "red_panda"),
        ("red_panda/b.JPG", 1, "red_panda"),
    ]
    assert benchmark.val == benchmark.test == ()
    assert benchmark.ignored_paths == ("readme.md", "otter/notes.txt")
    assert (benchmark.ignored, benchmark.count_ignored_images()) == (2, 0)
    assert (benchmark.name, benchmark.images) == ("photos", base)
    assert benchmark.path(benchmark.train[0]).is_file()


def test_split_folders(touch: Touch) -> None:
    base = touch("train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "test/b/4.jpg", "test/b/x.db", "labels.txt")
    benchmark = load_folder(base)
    assert paths(benchmark.train) == ["train/a/1.jpg", "train/b/2.jpg"]
    assert paths(benchmark.val) == ["val/a/3.jpg"]
    assert [tuple(item) for item in benchmark.test] == [("test/b/4.jpg", 1, "b")]
    assert benchmark.ignored_paths == ("labels.txt", "test/b/x.db")


def test_images_below_ignored_folders_are_counted(touch: Touch) -> None:
    base = touch("a/1.jpg", "b/2.jpg", "b/more/3.jpg", "b/more/c/4.png", "b/more/x.txt")
    benchmark = load_folder(base)
    assert benchmark.ignored_paths == ("b/more",) and benchmark.count_ignored_images() == 2


def test_validation_is_the_test_split_if_there_is_no_other(touch: Touch) -> None:
    benchmark = load_folder(touch("train/a/1.jpg", "train/b/2.jpg", "validation/a/3.jpg"))
    assert (paths(benchmark.val), paths(benchmark.test)) == ([], ["validation/a/3.jpg"])


def test_class_named_train(touch: Touch) -> None:
    benchmark = load_folder(touch("train/1.jpg", "bus/2.jpg"))
    assert benchmark.class_names == ("bus", "train")
    assert len(benchmark.train) == 2


def test_spelling_of_a_class_may_differ_between_splits(touch: Touch) -> None:
    benchmark = load_folder(touch("train/red panda/1.jpg", "train/otter/2.jpg", "test/Red_Panda/3.jpg"))
    assert [tuple(item) for item in benchmark.test] == [("test/Red_Panda/3.jpg", 1, "red panda")]


@pytest.mark.parametrize("split", ["", "train/", "test/"])
def test_two_folders_that_are_the_same_words_are_one_error(touch: Touch, split: str) -> None:
    files = [f"{split}red_panda/1.jpg", f"{split}Red panda/2.jpg", f"{split}otter/3.jpg"]
    if split == "test/":
        files += ["train/red panda/4.jpg", "train/otter/5.jpg"]
    folder = touch(*files)
    for load in (load_folder, lambda path: load_eval_folder(path, ["otter", "red panda"])):
        with pytest.raises(InputError, match="class folders 'Red panda' and 'red_panda' of .*same words in a prompt"):
            load(folder)


def test_two_labels_that_are_the_same_words_are_one_error(touch: Touch) -> None:
    folder = touch("1.jpg", "2.jpg")
    (folder / "list.csv").write_text("path,label\n1.jpg,red_panda\n2.jpg,Red panda\n")
    with pytest.raises(InputError, match="labels 'Red panda' and 'red_panda' of .*list.csv are the same words"):
        load_folder(folder / "list.csv")


# --- class names of codes -----------------------------------------------------------------------------------------------


def test_codes_are_replaced_by_class_names(touch: Touch) -> None:
    folder = touch("train/n1/a.png", "train/n2/b.png", "test/n1/c.png", "test/n2/d.png")
    names = {"n1": "tench", "n2": "goldfish", "n3": "not in this folder"}
    images = load_folder(folder, names=names)
    assert images.class_names == ("goldfish", "tench")
    assert [(item.path, item.label, item.class_name) for item in images.train] == [
        ("train/n1/a.png", 1, "tench"),
        ("train/n2/b.png", 0, "goldfish"),
    ]
    tested = load_eval_folder(folder, ["tench", "shark", "goldfish"], names=names)
    assert [(item.path, item.label) for item in tested.test] == [("test/n1/c.png", 0), ("test/n2/d.png", 2)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"n1": "tench"}, "1 of 2 labels have no class name: 'n2'"),
        ({"n1": "crane", "n2": "crane"}, "'n1' and 'n2' of .* are the same words in a prompt, 'crane'"),
        ({"n1": "crane", "n2": "Crane"}, "'n1' and 'n2' of .* are the same words in a prompt, 'Crane'"),
    ],
)
def test_class_names_that_do_not_fit_the_codes(touch: Touch, names: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_folder(touch("n1/a.png", "n2/b.png"), names=names)


# --- evaluation of a trained prompt ----------------------------------------------------------------------------------


@pytest.fixture(
    params=["class folders", "split folders", "CSV file", "CSV file with splits", "CSV file of test images"]
)
def eval_source(request: pytest.FixtureRequest, touch: Touch) -> Callable[..., Path]:
    """Creates a source with one test image per class, in each layout that can be evaluated on."""

    def create(*class_names: str) -> Path:
        test = {f"test/{name}/1.jpg": name for name in class_names}
        train = {f"train/{name}/1.jpg": name for name in class_names}
        if request.param == "class folders":
            return touch(*(f"{name}/1.jpg" for name in class_names))
        base = touch(*train, *test)
        if request.param == "split folders":
            return base
        if request.param == "CSV file with splits":
            lines = [f"{path},{name},{path.split('/')[0]}" for path, name in (train | test).items()]
        else:
            split = "test" if request.param == "CSV file of test images" else ""
            lines = [f"{path},{name},{split}" for path, name in test.items()]
        return csv_file(base, "\n".join(["path,label,split", *lines]))

    return create


def test_known_classes_keep_their_labels(eval_source: Callable[..., Path]) -> None:
    benchmark = load_eval_folder(eval_source("Red_Panda", "otter"), ["otter", "badger", "red panda"])
    assert benchmark.class_names == ("otter", "badger", "red panda")
    assert {(item.label, item.class_name) for item in benchmark.test} == {(0, "otter"), (2, "red panda")}
    assert len(benchmark.test) == 2
    assert benchmark.train == benchmark.val == ()


def test_folder_of_new_classes_only(eval_source: Callable[..., Path]) -> None:
    benchmark = load_eval_folder(eval_source("wolf", "lynx"), ["otter", "badger"])
    assert benchmark.class_names == ("lynx", "wolf")
    assert sorted((item.label, item.class_name) for item in benchmark.test) == [(0, "lynx"), (1, "wolf")]
    assert benchmark.train == benchmark.val == ()


def test_mixture_of_known_and_unknown_classes_is_refused(eval_source: Callable[..., Path]) -> None:
    message = r"2 of 3 classes are unknown to this prompt: 'oter' \(did you mean 'otter'\?\), 'zzz'\. Rename .*only new"
    with pytest.raises(InputError, match=message):
        load_eval_folder(eval_source("badger", "oter", "zzz"), ["otter", "badger"])


def test_only_the_shown_names_are_compared_with_all_others(touch: Touch, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(return_value="")  # a comparison of a thousand names with a thousand others takes 20 seconds
    monkeypatch.setattr("slimprompt.data.folder.did_you_mean", asked)
    with pytest.raises(InputError, match=r"20 of 21 classes are unknown to this prompt: 'a', 'b', 'c', …\."):
        load_eval_folder(touch(*(f"{name}/1.jpg" for name in "abcdefghijklmnopqrstu")), ["u", "z"])
    assert asked.call_count < 5


def test_one_known_class_is_enough_but_one_new_class_is_not(touch: Touch) -> None:
    base = touch("otter/1.jpg")
    assert paths(load_eval_folder(base, ["badger", "otter"]).test) == ["otter/1.jpg"]
    with pytest.raises(InputError, match="one class only, 'otter'"):
        load_eval_folder(base, ["wolf", "lynx"])


def test_misspelt_test_folder_of_new_classes(touch: Touch) -> None:
    base = touch("train/wolf/1.jpg", "train/lynx/1.jpg", "test/wolff/1.jpg")
    with pytest.raises(InputError, match=r"'wolff' has no training images; did you mean 'wolf'\?"):
        load_eval_folder(base, ["otter", "badger"])


# --- CSV -------------------------------------------------------------------------------------------------------------


def csv_file(base: Path, text: str) -> Path:
    path = base / "labels.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_csv(touch: Touch) -> None:
    base = touch("x/1.jpg", "x/2.jpg", "3.jpg")
    benchmark = load_folder(csv_file(base, "Path,Label\nx/1.jpg,red panda\n\n3.jpg,otter\n"))
    assert benchmark.images == base
    assert [tuple(item) for item in benchmark.train] == [("x/1.jpg", 1, "red panda"), ("3.jpg", 0, "otter")]


def test_csv_with_splits_semicolons_quotes_and_a_byte_order_mark(touch: Touch) -> None:
    base = touch("1.jpg", "2.jpg", "3.jpg", "4, four.jpg")
    text = '\ufefflabel;path;split\na;1.jpg;train\nb;2.jpg;\na;3.jpg;Test\nb;"4, four.jpg";val\n'
    benchmark = load_folder(csv_file(base, text))
    assert paths(benchmark.train) == ["1.jpg", "2.jpg"]
    assert paths(benchmark.test) == ["3.jpg"]
    assert paths(benchmark.val) == ["4, four.jpg"]


def test_csv_in_another_folder_than_the_images(touch: Touch) -> None:
    base = touch("images/a/1.jpg", "images/b/2.jpg", "lists/keep")
    other = base.parent / "elsewhere.jpg"
    benchmark = load_folder(csv_file(base / "lists", "path,label\n../images/a/1.jpg,a\n../images/b/2.jpg,b\n"))
    assert (benchmark.images, paths(benchmark.train)) == (base / "images", ["a/1.jpg", "b/2.jpg"])
    other.touch()
    benchmark = load_folder(csv_file(base / "lists", f"path,label\n{other},a\n../images/b/2.jpg,b\n"))
    assert (benchmark.images, paths(benchmark.train)) == (base.parent, ["elsewhere.jpg", "photos/images/b/2.jpg"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns path and label"),
        ("file,label\n1.jpg,a\n", "columns path and label"),
        ("1.jpg,a\n2.jpg,b\n", "columns path and label"),
        ("path,label\n", "names no images"),
        ("path,label\n1.jpg,a\n2.jpg,\n", "line 3: the label is empty"),
        ("path,label\n1.jpg,a\n2.jpg\n", "line 3: the label is empty"),
        ("path,label\n1.jpg,a\n2.jpg,__\n", "line 3: the label is empty"),
        ("path,label\n,a\n", "line 2: the path is empty"),
        ("path,label,split\n1.jpg,a,tset\n", "line 2: the split is 'tset'"),
        (
            "path,label\n1.jpg,a\n8.jpg,b\n9.jpg,b\n",
            r"2 files that cannot be found: 8\.jpg \(line 3\), 9\.jpg \(line 4\)",
        ),
        ("path,label\n1.jpg,a\n./1.jpg,b\n", "lines 2 and 3 name the same image"),
        ("path,label\n1.jpg,a\n2.jpg,b, c\n", "line 3 has 3 cells, but the first line names 2 columns"),
        ("path,Label,label\n1.jpg,a,0\n2.jpg,b,1\n", "names the column label twice"),
        ('path,label,note\n1.jpg,a,"x\ny"\n2.jpg,,z\n', "line 4: the label is empty"),
        ("path,label\n1.jpg,a\n2.jpg,a\n", "one class only, 'a'"),
        ("path,label,split\n1.jpg,a,test\n2.jpg,b,test\n", "no training images"),
    ],
)
def test_bad_csv(text: str, message: str, touch: Touch) -> None:
    base = touch("1.jpg", "2.jpg")
    with pytest.raises(InputError, match=message):
        load_folder(csv_file(base, text))


def test_csv_cells_are_read_as_they_were_written(touch: Touch) -> None:
    base = touch("1.jpg", "-2.jpg", "3\u2028.jpg")
    text = csv_text(("path", "label"), [("1.jpg", "cat, black"), ("-2.jpg", "@home"), ("3\u2028.jpg", "c")])
    benchmark = load_folder(csv_file(base, text.replace("@home", "@home,,")))  # cells without text are no error
    assert [(item.path, item.class_name) for item in benchmark.train] == [
        ("1.jpg", "cat, black"),
        ("-2.jpg", "@home"),
        ("3\u2028.jpg", "c"),
    ]


def test_csv_that_is_not_text(touch: Touch) -> None:
    path = touch("1.jpg") / "labels.csv"
    path.write_bytes(b"path,label\n\xff\xfe\x00,a\n")
    with pytest.raises(InputError, match="UTF-8"):
        load_folder(path)


# --- bad folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"no images under .*photos: expected .*photos/<class>/<image>.*; it is empty"),
        (("1.jpg", "2.jpg", "3.txt"), "found 3 files and no folders"),
        (("a/1.jpg",), "one class only, 'a'"),
        (("_/1.jpg", "a/1.jpg"), "has an empty name"),
        (("a/1.jpg", "b/readme.txt"), r"no images in 1 class folder of .*: b \(holds 0 folders and 1 other file\)"),
        (("a/1.jpg", "b/inner/1.jpg"), r"b \(holds 1 folder and 0 other files\)"),
        (("train/a/1.jpg", "train/b/1.jpg", "extra/a/1.jpg"), "and also extra"),
        (("train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "valid/a/1.jpg"), "several folders for one split"),
        (
            ("train/a/1.jpg", "train/bee/1.jpg", "test/bees/1.jpg"),
            r"'bees' has no training images; did you mean 'bee'\?",
        ),
    ],
)
def test_bad_folders(names: tuple[str, ...], message: str, touch: Touch) -> None:
    with pytest.raises(InputError, match=message):
        load_folder(touch(*names))


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder or CSV file"):
        load_folder(tmp_path / "nothing")


def test_file_that_is_not_a_csv(touch: Touch) -> None:
    with pytest.raises(InputError, match=r"neither a folder of images nor a .csv file"):
        load_folder(touch("1.jpg") / "1.jpg")


def test_file_names_that_are_not_utf8(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "od\udce9"
    shutil.copytree(photos, folder)
    image = next((folder / "red disc").iterdir())
    image.rename(image.with_name("caf\udce9.png"))
    loaded = load_folder(folder)
    assert "red disc/caf\udce9.png" in {item.path for item in loaded.train}
    assert check_benchmark(loaded).ok and len(check_benchmark(loaded).digest) == 64
    (folder / "red disc").rename(folder / "r\udce9d")
    with pytest.raises(InputError, match="the class folder .*od.udce9/r.udce9d is not UTF-8.*rename the folder"):
        load_folder(folder)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "images.csv")
    with pytest.raises(InputError, match="pipe or a device"):
        load_folder(tmp_path / "images.csv")


@pytest.mark.parametrize("name", ["a\0b.png", "a" * 5000, "a" * 300])
def test_a_csv_with_impossible_paths(tmp_path: Path, name: str) -> None:
    (tmp_path / "images.csv").write_text(f"path,label\n{name},cat\n")
    with pytest.raises(InputError, match="is not a path|cannot be found|cannot read") as caught:
        load_folder(tmp_path / "images.csv")
    assert len(str(caught.value)) < 500


# --- fingerprint -----------------------------------------------------------------------------------------------------


def test_the_fingerprint_tells_changed_images(touch: Touch, tmp_path: Path) -> None:
    base = touch("train/otter/1.png", "train/panda/1.png", "test/otter/2.png", "test/panda/2.png")
    copy = Path(shutil.copytree(base, tmp_path / "copy"))
    before = load_folder(base).fingerprint
    assert load_folder(copy).fingerprint == before
    changes = [
        lambda: (copy / "test/otter/2.png").write_bytes(b"another image"),
        lambda: (copy / "test/otter/3.png").touch(),
        lambda: (copy / "test/otter/2.png").unlink(),
        lambda: [(copy / part / "panda").rename(copy / part / "red panda") for part in ("train", "test")],
    ]
    seen = {before}
    for change in changes:
        change()
        seen.add(load_folder(copy).fingerprint)
    assert len(seen) == 1 + len(changes)


def test_the_fingerprint_of_a_file_that_is_gone(touch: Touch) -> None:
    base = touch("otter/1.png", "panda/1.png")
    benchmark = load_folder(base)
    (base / "otter/1.png").unlink()
    with pytest.raises(InputError, match=r"cannot read .*otter/1.png: No such file"):
        _ = benchmark.fingerprint
