"""Values of records survive packing, and are summed in any order and selection of records."""

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.transforms.tables.segments import sum_records, take_values
from shardmill.transforms.tables.table_source import ARROW_TYPES, TypedColumn
from tests.conftest import examples
from tests.support.statistics_tools import assert_close

ELEMENTS = {
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    "float32": st.floats(width=32),
    "bytes": st.binary(max_size=3),
}
FORMS = ("plain", "dictionary", "lists", "dictionary of lists")


def make_column(kind: str, form: str, cells: Sequence[list]) -> tuple[TypedColumn, list[list]]:
    """Return a column in one of the forms that TypedColumn allows, and the values of each row."""
    name, arrow = f"{kind} {form}", ARROW_TYPES[kind]
    rows = [cell[:1] for cell in cells]
    values = pa.array([(*row, None)[0] for row in rows], arrow)
    if "lists" in form:
        rows = [*cells]
        values = pa.array(cells, pa.list_(arrow))
    if "dictionary" in form:
        values = pa.DictionaryArray.from_arrays(np.arange(len(values), dtype=np.int32), values)
    return TypedColumn(name, kind, values), rows


cells_of = {
    kind: st.lists(st.lists(elements, max_size=3), min_size=6, max_size=6)
    for kind, elements in ELEMENTS.items()
}


def join(pieces: Sequence[pa.Table]) -> pa.Table:
    """Return pieces of values as one table with one chunk."""
    return pa.concat_tables(pieces).combine_chunks()


@settings(max_examples=examples(150))
@given(st.fixed_dictionaries(cells_of), st.permutations(range(6)), st.data())
def test_sums_are_those_of_the_chosen_records(cells, order, data) -> None:
    made = [make_column(kind, form, cells[kind]) for kind in cells for form in FORMS]
    values = take_values([column for column, _ in made], np.array(order))
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, 5)))), 6]
    pieces = [values.slice(first, after - first) for first, after in itertools.pairwise(cuts)]
    random = data.draw(st.randoms(use_true_random=False))
    chosen = random.sample(range(6), random.randint(1, 6))
    sums = sum_records(join(pieces), np.array(chosen))
    assert list(sums) == [column.name for column, _ in made]
    for column, rows in made:
        mine = [rows[order[record]] for record in chosen]
        assert sums[column.name].examples == sum(map(bool, mine))
        listed = [value for row in mine for value in row]
        assert sums[column.name].values == len(listed)
        if column.kind != "bytes":
            assert_close(sums[column.name], listed)


def test_floats_are_summed_in_the_order_of_the_records() -> None:
    """A sum in float64 depends on the order, which must be that of the records in the part."""
    numbers = [1e30, -1e30, *[1.0] * 5]
    column = TypedColumn("x", "float32", pa.array(numbers, pa.float32()))
    values = join([take_values([column], np.arange(7))])
    means = [
        sum_records(values, np.array(order))["x"].mean()
        for order in ([0, 1, 2, 3, 4, 5, 6], [0, 2, 3, 4, 5, 6, 1])
    ]
    assert means == [5 / 7, 0.0]
