from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest

from slimprompt.data import BENCHMARKS, base_new, catalogue, check_images, few_shot, held_out, load_benchmark
from slimprompt.data.benchmark import missing_images
from slimprompt.data.catalogue import benchmark_folder, benchmark_info, dataset_name
from slimprompt.errors import InputError
from slimprompt.pocket.benchmarks import render_benchmark

#: name: classes, (train, val, test), (base, new), (first class, last class)
PROTOCOL = {
    "caltech101": (100, (4128, 1649, 2465), (50, 50), ("face", "yin_yang")),
    "dtd": (47, (2820, 1128, 1692), (24, 23), ("banded", "zigzagged")),
    "fgvc_aircraft": (100, (3334, 3333, 3333), (50, 50), ("707-320", "Yak-42")),
    "food101": (101, (50500, 20200, 30300), (51, 50), ("apple_pie", "waffles")),
    "oxford_flowers": (102, (4093, 1633, 2463), (51, 51), ("pink primrose", "blackberry lily")),
    "oxford_pets": (37, (2944, 736, 3669), (19, 18), ("abyssinian", "yorkshire_terrier")),
    "ucf101": (101, (7639, 1898, 3783), (51, 50), ("Apply_Eye_Makeup", "Yo_Yo")),
}
#: The other benchmarks of CoOp: classes, (train, val, test)
MORE = {
    "eurosat": (10, (13500, 5400, 8100)),
    "stanford_cars": (196, (6509, 1635, 8041)),
    "sun397": (397, (15880, 3970, 19850)),
    "imagenet": (1000, (1281167, 0, 50000)),
    "imagenetv2": (1000, (0, 0, 10000)),
    "imagenet_sketch": (1000, (0, 0, 50889)),
    "imagenet_a": (200, (0, 0, 7500)),
    "imagenet_r": (200, (0, 0, 30000)),
}
TEMPLATES = {
    "caltech101": "a photo of a {}.",
    "dtd": "{} texture.",
    "fgvc_aircraft": "a photo of a {}, a type of aircraft.",
    "food101": "a photo of {}, a type of food.",
    "oxford_flowers": "a photo of a {}, a type of flower.",
    "oxford_pets": "a photo of a {}, a type of pet.",
    "ucf101": "a photo of a person doing {}.",
    "eurosat": "a centered satellite photo of {}.",
    **dict.fromkeys(set(MORE) - {"eurosat"}, "a photo of a {}."),
}


@pytest.mark.parametrize("name", PROTOCOL)
def test_published_sizes_and_classes(name: str, data_root: Path) -> None:
    n_classes, sizes, halves, ends = PROTOCOL[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the published split must not cause a warning
        benchmark = load_benchmark(name, data_root)
    assert len(benchmark.class_names) == n_classes
    assert (len(benchmark.train), len(benchmark.val), len(benchmark.test)) == sizes
    assert (benchmark.class_names[0], benchmark.class_names[-1]) == ends
    assert tuple(len(half.class_names) for half in base_new(benchmark)) == halves
    assert benchmark.templates[0] == TEMPLATES[name]
    assert all(benchmark.class_names[item.label] == item.class_name for item in benchmark.test)


def test_table_has_the_published_facts() -> None:
    for name, (n_classes, sizes, _, _) in PROTOCOL.items():
        assert (BENCHMARKS[name].classes, BENCHMARKS[name].sizes) == (n_classes, sizes)
    for name, facts in MORE.items():
        assert (BENCHMARKS[name].classes, BENCHMARKS[name].sizes) == facts
    for info in BENCHMARKS.values():
        assert info.licence and info.size
        assert info.rendered or info.templates[0] == TEMPLATES[info.name]
        assert all(template.count("{}") == 1 for template in info.templates)


def test_food101_loads_in_two_seconds(data_root: Path) -> None:
    started = time.process_time()
    load_benchmark("food101", data_root)
    assert time.process_time() - started < 2


def test_images_are_not_needed_and_other_sizes_cause_a_warning(dtd_root: Path) -> None:
    with pytest.warns(UserWarning, match=r"\(188, 94, 94\) items; the published split has \(2820, 1128, 1692\)"):
        benchmark = load_benchmark("dtd", dtd_root)
    assert (len(benchmark.train), len(benchmark.val), len(benchmark.test)) == (188, 94, 94)
    assert benchmark.path(benchmark.train[0]) == dtd_root / "dtd" / "images" / "class0" / "0.jpg"
    assert not benchmark.images.exists()


@pytest.mark.parametrize("name", ["Oxford Pets", "OXFORD-PETS", "oxford_pets", "oxfordpets"])
def test_lookup_by_name_or_title(name: str) -> None:
    assert benchmark_info(name).name == "oxford_pets"


def test_a_folder_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert {dataset_name(given) for given in ("photos", "photos/", "./photos", ".//photos/.")} == {"photos"}
    assert dataset_name(str(tmp_path / "photos")) == str(tmp_path / "photos")


def test_a_path_is_no_name_of_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "food-101").mkdir()
    monkeypatch.chdir(tmp_path)
    assert dataset_name("food-101") == "food101"
    assert dataset_name("./food-101/") == dataset_name(dataset_name("./food-101")) == "./food-101"


def test_unknown_name() -> None:
    with pytest.raises(InputError, match="did you mean 'oxford_pets'"):
        load_benchmark("oxford_pet", ".")


@pytest.mark.filterwarnings("ignore:DTD")
def test_data_root_from_the_environment(dtd_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMPROMPT_DATA", str(dtd_root))
    assert len(load_benchmark("dtd").train) == 188
    monkeypatch.delenv("SLIMPROMPT_DATA")
    with pytest.raises(InputError, match=r"no data root for dtd.*SLIMPROMPT_DATA"):
        load_benchmark("dtd")


def test_missing_root(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere is not a folder; it should hold dtd/"):
        load_benchmark("dtd", tmp_path / "nowhere")


def test_missing_annotations_are_listed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"split_zhou_OxfordPets\.json not found in .*data download oxford_pets"):
        load_benchmark("oxford_pets", tmp_path)


def test_wrong_class_count(dtd_root: Path) -> None:
    path = dtd_root / "dtd" / "split_zhou_DescribableTextures.json"
    split = json.loads(path.read_text())
    path.write_text(json.dumps({name: [e for e in entries if e[1] < 46] for name, entries in split.items()}))
    with pytest.raises(InputError, match=r"DTD has 47 classes, but .* gives 46"):
        load_benchmark("dtd", dtd_root)


@pytest.mark.filterwarnings("ignore:DTD")
def test_class_without_training_items(dtd_root: Path) -> None:
    path = dtd_root / "dtd" / "split_zhou_DescribableTextures.json"
    split = json.loads(path.read_text())
    split["train"] = [entry for entry in split["train"] if entry[1] != 5]
    path.write_text(json.dumps(split))
    with pytest.raises(InputError, match=r"no training images of 'class_5' \(1 of 47"):
        few_shot(load_benchmark("dtd", dtd_root), 1, seed=1)


def test_rendered_benchmark_is_stored_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(tmp_path / "cache"))
    info = BENCHMARKS["pocket-negative"]
    benchmark = load_benchmark("pocket-negative")
    assert benchmark.images == tmp_path / "cache" / "data" / "pocket-negative" / "images"
    assert (len(benchmark.train), len(benchmark.val), len(benchmark.test)) == info.sizes
    assert benchmark.path(benchmark.train[0]).is_file()
    assert benchmark_folder(info, tmp_path / "elsewhere") == tmp_path / "elsewhere" / "pocket-negative"
    assert load_benchmark("pocket-negative") == benchmark


def test_rendering_to_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "render_benchmark", render_benchmark)  # other tests copy rendered images
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="pocket-sketch cannot be written"):
        load_benchmark("pocket-sketch", tmp_path / "file")


@pytest.fixture
def imagenet_root(tmp_path: Path) -> Path:
    """ImageNet with 1,000 classes of empty files, two of which have the same name, and 200 of them as ImageNet-A."""
    wnids = [f"n{number:08d}" for number in range(1000)]
    for wnid in wnids:
        for folder, count in (("imagenet/images/train", 2), ("imagenet/images/val", 1)):
            (tmp_path / folder / wnid).mkdir(parents=True)
            for number in range(count):
                (tmp_path / folder / wnid / f"{wnid}_{number}.JPEG").touch()
    for wnid in wnids[::5]:
        (tmp_path / "imagenet-adversarial" / "imagenet-a" / wnid).mkdir(parents=True)
        (tmp_path / "imagenet-adversarial" / "imagenet-a" / wnid / "1.jpg").touch()
    lines = [f"{wnid} {'missile' if number in (3, 4) else f'class {number}'}" for number, wnid in enumerate(wnids)]
    for folder in ("imagenet", "imagenet-adversarial"):
        (tmp_path / folder / "classnames.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.filterwarnings("ignore:ImageNet. train, val and test")
def test_imagenet(imagenet_root: Path) -> None:
    with pytest.warns(UserWarning, match=r"1 class names belong to more than one class \(missile\)"):
        benchmark = load_benchmark("ImageNet", imagenet_root)
    assert benchmark.sizes == (2000, 0, 1000)
    assert benchmark.class_names[3] == benchmark.class_names[4] == "missile"
    check_images(benchmark)
    sample = few_shot(benchmark, 1, seed=1)
    assert sorted({item.label for item in sample.train}) == list(range(1000)), "labels, not names, are sampled from"
    assert sample.val == () and held_out(benchmark, sample) == benchmark.test
    base, new = base_new(sample)
    assert len(base.class_names) == len(new.class_names) == 500


@pytest.mark.filterwarnings("ignore:ImageNet")
def test_benchmarks_for_evaluation_cannot_be_sampled(imagenet_root: Path) -> None:
    benchmark = load_benchmark("imagenet_a", imagenet_root)
    assert BENCHMARKS["imagenet_a"].evaluation_only and not BENCHMARKS["imagenet"].evaluation_only
    assert benchmark.sizes == (0, 0, 200)
    assert benchmark.class_names[:2] == ("class 0", "class 5")
    assert benchmark.path(benchmark.test[1]) == benchmark.images / "n00000005" / "1.jpg"
    with pytest.raises(InputError, match=r"imagenet_a has no train split.*evaluate PROMPT --benchmark imagenet_a"):
        few_shot(benchmark, 1, seed=1)


def test_missing_images_are_found_by_listing_folders(imagenet_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a call per file: ImageNet has 1.3 million."""
    with pytest.warns(UserWarning, match="ImageNet"):
        benchmark = load_benchmark("imagenet", imagenet_root)
    gone = benchmark.train[0]
    benchmark.path(gone).unlink()
    monkeypatch.setattr("os.stat", Mock(side_effect=AssertionError))
    monkeypatch.setattr("os.path.isfile", Mock(side_effect=AssertionError))
    assert missing_images(benchmark) == [gone.path]
