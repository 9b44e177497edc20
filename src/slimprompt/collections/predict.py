"""Predict a collection part by part: images are decoded ahead on threads and encoded in batches.

Features are not stored in the feature bank: a large collection is usually encoded once, and its features would take more disk
than its predictions. On a CPU they equal those of the bank, since every batch is padded to one size in the same way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from slimprompt import __version__
from slimprompt.classifier import Classifier, load_classifier
from slimprompt.collections.inputs import Collection
from slimprompt.collections.output import Write, answers_in, writer_of
from slimprompt.collections.parts import PART_SIZE, FinishedPart, Part, PartsFolder, digest_of, parts_of
from slimprompt.collections.rows import Prediction, make_predictions
from slimprompt.errors import InputError
from slimprompt.files import check_files, locked_folder, new_file
from slimprompt.images.encoding import BATCH, encoded
from slimprompt.images.views import eval_pixels
from slimprompt.progress import progress
from slimprompt.saved import read_model

#: Called with the number of images that are done.
Advance = Callable[[int], None]


@dataclass(frozen=True)
class PredictionSpec:
    """A saved model and how it answers: everything that decides the row of an image."""

    model: str
    """What `Classifier.save` was given, or hf:user/name."""
    top: int = 1
    """Number of classes per image."""
    classes: tuple[str, ...] | None = None
    """Other class names than those of the model."""
    min_confidence: float | None = None
    coverage: float | None = None
    """When to answer "none of these"; see `slimprompt predict`."""
    pretrained: str | None = None
    activation: str | None = None
    device: str = "auto"
    precision: str = "fp32"
    """Passed to `load_classifier`."""
    batch_size: int = BATCH
    """Images that are encoded together. Another size changes results by float rounding."""

    def classifier(self) -> tuple[Classifier, float]:
        """The loaded classifier, and the lowest confidence of an answer."""
        if self.min_confidence is not None and self.coverage is not None:
            raise InputError(
                "--min-confidence and --coverage both set the lowest confidence of an answer: give one of them"
            )
        options = {name: getattr(self, name) for name in ("pretrained", "activation", "device", "precision")}
        classifier = load_classifier(self.model, **options)
        if self.classes is not None:
            classifier = classifier.with_classes(self.classes)
        if self.coverage is not None:
            return classifier, classifier.calibration_.threshold(self.coverage)
        return classifier, self.min_confidence or 0.0


class PartPredictor(Protocol):
    """Predicts parts, here or elsewhere."""

    manifest: dict[str, Any]
    """What decides the rows, as plain JSON data."""

    def predict_parts(self, parts: Iterable[Part], advance: Advance) -> Iterator[FinishedPart]:
        """Predict parts, in any order; `advance` is called with the number of images that are done."""

    def close(self) -> None:
        """End what was started."""


class LocalPredictor:
    """Predicts parts in this process, on as many decoding threads as there are cores unless `workers` says otherwise.

    An unreadable image is a prediction with an error.
    """

    def __init__(self, spec: PredictionSpec, workers: int | None = None) -> None:
        self._spec, self._workers = spec, workers
        self._classifier, self._lowest = spec.classifier()
        self._backbone = self._classifier.backbone_
        self.manifest = {
            "slimprompt": __version__,
            "model": read_model(spec.model).description.checksum,
            "classes": list(self._classifier.class_names_),
            "top": spec.top,
            "lowest confidence": self._lowest,
            "device": self._backbone.device.type,
            "precision": spec.precision,
            "batch size": spec.batch_size,
        }

    def predict_parts(self, parts: Iterable[Part], advance: Advance) -> Iterator[FinishedPart]:
        """Predict parts in order, each in batches of its own, so that its rows do not depend on the parts before it."""
        return (self._predict_part(part, advance) for part in parts)

    def close(self) -> None:
        """Nothing was started."""

    def _predict_part(self, part: Part, advance: Advance) -> FinishedPart:
        names = [item.image for item in part.items]
        stamps = [""] * len(names)
        found: list[Prediction | None] = [None] * len(names)

        def view(position: int) -> np.ndarray:
            place = part.items[position].place
            stamps[position] = place.stamp()  # before the image is read
            return eval_pixels(place.open(names[position]), self._backbone.preprocess, names[position])[None]

        def unreadable(position: int, error: InputError) -> None:
            found[position] = Prediction.unreadable(names[position], str(error))
            advance(1)

        for views, features in encoded(
            self._backbone,
            range(len(names)),
            view,
            batch=self._spec.batch_size,
            workers=self._workers,
            unreadable=unreadable,
        ):
            positions = [position for position, _ in views]
            made = make_predictions(
                self._classifier,
                [names[position] for position in positions],
                features,
                top=self._spec.top,
                lowest=self._lowest,
            )
            for position, one in zip(positions, made, strict=True):
                found[position] = one
            advance(len(made))
        return FinishedPart(part.number, digest_of(part.items, stamps), [one for one in found if one is not None])


class Summary(NamedTuple):
    """What the output holds, and what a command has done for it."""

    answers: Counter[str | None]
    """Number of images of each answer; None stands for unreadable images."""
    predicted: int
    """Images that this command has predicted."""
    failed: int
    """Images that this command could not read; the others were finished before."""
    seconds: float
    """Time that this command took."""


def predict_collection(
    collection: Collection,
    target: Path,
    make_predictor: Callable[[], PartPredictor],
    *,
    overwrite: bool = False,
    part_size: int = PART_SIZE,
) -> Summary:
    """Predict all images and write a `.csv`, `.jsonl` or `.parquet` file, or a folder of parts, which the same call completes if stopped.

    The model is loaded by `make_predictor` when the target is known to be free. `overwrite` replaces a file, and discards parts of another
    model, other options or other images; otherwise these are an `InputError`.
    """
    write = writer_of(target)
    if write is not None:
        check_files(target, read=(Path(one.name) for one in collection.inputs))
        if target.exists() and not overwrite:
            raise InputError(f"{target} exists already; choose another name, or add --overwrite")
        with closing(make_predictor()) as predictor:
            return _write_file(collection, target, write, predictor, part_size)
    folder = PartsFolder(target)
    with locked_folder(target, f"writing {target}"):
        try:
            with closing(make_predictor()) as predictor:
                folder.begin({**predictor.manifest, "part size": part_size}, overwrite=overwrite)
                _check_images(folder, collection, part_size, overwrite=overwrite)
                return _write_parts(collection, folder, predictor, part_size)
        finally:
            folder.close()


def _write_file(
    collection: Collection, target: Path, write: Write, predictor: PartPredictor, part_size: int
) -> Summary:
    answers: Counter[str | None] = Counter()

    def predictions(advance: Advance) -> Iterator[Prediction]:
        early: dict[int, FinishedPart] = {}  # parts that have finished before an earlier one
        due = 0
        for part in predictor.predict_parts(parts_of(collection, part_size), advance):
            early[part.number] = part
            while due in early:
                for one in early.pop(due).predictions:
                    answers[one.answer] += 1
                    yield one
                due += 1

    start = time.perf_counter()
    with (
        progress("predicting", None, "images") as advance,
        new_file(target) as draft,
    ):
        write(draft, predictions(advance))
    return Summary(answers, answers.total() - answers[None], answers[None], time.perf_counter() - start)


def _write_parts(collection: Collection, folder: PartsFolder, predictor: PartPredictor, part_size: int) -> Summary:
    kept: list[Path] = []
    written: list[Path] = []
    answers: Counter[str | None] = Counter()

    def unfinished() -> Iterator[Part]:
        for part in parts_of(collection, part_size):
            if (path := folder.finished(part)) is not None:
                kept.append(path)
            else:
                yield part

    start = time.perf_counter()
    with progress("predicting", None, "images") as advance:
        for part in predictor.predict_parts(unfinished(), advance):
            written.append(folder.write(part))
            answers.update(one.answer for one in part.predictions)
    folder.complete([*kept, *written])
    seconds = time.perf_counter() - start
    return Summary(sum(map(answers_in, kept), answers), answers.total() - answers[None], answers[None], seconds)


def _check_images(folder: PartsFolder, collection: Collection, part_size: int, *, overwrite: bool) -> None:
    """Raise an error if there are parts but none of them is of these images, unless they may be discarded."""
    numbers = folder.numbers()
    if not numbers or overwrite:
        return
    if all(folder.finished(part) is None for part in islice(parts_of(collection, part_size), numbers[-1] + 1)):
        raise InputError(
            f"{folder.path} holds predictions of other images, or all images have changed since: choose another --out, or "
            "discard them with --overwrite"
        )
