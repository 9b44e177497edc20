"""Parser of HTML pages for tests."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "link"}


class Page(HTMLParser):
    """The elements, attributes and text of a page; fails if a tag is not closed properly.

    Attributes
    ----------
    elements
        (tag, attributes) in document order.
    words
        Pieces of text outside scripts and style sheets.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:], self.getpos())
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        """All text with normalised white space."""
        return " ".join("".join(self.words).split())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """Attributes of all elements with this tag and these attribute values; write `class_` for `class`."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            found for one, found in self.elements if one == tag and all(found.get(k) == v for k, v in wanted.items())
        ]
