"""Headers of .npy files are parsed, or rejected in one sentence."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas.errors import InputError
from shardmill.transforms.sources.arrays.array_file import parse_header


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", "CF")
def test_parses_headers_of_every_version(version, order) -> None:
    array = np.asarray(np.arange(12, dtype=">i2").reshape(6, 2), order=order)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    header = parse_header(file.getvalue(), "X.npy")
    assert header == (array.dtype, (6, 2), order == "F", len(file.getvalue()) - array.nbytes)


def test_parses_header_written_by_python_2(recwarn) -> None:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (6L, 2L), }"
    header = parse_header(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text, "X.npy")
    assert (header.shape, header.dtype) == ((6, 2), np.dtype("<f4"))
    assert not recwarn


def last_character(header: bytes) -> str:
    """Return the last character of the error of a header, or an empty text if it is valid."""
    try:
        assert parse_header(header, "X.npy").num_bytes > 0
    except InputError as error:
        return str(error)[-1]
    return ""


@given(st.binary(max_size=200), st.integers(1, 3))
def test_any_header_is_parsed_or_rejected(data, version) -> None:
    width = 2 if version == 1 else 4
    head = b"\x93NUMPY" + bytes([version, 0]) + len(data).to_bytes(width, "little") + data
    assert last_character(head) in ("", ".")


@given(
    st.sampled_from(["'<f4'", "'|b1'", "'O'", "7", "None", "[('a', '<f4')]", "'<U3'", "'>c8'"]),
    st.sampled_from(["True", "False", "1", "None"]),
    st.one_of(st.text("(),0123456789L -", max_size=12), st.just("(3, 2)")),
)
def test_any_plausible_header_is_parsed_or_rejected(descr, order, shape) -> None:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}".encode()
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    assert last_character(head) in ("", ".")
