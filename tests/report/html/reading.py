"""A page taken apart by the standard parser, as a browser would see its elements and attributes."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "img", "br", "hr", "input", "base", "source", "embed", "wbr", "area", "col", "track"}


@dataclass
class Page:
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    """Text by the element that directly holds it."""
    unclosed: list[str] = field(default_factory=list)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def said(self, tag: str) -> list[str]:
        """Return what stands in elements of a tag, its own text only."""
        return [text.strip() for text in self.texts.get(tag, []) if text.strip()]

    @property
    def specs(self) -> list[dict[str, Any]]:
        """Return the charts' specifications."""
        (text,) = [text for text in self.texts["script"] if text.startswith('{"config"')]
        found: list[dict[str, Any]] = json.loads(text)["specs"]
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.page.unclosed.append(tag)
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.page.texts.setdefault(self._open[-1], []).append(data)


def read(html: str) -> Page:
    """Return the page's elements and texts; `unclosed` names end tags that close nothing open."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    reader.page.unclosed += reader._open
    return reader.page


def rows_of(spec: dict[str, Any]) -> int:
    """Return how many rows of data a chart has, over all of its layers."""
    return sum(len(rows) for rows in spec.get("datasets", {}).values()) + sum(
        len(one.get("data", {}).get("values", [])) for one in (spec, *spec.get("layer", []))
    )
