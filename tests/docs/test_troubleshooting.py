"""Each message of docs/troubleshooting.md is raised by the source, with the same words."""

import ast
import re

import pytest

from tests.conftest import ROOT

FOLDERS = ("api", "schemas", "loaders", "transforms", "pipelines")
PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGES = re.findall(r"^\| `([^|]+)` \|", PAGE.read_text(), re.MULTILINE)
VALUE = "…"


def text_of(node: ast.AST) -> str | None:
    """Return the text of a string, with a sign for each value in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else VALUE for part in node.values
        )
    return None


@pytest.fixture(scope="module")
def texts() -> set[str]:
    """All strings of the source, as the page quotes them."""
    strings = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                text = text_of(node)
                if text is not None:
                    strings.add(text.replace("`", ""))
    return strings


def test_the_page_has_forty_failures() -> None:
    assert len(MESSAGES) == 40
    assert len(set(MESSAGES)) == 40


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_in_the_source(message, texts) -> None:
    assert message in texts


def test_a_message_with_another_word_is_not(texts) -> None:
    assert "… matches no files: …." not in texts
