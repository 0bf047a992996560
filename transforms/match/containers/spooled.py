"""Archives that Shardmill writes itself: images that have no file, each with its reference."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple

from shardmill.schemas.errors import InputError
from shardmill.schemas.refs import InputRef, MemberRange
from shardmill.schemas.storage import open_storage
from shardmill.transforms.match.containers.tar_members import RECORD, list_tar


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
