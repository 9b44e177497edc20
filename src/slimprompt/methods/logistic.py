"""How scikit-learn's logistic regression is run."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.RLock()


@contextmanager
def quiet_single_thread() -> Iterator[None]:
    """Inside, scikit-learn solves logistic regressions on one thread, without a warning if it stops at its limit of iterations.

    On few-shot tasks one thread is faster than several (`benchmarks/logistic.py`), workers of a study do not compete for cores, and
    the result does not depend on the number of cores. One thread of this process at a time is inside: two that leave in another
    order than they entered would leave all of it limited and without warnings.
    """
    from sklearn import linear_model  # noqa: F401  only libraries that are loaded can be limited
    from threadpoolctl import threadpool_limits

    with _LOCK, warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("ignore")
        yield
