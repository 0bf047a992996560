"""Archives that Shardmill writes itself: images that have no file, each with its reference."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple

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


def pack_images(images: Iterable[SpooledImage]) -> bytes:
    """Return an uncompressed tar archive of images."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number, *record, data in images:
            info = tarfile.TarInfo(str(number))
            info.size = len(data)
            info.pax_headers = {RECORD: json.dumps(record)}
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def list_images(ref: InputRef) -> Iterator[InputRef]:
    """Yield the references of the images in an archive.

    Args:
        ref: The archive.

    Raises:
        InputError: It was deleted or is damaged.
        StorageError: Reading it failed.
    """
    if ref.error:
        raise InputError("archive-rejected", path=ref.uri, why=ref.message)
    with open_storage(ref.uri).open_at(ref.uri) as reader:
        for member in list_tar(reader, ref.uri):
            key, label, split, version = json.loads(member.record)
            # What the archive holds follows from its name.
            where = MemberRange(ref.uri, reader.size, "", member.offset, member.length)
            uri = f"record:{member.name}"  # the archive will be deleted
            yield InputRef(key, uri, member.size, version, label, split, member=tuple(where))
