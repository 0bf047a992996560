"""ArrayFile: where the values of an array are in a .npy file or a member of an .npz file.

NumPy parses headers and zipfile reads members; nothing is ever unpickled. ``numpy.load`` itself is
not used: it reads members whole, and rows of a memory-mapped file that is truncated meanwhile end
the process with SIGBUS and count all pages that were touched as memory of the process.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy_format

from shardmill.schemas.errors import ChangedError, InputError
from shardmill.schemas.file_signatures import describe_format
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage import Entry, RandomReader, ReaderStream, open_storage, scheme_of

MAX_HEADER_BYTES = 12 + 10_000  # magic, version and length, and the longest header NumPy accepts
_MAX_DIMS = 64
_MAX_PROBLEM = 120  # characters of a message
_SYNTAX_NODE = re.compile(r":? <ast\.\w+ object at \w+>")
_MAX_SIDE = np.iinfo(np.int64).max
_NUMBERS = "biufc"  # NumPy's kinds of booleans, integers, floats and complex numbers
_WIDEST = {"f": 8, "c": 16}  # bytes; wider floats differ between machines
_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
    # Only field names can be other than ASCII, which is where version 3 differs from version 2.
    (3, 0): npy_format.read_array_header_2_0,
}
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 500
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


class NpyHeader(NamedTuple):
    """The header of a .npy file.

    Attributes:
        dtype: Type of the values, in the byte order of the file.
        shape: All dimensions, examples first.
        fortran: Whether the first dimension varies fastest.
        num_bytes: Bytes before the first value.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    num_bytes: int


def parse_header(start: bytes, source: str) -> NpyHeader:
    """Return the header of a .npy file.

    Args:
        start: The first ``MAX_HEADER_BYTES`` of the file, or all bytes of a shorter file.
        source: Name of the file in messages.

    Raises:
        InputError: The header is missing or malformed, or the values are neither numbers nor
            texts.
    """
    if not start.startswith(npy_format.MAGIC_PREFIX):
        raise InputError(_describe_start(start, source))
    stream = io.BytesIO(start)
    try:
        shape, fortran, dtype = _read(stream)
    except Exception as error:
        problem = _describe_problem(error)
        raise InputError(
            f"The .npy header of {source} is truncated or malformed ({problem}): copy the file "
            "again or save it again with numpy.save."
        ) from error
    unsupported = _describe_unsupported(dtype, source)
    if unsupported is not None:
        raise InputError(unsupported)
    # With one side longer than 1, C order and Fortran order are the same.
    fortran = fortran and sum(side != 1 for side in shape) > 1
    return NpyHeader(dtype, shape, fortran, stream.tell())


def _describe_problem(error: Exception) -> str:
    """Return a short text about an error of NumPy, or of the parser of Python that it uses."""
    is_tokenizer = len(error.args) > 1  # a message and a place
    message = str(error.args[0]) if is_tokenizer else str(error)
    message = _SYNTAX_NODE.sub("", message or type(error).__name__)
    line = message.partition("\n")[0].rstrip(".")
    if len(line) <= _MAX_PROBLEM:
        return line
    return f"{line[:_MAX_PROBLEM]}..."


def _read(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    if version not in _READERS:
        raise ValueError(f"version {version[0]}.{version[1]} is not 1.0, 2.0 or 3.0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header written by Python 2, or a deprecated dtype
        shape, fortran, dtype = _READERS[version](stream)
    if not all(type(side) is int and 0 <= side <= _MAX_SIDE for side in shape):
        raise ValueError(f"shape is not valid: {shape}")
    if len(shape) > _MAX_DIMS:
        raise ValueError(f"{len(shape):,} dimensions are over {_MAX_DIMS}")
    return shape, fortran, dtype


def _describe_unsupported(dtype: np.dtype[Any], source: str) -> str | None:
    """Return why values of a dtype cannot be written, with the fix, or None."""
    if dtype.names or dtype.shape:
        return (
            f"{source} holds records with fields (a structured dtype), not plain numbers: save "
            "each field as a separate array, as in numpy.savez('data.npz', a=x['a'], b=x['b'])."
        )
    if dtype.kind == "O":
        return (
            f"{source} holds pickled Python objects (dtype object), which are never loaded: save "
            "an array of numbers, such as numpy.stack(x), or of texts, such as y.astype(str)."
        )
    if dtype.kind == "V":
        dtype_name = dtype.str[1:]
        return (
            f"{source} holds {dtype_name} values, raw bytes without a type (NumPy saves bfloat16 "
            "this way): save x.astype('float32'), or x.view('uint16') to keep the bits."
        )
    if dtype.kind in _WIDEST and dtype.itemsize > _WIDEST[dtype.kind]:
        wide = "complex128" if dtype.kind == "c" else "float64"
        return (
            f"{source} holds {dtype.name}, which differs between machines: save x.astype('{wide}')."
        )
    if dtype.kind in _NUMBERS + "SU":
        return None
    kind = "int64" if dtype.kind in "Mm" else "float64"
    return f"{source} holds {dtype.name} values, which are not numbers: save x.astype('{kind}')."


def _describe_start(start: bytes, source: str) -> str:
    """Describe a file without the signature of .npy, with the fix."""
    description = describe_format(start) or f"one that begins with {start[:6].hex(' ')}"
    if not start:
        description = "an empty file"
    elif start[:1] == b"\x80":
        description = "a pickle, which is never loaded"
    fix = "" if ": " in description else ": save it with numpy.save"
    return f"{source} is not a .npy file but {description}{fix}."


@dataclass(frozen=True)
class ArrayFile:
    """One array in a file; a small picklable value.

    Attributes:
        name: Name of the feature.
        source: Name of the array in messages.
        uri: Path or URI of the file.
        size: Bytes of the file when it was opened.
        version: As in ``Entry``.
        ctime: As in ``Entry``.
        dtype: Type of the values, in the byte order of the file.
        shape: All dimensions, examples first.
        fortran: Whether the first dimension varies fastest.
        header_bytes: Bytes of the .npy header.
        member: Name of the zip member; empty for a .npy file.
    """

    name: str
    source: str
    uri: str
    size: int
    version: str
    ctime: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    header_bytes: int
    member: str = ""

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one example."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return self.rows * self.row_bytes

    @property
    def is_stream(self) -> bool:
        """Whether the rows can only be read from the first to the last."""
        return bool(self.member) or (self.fortran and bool(scheme_of(self.uri)))

    @property
    def is_text(self) -> bool:
        """Whether the values are texts."""
        return self.dtype.kind in "SU"

    def changed(self, detail: str) -> InputError:
        """Return the error for a file that changed after it was opened."""
        return _array_changed(uri=self.uri, error=detail)


def open_npy(entry: Entry, name: str, source: str) -> ArrayFile:
    """Return the array of a .npy file.

    Args:
        entry: The file.
        name: Name of the feature.
        source: Name of the file in messages.

    Raises:
        InputError: The file is not a .npy file of numbers or texts, or its size is not the one
            that its header states.
    """
    with open_file(entry.path) as reader:
        header = reader.read_at(0, MAX_HEADER_BYTES)
        return _array_file(reader, entry, name, source, header, reader.size)


def npz_members(entry: Entry, source: str) -> tuple[list[str], list[str]]:
    """Return the names of the arrays in an .npz file, and of its other members.

    Raises:
        InputError: The file is not a zip file, or two members have the same name.
    """
    with open_file(entry.path) as reader, _open_zip(reader, source) as archive:
        members = [info.filename for info in archive.infolist() if not info.is_dir()]
    arrays = [name.removesuffix(".npy") for name in members if name.endswith(".npy")]
    repeated = next((name for name in arrays if arrays.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f"{source} has two members {repeated!r}: save it again with numpy.savez.")
    return arrays, [name for name in members if not name.endswith(".npy")]


def open_npz(entry: Entry, name: str, source: str) -> ArrayFile:
    """Return one array of an .npz file.

    Args:
        entry: The file.
        name: Name of the array.
        source: Name of the file in messages.

    Raises:
        InputError: The member is damaged, is not an array of numbers or texts, or its size is not
            the one that its header states.
    """
    source = f"{source}, array {name!r}"
    with open_file(entry.path) as reader, _open_zip(reader, source) as archive:
        info = archive.getinfo(f"{name}.npy")
        if info.file_size > max(_BOMB_BYTES, _BOMB_RATIO * info.compress_size):
            raise InputError(
                f"{source} has {plural(info.compress_size, 'byte')} and claims to decompress to "
                f"{info.file_size:,}, over {_BOMB_RATIO} times as many: if that is right, save it "
                "uncompressed with numpy.savez."
            )
        with _reject_damage(source), archive.open(info) as stream:
            header = stream.read(MAX_HEADER_BYTES)
        array = _array_file(reader, entry, name, source, header, info.file_size)
        return replace(array, member=info.filename)


def _array_file(
    reader: RandomReader, entry: Entry, name: str, source: str, start: bytes, size: int
) -> ArrayFile:
    """Return the array whose .npy file, or member, has a size and begins with the bytes ``start``.

    Raises:
        InputError: The header is malformed, or the size is not the one that it states.
    """
    header = parse_header(start, source)
    if not header.shape:
        raise InputError(
            f"{source} is a single value (shape ()), so it has no examples: save an array whose "
            "first axis is the examples."
        )
    array = ArrayFile(name, source, entry.path, reader.size, reader.version, entry.ctime, *header)
    data_bytes = size - array.header_bytes
    if data_bytes == array.num_bytes:
        return array
    shape = str(array.shape)
    shortened = shape if len(shape) <= 60 else f"{shape[:60]}...)"
    raise InputError(
        f"{source} is truncated or has data after its array: its shape {shortened} of "
        f"{array.dtype.name} takes {plural(array.num_bytes, 'byte')} and it has {data_bytes:,}; "
        "copy it again, or save each array in a separate file."
    )


@contextlib.contextmanager
def open_file(uri: str) -> Iterator[RandomReader]:
    """Open a file for positioned reads.

    Raises:
        InputError: The file does not exist, or changed.
    """
    try:
        with open_storage(uri).open_at(uri) as reader:
            yield reader
    except FileNotFoundError as error:
        raise InputError(f"{uri} is gone: check --input and run again.") from error
    except ChangedError as error:
        raise _array_changed(uri=uri, error=error) from error


def _array_changed(uri: object, error: object) -> InputError:
    return InputError(f"{uri} changed while it was read ({error}): run again.")


@contextlib.contextmanager
def open_unchanged(array: ArrayFile) -> Iterator[RandomReader]:
    """Open the file of an array for positioned reads.

    Raises:
        InputError: The file changed since the array was opened.
    """
    with open_file(array.uri) as reader:
        if (reader.size, reader.version) != (array.size, array.version):
            raise array.changed("its size or modification time differs")
        yield reader


def check_unchanged(array: ArrayFile) -> None:
    """Raise an InputError if the file of an array changed since it was opened."""
    entry = open_storage(array.uri).stat(array.uri)
    if entry is None or (entry.size, entry.version) != (array.size, array.version):
        raise array.changed("its size or modification time differs")


def stream_values(array: ArrayFile, size: int) -> Iterator[bytes]:
    """Yield the bytes of all values in the order of the file, decompressed, size bytes at a time.

    Raises:
        InputError: The file changed, or the member is damaged (its checksum was compared by the
            time the last bytes are yielded).
    """
    with (
        open_unchanged(array) as reader,
        _reject_damage(array.source),
        _open_stream(reader, array) as stream,
    ):
        stream.read(array.header_bytes)
        for at in range(0, array.num_bytes, size):
            length = min(size, array.num_bytes - at)
            data = stream.read(length)
            if len(data) < length:
                raise array.changed("it was truncated")
            yield data


@contextlib.contextmanager
def _open_stream(reader: RandomReader, array: ArrayFile) -> Iterator[IO[bytes]]:
    """Open the .npy file, or the decompressed member, as a stream."""
    if not array.member:
        with io.BufferedReader(ReaderStream(reader), reader.chunk) as buffered:
            yield cast("IO[bytes]", buffered)
        return
    with (
        _open_zip(reader, array.source, reader.chunk) as archive,
        archive.open(array.member) as stream,
    ):
        yield stream


@contextlib.contextmanager
def _open_zip(
    reader: RandomReader, source: str, buffer_bytes: int = 1 << 16
) -> Iterator[zipfile.ZipFile]:
    with io.BufferedReader(ReaderStream(reader), buffer_bytes) as stream:
        try:
            archive = zipfile.ZipFile(cast("IO[bytes]", stream))
        except _ZIP_ERRORS as error:
            start = reader.read_at(0, 6).hex(" ") or "nothing"
            raise InputError(
                f"{source} is not an .npz file ({_message(error)}; it begins with {start}): save "
                "it with numpy.savez."
            ) from error
        with archive:
            yield archive


@contextlib.contextmanager
def _reject_damage(source: str) -> Iterator[None]:
    """Turn the errors of zipfile and zlib into an InputError."""
    try:
        yield
    except _ZIP_ERRORS as error:
        raise InputError(
            f"{source} is damaged and cannot be read ({_message(error)}): copy it or save it again."
        ) from error


def _message(error: BaseException) -> str:
    return (str(error) or type(error).__name__).rstrip(".")[:120]
