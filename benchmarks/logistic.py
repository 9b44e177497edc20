"""Logistic regression on image features: one thread against all cores.

    python benchmarks/logistic.py [--seconds 5]

Random features of unit length around one centre per class, as many as in a few-shot task. Prints a Markdown table: time of a fit on
all cores relative to one thread, the best of each; above 1, one thread is faster.
"""

from __future__ import annotations

import argparse
import os
import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression
from text_encoder import best_times
from threadpoolctl import threadpool_limits

SIZES = ((10, 16, 512), (47, 16, 512), (100, 16, 512), (1000, 8, 512))  # classes, images per class, features
MOST_ITERATIONS = 50


def fit(features: np.ndarray, labels: np.ndarray, threads: int) -> None:
    with threadpool_limits(threads, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the limit of iterations
        LogisticRegression(C=100.0, max_iter=MOST_ITERATIONS).fit(features, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="time per row; at least two rounds")
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    print(f"| classes | images | {cores} threads, relative to one |\n|---:|---:|---:|", flush=True)
    for n_classes, shots, width in SIZES:
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(n_classes), shots)
        features = rng.standard_normal((n_classes, width))[labels] + 2 * rng.standard_normal((len(labels), width))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        times = best_times(
            {name: lambda n=n: fit(features, labels, n) for name, n in (("one", 1), ("all", cores))}, options.seconds
        )
        print(f"| {n_classes:,} | {len(labels):,} | {times['all'] / times['one']:.2f}× |", flush=True)


if __name__ == "__main__":
    main()
