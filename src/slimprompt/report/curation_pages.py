"""The pages of `slimprompt suggest` and `slimprompt check-labels`: findings with thumbnails, and controls to label the images.

The labels are saved by the browser, as a CSV file that `fit` takes. Its paths are absolute, since browsers choose the folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from slimprompt.classifier import Classifier
from slimprompt.clip.architectures import EMBEDDED
from slimprompt.clip.backbone import Backbone
from slimprompt.curation.duplicates import PIXEL_CORRELATION
from slimprompt.curation.labels import LabelCheck, LabelledImage, nothing_suspected
from slimprompt.curation.suggest import Suggestions
from slimprompt.data.benchmark import SPLITS, Benchmark
from slimprompt.errors import first_few, printable
from slimprompt.files import write_file
from slimprompt.images.decode import open_image
from slimprompt.report.html import asset, render, thumbnail, weights_of

#: Findings of each kind that a page shows.
MOST_SHOWN = 300


class Shown(NamedTuple):
    """An image on a page, with what can be chosen for it."""

    path: str
    thumbnail: str
    row: int | None
    """Its row in the CSV file; None if its name is not UTF-8, as the file is."""
    choices: tuple[str, ...]
    """Classes to choose by one key."""


class _Rows:
    """The rows of the CSV file that a page saves: path, label and split of each image; one without a label is left out."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []
        self._index: dict[str, int] = {}

    def add(self, path: Path, label: str, split: str) -> None:
        absolute = str(path.absolute())
        if printable(absolute) == absolute and absolute not in self._index:
            self._index[absolute] = len(self.rows)
            self.rows.append((absolute, label, split))

    def shown(self, path: Path, *choices: str) -> Shown:
        return Shown(
            printable(str(path)), thumbnail(open_image(path), 128), self._index.get(str(path.absolute())), choices
        )

    def page(
        self, template: str, path: str | Path, values: dict[str, Any], *, file: str, names: Iterable[str], backbone: str
    ) -> Path:
        """Write the page, with the style sheet and the script of these pages."""
        from markupsafe import Markup

        script = asset("curation.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        values |= {
            "editor": {
                "file": file,
                "backbone": backbone,
                "rows": json.dumps({"rows": self.rows, "file": file}),
                "names": sorted(names),
            },
            "style": Markup(asset("page.css") + asset("curation.css")),
            "script": Markup(script),
            "script_hash": Markup(f"sha256-{digest}"),
        }
        return write_file(Path(path), render(template, values))


def write_suggestions_page(
    path: str | Path, found: Suggestions, *, model: str, classifier: Classifier, labelled: Benchmark | None = None
) -> Path:
    """Write the page on which images are labelled that a classifier, of the folder `model`, is uncertain about.

    The CSV file that the page saves has the images that were labelled, after those that are `labelled` already.
    """
    rows = _Rows()
    names = {str(name) for name in classifier.class_names_}
    if labelled is not None:
        names.update(labelled.class_names)
        for split in SPLITS:
            for item in getattr(labelled, split):
                rows.add(labelled.path(item), item.class_name, split)
    chosen = found.chosen[:MOST_SHOWN]
    for one in chosen:
        rows.add(one.image, "", "train")
    values = {
        "title": "Images to label next",
        "contents": [("suggestions", "Suggestions"), ("method", "How they were chosen")],
        "found": found,
        "rows": [(rows.shown(one.image, one.best, one.second), one) for one in chosen],
        "about": [("Classifier", printable(model)), ("Model", weights_of(classifier.backbone_))],
        "pocket": classifier.backbone_.name in EMBEDDED,
    }
    return rows.page(
        "suggest.html.j2", path, values, file="labels.csv", names=names, backbone=classifier.backbone_.name
    )


def write_labels_page(
    path: str | Path, found: LabelCheck, *, source: str, backbone: Backbone, max_score: float, similarity: float
) -> Path:
    """Write the page on which labels are corrected: those of `found`, with the thresholds of `check_labels`.

    The CSV file that the page saves has all images that can be read, with their labels and what was changed.
    """
    rows = _Rows()
    for image in found.images:
        rows.add(image.path, image.class_name, image.split)

    def shown(image: LabelledImage, other: str) -> tuple[Shown, LabelledImage]:
        return rows.shown(image.path, *dict.fromkeys((image.class_name, other))), image

    pairs = found.duplicates[:MOST_SHOWN]
    about = [
        ("Images", printable(source)),
        ("Model", weights_of(backbone)),
        ("Suspected", f"labels with a score below {max_score:g}"),
        (
            "Near-duplicates",
            f"cosine similarity of features at least {similarity:g}, correlation of pixels at least {PIXEL_CORRELATION:g}",
        ),
    ]
    if found.unchecked:
        few = [f"{name} ({number})" for name, number in found.unchecked.items()]
        about.append(("Too few images to check the labels of", first_few(few)))
    values = {
        "title": "Labels to check",
        "contents": [("summary", "Summary"), ("labels", "Suspected labels"), ("duplicates", "Duplicates")],
        "found": found,
        "suspects": [(shown(one.image, one.suggested)[0], one) for one in found.suspects[:MOST_SHOWN]],
        "pairs": [
            (pair, [shown(pair.first, pair.second.class_name), shown(pair.second, pair.first.class_name)])
            for pair in pairs
        ],
        "nothing": nothing_suspected(found, max_score),
        "about": about,
        "pocket": backbone.name in EMBEDDED,
    }
    return rows.page(
        "labels.html.j2", path, values, file="corrected.csv", names=found.class_names, backbone=backbone.name
    )
