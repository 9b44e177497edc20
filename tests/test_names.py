from itertools import combinations

import pytest

from slimprompt.errors import InputError
from slimprompt.names import check_class_names, name_key, read_class_names
from slimprompt.text.tokens import name_tokens


def test_spellings_of_the_same_words():
    spellings = ("red_panda", "Red Panda", " red  panda ", "red&#32;panda")
    assert {name_key(name) for name in spellings} == {"red panda"}
    assert name_key("e\u0301clair") == name_key("éclair")
    assert name_key("men\u2019s shirt") == name_key("men's shirt")
    assert name_key("\ufb01sh") == name_key("fish")
    assert name_key("red panda") != name_key("redpanda")
    assert name_key("Maße") != name_key("Masse")


def test_equal_keys_are_equal_tokens(tiny):
    names = [
        "men\u2019s shirt",
        "men's shirt",
        "\ufb01sh",
        "fish",
        "\uff21\uff22",
        "ab",
        "Maße",
        "Masse",
        "Red  Panda",
        "red_panda",
    ]
    keys, tokens = ({name: of(name) for name in names} for of in (name_key, lambda name: name_tokens(tiny, name)))
    for one, other in combinations(names, 2):
        assert (keys[one] == keys[other]) == (tokens[one] == tokens[other]), (one, other)


def test_usable_names():
    check_class_names(["7 0 7 - 3 2 0", "café au lait", "AT&T", "<3", "a|b", "日本", "x" * 500])


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["cat", "cat"],
        ["cat", "dog", "Cat"],
        ["cat", " _ "],
        ["cat", "d\x00g"],
        ["cat", "dog <|endoftext|>"],
        ["cat", 3],
    ],
)
def test_unusable_names_are_refused(names):
    with pytest.raises(InputError):
        check_class_names(names)


def test_class_names_of_labels(tmp_path):
    path = tmp_path / "names.csv"
    path.write_text('name;label;wordnet\n"tench, a fish";n01440764;1\n\ngoldfish;n01443537;2\n')
    assert read_class_names(path) == {"n01440764": "tench, a fish", "n01443537": "goldfish"}


@pytest.mark.parametrize(
    "text", ["code,name\nn1,tench\n", "label,name\nn1,tench\nn2,\n", "label,name\nn1,tench\nn1,goldfish\n"]
)
def test_files_of_class_names_that_cannot_be_used(text, tmp_path):
    path = tmp_path / "names.csv"
    path.write_text(text)
    with pytest.raises(InputError):
        read_class_names(path)
