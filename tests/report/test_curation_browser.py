"""Labelling images on the pages of `suggest` and `check-labels`, in Chromium."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slimprompt import FeatureBank, PromptClassifier
from slimprompt.classifier import Classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.curation.labels import DuplicatePair, LabelCheck, LabelledImage, SuspectedLabel
from slimprompt.curation.suggest import suggest_images
from slimprompt.data import load_folder
from slimprompt.report.curation_pages import write_labels_page, write_suggestions_page
from tests.conftest import draw

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed (pip install 'slimprompt[dev]')"
)
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

pytestmark = pytest.mark.slow

CLASSES = ("blue disc", "green disc", "red disc")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Two images of each class, and a file whose name a spreadsheet would read as a formula."""
    for name in CLASSES:
        for number in range(2):
            draw(tmp_path / "photos" / name / f"{number}.png", name.split()[0], number)
    draw(tmp_path / "photos" / "red disc" / '=1+1, "a".png', "red", 5)
    return tmp_path / "photos"


@pytest.fixture
def press(browser: webdriver.Chrome, tmp_path: Path) -> Callable[..., None]:
    """Sends keys to the page; downloads go to `tmp_path / "downloads"`."""
    downloads = {"behavior": "allow", "downloadPath": str(tmp_path / "downloads")}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", downloads)

    def send(*keys: str) -> None:
        for key in keys:
            webdriver.ActionChains(browser).send_keys(key).perform()

    return send


def saved(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file that the browser has saved."""
    until = time.monotonic() + 20
    while not (folder / name).is_file():
        assert time.monotonic() < until, f"{name} was not saved"
        time.sleep(0.05)
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def no_problems(browser: webdriver.Chrome) -> bool:
    """Whether nothing was logged, such as a violation of the security policy, and nothing fetched."""
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    return browser.get_log("browser") == [] and not [name for name in fetched if not name.startswith("data:")]


def test_suggested_images_are_labelled_by_keys_and_the_file_is_fitted(
    browser: webdriver.Chrome, press: Callable[..., None], labelled: Path, tiny: Backbone, tmp_path: Path
) -> None:
    new = [draw(tmp_path / "new" / f"{number}.png", "red", 10 + number, 40 + number) for number in range(5)]
    known = load_folder(labelled)
    paths = [known.path(item) for item in known.items]
    classifier = Classifier(tiny, method="zero-shot", cache=False).fit(paths, [one.class_name for one in known.items])
    found = suggest_images(classifier, FeatureBank(tiny, None), new, 5)
    assert len(found.chosen) == 5
    page = write_suggestions_page(
        tmp_path / "page.html", found, model="m", classifier=classifier, labelled=load_folder(labelled)
    )
    browser.get(page.as_uri())
    press(Keys.ARROW_RIGHT, "1", "2", "/")  # the first and the second are labelled by one key
    press("Green_Disc", Keys.ENTER, "/", "@new class", Keys.ENTER, "1", "0", "s")  # a known class, a new one, none
    rows = saved(tmp_path / "downloads", "labels.csv")
    assert len(rows) == 7 + 4 and {row["split"] for row in rows} == {"train"}
    first, second, third, fourth, _ = found.chosen
    assert [(row["path"], row["label"]) for row in rows[7:]] == [
        (str(first.image), first.best),
        (str(second.image), second.second),
        (str(third.image), "green disc"),
        (str(fourth.image), "'@new class"),
    ]
    images = load_folder(tmp_path / "downloads" / "labels.csv")
    assert images.class_names == ("@new class", *CLASSES) and len(images.items) == 11
    PromptClassifier(tiny, n_ctx=4, rank=2, recipe={"epochs": 1, "views": 0}, cache=False).fit(
        [images.path(item) for item in images.items], [item.class_name for item in images.items]
    )
    assert no_problems(browser)


def test_labels_are_corrected_by_mouse_and_keys(
    browser: webdriver.Chrome, press: Callable[..., None], labelled: Path, tiny: Backbone, tmp_path: Path
) -> None:
    known = load_folder(labelled)
    images = [LabelledImage(known.path(item), "train", item.class_name) for item in known.items]
    suspect = SuspectedLabel(images[0], 0.01, 0.001, "red disc", 0.9)
    pair = DuplicatePair(images[0], images[2], 1.0, 1.0, exact=True)
    found = LabelCheck(images, list(CLASSES), 0.9, 0.01, [suspect], [pair], {}, [])
    page = write_labels_page(
        tmp_path / "page.html", found, source="photos", backbone=tiny, max_score=0.1, similarity=0.97
    )
    browser.get(page.as_uri())
    chosen = "return [...document.querySelectorAll('.choices')].map(c => c.querySelector('[aria-pressed=true]')?.dataset.label)"
    assert browser.execute_script(chosen) == ["blue disc", "blue disc", "green disc"]
    browser.find_element("css selector", "button[data-label='red disc']").click()
    typed = browser.execute_script("return document.querySelectorAll('.choices')[1].querySelector('input').value")
    assert browser.execute_script(chosen)[0] == "red disc" and typed == "red disc", "one image, one label"
    press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, "0")
    assert browser.execute_script(chosen)[2] == ""
    browser.find_element("id", "save").click()
    rows = saved(tmp_path / "downloads", "corrected.csv")
    assert len(rows) == 6 and rows[0]["label"] == "red disc" and str(images[2].path) not in {r["path"] for r in rows}
    corrected = load_folder(tmp_path / "downloads" / "corrected.csv")
    assert {corrected.path(item) for item in corrected.items} == {image.path for image in images} - {images[2].path}
    assert no_problems(browser)
