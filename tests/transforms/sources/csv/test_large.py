"""Large and malicious text: bounded memory, linear time, and no valid row lost."""

import gzip
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shardmill.transforms.sources.csv import row_bounds
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.head import read_head
from shardmill.transforms.sources.csv.row_bounds import RowScanner, Syntax
from shardmill.transforms.sources.csv.row_ranges import RANGE_BYTES, RowRange
from tests.support.csv_tools import ranges_of, read_cells

pytestmark = pytest.mark.heavy

MIB = 1 << 20
ROW = b'%07d,"a, quoted ""cell""",plain\n'


def numbers_and_rejects(path: Path) -> tuple[np.ndarray, list, list[RowRange]]:
    dialect = Dialect()
    columns = read_head(str(path), dialect, 1 << 16).columns
    parts = ranges_of(path, dialect, RANGE_BYTES)
    numbers, rejects = [], []
    for cells in read_cells(path, dialect, columns, parts):
        keys = cells.columns["key"]
        numbers.append(np.array(keys.dictionary.to_pylist(), object)[keys.indices.to_numpy()])
        rejects.extend(cells.rejects)
    return np.concatenate(numbers).astype(np.int64), rejects, parts


@pytest.mark.parametrize("quoted", [True, False])
def test_an_unclosed_quote_in_a_large_file_rejects_one_row(quoted: bool, tmp_path: Path) -> None:
    row = ROW if quoted else b"%07d,no quotes at all in here,plain\n"
    count = 24 * MIB // len(row % 0)
    rows = [row % number for number in range(count)]
    middle = count // 2
    rows[middle] = b'%07d,"never closed,plain\n' % middle
    path = tmp_path / "some.csv"
    path.write_bytes(b"key,text,more\n" + b"".join(rows))
    numbers, rejects, parts = numbers_and_rejects(path)
    assert np.array_equal(numbers, np.delete(np.arange(count), middle))
    assert [(reject.line, reject.error) for reject in rejects] == [(middle + 2, "quote")]
    assert len(parts) == 3
    assert max(part.end - part.start for part in parts) < 9 * MIB


READ = """
import resource, sys
from shardmill.transforms.sources.csv.cells import make_cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.head import read_head
from shardmill.transforms.sources.csv.row_ranges import split_ranges, read_range
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
path, dialect = sys.argv[1], Dialect()
before = peak()
head = read_head(path, dialect, 1 << 20)
rows, rejects = 0, []
for part in split_ranges(path, dialect, head.ranges):
    for found, text in read_range(path, dialect, part):
        cells = make_cells(found, head.columns, text)
        rows += len(cells.lines)
        rejects += [(reject.line, reject.error) for reject in cells.rejects]
print((rows, rejects, peak() - before))
"""


def _long_row(kind: str) -> Iterator[bytes]:
    yield b"x,y\n1,2\n"
    piece = {"plain": b"a", "quoted": b'"', "delimiters": b","}[kind] * MIB
    if kind == "quoted":
        yield b'"' + b"b" * MIB
    for _ in range(100 if kind == "plain" else 20):
        yield piece
    yield b"\n3,4\n"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "packed"),
    [("plain", False), ("plain", True), ("quoted", False), ("delimiters", False)],
)
def test_skips_a_huge_row_in_bounded_memory(kind, packed, tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as file:
        file.writelines(_long_row(kind))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True
    )
    rows, rejects, mebibytes = eval(done.stdout)
    assert (rows, rejects) == (2, [(3, "too_large")])
    assert mebibytes < (650 if kind == "quoted" else 150)


def _seconds(data: bytes) -> float:
    def once() -> float:
        scanner = RowScanner(Syntax(b",", b'"'))
        start = time.process_time()
        for at in range(0, len(data), MIB):
            for _ in scanner.feed(data[at : at + MIB]):
                pass
        for _ in scanner.finish():
            pass
        return time.process_time() - start

    return min(once() for _ in range(2))


@pytest.mark.parametrize(
    "row",
    [
        b'5" pipe,3,steel\n',
        b'5" pipe,"3, or 4",steel\n',
        b'5",3,steel\n',
        b'"5" pipe",3\n',
        b'"",",\n',
        b'"a\n',
        b'""\n',
        b'a""\n',
        b'"""\n',
        b'"a""\n',
    ],
)
def test_scans_any_quotes_in_linear_time(row: bytes) -> None:
    small = row * (MIB // 16 // len(row))
    assert _seconds(small * 4) < 10 * _seconds(small) + 0.3


@pytest.mark.parametrize("row", [b'5" pipe,3,steel\n', b'5" pipe,"3, or 4",steel\n'])
def test_scans_inch_marks_fast(row: bytes) -> None:
    assert _seconds(row * (2 * MIB // len(row))) < 2 * MIB / 3e6


def test_reads_rows_between_too_long_rows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(row_bounds, "MAX_ROW_BYTES", 1 << 16)
    sizes = [1 << 16, 9, 1 << 17, (1 << 16) - 8, (1 << 16) + 1, 5]
    path = tmp_path / "some.csv"
    cells = b"".join(b"%07d,%s\n" % (n, b"y" * (size - 8)) for n, size in enumerate(sizes * 40))
    path.write_bytes(b"key,text\n" + cells.replace(b",\n", b",z\n"))
    numbers, rejects, _ = numbers_and_rejects(path)
    big = [n for n in range(len(sizes) * 40) if sizes[n % 6] > 1 << 16]
    assert [reject.line - 2 for reject in rejects] == big
    assert {reject.error for reject in rejects} == {"too_large"}
    assert numbers.tolist() == [n for n in range(len(sizes) * 40) if n not in big]
