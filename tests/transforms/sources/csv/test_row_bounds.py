"""Rows equal those of Python's csv module for any block size; a bad row rejects no other row."""

import csv
import io
import itertools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shardmill.transforms.sources.csv import row_bounds, text
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.row_bounds import RowScanner, Syntax
from tests.conftest import examples
from tests.support.csv_tools import python_rows, ranges_of, read_bytes, read_csv

COMMA = Syntax(b",", b'"')
SYNTAXES = [COMMA, Syntax(b";", b"'"), Syntax(b"||", b'"'), Syntax(b"|a|", b'"'), Syntax(b",", b"")]
SYNTAXES += [Syntax(b",", b'"', b"#", b"\\"), Syntax(b" ", b'"', white_space=True)]
# Mostly quotes, delimiters and line breaks, and some letters.
PIECES = st.sampled_from(
    [
        *'"",,\n\n\raé\'\\ \t',
        '""',
        "\r\n",
        "||",
        "|a|",
        '",',
        '\n"',
        "\n#",
    ]
)
TEXTS = st.lists(PIECES, max_size=60).map("".join).map(str.encode)


def scan(data: bytes, sizes: Iterable[int], syntax: Syntax = COMMA) -> tuple[list, list]:
    """Return valid and bad rows of data that is fed in blocks."""
    scanner, valid, bad = RowScanner(syntax), [], []

    def take(batches):
        for rows in batches:
            spans = zip(rows.starts.tolist(), rows.ends.tolist(), rows.lines.tolist(), strict=True)
            valid.extend((rows.offset + a, bytes(rows.data[a:b]), line) for a, b, line in spans)
            bad.extend((rows.offset + row.start, *row[2:]) for row in rows.bad)

    stream = io.BytesIO(data)
    for size in sizes:
        block = stream.read(size)
        if not block:
            break
        take(scanner.feed(block))
    take(scanner.finish())
    return valid, bad


@settings(max_examples=examples(300))
@given(
    data=TEXTS,
    sizes=st.lists(st.integers(1, 9), min_size=1),
    limit=st.sampled_from([3, 8, 20, 1 << 24]),
    syntax=st.sampled_from(SYNTAXES),
)
# A line break at the size limit; a doubled quote across the limit; a delimiter across blocks.
@example(data=b'a,"a\n,""\n\r\n\n"a\n,aa\n', sizes=[4], limit=4, syntax=COMMA)
@example(data=b'"a\naaaa""' + b"b" * 20, sizes=[3], limit=8, syntax=COMMA)
@example(data=b'"x\ny"||z\n', sizes=[6, 9], limit=99, syntax=SYNTAXES[2])
def test_block_bounds_do_not_change_rows(data, sizes, limit, syntax) -> None:
    with mock.patch.object(row_bounds, "MAX_ROW_BYTES", limit):
        whole = scan(data, [len(data)], syntax)
        assert scan(data, itertools.cycle(sizes), syntax) == whole
        assert scan(data, itertools.repeat(1), syntax) == whole


@settings(max_examples=examples(100))
@given(
    data=TEXTS,
    range_bytes=st.integers(1, 40),
    sampled=st.integers(2, 60),
    block=st.integers(1, 30),
    limit=st.sampled_from([8, 20, 1 << 24]),
    delimiter=st.sampled_from([",", "||", "é"]),
)
def test_ranges_contain_the_rows_of_the_whole_file(
    data, range_bytes, sampled, block, limit, delimiter
) -> None:
    dialect = Dialect(header="none", columns=("x", "y"), delimiter=delimiter)
    # The first row has as many cells as --columns; the others are arbitrary.
    data = f"1{delimiter}2\n".encode() + data
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(row_bounds, "MAX_ROW_BYTES", limit),
    ):
        path = Path(folder) / "some.csv"
        path.write_bytes(data)
        whole = read_csv(path, dialect, 1 << 20)
        with mock.patch.object(text, "BLOCK_BYTES", block):
            parts = ranges_of(path, dialect, range_bytes)
            assert ranges_of(path, dialect, range_bytes, sampled) == parts
            assert read_csv(path, dialect, range_bytes) == whole
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    starts = sorted([*whole.offsets, *(reject.offset for reject in whole.rejects)])
    assert {part.start for part in parts[1:]} <= set(starts)
    assert len(set(starts)) == len(starts)


CELLS = st.text(st.sampled_from("ab \",;|\n\ré1#'"), max_size=6)
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1, max_size=8)
)


@settings(max_examples=examples(150))
@given(
    rows=TABLES,
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    delimiter=st.sampled_from([",", ";", "|", "\t", " ", "é", "\x1f"]),
    quote=st.sampled_from(['"', "'"]),
    end=st.sampled_from(["\n", "\r", "\r\n"]),
    range_bytes=st.integers(1, 50),
)
def test_reads_what_python_writes(rows, quoting, delimiter, quote, end, range_bytes) -> None:
    written = io.StringIO(newline="")
    options = {"delimiter": delimiter, "quotechar": quote}
    csv.writer(written, quoting=quoting, lineterminator=end, **options).writerows(rows)
    data = written.getvalue()
    judge = python_rows(data, strict=True, **options)
    assume(judge == rows)  # Python leaves a lone carriage return unquoted
    names = tuple(f"c{number}" for number in range(len(rows[0]) if rows else 1))
    dialect = {"header": "none", "delimiter": delimiter, "quote": quote, "columns": names}
    with tempfile.TemporaryDirectory() as folder:
        reading = read_bytes(Path(folder), data.encode(), range_bytes, **dialect)
    assert reading.rows == judge
    assert not reading.rejects


BAD_LINES = st.sampled_from(['"a"b,c', 'a,"b"c', '"a" ,b', 'x,"y""z"w', '"",""a'])
GOOD_LINES = st.sampled_from(["a,b", '"a","b"', '5" x,b', '"a,""b""",c', ",", '"","', 'a,b"c"'])


def alone(line: str) -> list[str] | None:
    """Return the cells of a single line, or None if Python's csv rejects it."""
    try:
        rows = list(csv.reader(io.StringIO(line + "\n", newline=""), strict=True))
    except csv.Error:
        return None
    return rows[0] if rows and len(rows[0]) == 2 else None


@pytest.mark.heavy
@given(
    lines=st.lists(BAD_LINES | GOOD_LINES.filter(alone), max_size=12),
    end=st.sampled_from(["\n", "\r", "\r\n"]),
)
@example(lines=['"a"b,c', "a,b"], end="\r")  # right after the header
def test_a_bad_line_rejects_no_other(lines, end, tmp_path_factory) -> None:
    data = "".join(line + end for line in ["x,y", *lines]).encode()
    reading = read_bytes(tmp_path_factory.mktemp("bad"), data)
    assert reading.rows == [alone(line) for line in lines if alone(line)]
    bad = [(number, "quote") for number, line in enumerate(lines, 2) if not alone(line)]
    assert [(reject.line, reject.error) for reject in reading.rejects] == bad


@pytest.mark.parametrize(
    ("lines", "rows", "bad"),
    [
        (['1,"open', "2,b", "3,c"], ["2", "3"], [2]),
        (['1,"open', '2,"b"', '3,"c ""d"""'], ["2", "3"], [2]),
        (["1,a", '2,"open at the end'], ["1"], [3]),
        (['1,"two', 'lines"b', "2,c"], ["2"], [2]),
        (['1,"two', 'lines"', '2,"open', "3,c"], ["1", "3"], [4]),
        (['"', "1,a"], ["1"], [2]),
        (['1,""""', '2,"""', "3,c"], ["1", "3"], [3]),
    ],
)
def test_an_unclosed_quote_rejects_one_line(lines, rows, bad, tmp_path) -> None:
    data = "\n".join(["x,y", *lines, ""]).encode()
    reading = read_bytes(tmp_path, data)
    quotes = [reject for reject in reading.rejects if reject.error == "quote"]
    assert [reject.line for reject in quotes] == bad
    assert [row[0] for row in reading.rows] == rows
    assert read_csv(tmp_path / "some.csv", Dialect(), 1) == reading


def test_rejects_have_line_and_message(tmp_path: Path) -> None:
    long = "c" * 200
    data = f'x,y\n"a"b,1\n1,2,3\n"open,{long}\n1,{long},2\n'.encode()
    rejects = read_bytes(tmp_path, data).rejects
    assert [(reject.line, reject.message) for reject in rejects] == [
        (2, "a cell has text between its closing quote and the next delimiter"),
        (3, "the row has 3 cells, not 2: '1,2,3'"),
        (4, "a cell starts with a quote that is not closed"),
        (5, f"the row has 3 cells, not 2: '1,{'c' * 78}'…"),
    ]


def test_a_quoted_empty_cell_is_a_row_but_an_empty_line_is_not(tmp_path: Path) -> None:
    reading = read_bytes(tmp_path, b'x\n\n""\n\r\n\r""\n \n')
    assert reading.rows == [[""], [""], [" "]]
    assert reading.lines == [3, 6, 7]


def test_keeps_byte_order_marks_inside_the_text(tmp_path: Path) -> None:
    data = "x,y\n\ufeffa,b\n\ufeff,\n".encode()
    for range_bytes in (1, 1 << 20):
        assert read_bytes(tmp_path, data, range_bytes).rows == [["\ufeffa", "b"], ["\ufeff", ""]]
