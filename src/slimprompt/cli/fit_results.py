"""What `fit` and `evaluate` print and write about a fitted classifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slimprompt.cli.printing import emit, note, percent, say
from slimprompt.errors import count, first_few

if TYPE_CHECKING:
    from slimprompt.classifier import Classifier
    from slimprompt.comparison import MethodComparison
    from slimprompt.data import Benchmark
    from slimprompt.data.folder import FolderBenchmark
    from slimprompt.fit import Comparison, Fit
    from slimprompt.scores import Difference

#: Messages about skipped images that are shown.
_MESSAGES = 3


def print_fit(result: Fit, images: Benchmark, shots: int | None, manifest: Path | None) -> None:
    """Print what was trained, on which images, and how long it took."""
    from slimprompt.data.folder import FolderBenchmark

    classifier, names = result.classifier, result.task.class_names
    counts = Counter(names[label] for label in result.task.labels)
    short = {name: counts[name] for name in names if counts[name] < (shots or 0)}
    more = "up to " if short else ""
    if result.n_train > (shots or 0) * len(images.class_names):  # images of a warm start are kept
        more = "at least "
    where = f"{more}{shots} per class" if shots else f"from {manifest}"
    say(f"{len(images.class_names)} classes, {result.n_train} training images ({where}), {result.n_held_out} held out")
    if short:
        few = ", ".join(f"{name} ({number})" for name, number in list(short.items())[:5])
        note(f"fewer than {shots} images, all used:", f"{few}{' …' if len(short) > 5 else ''}")
    if isinstance(images, FolderBenchmark) and images.ignored:
        _note_ignored(images)
    note_skipped(result.skipped)
    say(f"{_describe(classifier)} on {classifier.backbone_.title} in {result.seconds:.1f} s")
    if classifier.calibrate:
        _say_calibration(result)


def _say_calibration(result: Fit) -> None:
    """Say what the calibration did: the temperature, or why there is none."""
    from slimprompt.calibration import calibration_folds

    temperature, task = result.classifier.calibration_.temperature, result.task
    n = sum(len(held_out) for _, held_out in calibration_folds(task.labels, task.seed))
    if not n:
        note("not calibrated:", "with one training image per class, none can be held out")
    elif temperature == 1.0:
        note(
            "not calibrated:",
            f"on the {count(n, 'training image')} that were held out in turn, no temperature improves the probabilities by more than "
            "its standard error",
        )
    else:
        say(
            f"calibrated on {count(n, 'training image')}, held out in turn, in {result.calibration_seconds:.1f} s: temperature "
            f"{temperature:.2f}"
        )


def _note_ignored(images: FolderBenchmark) -> None:
    """Name some files and folders that were not read as images, and count the images below such folders."""
    from slimprompt.images.decode import HEIC_SUFFIXES, IMAGE_SUFFIXES

    allowed = ", ".join(sorted(IMAGE_SUFFIXES))
    note(
        f"{images.ignored:,} other files or folders ignored:",
        f"{first_few(images.ignored_paths)}; images are <class>/<image> and end in {allowed}",
    )
    if n_deeper := images.count_ignored_images():
        note(f"{count(n_deeper, 'image')} in deeper folders ignored:", "move them up, to <class>/<image>, to use them")
    if any(Path(name).suffix.lower() in HEIC_SUFFIXES for name in images.ignored_paths):
        note("HEIC files ignored:", "convert HEIC to JPEG")


def _describe(classifier: Classifier) -> str:
    """What was trained: `64 numbers trained (fixed-B, rank 2, orthogonal basis)`."""
    spec = classifier.spec_
    if spec is None:
        parts = [classifier.method_, *(f"{name} {value:g}" for name, value in classifier.settings_.items())]
    else:
        rank, basis = (spec.rank and f"rank {spec.rank}"), (spec.basis and f"{spec.basis} basis")
        parts = [part for part in (spec.variant, rank, basis, *spec.start) if part]
    return f"{classifier.n_trained_:,} numbers trained ({', '.join(parts)})"


def note_skipped(messages: Sequence[str], *, err: bool = False) -> None:
    """Say how many unreadable images were skipped, with the first few messages."""
    if messages:
        more = "; …" if len(messages) > _MESSAGES else ""
        shown = "; ".join(messages[:_MESSAGES])
        note(f"{count(len(messages), 'unreadable image')} skipped:", f"{shown}{more}", err=err)


def note_missing_classes(comparison: Comparison, kind: str) -> None:
    """Say which classes have no images of this kind, such as "images to evaluate on"."""
    if missing := comparison.classes_without_images:
        note(
            f"{len(missing)} of {len(comparison.eval_set.class_names)} classes have no {kind}:",
            f"{first_few(missing)}; the accuracy is that of the others",
        )


def note_training_images(comparison: Comparison) -> None:
    """Say how many of the images were training images, and the accuracy on the others."""
    n_known, n = comparison.n_training_images, len(comparison.images)
    if not n_known:
        return
    others = comparison.without_training_images()
    if others is None:
        note(f"all {n} images were training images:", "these numbers say nothing about new images")
        return
    value, low, high = others.fitted.scores.accuracy
    note(
        f"{n_known} of the {n} images were training images:",
        f"without them, the accuracy is {value:.1f} % ({low:.1f}–{high:.1f}) on {n - n_known} images",
    )


def print_scores(comparison: Comparison, *, verbose: bool) -> None:
    """Print the accuracy of zero-shot, of the fitted classifier and of chance, and with `verbose` that of each class."""
    n_classes = len(comparison.eval_set.class_names)
    rows = [{"": one.title, "accuracy": float(one.correct.mean())} for one in comparison.results]
    rows.append({"": f"chance ({n_classes} classes)", "accuracy": 1 / n_classes})
    emit(rows, columns={"": str, "accuracy": percent})
    note_missing_classes(comparison, "images to evaluate on")
    if verbose:
        print_classes(comparison)
    note_training_images(comparison)


def print_classes(comparison: Comparison) -> None:
    """Print the accuracy of each class."""
    title = comparison.fitted.title
    rows = [
        {"class": name, "images": n, "zero-shot": before, title: after}
        for name, n, before, after in comparison.by_class()
    ]
    whole = partial(percent, digits=0)
    emit(rows, columns={"class": str, "images": str, "zero-shot": whole, title: whole})


def print_methods(methods: MethodComparison, saved: str) -> None:
    """Print one line per method on the same images, which of them is chosen, and how to save another than the saved one."""

    def interval(gain: Difference | None) -> str:
        if gain is None:
            return "–"
        value, low, high = (f"{number:+.0f}".replace("-", "−") for number in gain)
        return f"{value} ({low}, {high})"

    has_prompt = any(one.method == "prompt" for one in methods.results)
    which = "all methods" if has_prompt else "all methods without a prompt"
    say(f"{which} on the same {len(methods.zero_shot.correct):,} held-out images:")
    rows = [
        {
            "method": one.method,
            "inside": one.inside,
            "held out": one.accuracy.value / 100,
            "− zero-shot": interval(None if one is methods.zero_shot else methods.gain(one)),
            "− chosen": interval(None if one is methods.chosen else methods.behind(one)),
            "params": one.n_trained,
            "new": "yes" if one.takes_new_names else "no",
        }
        for one in methods.results
    ]
    columns = dict.fromkeys(rows[0], str) | {"inside": percent, "held out": percent, "params": "{:,}".format}
    emit(rows, columns=columns)
    say(
        "inside: cross-validated within the training images; −: difference in points with its paired 95 % interval; params: numbers "
        "that are trained; new: takes new class names"
    )
    say(methods.sentence)
    if methods.chosen is not None and methods.chosen.method != saved:
        say(f"What was saved is {saved}: --save-best saves {methods.chosen.method}, --method NAME another one.")
