"""Calibration and unknown classes on the pocket benchmarks.

    python benchmarks/calibration.py [--benchmarks pocket-sketch pocket-comic] [--shots 2 4 16] [--seeds 1 2 3] [--methods prompt gda]

Trains on the base classes of each benchmark (its first half) and measures on all test images: those of the base classes are known,
those of the other half are unknowns. "before" is temperature 1, "after" the temperature of `slimprompt fit`, which is found by
cross-validation inside the training images. Prints a Markdown table with means over benchmarks and seeds:

- calibration error (15 bins, in points) and log loss on the known images;
- AUROC of telling known from unknown images by the confidence before and after, and by maximum concept matching;
- of the known and of the unknown images, the percentage that gets an answer with `--coverage 0.9`.

The pocket model is a toy; these are not results about CLIP.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from itertools import product
from statistics import mean
from typing import Any

COLUMNS = {
    "accuracy": "accuracy (%)",
    "error_before": "calibration error before",
    "error_after": "after",
    "loss_before": "log loss before",
    "loss_after": "after",
    "auroc_before": "AUROC, confidence before",
    "auroc_after": "confidence after",
    "auroc_match": "concept matching",
    "known": "known images answered (%)",
    "unknown": "unknown (%)",
}


@lru_cache
def open_bank() -> Any:
    import torch

    from slimprompt import FeatureBank, load_backbone

    torch.set_num_threads(1)
    return FeatureBank(load_backbone("pocket", device="cpu"), show_progress=False)


def measure(method: str, benchmark: str, shots: int, seed: int) -> dict[str, float]:
    """The columns of one training."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    from slimprompt import HeadClassifier, PromptClassifier
    from slimprompt.classifiers.calibration import softmax
    from slimprompt.classifiers.scores import scores_of
    from slimprompt.data import base_new, few_shot, load_benchmark
    from slimprompt.methods.task import Task

    bank = open_bank()
    base, new = base_new(few_shot(load_benchmark(benchmark), shots, seed))
    names = tuple(sorted(base.class_names))
    settings: dict[str, Any] = {"seed": seed}
    if method == "prompt":
        classifier: Any = PromptClassifier(bank.backbone, **settings)
    else:
        classifier = HeadClassifier(method, bank.backbone, templates=base.templates[:1], views=2, **settings)
    paths, labels = [base.path(item) for item in base.train], [names.index(item.class_name) for item in base.train]
    task = Task(bank, paths, labels, names, seed, base.decode, base.templates[:1], views=2)
    classifier.fit_task(task).fit_calibration(task)

    features = [bank.features([part.path(item) for item in part.test], decode=part.decode) for part in (base, new)]
    truth = np.array([names.index(item.class_name) for item in base.test])
    logits = [classifier.logits(one).cpu().numpy() for one in features]
    before, after = ([softmax(one, t) for one in logits] for t in (1.0, classifier.calibration_.temperature))
    matches = [classifier.concept_match(one) for one in features]
    known = np.repeat([True, False], [len(one) for one in features])
    scores = [scores_of(part[0], truth) for part in (before, after)]
    auroc = [
        float(roc_auc_score(known, np.concatenate(parts)))
        for parts in ([one.max(1) for one in before], [one.max(1) for one in after], matches)
    ]
    lowest = classifier.calibration_.threshold(0.9) if classifier.calibration_.confidences else 0.0
    answered = [100 * float((one.max(1) >= lowest).mean()) for one in after]
    values = (
        scores[0].accuracy.value,
        *(score.calibration_error for score in scores),
        *(score.log_loss for score in scores),
        *auroc,
        *answered,
    )
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", nargs="+", default=list(POCKET_BENCHMARKS))
    parser.add_argument("--shots", nargs="+", type=int, default=[2, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--methods", nargs="+", default=["prompt", "gda"], help="prompt, or a name of slimprompt.methods.table"
    )
    chosen = parser.parse_args()
    print("| method | shots | " + " | ".join(COLUMNS.values()) + " |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    for method, shots in product(chosen.methods, chosen.shots):
        found = [measure(method, *key) for key in product(chosen.benchmarks, [shots], chosen.seeds)]
        cells = [
            f"{mean(row[name] for row in found):.{2 if name.startswith(('loss', 'auroc')) else 1}f}" for name in COLUMNS
        ]
        print(f"| {method} | {shots} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
