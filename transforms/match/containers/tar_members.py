"""List the members of uncompressed tar archives, and write those of images that have no file."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple

from shardmill.schemas.errors import InputError
from shardmill.schemas.refs import InputRef, MemberRange
from shardmill.schemas.storage import RandomReader, open_storage
from shardmill.schemas.storage.base import ReaderStream

_MAX_HEADER = 1 << 20  # bytes of the extended header of a member
RECORD = "SHARDMILL.record"  # keyword of extended headers: see ``pack_images``
_BLOCK = 512  # IEEE Std 1003.1, pax: an archive ends with two blocks of zeros


class ArchiveMember(NamedTuple):
    """A member of an archive.

    Attributes:
        name: Its name, with surrogates for bytes that are not UTF-8.
        size: Bytes of its content.
        version: Text that most likely changes with its content.
        offset: See ``MemberRange``.
        length: See ``MemberRange``.
        crc32: See ``MemberRange``.
        error: Why it cannot be read, or empty.
        record: Value of the keyword ``RECORD`` of its extended header.
    """

    name: str
    size: int
    version: str
    offset: int
    length: int
    crc32: int = -1
    error: str = ""
    record: str = ""


class _Headers(io.BufferedReader):
    """Reads the headers of a tar archive, of which a damaged one may state any length."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return bytes of a header."""
        if size is None or not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def list_tar(reader: RandomReader, path: str) -> Iterator[ArchiveMember]:
    """Yield the members of a tar archive, except folders.

    Args:
        reader: The archive.
        path: Its path, for messages.

    Raises:
        InputError: The archive is damaged or cut short.
    """
    # What is between two headers is read if that is as fast as a second request.
    with _Headers(ReaderStream(reader), reader.gap) as stream:
        try:
            archive = tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape")  # noqa: SIM115
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined] # it keeps all for lookups
                if info.offset_data + info.size > reader.size:
                    raise tarfile.ReadError("the last member is cut short")
                if not info.isdir():
                    error = (
                        ""
                        if info.isreg() and not info.issparse()
                        else "a link, device or sparse file"
                    )
                    yield ArchiveMember(
                        info.name, info.size, str(info.mtime), info.offset_data, info.size,
                        error=error, record=info.pax_headers.get(RECORD, ""),
                    )  # fmt: skip
            # A damaged header ends the iteration, too.
            _check_end(stream, archive.offset)
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise InputError("archive-damaged", path=path, why=str(error)) from error


def _check_end(stream: io.BufferedReader, offset: int) -> None:
    """Check that an archive ends at an offset, and not only what could be read of it."""
    stream.seek(offset)
    end = stream.read(_BLOCK)
    if len(end) < _BLOCK:
        raise tarfile.ReadError("it has no end mark, so it is cut short")
    while end:
        if end.strip(b"\0"):
            raise tarfile.ReadError(f"there is no header at byte {offset}")
        end = stream.read(_MAX_HEADER)


class SpooledImage(NamedTuple):
    """An image without a file.

    Attributes:
        number: Its place in the source.
        key: See ``InputRef``.
        label: See ``InputRef``.
        split: See ``InputRef``.
        version: A digest of the content.
        data: The content; empty if there is none.
    """

    number: int
    key: str
    label: str | None
    split: str
    version: str
    data: bytes


def pack_images(images: Iterable[SpooledImage], file: IO[bytes]) -> None:
    """Write an uncompressed tar archive of images to a new file."""
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for number, *record, data in images:
            info = tarfile.TarInfo(str(number))
            info.size = len(data)
            info.pax_headers = {RECORD: json.dumps(record)}
            archive.addfile(info, io.BytesIO(data))


def list_images(ref: InputRef) -> Iterator[InputRef]:
    """Yield the references of the images in the archive of a Python source.

    Args:
        ref: The archive.

    Raises:
        InputError: It was deleted or is damaged.
        StorageError: Reading it failed.
    """
    if ref.error:
        raise InputError("archive-rejected", path=ref.uri, why=ref.message)
    # The archive will be deleted, so names do not contain its path.
    return list_spool(ref.uri, ref.uri, lambda number, key: (key, f"record:{number}"))


def list_spool(
    path: str, shown: str, name: Callable[[str, str], tuple[str, str]]
) -> Iterator[InputRef]:
    """Yield the references of the images in an archive.

    Args:
        path: Path of the archive, whose content follows from its name.
        shown: The path that messages name.
        name: Returns the key and the URI of an image, given its number and key.

    Raises:
        InputError: It is damaged.
        StorageError: Reading it failed.
    """
    with open_storage(path).open_at(path) as reader:
        for member in list_tar(reader, shown):
            key, label, split, version = json.loads(member.record)
            where = MemberRange(path, reader.size, "", member.offset, member.length)
            key, uri = name(member.name, key)
            yield InputRef(key, uri, member.size, version, label, split, member=tuple(where))
