"""The pages of `slimprompt suggest` and `slimprompt check-labels`: findings with thumbnails."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from slimprompt.clip.architectures import EMBEDDED
from slimprompt.clip.backbone import Backbone
from slimprompt.curation.duplicates import PIXEL_CORRELATION
from slimprompt.curation.labels import DuplicatePair, LabelCheck, LabelledImage
from slimprompt.curation.suggest import Suggestions
from slimprompt.errors import first_few, printable
from slimprompt.files import write_file
from slimprompt.images.decode import open_image
from slimprompt.report.html import render, thumbnail, weights_of

#: Findings of each kind that a page shows.
MOST_SHOWN = 300


class Shown(NamedTuple):
    """An image on a page: its path as text, and its thumbnail."""

    path: str
    thumbnail: str


def write_suggestions_page(path: str | Path, found: Suggestions, *, model: str, backbone: Backbone) -> Path:
    """Write the page about images to label next; `model` is the classifier, `backbone` encoded the images."""
    chosen = found.chosen[:MOST_SHOWN]
    values = {
        "title": "Images to label next",
        "contents": [("suggestions", "Suggestions"), ("method", "How they were chosen")],
        "found": found,
        "rows": [(_shown(one.image), one) for one in chosen],
        "about": [("Classifier", printable(model)), ("Model", weights_of(backbone))],
        "pocket": backbone.name in EMBEDDED,
    }
    return write_file(Path(path), render("suggest.html.j2", values))


def write_labels_page(
    path: str | Path, found: LabelCheck, *, source: str, backbone: Backbone, max_score: float, similarity: float
) -> Path:
    """Write the page about labels worth checking.

    `source` is the folder or CSV file of the images, `max_score` and `similarity` are the thresholds of `check_labels`.
    """
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
        "suspects": [(_shown(one.image.path), one) for one in found.suspects[:MOST_SHOWN]],
        "pairs": [_pair(pair) for pair in found.duplicates[:MOST_SHOWN]],
        "about": about,
        "pocket": backbone.name in EMBEDDED,
    }
    return write_file(Path(path), render("labels.html.j2", values))


def _shown(path: Path) -> Shown:
    return Shown(printable(str(path)), thumbnail(open_image(path), 128))


def _pair(pair: DuplicatePair) -> dict[str, Any]:
    def side(image: LabelledImage) -> tuple[Shown, LabelledImage]:
        return _shown(image.path), image

    return {"sides": [side(pair.first), side(pair.second)], "pair": pair}
