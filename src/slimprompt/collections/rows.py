"""What is known about one image after `predict`, and how it is written: one definition of the columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slimprompt.calibration import NONE_OF_THESE

if TYPE_CHECKING:
    from torch import Tensor

    from slimprompt.classifier import Classifier

#: Columns of a table with one row per image and class, as `cells` makes them.
COLUMNS = ("image", "rank", "class", "probability", "answer", "concept_match")
#: The column that tables of collections have in addition: why an image could not be read.
ERROR = "error"


class Prediction(NamedTuple):
    """What is known about one image; its numbers are rounded to six digits."""

    image: str
    answer: str | None
    """The most likely class, or "none of these" if it is not likely enough; None if the image could not be read."""
    match: float | None
    """Maximum concept matching: low for an image that is none of the classes."""
    classes: tuple[tuple[str, float], ...]
    """The most likely classes with their probabilities, best first."""
    error: str | None = None
    """Why the image could not be read."""

    @classmethod
    def unreadable(cls, image: str, error: str) -> Prediction:
        """The row of an image that could not be read."""
        return cls(image, None, None, (), error)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON data, without the error."""
        classes = [{"name": name, "probability": value} for name, value in self.classes]
        return {"image": self.image, "answer": self.answer, "concept_match": self.match, "classes": classes}

    def as_line(self) -> str:
        """JSON with the error, without line breaks."""
        return json.dumps(self.as_json() | {ERROR: self.error}, ensure_ascii=False)

    def cells(self) -> Iterator[tuple[Any, ...]]:
        """One row of `COLUMNS` per class; a row without a class for an image that could not be read."""
        for rank, (name, value) in enumerate(self.classes, 1):
            yield self.image, rank, name, value, self.answer, self.match
        if not self.classes:
            yield self.image, None, None, None, self.answer, self.match


def six_digits(cells: Iterable[Any]) -> list[Any]:
    """Cells for a text file: floats with six digits."""
    return [f"{cell:.6f}" if isinstance(cell, float) else cell for cell in cells]


def make_predictions(
    classifier: Classifier, images: Sequence[str], features: Tensor, *, top: int, lowest: float
) -> list[Prediction]:
    """Predictions with the `top` best classes for the features (n_images, embed_dim) of images of these names.

    The answer is "none of these" if the probability of the best class is lower than `lowest`.
    """
    class_names, probabilities = classifier.class_names_, classifier.probabilities(features)
    matches = classifier.concept_match(features)
    found = []
    for image, row, order, match in zip(images, probabilities, _best(probabilities, top), matches, strict=True):
        classes = tuple((class_names[index], round(float(row[index]), 6)) for index in order)
        answer = class_names[order[0]] if row[order[0]] >= lowest else NONE_OF_THESE
        found.append(Prediction(image, answer, round(float(match), 6), classes))
    return found


def _best(probabilities: np.ndarray, top: int) -> np.ndarray:
    """Indices of the `top` largest probabilities of each row, largest first, (n_images, top)."""
    if top < probabilities.shape[1]:
        chosen = np.argpartition(-probabilities, top - 1, axis=1)[:, :top]
    else:
        chosen = np.broadcast_to(np.arange(probabilities.shape[1]), probabilities.shape)
    order = np.argsort(-np.take_along_axis(probabilities, chosen, axis=1), axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1)
