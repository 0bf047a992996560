"""Checks a built docs site: links lead somewhere, nothing comes from elsewhere, code can be read.

usage: python docs/_tools/check_site.py build/docs
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

COLOUR = re.compile(r"(?<![\w-])(background|color): (#(?:[0-9a-fA-F]{3}){1,2})\b")
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


def faint_colours(css: str) -> list[str]:
    """Returns the rules of highlighted code whose contrast with its background is below 4.5."""
    found, background = [], "#ffffff"
    for line in css.splitlines():
        selector, colours = line.partition("{")[0].strip(), dict(COLOUR.findall(line))
        if selector.endswith(".highlight"):
            background = colours.get("background", background)
        shown = colours.get("color")
        light, dark = sorted(map(_luminance, (shown or "#000", background)), reverse=True)
        if shown and "linenos" not in selector and (light + 0.05) / (dark + 0.05) < 4.5:
            found.append(f"{selector}: {shown} on {background} has a contrast below 4.5")
    return found


def _luminance(colour: str) -> float:
    """Returns the relative luminance as WCAG defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def main() -> None:
    """Ends with exit code 1 where something is wrong."""
    folder = Path(sys.argv[1]).resolve()
    css = (folder / "_static" / "pygments.css").read_text(encoding="utf-8")
    found = faults(folder) + faint_colours(css)
    print(
        "\n".join(found) or f"{len(list(folder.rglob('*.html')))} pages, every link leads somewhere"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
