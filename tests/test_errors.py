import pickle

import pytest

from slimprompt.errors import InputError, choose, first_few, shown, unknown, validate, whole_number
from slimprompt.training.recipe import Recipe


def test_a_message_is_one_short_line():
    text = str(InputError("given: " + "a" * 5000 + "\n\x1b[31m\udce9; do this next"))
    assert len(text) == 1000
    assert text.startswith("given: aaa") and text.endswith("do this next")
    assert text.isprintable() and "\\x1b[31m\\udce9" in text
    assert str(pickle.loads(pickle.dumps(InputError("a “name” é")))) == "a “name” é"


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "value", ["a" * 10_000, list(range(10_000)), 10**5000, Unprintable()], ids=["text", "list", "number", "no repr"]
)
def test_values_are_shortened(value):
    assert len(shown(value)) <= 80
    assert len(str(unknown("field", value, ["rank"]))) < 200
    assert len(first_few([str(shown(value)) * 50])) <= 80


@pytest.mark.parametrize("given", [5, None, ["a"], {"a": 1}, 2.5])
def test_a_value_that_is_not_text_is_unknown(given):
    with pytest.raises(InputError, match="unknown study"):
        choose("study", given, {"all": None})
    with pytest.raises(InputError, match="unknown recipe field"):
        validate(Recipe, {given if given.__hash__ else 3: 1}, "recipe")


@pytest.mark.parametrize("value", ["4", 2.5, True, None, -1, 11, float("nan")])
def test_whole_numbers(value):
    with pytest.raises(InputError, match="rank must be a whole number from 0 to 10"):
        whole_number("rank", value, most=10)
