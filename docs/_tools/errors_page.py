"""Write the messages of the catalogue into the tables of docs/errors.md, which explain them."""

import re
from pathlib import Path

from shardmill.schemas.errors.catalogue import topics

PAGE = Path(__file__).parents[1] / "errors.md"
_FIELD = re.compile(r"\{\{|\}\}|\{[^{}]*\}")
_ROW = re.compile(r'^\| <a id="([\w-]+)"></a>.*` \|(.*)\|$', re.MULTILINE)
# A heading, the text and the head of the table below it, and the rows.
_TOPIC = re.compile(r"^## (.+)\n((?:(?!## |\|---).*\n)*\|---\|---\|\n)(?:\|.*\n)*", re.MULTILINE)


def render(page: str) -> str:
    """Return the page with all messages; explanations stay, and those of new messages are empty."""
    explanations = dict(_ROW.findall(page))

    def table(match: re.Match[str]) -> str:
        rows = (
            f'| <a id="{name}"></a>{shown(text)} |{explanations.get(name, " ")}|\n'
            for name, text in topics()[match[1]].items()
        )
        return f"## {match[1]}\n{match[2]}{''.join(rows)}"

    return _TOPIC.sub(table, page)


def shown(text: str) -> str:
    """Return a message as code in Markdown; ``…`` replaces its fields."""
    text = _FIELD.sub(lambda found: found[0][0] if found[0] in ("{{", "}}") else "…", text)
    text = re.sub("…+", "…", text)
    ticks = "``" if "`" in text else "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
