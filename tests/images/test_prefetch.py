"""Tasks computed ahead on threads."""

import pytest

from slimprompt.images.prefetch import prefetched, written_behind


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


def call_behind(function, numbers):
    with written_behind(function) as call:
        for number in numbers:
            call(number)


def test_calls_behind_are_made_in_order_and_have_ended_at_the_end() -> None:
    made: list[int] = []
    call_behind(made.append, range(20))
    assert made == list(range(20))


@pytest.mark.parametrize("n_calls", [3, 1000])
def test_an_error_of_a_call_behind_is_raised_at_the_end_or_by_one_of_the_next_calls(n_calls: int) -> None:
    asked: list[int] = []

    def refuse_the_third(number: int) -> None:
        if number == 2:
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        call_behind(refuse_the_third, (asked.append(n) or n for n in range(n_calls)))
    assert 3 <= len(asked) < 10


def test_calls_behind_are_made_although_the_block_is_interrupted() -> None:
    made: list[int] = []

    def interrupted():
        yield from (1, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_behind(made.append, interrupted())
    assert made == [1, 2]
