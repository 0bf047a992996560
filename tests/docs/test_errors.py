"""Every sentence that the code can end with stands on the page of errors, and no other."""

import functools
import re

import pytest

from tests.conftest import ROOT
from tests.support.error_tools import ANY, all_errors

PAGE = ROOT / "docs" / "errors.md"
# Texts of others that are passed on as they are; what they say stands in rows of its own.
PASSED_ON = {
    "": "a problem that is none",
    ANY: "a sentence that was made elsewhere",
    f"--splits={ANY}: {ANY}.": "schemas/dataset/splits.py: what a share is, in rows of its own",
    f"{ANY}: {ANY}": "schemas/schema_pbtxt/columns.py: a line of a schema, and what the feature is",
    f"{ANY}: {ANY}: {ANY}.": "pipelines/commands/check.py: a rule, its value, the remedy",
}


def rows() -> set[str]:
    """Returns each message of the page."""
    return set(re.findall(r"^\| `+(.+?)`+ \| .*\|$", PAGE.read_text(), re.MULTILINE))


@functools.cache
def _pattern(text: str) -> re.Pattern:
    return re.compile(".*".join(map(re.escape, text.rstrip(".").split(ANY))) + r"\.?", re.DOTALL)


def one(row: str, text: str) -> bool:
    """Tells whether a row stands for a text: one says what the other leaves open."""
    return bool(_pattern(row).fullmatch(text) or _pattern(text).fullmatch(row))


def unexplained(texts: dict[str, list[str]], page: set[str]) -> dict[str, list[str]]:
    return {
        text: where
        for text, where in texts.items()
        if text not in PASSED_ON and not any(one(row, text) for row in page)
    }


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    return all_errors()


def test_every_error_is_on_the_page(texts) -> None:
    assert len(texts) > 350
    assert unexplained(texts, rows()) == {}


def test_every_row_is_an_error_of_the_code(texts) -> None:
    texts = texts.keys() - PASSED_ON.keys()
    page = rows()
    assert len(page) > 200
    for row in page:
        assert any(one(row, text) for text in texts), f"nothing says: {row}"
        fitting = sum(one(row, text) for text in texts)
        assert fitting < 16, f"{row} stands for {fitting} errors: say more"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "raise UsageError(f'--size={size} is purple: paint it.')",
            f"--size={ANY} is purple: paint it.",
        ),
        (
            "why = 'a' if x else 'b'\n    raise InputError(f'{x}: {why} is purple')",
            f"{ANY}: b is purple",
        ),
        (
            "raise OutputError(told())\ndef told():\n    return f'{here} is purple'",
            f"{ANY} is purple",
        ),
    ],
)
def test_an_error_that_is_new_is_missed(code, text, tmp_path, monkeypatch) -> None:
    from tests.support import error_tools

    monkeypatch.setattr(error_tools, "ROOT", tmp_path)
    for folder in error_tools.FOLDERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "schemas" / "new.py").write_text(f"def fails(x):\n    {code}\n")
    assert text in unexplained(all_errors(), rows())
