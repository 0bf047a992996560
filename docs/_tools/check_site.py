"""Checks a built docs site: local links and anchors lead somewhere, nothing comes from elsewhere.

usage: python docs/_tools/check_site.py build/docs
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("img", "src"), ("script", "src"), ("link", "href"), ("source", "src"), ("iframe", "src")}


class Page(HTMLParser):
    """The anchors of a page, its links, and what a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what a tag refers to."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag, name) in LOADS:
                self.loads.append(value)
            elif tag == "a" and name == "href":
                self.links.append(value)


def _is_far(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.netloc or (parts.scheme and parts.scheme != "data"))


def faults(folder: Path) -> list[str]:
    """Returns what is wrong, a sentence each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    found = []
    for path, page in sorted(pages.items()):
        name = path.relative_to(folder)
        found += [f"{name} loads {load} from elsewhere" for load in page.loads if _is_far(load)]
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{name} links to {link}, which does not exist")
            elif parts.fragment and target.suffix == ".html":
                anchors = pages[target].anchors if target in pages else set()
                if unquote(parts.fragment) not in anchors:
                    found.append(f"{name} links to {link}, and there is no such anchor")
    return found


def main() -> None:
    """Ends with exit code 1 where something is wrong."""
    folder = Path(sys.argv[1]).resolve()
    found = faults(folder)
    print(
        "\n".join(found) or f"{len(list(folder.rglob('*.html')))} pages, every link leads somewhere"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
