"""Dialects beyond RFC 4180: cells equal those of Python's csv module and pandas."""

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardmill.transforms.sources.csv.row_ranges import make_unique
from tests.conftest import examples
from tests.support.csv_tools import Reading, read_bytes

CELLS = st.text(st.sampled_from('ab "#\\\n\t,|é1'), max_size=6)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=12)
COMMENTS = st.lists(st.sampled_from(['# "a', "#", '#,"', "#a\\"]), max_size=3)
RANGE_BYTES = st.integers(1, 40)


def write(rows, **options) -> list[str]:
    """Return the text of each row as Python's csv module writes it."""
    texts = []
    for row in rows:
        stream = io.StringIO(newline="")
        csv.writer(stream, lineterminator="\n", **options).writerow(row)
        texts.append(stream.getvalue())
    return texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("dialects")


def read(folder: Path, text: str, range_bytes: int = 1 << 20, **dialect) -> Reading:
    reading = read_bytes(folder, text.encode(), range_bytes, header="none", **dialect)
    assert reading.rejects == []
    return reading


@settings(max_examples=examples(200))
@given(
    rows=ROWS,
    comments=COMMENTS,
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    range_bytes=RANGE_BYTES,
)
# A line in quotes that looks like a comment, with a quote and without.
@example(rows=[('\n# "', "x\n#y", "#")], comments=['# "a'], quoting=1, range_bytes=1)
def test_comments_are_lines_outside_quotes(rows, comments, quoting, range_bytes, folder) -> None:
    texts = write(rows, quoting=quoting)
    if any(text.startswith("#") for text in texts):
        texts = write(rows, quoting=csv.QUOTE_ALL)
    lines = [f"{comment}\n" for comment in comments]
    text = "".join([*lines, *(part for row in texts for part in (row, *lines))])
    reading = read(folder, text, range_bytes, comment="#")
    assert list(map(tuple, reading.rows)) == rows
    starts = [text.encode()[offset:].decode() for offset in reading.offsets]
    assert all(start.startswith(row) for start, row in zip(starts, texts, strict=True))
    assert reading.lines == [
        text.encode()[:offset].decode().count("\n") + 1 for offset in reading.offsets
    ]


@settings(max_examples=examples(200))
@given(
    rows=ROWS,
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONE]),
    range_bytes=RANGE_BYTES,
)
@example(rows=[("\\", '"', "\\\n\n")], quoting=csv.QUOTE_NONE, range_bytes=1)
def test_escapes_equal_those_of_python(rows, quoting, range_bytes, folder) -> None:
    texts = write(rows, quoting=quoting, escapechar="\\", doublequote=False)
    quote = "" if quoting == csv.QUOTE_NONE else '"'
    if quoting == csv.QUOTE_NONE:  # Python escapes line breaks, but not at the start of a row
        rows = [tuple(cell.replace("\n", "n") for cell in row) for row in rows]
        texts = write(rows, quoting=quoting, escapechar="\\", doublequote=False)
    reading = read(folder, "".join(texts), range_bytes, escape="\\", quote=quote)
    assert list(map(tuple, reading.rows)) == rows
    assert reading.lines == [
        "".join(texts).encode()[:offset].decode().count("\n") + 1 for offset in reading.offsets
    ]


BLANKS = st.text(st.sampled_from(" \t"), min_size=1, max_size=3)
EDGES = st.text(st.sampled_from(" \t"), max_size=2)
WORDS = st.one_of(
    st.text(st.sampled_from('ab"é1,'), min_size=1, max_size=4).filter(lambda t: t[0] != '"'),
    st.text(st.sampled_from("ab \t\né"), max_size=5).map(lambda text: f'"{text}"'),
)


@pytest.mark.heavy
@settings(max_examples=examples(200))
@given(
    data=st.data(),
    rows=st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=9),
    range_bytes=RANGE_BYTES,
)
def test_white_space_equals_pandas(data, rows, range_bytes, folder) -> None:
    text = ""
    for row in rows:
        blank = data.draw(EDGES)
        text += blank + "".join(word + data.draw(BLANKS) for word in row[:-1]) + row[-1]
        text += data.draw(EDGES) + data.draw(st.sampled_from(["\n", "\r\n", "\n \t\n"]))
    reading = read(folder, text, range_bytes, delimiter="whitespace")
    assert reading.rows == [
        [word.strip('"') if word[0] == '"' else word for word in row] for row in rows
    ]
    judge = pd.read_csv(io.StringIO(text), sep=r"\s+", header=None, dtype=str, na_filter=False)
    if "\n" not in "".join(map("".join, rows)):
        assert reading.rows == judge.to_numpy().tolist()


@pytest.mark.heavy
@settings(max_examples=examples(100))
@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=9),
    range_bytes=RANGE_BYTES,
    delimiter=st.sampled_from([",", "||", "é", "whitespace"]),
)
def test_short_rows_are_padded(rows, range_bytes, delimiter, folder) -> None:
    separator = " \t" if delimiter == "whitespace" else delimiter
    lines = [separator.join("abcd"[:count]) for count in [4, *rows]]
    text = "\n".join(lines)
    reading = read(folder, text, range_bytes, delimiter=delimiter, pad_rows=True)
    assert ["".join(row) for row in reading.rows] == ["abcd"[:count] for count in [4, *rows]]
    short = read_bytes(folder, text.encode(), range_bytes, delimiter=delimiter, header="none")
    assert len(short.rejects) == sum(count < 4 for count in rows)
    assert len(read_bytes(folder, b"a,b\n1,2,3\n", pad_rows=True).rejects) == 1


def test_rows_may_end_with_a_delimiter(folder) -> None:
    reading = read_bytes(folder, b"a,b\n1,2,\n3,,\n4,5\n6,7,8\n9,10,\n")
    assert reading.columns == ("a", "b", "")
    assert reading.rows == [["1", "2"], ["3", ""], ["9", "10"]]
    assert [(each.error, each.line) for each in reading.rejects] == [("ragged", 4), ("ragged", 5)]
    judge = pd.read_csv(io.StringIO("a,b\n1,2,\n3,4,\n"), index_col=False)
    assert judge.to_numpy().tolist() == [[1, 2], [3, 4]]
    one = read_bytes(folder, b"1,2,\n3,4,\n", header="none", columns=("x", "y"))
    assert (one.columns[:2], one.rows) == (("x", "y"), [["1", "2"], ["3", "4"]])
    # A delimiter in one row only is a cell too many.
    assert read_bytes(folder, b"a,b\n1,2\n3,4,\n").reasons() == {"ragged": 1}


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(["", "a", "a_2", "column_1", "column_2", "a_2_2"]), min_size=1))
def test_names_of_the_header_are_kept(names) -> None:
    unique = make_unique(names)
    assert len(set(unique)) == len(names)
    assert "" not in unique
    for name in {*names} - {""}:
        assert unique[names.index(name)] == name


@pytest.mark.heavy
def test_hostile_headers_take_linear_time(folder) -> None:
    names = ["x"] * 50_000
    columns = read_bytes(folder, (",".join(names) + "\n").encode()).columns
    assert columns[-1] == "x_50000"
    assert np.unique(columns).size == len(names)
