import pickle

import pytest

from slimprompt.errors import InputError, choose, first_few, printable, shown, unknown, validate, whole_number
from slimprompt.training.recipe import Recipe


def test_a_message_is_one_short_line():
    text = str(InputError("given: " + "a" * 5000 + "\n\x1b[31m\udce9; do this next"))
    assert len(text) == 1000
    assert text.startswith("given: aaa") and text.endswith("do this next")
    assert text.isprintable() and "\\x1b[31m\\udce9" in text


def test_short_messages_stay_as_they_are_also_after_pickling():
    error = InputError("a “name” is needed")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a “name” is needed"


def test_names_that_are_not_utf8_are_escaped():
    assert printable("caf\udce9 é \ud800") == "caf\\udce9 é \\ud800"


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
