"""Tasks computed ahead on threads."""

import pytest

from slimprompt.images.prefetch import prefetched


def test_results_are_in_order_and_a_bounded_number_ahead():
    taken = []

    def tasks():
        for number in range(20):
            taken.append(number)
            yield number

    found = prefetched(lambda number: number * number, tasks(), workers=3, ahead=5)
    assert next(found) == (0, 0)
    assert taken == list(range(6))  # the one that was consumed, and five ahead
    assert list(found) == [(number, number * number) for number in range(1, 20)]


def test_an_exception_is_raised_when_its_result_is_due():
    found = prefetched(lambda number: 1 // (number - 2), range(10), workers=2)
    assert [next(found), next(found)] == [(0, -1), (1, -1)]
    with pytest.raises(ZeroDivisionError):
        next(found)
