from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from slimprompt.curation.duplicates import check_similarity, most_similar_pairs, pixel_correlation, small_pixels
from slimprompt.errors import InputError
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS


def at_degrees(*angles: float) -> np.ndarray:
    """Unit vectors in the plane."""
    radians = np.radians(angles)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def test_each_image_is_paired_with_its_most_similar_image_of_another_group():
    features = at_degrees(0, 1, 4, 40, 41, 90)
    groups = np.array([0, 1, 1, 0, 0, 1])
    pairs = most_similar_pairs(features, groups, np.zeros(6), threshold=np.cos(np.radians(5)))
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 1), (0, 2)]  # 3 and 4 are of one group
    assert [pair.similarity for pair in pairs] == pytest.approx([np.cos(np.radians(1)), np.cos(np.radians(4))])


def test_only_images_with_an_equal_second_value_are_compared():
    features = at_degrees(0, 1, 2)
    pairs = most_similar_pairs(features, np.array([0, 1, 1]), np.array([7, 8, 7]), threshold=0.99)
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 2)]


def test_equal_features_are_found_whatever_their_rounding():
    rng = np.random.default_rng(0)
    one = rng.standard_normal((50, 512)).astype(np.float32)
    one /= np.linalg.norm(one, axis=1, keepdims=True)
    features = np.concatenate([one, one])
    pairs = most_similar_pairs(features, np.repeat([0, 1], 50), np.zeros(100), threshold=1.0)
    assert {(pair.first, pair.second) for pair in pairs} == {(index, index + 50) for index in range(50)}
    assert all(pair.similarity <= 1 for pair in pairs)


def test_more_images_than_one_block(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(1)
    features = rng.standard_normal((57, 3)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    groups = rng.integers(0, 3, 57)
    expected = set()
    for one in range(57):  # plain loop
        others = [
            (float(features[one] @ features[other]), other) for other in range(57) if groups[other] != groups[one]
        ]
        value, other = max(others)
        if value >= 0.95:
            expected.add((min(one, other), max(one, other)))
    for rows in (5, 1024):
        monkeypatch.setattr("slimprompt.curation.duplicates._ROWS", rows)
        pairs = most_similar_pairs(features, groups, np.zeros(57), threshold=0.95)
        assert {(pair.first, pair.second) for pair in pairs} == expected
        values = [pair.similarity for pair in pairs]
        assert values == sorted(values, reverse=True)
    assert len(expected) > 10


def test_no_other_group_gives_no_pairs():
    assert most_similar_pairs(at_degrees(0, 0), np.zeros(2), np.zeros(2), threshold=0.5) == []


@pytest.mark.parametrize("value", [0.0, -1.0, 1.01, float("nan")])
def test_a_similarity_out_of_range(value: float):
    with pytest.raises(InputError, match="above 0 and at most 1"):
        check_similarity(value)


def test_pixels_tell_copies_from_other_images():
    world = POCKET_BENCHMARKS["pocket-negative"]
    one, other = (Image.fromarray(world.image(0, number)) for number in (0, 1))
    copies = [one.resize((48, 48)), ImageEnhance.Brightness(one).enhance(1.05), one.convert("RGBA")]
    assert all(pixel_correlation(small_pixels(one), small_pixels(copy)) > 0.98 for copy in copies)
    assert pixel_correlation(small_pixels(one), small_pixels(other)) < 0.95
    pixels = small_pixels(one)
    assert pixel_correlation(pixels, -pixels) == pytest.approx(-1)
    expected = np.corrcoef(pixels, small_pixels(other))[0, 1]
    assert pixel_correlation(pixels, small_pixels(other)) == pytest.approx(expected)


def test_pixels_of_images_without_contrast():
    grey, red = (small_pixels(Image.new("RGB", (9, 9), colour)) for colour in ("grey", "red"))
    assert pixel_correlation(grey, grey) == pytest.approx(1)
    assert abs(pixel_correlation(grey, red)) < 0.01
