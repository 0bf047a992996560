"""Tables with many columns: work grows with the cells, not with columns times columns or calls."""

import itertools
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.schemas import InputRef, RejectedError, Splits
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms import PlaceSpec
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.infer import infer_column, profile_columns
from shardmill.transforms.sources.csv.sample import check_columns, missing_columns
from shardmill.transforms.sources.csv.source import CsvSource
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.sources.csv.typed_cells import type_cells, type_columns
from shardmill.transforms.tables.table import place_batch
from shardmill.transforms.tables.table_source import TableSpec
from tests.conftest import examples
from tests.transforms.sources.csv.test_infer import COLUMNS, NULLS, cells_of
from tests.transforms.sources.csv.test_typed_cells import rows_of

COLUMN_COUNT = 1000
PLACE = PlaceSpec(Splits.parse("train:1"), 7)


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.fixture
def names() -> list[Name]:
    Name.compared = 0
    return [Name(f"gene_{number}") for number in range(COLUMN_COUNT)]


def copies(names: list[Name]) -> list[Name]:
    """Return equal names that are other objects, which `in` must compare."""
    return [Name(str(name)) for name in names]


def test_names_of_a_file_are_looked_up_in_sets(names) -> None:
    columns = [Column(name, "float32") for name in copies(names)]
    assert missing_columns(columns, names) == []
    assert missing_columns(columns, names[:-1]) == names[-1:]
    check_columns(names, set(copies(names)), copies(names), copies(names), "first")
    with pytest.raises(RejectedError, match="has no column 'gene_999'"):
        check_columns(names[:-1], set(names), copies(names), (), "first")
    assert Name.compared < 20 * COLUMN_COUNT


def wide_cells(names: list[Name], rows: int) -> Cells:
    texts = [b"%d.%d" % divmod(row, 4) for row in range(rows)]
    columns = {name: cells_of(texts) for name in names}
    numbers = np.arange(rows, dtype=np.int64)
    return Cells(columns, numbers, numbers + 1, [])


def make_wide_table(names: list[Name], cells: Cells):
    columns = tuple(Column(name, "float32") for name in copies(names))
    source = CsvSource(TableSpec(columns, PLACE), Dialect(), exact=tuple(copies(names)))
    batch = source.type_cells(InputRef("wide.csv", "/wide.csv"), cells)
    return place_batch(source.table, batch)


def test_names_of_a_schema_are_looked_up_in_sets(names) -> None:
    cells = wide_cells(names, 3)
    Name.compared = 0
    table = make_wide_table(names, cells)
    assert len(table.columns) == COLUMN_COUNT
    assert Name.compared < 20 * COLUMN_COUNT


def count_calls(function, *args) -> int:
    """Return the number of calls of Python and C functions inside a call."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return calls


def test_columns_are_classified_and_typed_together(names) -> None:
    cells = wide_cells(names, 20)
    texts = [*cells.columns.values()]
    columns = [Column(name, "float32") for name in names]
    few = dict(itertools.islice(cells.columns.items(), COLUMN_COUNT // 10))
    calls_of_few = count_calls(profile_columns, few, CellRules())
    assert count_calls(profile_columns, cells.columns, CellRules()) < 11 * calls_of_few
    assert count_calls(type_columns, columns, texts, CellRules()) < 40 * COLUMN_COUNT


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(COLUMNS, min_size=1, max_size=6), NULLS)
def test_columns_together_equal_columns_alone(columns, nulls) -> None:
    rows = min(map(len, columns))
    cells = {f"c{number}": cells_of(texts[:rows]) for number, texts in enumerate(columns)}
    profiles = profile_columns(cells, nulls)
    assert profiles == {
        name: profile_columns({name: each}, nulls)[name] for name, each in cells.items()
    }
    inferred = [infer_column(name, profile) for name, profile in profiles.items()]
    for kind in ("int64", "float32", "bytes", None):
        schema = [Column(name, kind) for name in cells] if kind else inferred
        together = type_columns(schema, [*cells.values()], nulls)
        for column, each, typed in zip(schema, cells.values(), together, strict=True):
            alone = type_cells(column, each, nulls)
            given = np.zeros(rows, np.uint8)
            faults, faults_alone = (
                given if cells.faults is None else cells.faults for cells in (typed, alone)
            )
            assert faults.tolist() == faults_alone.tolist()
            assert repr(rows_of(typed)) == repr(rows_of(alone))


def test_spec_is_pickled_and_loaded_once(names) -> None:
    plain = [str(name) for name in names]
    columns = tuple(Column(name, "float32") for name in plain)
    table = TableSpec(columns, PLACE, key="gene_3")
    spec = CsvSource(table, Dialect(), exact=tuple(plain))
    first, second = (pickle.loads(pickle.dumps(spec)) for _ in range(2))
    assert first == spec
    assert first is second
    assert len(pickle.dumps(spec)) < 10 * COLUMN_COUNT
