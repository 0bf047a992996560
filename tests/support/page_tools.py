"""A reader of reports, which knows HTML and nothing of the templates."""

import itertools
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_VOID = {"meta", "img", "br", "link", "input", "hr"}
_TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "main",
    "footer",
    "nav",
    "section",
    "div",
    "h1",
    "h2",
    "h3",
    "p",
    "a",
    "code",
    "pre",
    "strong",
    "span",
    "ul",
    "ol",
    "li",
    "dl",
    "dt",
    "dd",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "figure",
    "figcaption",
    "img",
    "svg",
    "rect",
    "label",
    "select",
    "option",
}
# "title" is also the tooltip of a bar.


class Page(HTMLParser):
    """The tags and texts of a page; checks that they are nested.

    Attributes:
        tags: (tag, attributes) in order.
        headings: (level, text) in order.
        tables: Rows of texts by table; a cell with several lines has the texts of its elements.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[int, str]] = []
        self.tables: list[list[list[str]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append((int(tag[1]), ""))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if (
            self.headings
            and self._open
            and "h1 h2 h3".find(self._heading()) >= 0
            and self._heading()
        ):
            level, text = self.headings[-1]
            self.headings[-1] = level, f"{text}{data}".strip()
        if {"td", "th"} & set(self._open) and self._open[-1] != "title":
            row = self.tables[-1][-1]
            row[-1] = f"{row[-1]} {data.strip()}".strip()

    def _heading(self) -> str:
        return next((tag for tag in self._open if tag in ("h1", "h2", "h3")), "")

    def find(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of a tag."""
        return [attributes for name, attributes in self.tags if name == tag]

    def table(self, first: str) -> list[list[str]]:
        """Return the rows of the first table whose header begins with a text, without the header."""
        for rows in self.tables:
            if rows and rows[0] and rows[0][0] == first:
                return rows[1:]
        raise AssertionError(f"no table begins with {first}: {[rows[:1] for rows in self.tables]}")

    def pairs(self) -> dict[str, str]:
        """Return the texts of all definition lists."""
        found = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", self.text, re.DOTALL)
        return {name: re.sub(r"<[^>]*>", "", text).strip() for name, text in found}


def check_page(path: Path | str) -> Page:
    """Read a report and check what holds for all of them: structure, names, nothing external."""
    text = Path(path).read_text(encoding="utf-8")
    page = Page(text)
    assert text.startswith("<!doctype html>")
    assert {tag for tag, _ in page.tags} <= _TAGS
    levels = [level for level, _ in page.headings]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(heading for _, heading in page.headings)
    for image in page.find("img"):
        assert image["alt"]
        assert (image["src"] or "").startswith("data:image/jpeg;base64,")
    assert all(header["scope"] in ("row", "col") for header in page.find("th"))
    assert all(
        each.get("aria-hidden") == "true" or (each["role"] == "img" and each["aria-label"])
        for each in page.find("svg")
    )
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), attributes
        assert set(attributes.get("aria-labelledby", ids[0]).split()) <= set(ids)
        for name in ("href", "action", "srcset", "data"):
            assert (attributes.get(name) or "#").startswith("#"), attributes
        assert (attributes.get("href") or f"#{ids[0]}")[1:] in ids
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert all(char.isprintable() or char == "\n" for char in text)
    return page


def bars(page: Page) -> Iterator[tuple[str, list[int]]]:
    """Yield the name and the counts of each histogram."""
    for name, body in re.findall(
        r'<svg class="histogram"[^>]*aria-label="Histogram of (.*?): from[^>]*>(.*?)</svg>',
        page.text,
        re.DOTALL,
    ):
        counts = re.findall(r": ([\d,]+)</title>", body)
        yield name, [int(count.replace(",", "")) for count in counts]
