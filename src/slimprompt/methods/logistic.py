"""How scikit-learn's logistic regression is run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_single_thread() -> Iterator[None]:
    """Inside, scikit-learn solves logistic regressions on one thread, without a warning if it stops at its limit of iterations.

    On few-shot tasks one thread is faster than several (`benchmarks/logistic.py`), workers of a study do not compete for cores, and
    the result does not depend on the number of cores.
    """
    from sklearn import linear_model  # noqa: F401  only libraries that are loaded can be limited
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore")
        yield
