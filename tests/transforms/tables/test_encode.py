"""Columnar encoding equals row-by-row encoding; protobuf and TensorFlow are the judges."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas import encode_example
from shardmill.schemas.tfrecord.framing import frame
from shardmill.transforms.tables.byte_arrays import ByteStrings
from shardmill.transforms.tables.encode import encode_rows, prepare, varints
from shardmill.transforms.tables.table_source import ARROW_TYPES, TypedColumn

EDGES = sorted({s * 2**n + d for n in range(64) for s in (1, -1) for d in (-1, 0, 1)})
EDGES = [n for n in EDGES if -(2**63) <= n < 2**63]
VALUES = {
    "int64": st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1), st.integers(0, 3)),
    "float32": st.floats(width=32, allow_nan=False),
    "bytes": st.one_of(
        st.binary(max_size=6), st.sampled_from([bytes(n) for n in (0, 1, 99, 127, 128, 200, 20000)])
    ),
}


@st.composite
def typed_columns(draw, rows: int, name: str) -> TypedColumn:
    """Draw a column: a dictionary or plain, scalars or lists, with nulls, sliced."""
    kind = draw(st.sampled_from(list(ARROW_TYPES)))
    in_lists = draw(st.booleans())
    item = st.lists(VALUES[kind], max_size=4) if in_lists else VALUES[kind]
    item = st.one_of(item, st.none()) if draw(st.booleans()) else item
    indexed = rows > 0 and draw(st.booleans())
    count = draw(st.integers(1, 9)) if indexed else rows
    items = draw(st.lists(item, min_size=count, max_size=count))
    arrow_type = ARROW_TYPES[kind]
    if kind == "bytes" and draw(st.booleans()):
        arrow_type = pa.large_binary()
    if in_lists:
        arrow_type = draw(st.sampled_from([pa.list_, pa.large_list]))(arrow_type)
    padding = draw(st.integers(0, 2)) if items else 0
    values = pa.array(items[:1] * padding + items + items[:padding], arrow_type)
    values = values.slice(padding, len(items))
    if not indexed:
        return TypedColumn(name, kind, values)
    indices = draw(st.lists(st.integers(0, count - 1), min_size=rows, max_size=rows))
    dictionary = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), values)
    return TypedColumn(name, kind, dictionary)


@st.composite
def tables(draw) -> list[TypedColumn]:
    rows = draw(st.integers(0, 40))
    names = draw(st.lists(st.text(max_size=8), min_size=1, max_size=7, unique=True))
    return [draw(typed_columns(rows, name)) for name in names]


def features_of(columns: list[TypedColumn], row: int) -> dict:
    """Return the features of a row without missing values and empty lists."""
    found = {}
    for name, _, values in columns:
        value = values[row].as_py()
        if value is not None and value != []:
            found[name] = value
    return found


def encoded(columns: list[TypedColumn], order: np.ndarray, step: int = 7) -> list[bytes]:
    """Return the frames of the rows, encoded in slices of ``step`` rows."""
    prepared = prepare(columns, order)
    frames = []
    for start in range(0, len(order), step):
        data = encode_rows(prepared, start, start + step).to_pybytes()
        lengths = prepared.lengths[start : start + step]
        ends = np.cumsum(lengths)
        assert ends[-1] == len(data)
        frames += [data[end - size : end] for end, size in zip(ends, lengths, strict=True)]
    return frames


@pytest.mark.heavy
@given(tables(), st.data())
def test_equal_to_encoding_row_by_row(columns: list[TypedColumn], data) -> None:
    order = np.array(data.draw(st.permutations(range(len(columns[0].values)))), np.int64)
    order = order[: data.draw(st.integers(0, len(order)))]
    wanted = [frame(encode_example(features_of(columns, row))) for row in order]
    assert encoded(columns, order) == wanted


def test_rows_without_values_are_empty_records() -> None:
    empty = TypedColumn("a", "int64", pa.nulls(3, pa.int64()))
    assert encoded([empty], np.arange(3)) == [frame(b"")] * 3
    lists = TypedColumn("b", "bytes", pa.array([[], [b""]], pa.list_(pa.binary())))
    assert encoded([lists], np.arange(2)) == [frame(b""), frame(encode_example({"b": b""}))]
    assert encode_rows(prepare([empty], np.arange(3)), 1, 1).to_pybytes() == b""  # no rows
    assert encode_rows(prepare([empty], np.arange(0)), 0, 9).to_pybytes() == b""


def test_nan_and_signed_zero_keep_their_bits() -> None:
    bits = np.array([0x7FC00001, 0xFF800001, 0x80000000, 0x7F800000, 1], np.uint32)
    column = TypedColumn("f", "float32", pa.array(bits.view(np.float32)))
    for framed, wanted in zip(encoded([column], np.arange(5)), bits, strict=True):
        assert framed[-8:-4] == wanted.tobytes()


def test_pieces_are_addressed_with_64_bits() -> None:
    # With 32-bit offsets Arrow raises or overflows where a slice reaches 2 GiB.
    column = TypedColumn("id", "bytes", pa.array([b"row", b""]))
    assert prepare([column], np.arange(2)).pieces.type == pa.large_binary()
    texts = [b"ab", b"", b"c"]
    assert ByteStrings.of_arrow(pa.array(texts)).arrow().to_pylist() == texts


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("a", "int64", [1.5])], "'a' holds double, not int64"),
        ([("a", "float32", [1.5])], "'a' holds double, not float32"),
        ([("a", "bytes", ["x"])], "'a' holds string, not bytes"),
        ([("a", "int64", [[1, None]])], "list in the column 'a' contains a null"),
    ],
)
def test_rejects_values_of_another_kind(columns, message) -> None:
    typed = [TypedColumn(name, kind, pa.array(values)) for name, kind, values in columns]
    with pytest.raises(ValueError, match=message):
        prepare(typed, np.zeros(1, np.int64))


@given(st.lists(VALUES["int64"], max_size=30))
def test_varints_equal_protobuf(numbers: list[int]) -> None:
    from google.protobuf.internal.encoder import _VarintBytes

    found = varints(np.array(numbers, np.int64)).arrow().to_pylist()
    assert found == [_VarintBytes(number % 2**64) for number in numbers]
