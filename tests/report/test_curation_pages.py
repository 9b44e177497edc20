from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from slimprompt.classifier import Classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.curation.labels import DuplicatePair, LabelCheck, LabelledImage, SuspectedLabel
from slimprompt.curation.suggest import Suggestion, Suggestions
from slimprompt.report.curation_pages import write_labels_page, write_suggestions_page
from tests.html_page import Page


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Two images; the name of the second one is not UTF-8 and contains markup."""
    paths = [tmp_path / "one.png", tmp_path / "<b>caf\udce9.png"]
    for path, colour in zip(paths, ("red", "blue"), strict=True):
        Image.new("RGB", (40, 20), colour).save(path)
    return paths


def read(path: Path) -> tuple[str, Page]:
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert text.count("<script") == 1 and "<b>caf" not in text
    assert all(str(image["src"]).startswith("data:image/") for image in page.all("img"))
    assert not page.all("link") and "http://" not in text and "https://" not in text
    return " ".join(page.text.split()), page


def test_the_page_of_suggestions(images: list[Path], tiny: Backbone, tmp_path: Path):
    chosen = [
        Suggestion(images[0], "red & <i>panda", 0.51, "otter", 0.49, 0.02, None),
        Suggestion(images[1], "otter", 0.6, "cat", 0.35, 0.25, 0.834),
    ]
    found = Suggestions(chosen, 1234, 3, 0, ["cannot read x.png"])
    classifier = Classifier(tiny, method="zero-shot", cache=False).fit(images[:1] * 2, ["otter", "cat"])
    text, page = read(
        write_suggestions_page(tmp_path / "a" / "page.html", found, model="my-<b>", classifier=classifier)
    )
    for part in (
        "2 of 1,234 unlabelled images",
        "1. red & <i>panda (51 %) or otter (49 %) margin 2.0",
        "2. otter (60 %) or cat (35 %) margin 25.0, similarity 0.83",
        "(3 here)",
        "my-<b>",
        "1 unreadable image left out: cannot read x.png",
        "caf\\udce9.png",
    ):
        assert part in text, part
    assert len(page.all("img")) == 2 and "pocket world" not in text


def labelled(path: Path, class_name: str, split: str = "train") -> LabelledImage:
    return LabelledImage(path, split, class_name)


def test_the_page_of_findings(images: list[Path], tiny: Backbone, tmp_path: Path):
    suspect = SuspectedLabel(labelled(images[0], "<i>cat"), 0.0123, 0.004, "dog", 0.92)
    pairs = [
        DuplicatePair(labelled(images[0], "cat"), labelled(images[1], "dog"), 1.0, 1.0, exact=True),
        DuplicatePair(labelled(images[0], "cat"), labelled(images[1], "cat", "test"), 0.98, 0.975, exact=False),
    ]
    every = [labelled(path, "cat") for path in images] * 1000
    found = LabelCheck(
        every, ["cat", "dog", "<i>cat"], 0.875, 0.01, [suspect], pairs, {"<rare>": 2}, ["cannot read x.png"]
    )
    settings = {"source": "photos", "backbone": tiny, "max_score": 0.1, "similarity": 0.97}
    text, page = read(write_labels_page(tmp_path / "page.html", found, **settings))
    for part in (
        "2,000 labelled images of 3 classes",
        "87.5 %",
        "labelled <i>cat (0.4 %) more likely dog (92 %) score 0.012, train",
        "The same file across classes similarity 1.000, pixels 1.000",
        "Near-duplicates across splits similarity 0.980, pixels 0.975",
        "cat (test)",
        "<rare> (2)",
        "score below 0.1",
        "caf\\udce9.png",
    ):
        assert part in text, part
    assert len(page.all("img")) == 5


def test_the_page_without_findings(tiny: Backbone, tmp_path: Path):
    settings = {"source": "photos", "backbone": tiny, "max_score": 0.1, "similarity": 0.97}
    for accuracy, part in ((0.9, "the lowest is 0.42"), (None, "No label could be checked")):
        found = LabelCheck([], ["cat", "dog"], accuracy, accuracy and 0.42, [], [], {}, [])
        text, page = read(write_labels_page(tmp_path / "page.html", found, **settings))
        assert part in text and "No near-duplicates across classes or splits were found." in text
        assert not page.all("img")


def test_long_lists_are_cut(images: list[Path], tiny: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("slimprompt.report.curation_pages.MOST_SHOWN", 2)
    suspect = SuspectedLabel(labelled(images[0], "cat"), 0.01, 0.004, "dog", 0.92)
    pair = DuplicatePair(labelled(images[0], "cat"), labelled(images[1], "dog"), 1.0, 1.0, exact=True)
    found = LabelCheck([], ["cat", "dog"], 0.9, 0.01, [suspect] * 3, [pair] * 4, {}, [])
    settings = {"source": "photos", "backbone": tiny, "max_score": 0.1, "similarity": 0.97}
    text, page = read(write_labels_page(tmp_path / "page.html", found, **settings))
    assert "The first 2 of 3 are shown." in text and "The first 2 of 4 are shown." in text
    assert len(page.all("img")) == 6
