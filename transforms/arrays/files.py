"""Array files: where each array lies in a .npy file or a member of an .npz, and its plain bytes.

Only headers are read to open one. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, cast

import numpy as np

from shardmill.schemas.errors import ChangedError, InputError
from shardmill.schemas.storage import Entry, open_storage
from shardmill.schemas.storage.base import RandomReader
from shardmill.transforms.arrays.npy_header import PREFIX, NpyHeader, header_bytes, parse_header

_LOCAL_HEADER = 30  # bytes of a zip member's own header, before its name
_CHECKED_BYTES = 4 << 20  # at a time
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 500
_PACKED_ERRORS = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True)
class ArrayFile:
    """One array, somewhere in a file; a small picklable value.

    Attributes:
        name: Of the feature.
        shown: What messages call it.
        uri: The file.
        size: Bytes of the file when it was opened.
        version: As in ``Entry``.
        descr: NumPy's name of the type, byte order included.
        shape: All dimensions, examples first.
        fortran: Whether the first dimension varies fastest.
        offset: Where the values begin: in the file, or in the unpacked member.
        member: Member of the zip file, where it is compressed; else empty.
        header: Bytes in front of the values that belong to the array.
        crc: CRC-32 of header and values as the zip file states it, where it is not compressed.
    """

    name: str
    shown: str
    uri: str
    size: int
    version: str
    descr: str
    shape: tuple[int, ...]
    fortran: bool
    offset: int
    member: str = ""
    header: int = 0
    crc: int | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values, in the byte order of the file."""
        return np.dtype(self.descr)

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
    def is_text(self) -> bool:
        """Whether the values are texts."""
        return self.dtype.kind in "SU"

    def changed(self, detail: str = "") -> InputError:
        """Returns the error that the file is not what it was."""
        more = f" ({detail})" if detail else ""
        return InputError(f"{self.uri} changed while it was read{more}: run again.")


def open_npy(entry: Entry, name: str, shown: str) -> ArrayFile:
    """Returns the array of a .npy file.

    Args:
        entry: The file.
        name: Of the feature.
        shown: What messages call it.

    Raises:
        InputError: It is no .npy file of numbers or texts, or has not the size that it states.
    """
    with opened(entry.path) as reader:
        begin = reader.read_at(0, PREFIX)
        header = parse_header(reader.read_at(0, header_bytes(begin, shown)), shown)
        _check_size(header, reader.size, shown)
        return _array(header, entry._replace(size=reader.size, version=reader.version), name, shown)


def npz_names(entry: Entry, shown: str) -> tuple[list[str], list[str]]:
    """Returns the names of the arrays in an .npz file, and of other members.

    Raises:
        InputError: It is no zip file, or a name stands twice.
    """
    with opened(entry.path) as reader, _zip(reader, shown) as archive:
        members = [info.filename for info in archive.infolist() if not info.is_dir()]
    arrays = [name.removesuffix(".npy") for name in members if name.endswith(".npy")]
    twice = next((name for name in arrays if arrays.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{shown} has two members {twice!r}: save it again with numpy.savez.")
    return arrays, [name for name in members if not name.endswith(".npy")]


def open_npz(entry: Entry, name: str, shown: str) -> ArrayFile:
    """Returns one array of an .npz file.

    Args:
        entry: The file.
        name: Of the array.
        shown: What messages call the file.

    Raises:
        InputError: It is no array of numbers or texts, or has not the size that it states.
    """
    shown = f"{shown}, array {name!r}"
    with opened(entry.path) as reader, _zip(reader, shown) as archive:
        entry = entry._replace(size=reader.size, version=reader.version)
        info = archive.getinfo(f"{name}.npy")
        if info.flag_bits & 1:
            raise InputError(f"{shown} is encrypted: save it again with numpy.savez.")
        if info.compress_type == zipfile.ZIP_STORED:
            start = _data_start(reader, info, shown)
            begin = reader.read_at(start, min(PREFIX, info.file_size))
            size = min(header_bytes(begin, shown), info.file_size)
            header = parse_header(reader.read_at(start, size), shown)
            _check_size(header, info.file_size, shown)
            array = _array(header, entry, name, shown)
            return replace(array, offset=start + header.offset, crc=info.CRC)
        if info.file_size > _BOMB_BYTES and info.file_size > _BOMB_RATIO * info.compress_size:
            raise InputError(
                f"{shown} has {info.compress_size:,} bytes and claims to unpack to "
                f"{info.file_size:,}, over {_BOMB_RATIO} times as many: save it with numpy.savez, "
                "uncompressed, if that is right."
            )
        with _packed_errors(shown), archive.open(info) as stream:
            begin = stream.read(PREFIX)
            header = parse_header(begin + stream.read(header_bytes(begin, shown) - PREFIX), shown)
        _check_size(header, info.file_size, shown)
        return replace(_array(header, entry, name, shown), member=info.filename)


@contextlib.contextmanager
def opened(uri: str) -> Iterator[RandomReader]:
    """Opens a file to be read at any place.

    Raises:
        InputError: It is gone, or no file.
    """
    try:
        with open_storage(uri).open_at(uri) as reader:
            yield reader
    except FileNotFoundError as error:
        raise InputError(f"{uri} is gone: check --input and run again.") from error
    except ChangedError as error:
        raise InputError(f"{uri} changed while it was read ({error}): run again.") from error


@contextlib.contextmanager
def opened_again(array: ArrayFile) -> Iterator[RandomReader]:
    """Opens the file of an array, which must still be what it was.

    Raises:
        InputError: It is not.
    """
    with opened(array.uri) as reader:
        if (reader.size, reader.version) != (array.size, array.version):
            raise array.changed(f"it had {array.size:,} bytes and has {reader.size:,}")
        yield reader


def check_unchanged(array: ArrayFile) -> None:
    """Refuses a file that changed while it was read.

    Raises:
        InputError: It did, or is gone.
    """
    entry = open_storage(array.uri).stat(array.uri)
    if entry is None or (entry.size, entry.version) != (array.size, array.version):
        raise array.changed()


def stream_bytes(array: ArrayFile, size: int) -> Iterator[bytes]:
    """Yields the bytes of all values in the order of the file, size bytes at a time.

    Raises:
        InputError: The file changed, or a compressed member is damaged.
    """
    with opened_again(array) as reader:
        if not array.member:
            for at in range(0, array.num_bytes, size):
                length = min(size, array.num_bytes - at)
                data = reader.read_at(array.offset + at, length)
                if len(data) < length:
                    raise array.changed("it became shorter")
                yield data
            return
        with (
            _zip(reader, array.shown, reader.chunk) as archive,
            _packed_errors(array.shown),
            archive.open(array.member) as stream,
        ):
            stream.read(array.offset)
            yield from _exactly(stream, array, size)


def check_stored(array: ArrayFile) -> None:
    """Reads an uncompressed member of an .npz once and compares its checksum.

    Compressed members are checked when they are unpacked, and a .npy has no checksum.

    Raises:
        InputError: It is damaged, or the file changed.
    """
    if array.crc is None:
        return
    whole = replace(
        array, shape=(array.header + array.num_bytes,), descr="|u1",
        offset=array.offset - array.header,
    )  # fmt: skip
    crc = 0
    for data in stream_bytes(whole, _CHECKED_BYTES):
        crc = zlib.crc32(data, crc)
    if crc != array.crc:
        raise InputError(f"{array.shown} is damaged (Bad CRC-32): copy or save it again.")


def _exactly(stream: IO[bytes], array: ArrayFile, size: int) -> Iterator[bytes]:
    left = array.num_bytes
    while left:
        data = stream.read(min(size, left))
        if len(data) < min(size, left):
            raise zipfile.BadZipFile("it ends too soon")
        left -= len(data)
        yield data
    if stream.read(1):  # at the end the checksum is compared
        raise zipfile.BadZipFile("it has more bytes than it states")


def _array(header: NpyHeader, entry: Entry, name: str, shown: str) -> ArrayFile:
    if not header.shape:
        raise InputError(
            f"{shown} is a single value (shape ()), so it has no examples: save an array whose "
            "first axis is the examples."
        )
    return ArrayFile(
        name, shown, entry.path, entry.size, entry.version, header.dtype.str, header.shape,
        header.fortran, header.offset, header=header.offset,
    )  # fmt: skip


def _check_size(header: NpyHeader, size: int, shown: str) -> None:
    has = size - header.offset
    if header.num_bytes > has:
        raise InputError(
            f"{shown} is cut short: its shape {_shown_shape(header.shape)} of {header.dtype.name} "
            f"takes {header.num_bytes:,} bytes and it has {has:,}; copy it again."
        )
    if header.num_bytes < has:
        raise InputError(
            f"{shown} goes on behind its array: its shape {_shown_shape(header.shape)} of "
            f"{header.dtype.name} takes {header.num_bytes:,} bytes and it has {has:,}; save each "
            "array in a file of its own."
        )


def _shown_shape(shape: tuple[int, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 60 else f"{text[:60]}...)"


class _Ranges(io.RawIOBase):
    """A file that is read at any place, as a stream that zipfile takes."""

    def __init__(self, reader: RandomReader) -> None:
        self._reader, self._at = reader, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._reader.size}[whence]
        if base + offset < 0:
            raise ValueError(f"{base + offset} is before the file")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._reader.read_at(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextlib.contextmanager
def _zip(reader: RandomReader, shown: str, buffer: int = 1 << 16) -> Iterator[zipfile.ZipFile]:
    stream = io.BufferedReader(_Ranges(reader), buffer)
    with stream:
        try:
            archive = zipfile.ZipFile(cast("IO[bytes]", stream))
        except _PACKED_ERRORS as error:
            begin = reader.read_at(0, 6).hex(" ") or "nothing"
            raise InputError(
                f"{shown} is no .npz file ({_said(error)}; it begins with {begin}): save it with "
                "numpy.savez."
            ) from error
        with archive:
            yield archive


@contextlib.contextmanager
def _packed_errors(shown: str) -> Iterator[None]:
    try:
        yield
    except _PACKED_ERRORS as error:
        raise InputError(
            f"{shown} is damaged and cannot be unpacked ({_said(error)}): copy or save it again."
        ) from error


def _said(error: BaseException) -> str:
    return (str(error) or type(error).__name__).rstrip(".")[:120]


def _data_start(reader: RandomReader, info: zipfile.ZipInfo, shown: str) -> int:
    """Returns where a stored member's bytes begin."""
    head = reader.read_at(info.header_offset, _LOCAL_HEADER)
    if len(head) == _LOCAL_HEADER and head[:4] == b"PK\x03\x04":
        name, extra = struct.unpack("<HH", head[26:30])
        start = info.header_offset + _LOCAL_HEADER + int(name) + int(extra)
        if start + info.file_size <= reader.size and info.compress_size == info.file_size:
            return start
    raise InputError(f"{shown} is damaged: its zip headers disagree; copy or save it again.")
