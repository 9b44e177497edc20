"""How scikit-learn's logistic regression is run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logistic_regression() -> Iterator[None]:
    """Inside, logistic regressions are solved on one thread, and a solver that stops at its limit of iterations is no warning.

    The solver spends most of its time on vectors for which several threads are slower than one, above all if workers of a study run
    beside each other. On one thread, the result also does not depend on the number of cores.
    """
    from sklearn import linear_model  # noqa: F401  only libraries that are loaded can be limited
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore")
        yield
