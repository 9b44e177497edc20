"""Class names as a prompt sees them: what makes two of them the same words, which ones cannot be used, and names of coded labels."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from slimprompt.errors import InputError
from slimprompt.spreadsheet import csv_records

#: Texts that a tokenizer reads as one of its own control tokens, not as words.
_SPECIAL = re.compile(
    r"<\|.*?\|>|<(?:start_of_text|end_of_text|mask|pad|unk|bos|eos|cls|sep|s)>|</s>|\[(?:CLS|SEP|PAD|MASK|UNK)\]"
)

_CODE = re.compile(r"(class|label|id|category|[a-z]{0,3})[-_ ]?\d+", re.IGNORECASE)


def name_key(name: str) -> str:
    """The words of a class name: equal for two spellings that the tokenizer cannot tell apart.

    `_` becomes a space, white space is collapsed, and case is ignored; HTML entities and composed characters are decoded, and
    curly quotes, ligatures and full-width letters become plain ones.

    >>> name_key("Red_panda") == name_key(" red  panda")
    True
    """
    import ftfy

    return " ".join(_text(ftfy.fix_text(name)).replace("_", " ").split()).lower()


def check_class_names(names: Sequence[str]) -> None:
    """Raise an error unless there is a name, every name is usable text and no two of them are the same words in a prompt."""
    if not len(names):
        raise InputError("no class names were given: at least one is needed")
    first_of: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"class names are texts; one of them is {name!r}")
        quoted = repr(name if len(name) <= 60 else f"{name[:60]}…")
        odd = next((character for character in _text(name) if unicodedata.category(character) in ("Cc", "Cs")), None)
        if odd is not None:
            raise InputError(
                f"the class name {quoted} holds the character {odd!r}, which is not text; rename the class"
            )
        if special := _SPECIAL.search(_text(name)):
            raise InputError(
                f"the class name {quoted} holds {special[0]!r}, a control token of text encoders; rename the class"
            )
        key = name_key(name)
        if not key:
            raise InputError(f"an empty class name was given ({quoted}): every class needs a name")
        other = first_of.setdefault(key, name)
        if other != name:
            raise InputError(
                f"the class names {other!r} and {quoted} are the same words in a prompt; rename or merge them"
            )
    if len(first_of) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise InputError(f"the class name {twice!r} was given twice")


def are_codes(names: Sequence[str]) -> bool:
    """Whether all names look like codes, which tell a text tower nothing.

    >>> are_codes(["n01440764", "n01443537"]), are_codes(["class_1", "7"]), are_codes(["707-320", "tench"])
    (True, True, False)
    """
    return all(_CODE.fullmatch(name) for name in names)


def read_class_names(path: Path) -> dict[str, str]:
    """Class names of labels that are codes, such as n01440764, by label, from a CSV file with the columns label and name."""
    names: dict[str, str] = {}
    for line, row in csv_records(path, ("label", "name")):
        label, name = row["label"], row["name"]
        if not label or not name:
            raise InputError(
                f"{path}, line {line}: the {'name' if label else 'label'} is empty; fill it in, or remove the line"
            )
        if label in names:
            raise InputError(f"{path}, line {line}: the label {label!r} was named before, {names[label]!r}")
        names[label] = name
    return names


def _text(name: str) -> str:
    """What CLIP's tokenizer reads: it decodes HTML entities twice and composes characters."""
    return unicodedata.normalize("NFC", html.unescape(html.unescape(name)))
