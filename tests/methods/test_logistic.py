from __future__ import annotations

import threading
import warnings

from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info, threadpool_limits

from slimprompt.methods.logistic import quiet_single_thread


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_one_thread_inside_and_as_before_outside() -> None:
    with threadpool_limits(3, user_api="blas"):
        assert blas_threads() == {3}
        with quiet_single_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {3}


def test_two_threads_leave_no_limit_behind() -> None:
    inside, leave = threading.Event(), threading.Event()

    def solve() -> None:
        with quiet_single_thread():
            inside.set()
            leave.wait(0.2)

    def solve_meanwhile() -> None:
        inside.wait()
        with quiet_single_thread():
            leave.set()
            first.join()

    with threadpool_limits(3, user_api="blas"), warnings.catch_warnings():
        filters = list(warnings.filters)
        first, second = threading.Thread(target=solve), threading.Thread(target=solve_meanwhile)
        for thread in (first, second):
            thread.start()
        for thread in (first, second):
            thread.join()
        assert blas_threads() == {3} and warnings.filters == filters


def test_the_limit_of_iterations_is_no_warning() -> None:
    features, labels = [[0.0, 1.0], [1.0, 3.0], [2.0, 1.0], [3.0, 2.0]], [0, 1, 0, 1]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        LogisticRegression(max_iter=1).fit(features, labels)
        assert len(found) == 1
        with quiet_single_thread():
            LogisticRegression(max_iter=1).fit(features, labels)
        assert len(found) == 1
