"""docs/errors.md lists all error messages of the code, and no other."""

import functools
import re

import pytest

from tests.conftest import ROOT
from tests.support.error_tools import ANY, all_errors

PAGE = ROOT / "docs" / "errors.md"
# Messages that are passed on; their parts have separate rows.
PASSED_ON = {
    "": "no problem",
    ANY: "a message of another module",
    f"{ANY} rows do not fit the type of column {ANY}, which was inferred from the first rows: {ANY}, {ANY}; "
    "give an edited copy of the schema.pbtxt next to the following list with --schema, or read more rows first "
    "with --sample_bytes": "transforms/sink/finalize.py: the list of rejects follows",
    f"--splits={ANY}: {ANY}.": "schemas/dataset/splits.py: the problem of a share, which has separate rows",
    f"{ANY}: {ANY}": "schemas/schema_pbtxt/columns.py: a line of a schema, and the problem of the feature",
    f"{ANY}: {ANY}: {ANY}.": "pipelines/commands/check.py: a rule, its value, the remedy",
}


def rows() -> set[str]:
    """Return all messages of the page."""
    return set(re.findall(r"^\| <a.+?></a>`+(.+?)`+ \| .*\|$", PAGE.read_text(), re.MULTILINE))


@functools.cache
def _pattern(text: str) -> re.Pattern:
    return re.compile(".*".join(map(re.escape, text.rstrip(".").split(ANY))) + r"\.?", re.DOTALL)


def one(row: str, text: str) -> bool:
    """Report whether a row matches a message: either may have ANY for a part of the other."""
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
        assert any(one(row, text) for text in texts), f"no error has this message: {row}"
        fitting = sum(one(row, text) for text in texts)
        assert fitting < 16, f"{row} matches {fitting} errors: be more specific"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise UsageError(f'--size={size} is purple: paint it.')", f"--size={ANY} is purple: paint it."),
        ("why = 'a' if x else 'b'\n    raise InputError(f'{x}: {why} is purple')", f"{ANY}: b is purple"),
        ("raise OutputError(problem())\ndef problem():\n    return f'{here} is purple'", f"{ANY} is purple"),
    ],
)  # fmt: skip
def test_detects_new_errors(code, text, tmp_path, monkeypatch) -> None:
    from tests.support import error_tools

    monkeypatch.setattr(error_tools, "ROOT", tmp_path)
    for folder in error_tools.FOLDERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "schemas" / "new.py").write_text(f"def fails(x):\n    {code}\n")
    assert text in unexplained(all_errors(), rows())
