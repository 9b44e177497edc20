import hashlib
import json
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import open_clip
import pytest

from slimprompt.pocket.benchmarks import (
    HELD_OUT_STYLES,
    IMAGE_SIZE,
    POCKET_BENCHMARKS,
    held_out,
    render_benchmark,
    seen_scene,
    seen_style,
)
from slimprompt.pocket.captions import MEDIUM_WORDS, MODIFIER_WORDS, caption
from slimprompt.pocket.images import (
    BACKGROUNDS,
    COLOURS,
    MEDIA,
    MODIFIERS,
    OUTLINES,
    SIZES,
    TEXTURES,
    Scene,
    Style,
    render,
)

SCENE = Scene("square", "red", "plain", "large", "snow")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def context_length_tokens(texts: list[str]) -> np.ndarray:
    return open_clip.get_tokenizer("ViT-B-32")(texts, 77).numpy()


# Images


def test_image_is_a_function_of_scene_style_size_and_seed() -> None:
    for medium, modifier in product(MEDIA, [None, *MODIFIERS]):
        style = Style(medium, frozenset({modifier} if modifier else ()))
        image = render(SCENE, style, 40, rng(3))
        assert image.shape == (40, 40, 3)
        assert image.dtype == np.uint8
        assert np.array_equal(image, render(SCENE, style, 40, rng(3)))
        assert not np.array_equal(image, render(SCENE, style, 40, rng(4)))


@pytest.mark.parametrize("colour", COLOURS)
def test_centre_of_a_large_plain_square_has_the_named_colour(colour: str) -> None:
    image = render(Scene("square", colour, "plain", "large", "wood"), Style(), 64, rng(1))
    centre = image[28:36, 28:36].reshape(-1, 3).mean(0) / 255
    distance = {name: float(np.abs(centre - value).sum()) for name, value in COLOURS.items()}
    assert min(distance, key=distance.__getitem__) == colour


# Held-out classes and styles


def test_a_fifth_of_the_combinations_is_held_out_but_no_pair_of_properties() -> None:
    every = list(product(OUTLINES, COLOURS, TEXTURES))
    seen = [combination for combination in every if not held_out(*combination)]
    assert len(seen) / len(every) == pytest.approx(0.8, abs=0.005)
    for a, b in combinations(range(3), 2):
        assert len({(c[a], c[b]) for c in seen}) == len({(c[a], c[b]) for c in every})


def test_pre_training_does_not_overlap_with_the_benchmarks() -> None:
    generator = rng()
    scenes = [seen_scene(generator) for _ in range(3000)]
    styles = [seen_style(generator) for _ in range(3000)]
    used = {(c.shape, c.colour, c.texture) for b in POCKET_BENCHMARKS.values() for c in b.classes}
    assert not used & {(s.shape, s.colour, s.texture) for s in scenes}
    assert not HELD_OUT_STYLES & set(styles)
    assert {s.shape for s in scenes} == set(OUTLINES)
    assert {s.medium for s in styles} == set(MEDIA)
    assert {m for s in styles for m in s.modifiers} == set(MODIFIERS)
    assert max(len(s.modifiers) for s in styles) == 2  # styles with three modifiers are held out as well


# Captions


def test_captions_are_correct() -> None:
    generator = rng()
    meaning = {word: (field, value) for field, value, word in _meanings()}
    mentioned = dict.fromkeys(("shape", "colour", "texture", "size", "background", "medium", "modifiers"), 0)
    for _ in range(1500):
        scene, style = seen_scene(generator), seen_style(generator)
        for word in caption(scene, style, generator).strip(".").replace(",", " ").split():
            if word in meaning:
                field, value = meaning[word]
                mentioned[field] += 1
                if field == "modifiers":
                    assert value in style.modifiers
                else:
                    assert value == (style.medium if field == "medium" else getattr(scene, field))
    assert min(mentioned.values()) > 300


def _meanings() -> list[tuple[str, str, str]]:
    """(field, value, word) of every word that describes an image."""
    found = [("shape", shape, word) for shape in OUTLINES for word in shape.split()]
    for field, table in (("colour", COLOURS), ("texture", TEXTURES), ("size", SIZES), ("background", BACKGROUNDS)):
        found += [(field, word, word) for word in table]
    found += [("medium", medium, word) for medium, words in MEDIUM_WORDS.items() for word in words]
    return found + [("modifiers", modifier, word) for modifier, words in MODIFIER_WORDS.items() for word in words]


def test_names_follow_contexts_of_varying_length_and_captions_fit_the_models() -> None:
    generator = rng()
    texts = [caption(seen_scene(generator), seen_style(generator), generator) for _ in range(2000)]
    tokens = context_length_tokens(texts)
    length = tokens.argmax(1) + 1
    assert length.max() <= 48
    colour = open_clip.get_tokenizer("ViT-B-32").encode("purple")[0]
    positions = {int(position) for row in tokens for position in np.flatnonzero(row == colour)}
    assert set(range(17, 26)) <= positions  # positions of a class name after 16 context vectors


# Benchmarks


def test_benchmarks_have_distinct_styles_and_20_to_60_held_out_classes() -> None:
    assert len(POCKET_BENCHMARKS) >= 5
    assert len(HELD_OUT_STYLES) == len(POCKET_BENCHMARKS)
    for name, benchmark in POCKET_BENCHMARKS.items():
        names = benchmark.class_names
        assert name == benchmark.name
        assert 20 <= len(names) == len(set(names)) <= 60
        assert all(held_out(c.shape, c.colour, c.texture) for c in benchmark.classes)
        assert len({(c.shape, c.colour, c.texture) for c in benchmark.classes}) == len(names)
        assert len({len(words.split()) for words in names}) >= 3
        assert benchmark.train >= 16
        assert benchmark.val >= 4
        assert benchmark.test >= 20


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory):
    return render_benchmark("pocket-negative", tmp_path_factory.mktemp("pocket"))


def test_rendered_benchmark_has_the_stated_counts_and_files(rendered) -> None:
    benchmark = POCKET_BENCHMARKS["pocket-negative"]
    entries = json.loads((rendered / "split.json").read_text())
    assert list(entries) == ["train", "val", "test"]
    paths = [path for items in entries.values() for path, _, _ in items]
    assert len(paths) == len(set(paths)) == len(list((rendered / "images").rglob("*.png")))
    for split, items in entries.items():
        labels = [label for _, label, _ in items]
        assert [labels.count(c) for c in range(20)] == [getattr(benchmark, split)] * 20
        assert all(benchmark.class_names[label] == name for _, label, name in items)
    assert all((rendered / "images" / path).is_file() for path in paths)
    assert IMAGE_SIZE > 48
    assert [p.name for p in rendered.parent.iterdir()] == [rendered.name]  # no temporary folder is left


def test_rendering_is_deterministic(rendered, shared_cache) -> None:
    """The other folder is rendered here or was by another process of the tests."""

    def digest(folder) -> str:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        content = b"".join(str(path.relative_to(folder)).encode() + path.read_bytes() for path in files)
        return hashlib.sha256(content).hexdigest()

    other = render_benchmark("pocket-negative", shared_cache / "data")
    assert other != rendered and digest(other) == digest(rendered)


def test_existing_benchmark_is_not_changed(rendered) -> None:
    before = (rendered / "split.json").stat().st_mtime_ns
    assert render_benchmark("pocket-negative", rendered.parent) == rendered
    assert (rendered / "split.json").stat().st_mtime_ns == before


def test_a_benchmark_that_is_not_in_the_table_is_rendered(rendered, tmp_path) -> None:
    """More test images and fewer classes leave the train and val images of the classes unchanged."""
    other = replace(POCKET_BENCHMARKS["pocket-negative"], n_classes=4, test=25)
    folder = render_benchmark(other, tmp_path)
    entries, before = (json.loads((root / "split.json").read_text()) for root in (folder, rendered))
    assert len(entries["test"]) == 4 * 25
    assert (entries["train"], entries["val"]) == (before["train"][: 4 * 24], before["val"][: 4 * 4])
    for path, _, _ in (*before["train"][:50], *before["test"][:50]):
        assert (folder / "images" / path).read_bytes() == (rendered / "images" / path).read_bytes()
