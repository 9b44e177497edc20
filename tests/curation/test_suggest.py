from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from slimprompt import Classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.curation.suggest import POOL, farthest_first, least_certain, suggest_images
from slimprompt.errors import InputError
from slimprompt.images.bank import FeatureBank
from tests.curation.conftest import Planted
from tests.curation.test_duplicates import at_degrees


def test_the_pool_has_the_smallest_margins_without_near_duplicates():
    margins = np.array([0.5, 0.1, 0.3, 0.2, 0.1, 0.4])
    features = at_degrees(0, 20, 21, 50, 70, 51)
    compared = []

    def same(one: int, other: int) -> bool:
        compared.append((one, other))
        return True

    assert least_certain(margins, features, 3, same) == ([1, 4, 3], 0)  # the earlier one of equal margins is first
    assert compared == []
    assert least_certain(margins, features, 9, same) == ([1, 4, 3, 0], 2)
    assert compared == [(1, 2), (3, 5)]
    assert least_certain(margins, features, 9, lambda *_: False) == ([1, 4, 3, 2, 5, 0], 0)


def test_farthest_first_by_hand():
    chosen = farthest_first(at_degrees(0, 10, 100, 180, 30), 4)
    cosines = [None, -1.0, np.cos(np.radians(80)), np.cos(np.radians(30))]
    assert [index for index, _ in chosen] == [0, 3, 2, 4]  # 180° away, then 80° from the nearest, then 30°
    assert chosen[0][1] is None
    assert [value for _, value in chosen[1:]] == pytest.approx(cosines[1:], abs=1e-6)
    assert [index for index, _ in farthest_first(at_degrees(0, 90, 90), 9)] == [0, 1, 2]


@pytest.fixture(scope="module")
def classifier(planted: Planted, pocket: Backbone) -> Classifier:
    paths = sorted(planted.folder.glob("test/*/024.png"))
    return Classifier(pocket, method="zero-shot", cache=False).fit(paths, [path.parent.name for path in paths])


def test_suggestions_are_uncertain_and_different(planted: Planted, classifier: Classifier, pocket_bank: FeatureBank):
    paths = sorted(planted.folder.glob("train/*/*.png"))
    found = suggest_images(classifier, pocket_bank, paths, 10)
    assert len(found.chosen) == 10 and found.n_images == len(paths)
    images = [one.image for one in found.chosen]
    probabilities = classifier.probabilities(pocket_bank.features(images))
    highest = np.sort(probabilities, axis=1)[:, ::-1]
    for one, row, values in zip(found.chosen, probabilities, highest, strict=True):
        assert (
            one.best == classifier.classes_[row.argmax()]
            and row[list(classifier.classes_).index(one.second)] == values[1]
        )
        assert (one.probability, one.second_probability) == pytest.approx(tuple(values[:2]))
        assert one.margin == pytest.approx(values[0] - values[1])
    everything = classifier.probabilities(pocket_bank.features(paths))
    margins = np.sort(everything, axis=1)[:, -1] - np.sort(everything, axis=1)[:, -2]
    assert found.chosen[0].margin == pytest.approx(margins.min())
    assert max(one.margin for one in found.chosen) <= np.sort(margins)[POOL * 10 - 1 + found.n_duplicates] + 1e-9
    features = pocket_bank.features(images).numpy()
    nearest = [float((features[:index] @ features[index]).max()) for index in range(1, 10)]
    assert [one.similarity for one in found.chosen[1:]] == pytest.approx(nearest, abs=1e-5)
    assert nearest == sorted(nearest)
    assert suggest_images(classifier, pocket_bank, paths, 10) == found


def test_near_duplicates_are_not_suggested_twice(
    planted: Planted, classifier: Classifier, pocket_bank: FeatureBank, tmp_path: Path
):
    paths = sorted(planted.folder.glob("test/*/025.png"))
    copies = [Path(shutil.copy(path, tmp_path / f"{number}.png")) for number, path in enumerate(paths)]
    alone = suggest_images(classifier, pocket_bank, paths, 50)
    found = suggest_images(classifier, pocket_bank, [*paths, *copies, *paths], 50)
    assert [one.image for one in found.chosen] == [one.image for one in alone.chosen] and len(alone.chosen) == len(
        paths
    )
    assert [one.margin for one in found.chosen] == pytest.approx([one.margin for one in alone.chosen], abs=1e-5)
    assert (found.n_images, found.n_duplicates) == (2 * len(paths), len(paths))


def test_training_images_are_left_out(planted: Planted, pocket: Backbone, pocket_bank: FeatureBank, tmp_path: Path):
    trained, others = (sorted(planted.folder.glob(f"test/*/{name}.png")) for name in ("024", "025"))
    classifier = Classifier(pocket, method="gda", views=0, cache=False)
    classifier.fit(trained, [path.parent.name for path in trained])
    copy = Path(shutil.copy(trained[0], tmp_path / "elsewhere.png"))
    found = suggest_images(classifier, pocket_bank, [*trained, copy, *others], 50)
    assert (found.n_trained, found.n_images) == (len(trained) + 1, len(others))
    assert {one.image for one in found.chosen} <= set(others)
    with pytest.raises(InputError, match="training images of the model"):
        suggest_images(classifier, pocket_bank, trained)


def test_bad_input(planted: Planted, classifier: Classifier, pocket_bank: FeatureBank, tmp_path: Path):
    broken, good = tmp_path / "broken.png", next(planted.folder.glob("test/*/025.png"))
    broken.write_bytes(b"no image")
    found = suggest_images(classifier, pocket_bank, [broken, good])
    assert [one.image for one in found.chosen] == [good] and "broken.png" in found.unreadable[0]
    with pytest.raises(InputError, match=r"none of the 1 images can be read: .*broken\.png"):
        suggest_images(classifier, pocket_bank, [broken])
    with pytest.raises(InputError, match="at least 1"):
        suggest_images(classifier, pocket_bank, [good], 0)
    with pytest.raises(InputError, match="nothing to decide"):
        suggest_images(classifier.with_classes([str(classifier.classes_[0])]), pocket_bank, [good])
