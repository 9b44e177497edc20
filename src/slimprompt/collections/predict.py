"""Predict a collection: images are decoded ahead on threads, encoded in batches, and written in parts.

Features are not stored in the feature bank: a large collection is usually encoded once, and its features would take more disk
than its predictions. On a CPU they equal those of the bank, since every batch is padded to one size in the same way.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from slimprompt import __version__
from slimprompt.classifiers.base import ImageClassifier
from slimprompt.classifiers.head import load_classifier
from slimprompt.collections.inputs import Collection, Item
from slimprompt.collections.output import writer_of
from slimprompt.collections.parts import PART_SIZE, FinishedPart, Part, PartsFolder, digest_of, parts_of
from slimprompt.collections.rows import Prediction, make_predictions
from slimprompt.errors import InputError
from slimprompt.files import check_files, locked_folder, new_file
from slimprompt.images.encoding import BATCH, encode_padded
from slimprompt.images.prefetch import prefetched
from slimprompt.images.views import eval_pixels
from slimprompt.progress import progress
from slimprompt.saved.models import model_digest

#: Called with the number of images that are done.
Advance = Callable[[int], None]


@dataclass(frozen=True)
class PredictionSpec:
    """A saved model and how it answers: everything that decides the row of an image.

    Attributes
    ----------
    model
        Folder of a saved prompt or head.
    top
        Number of classes per image.
    classes
        Other class names than those of the model.
    min_confidence, coverage
        When to answer "none of these"; see `slimprompt predict`.
    pretrained, activation, device, precision
        Passed to `load_classifier`.
    batch_size
        Images that are encoded together. Another size changes results by float rounding.
    """

    model: str
    top: int = 1
    classes: tuple[str, ...] | None = None
    min_confidence: float | None = None
    coverage: float | None = None
    pretrained: str | None = None
    activation: str | None = None
    device: str = "auto"
    precision: str = "fp32"
    batch_size: int = BATCH

    def classifier(self) -> tuple[ImageClassifier, float]:
        """The loaded classifier, and the lowest confidence of an answer."""
        if self.min_confidence is not None and self.coverage is not None:
            raise InputError(
                "--min-confidence and --coverage both set the lowest confidence of an answer: give one of them"
            )
        classifier: ImageClassifier = load_classifier(
            self.model,
            pretrained=self.pretrained,
            activation=self.activation,
            device=self.device,
            precision=self.precision,
        )
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
    """Predicts parts in this process.

    Parameters
    ----------
    spec
        The model and how it answers.
    workers
        Threads that decode images; default: one per core.
    """

    def __init__(self, spec: PredictionSpec, workers: int | None = None) -> None:
        self._spec, self._workers = spec, workers or os.cpu_count() or 1
        self._classifier, self._lowest = spec.classifier()
        self._backbone = self._classifier.backbone_
        self.manifest = {
            "slimprompt": __version__,
            "model": model_digest(spec.model),
            "classes": [str(name) for name in self._classifier.classes_],
            "top": spec.top,
            "lowest confidence": self._lowest,
            "device": self._backbone.device.type,
            "precision": spec.precision,
            "batch size": spec.batch_size,
        }

    def predict_parts(self, parts: Iterable[Part], advance: Advance) -> Iterator[FinishedPart]:
        """Predict parts in order."""
        tasks = ((part, item) for part in parts for item in part.items)
        ahead = self._spec.batch_size + 2 * self._workers  # the next batch is decoded while one is encoded
        decoded = prefetched(lambda task: self._decode(task[1]), tasks, self._workers, ahead)
        for number, some in groupby(decoded, key=lambda pair: pair[0][0].number):
            yield self._predict_part(number, ((item, *result) for (_, item), result in some), advance)

    def close(self) -> None:
        """Nothing was started."""

    def _predict_part(
        self, number: int, decoded: Iterable[tuple[Item, str, np.ndarray | InputError]], advance: Advance
    ) -> FinishedPart:
        items: list[Item] = []
        stamps: list[str] = []
        found: dict[int, Prediction] = {}

        def readable() -> Iterator[tuple[int, np.ndarray]]:
            for position, (item, stamp, view) in enumerate(decoded):
                items.append(item)
                stamps.append(stamp)
                if isinstance(view, InputError):
                    found[position] = Prediction.unreadable(item.image, str(view))
                    advance(1)
                else:
                    yield position, view

        for positions, features in self._encoded(readable()):
            names = [items[position].image for position in positions]
            made = make_predictions(self._classifier, names, features, top=self._spec.top, lowest=self._lowest)
            found.update(zip(positions, made, strict=True))
            advance(len(made))
        return FinishedPart(number, digest_of(items, stamps), [found[position] for position in range(len(items))])

    def _encoded(self, views: Iterator[tuple[int, np.ndarray]]) -> Iterator[tuple[list[int], Tensor]]:
        """Positions and features of each batch; a batch is launched before the one before it is yielded, so a GPU is not idle."""
        before: tuple[list[int], Tensor] | None = None
        size = self._spec.batch_size
        while batch := list(islice(views, size)):
            features = encode_padded(self._backbone, np.stack([view for _, view in batch]), size)
            if before is not None:
                yield before
            before = [position for position, _ in batch], features
        if before is not None:
            yield before

    def _decode(self, item: Item) -> tuple[str, np.ndarray | InputError]:
        """The stamp, taken before the image is read, and its eval view as 8-bit pixels."""
        stamp = item.place.stamp()
        try:
            return stamp, eval_pixels(item.place.open(item.image), self._backbone.preprocess, item.image)
        except InputError as error:
            return stamp, error


class Summary(NamedTuple):
    """What a command has written."""

    images: int
    errors: int
    answers: Counter[str]
    """Number of images of each answer."""
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
    """Predict all images and write one file; if stopped, the same call resumes after the parts that were finished.

    Parameters
    ----------
    collection
        The images.
    target
        A `.csv`, `.jsonl` or `.parquet` file. It is written at the end, completely or not at all.
    make_predictor
        Loads the model; called when the target is known to be free.
    overwrite
        Replace the target, and discard finished parts of another model, other options or other images.
    part_size
        Images of a part.

    Raises
    ------
    InputError
        If the target exists, or finished parts were made by another model, with other options or of other images.
    """
    write = writer_of(target)
    check_files(target, read=(Path(one.name) for one in collection.inputs))
    folder = PartsFolder(target)
    with locked_folder(folder.path, f"writing {target}"):
        try:
            if target.exists() and not (overwrite or folder.has_parts):
                raise InputError(f"{target} exists already; choose another name, or add --overwrite")
            with closing(make_predictor()) as predictor:
                folder.open({**predictor.manifest, "part size": part_size}, overwrite=overwrite)
                _check_images(folder, collection, part_size, overwrite=overwrite)
                n_parts, predicted, failed, seconds = _predict_parts(folder, collection, predictor, part_size)
            answers: Counter[str | None] = Counter()
            with new_file(target) as draft:
                write(draft, _counted(folder.predictions(n_parts), answers))
            errors = answers.pop(None, 0)
            folder.remove()
        finally:
            if folder.path.exists() and not folder.has_parts:
                folder.remove()
    known = Counter({answer: n for answer, n in answers.items() if answer is not None})
    return Summary(sum(known.values()) + errors, errors, known, predicted, failed, seconds)


def _predict_parts(
    folder: PartsFolder, collection: Collection, predictor: PartPredictor, part_size: int
) -> tuple[int, int, int, float]:
    """Predict the parts that are not finished: number of parts, images predicted and failed, seconds."""
    n_parts = skipped = predicted = failed = 0

    def unfinished() -> Iterator[Part]:
        nonlocal n_parts, skipped
        for part in parts_of(collection, part_size):
            n_parts += 1
            if folder.is_finished(part):
                skipped += len(part.items)
            else:
                yield part

    start = time.perf_counter()
    with _Count(collection) as count, progress("predicting", None, "images") as show:

        def advance(n: int) -> None:
            show(n, total=None if count.total is None else count.total - skipped)

        for part in predictor.predict_parts(unfinished(), advance):
            folder.write(part)
            unreadable = sum(one.error is not None for one in part.predictions)
            predicted, failed = predicted + len(part.predictions) - unreadable, failed + unreadable
    return n_parts, predicted, failed, time.perf_counter() - start


def _check_images(folder: PartsFolder, collection: Collection, part_size: int, *, overwrite: bool) -> None:
    """Discard finished parts if none of them is of these images, or raise an error unless that was asked for."""
    last = folder.last_part()
    if last is None or any(folder.is_finished(part) for part in islice(parts_of(collection, part_size), last + 1)):
        return
    if not overwrite:
        raise InputError(
            f"{folder.path} holds finished parts of other images, or the images have changed since: choose another --out, or "
            "discard them with --overwrite"
        )
    folder.discard_parts()


def _counted(predictions: Iterable[Prediction], answers: Counter[str | None]) -> Iterator[Prediction]:
    for prediction in predictions:
        answers[prediction.answer] += 1
        yield prediction


class _Count:
    """Counts the images of a collection on a thread, so that predicting begins at once."""

    def __init__(self, collection: Collection) -> None:
        self._collection, self._stopped = collection, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.total: int | None = None
        """Number of images; None until it is known."""

    def __enter__(self) -> _Count:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        total = 0
        try:
            for _ in self._collection:
                total += 1
                if self._stopped.is_set():
                    return
        except InputError:  # the predictor meets it too
            return
        self.total = total
