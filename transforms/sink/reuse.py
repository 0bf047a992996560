"""Take the records of unchanged inputs from the published shards instead of decoding them.

The catalogs of the published dataset say where the record of each input is. A record that is
missing or damaged is not taken, and its input is decoded like a new one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardmill.schemas.dataset.catalog import Catalog
from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.manifest import Shard
from shardmill.schemas.dataset.shard_names import REJECTS
from shardmill.schemas.errors import FormatError, ShardmillError
from shardmill.schemas.refs import TRANSIENT, InputRef, PublishedRecord, Reference
from shardmill.schemas.schema_pbtxt.image_features import IMAGE_HASH, VALUES
from shardmill.schemas.storage import RandomReader, join, open_storage, to_relative
from shardmill.schemas.tfrecord.framing import crc32c, unframe
from shardmill.schemas.tfrecord.gzip_member import (
    GZIP_HEADER_BYTES,
    GZIP_TRAILER_BYTES,
    INDEX_BYTES,
    STORED_BLOCK_BYTES,
    STORED_HEADER_BYTES,
    read_index,
    stored_range,
    strip_block_headers,
)
from shardmill.schemas.tfrecord.inflate import inflate_member
from shardmill.transforms.publish.generation import is_shard

_HEADERS = (GZIP_HEADER_BYTES, INDEX_BYTES)
# Errors of published files or their storage: inputs are decoded then.
_FAILURES = (ShardmillError, OSError)


class PublishedRow(NamedTuple):
    """The published facts of one input; small, since it crosses a shuffle.

    Attributes:
        size: Bytes of the input; -1 for one that was rejected.
        version: Version of the input.
        label: Its label.
        path: See ``path_of``.
        ctime: Its ctime.
        record: Its packed ``PublishedRecord``; empty if records of the build have other features.
        values: Digest of its attached values.
    """

    size: int = -1
    version: str = ""
    label: str | None = None
    path: str = ""
    ctime: int = 0
    record: bytes = b""
    values: str = ""


def path_of(uri: str, key: str, root: str) -> str:
    """Return the path of an input relative to the root, in its exact characters.

    Two files may have one key, which is a normalised path. The path is empty where it is the key.
    """
    # Most paths are their keys: an empty text saves their bytes in the shuffle.
    path = to_relative(uri, root)
    if path == f"./{key}":
        return ""
    return path


def read_rows(
    folder: str, shard: Shard, number: int, record_id: str, root: str
) -> Iterator[tuple[str, PublishedRow]]:
    """Yield the key and row of each record of a shard; nothing of a foreign or damaged catalog.

    Args:
        folder: Folder of the published files.
        shard: The shard.
        number: Its number in the plan.
        record_id: Identity of the options that decide the features of the records of the build.
        root: Root of the published dataset.
    """
    if shard.catalog is None:
        return
    path, storage = join(folder, shard.file), open_storage(folder)
    try:
        data = read_dataset_file(join(folder, shard.catalog.file))
        if f"{crc32c(data):08x}" != shard.catalog.crc32c:
            return
        catalog = Catalog(data)
    except _FAILURES:
        return
    # A catalog of another shard would give inputs the records of others.
    if catalog.shard_crc32c not in ("", shard.crc32c):
        return
    locations: Iterable[tuple[int, int, int] | None] = itertools.repeat(None)
    # Rows are compared also where other options make other records; then no record is taken.
    if catalog.record_id == record_id:
        # Each record has a CRC in its frame, but a whole record may be another input's: only
        # the CRC of the whole shard proves that the catalog describes it.
        with contextlib.suppress(*_FAILURES):
            if is_shard(path, shard):
                with storage.open_at(path) as reader:
                    locations = find_records(reader, catalog.record_bytes)
    for row, location in zip(catalog, locations, strict=False):
        record = b""
        # Catalogs of 0.2.0 name no shard: there a record that has no hash cannot be proved.
        is_provable = bool(catalog.shard_crc32c or row.features[IMAGE_HASH])
        if location is not None and is_provable:
            record = PublishedRecord(str(number), row.image, *location, row.record_bytes).pack()
        size, version, label, ctime = row.input_bytes, row.input_version, row.label, row.input_ctime
        place, values = path_of(row.source, row.key, root), row.features[VALUES] or ""
        yield row.key, PublishedRow(size, version, label, place, ctime, record, values)


def read_rejected(folder: str) -> Iterator[tuple[str, PublishedRow]]:
    """Yield the keys of the published rejects that are compared; they have no row in a catalog.

    Args:
        folder: Folder of the published files.
    """
    path = join(folder, REJECTS)
    with contextlib.suppress(ShardmillError, OSError, ValueError, TypeError, KeyError):
        for line in read_dataset_file(path).splitlines():
            reject = json.loads(line)
            # A permanent reject of matching is not compared; a transient one may be an input now.
            if reject["stage"] != "match" or reject["error"] in {"key_conflict", *TRANSIENT}:
                yield reject["key"], PublishedRow()


def find_records(reader: RandomReader, lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Locate each record of a shard.

    Args:
        reader: Reads the shard.
        lengths: Bytes of each record in the uncompressed shard.

    Returns:
        ``member``, ``member_bytes`` and ``start`` of each record.

    Raises:
        FormatError: The index of the shard does not match the lengths.
    """
    # The catalog lists records in the order of the shard, so their lengths say where each begins.
    ends = list(itertools.accumulate(lengths, initial=0))
    members = read_index(reader.read_at, reader.size)
    if members is None:  # not compressed
        if ends[-1] != reader.size:
            raise FormatError("its size does not match its catalog")
        return [(start, -1, 0) for start in ends[:-1]]
    if sum(member.records for member in members) != len(lengths):
        raise FormatError("its member index does not match its catalog")
    locations: list[tuple[int, int, int]] = []
    for member in members:
        first = len(locations)
        content = ends[first + member.records] - ends[first]
        # The rest of a stored member is its header, whose size differs if it holds an index.
        blocks = max(1, -(-content // STORED_BLOCK_BYTES)) * STORED_HEADER_BYTES
        header = member.num_bytes - blocks - content - GZIP_TRAILER_BYTES
        # A deflated member can have the size of a stored one by chance: the CRC of a record fails.
        at = (member.offset, member.num_bytes)
        if header in _HEADERS:
            at = (member.offset + header, 0)
        locations += [(*at, end - ends[first]) for end in ends[first : first + member.records]]
    return locations


def with_path(ref: Reference, paths: Sequence[bytes]) -> Reference:
    """Return a reference whose published record names its shard by the path.

    Args:
        ref: The reference, as it crossed shuffles.
        paths: Paths of the published shards.
    """
    if not isinstance(ref, InputRef) or not ref.published:
        return ref
    number, _, packed = ref.published.partition(b"\0")
    return ref._replace(published=b"%b\0%b" % (paths[int(number)], packed))


def record_path(ref: InputRef) -> str:
    """Return the path of the shard of the published record of a reference, see ``with_path``."""
    return ref.published.partition(b"\0")[0].decode()


def take_records(refs: Sequence[InputRef]) -> Mapping[str, tuple[PublishedRecord, bytes]]:
    """Return the readable published records of inputs by key.

    Records that are near each other are read at once.

    Args:
        refs: Inputs with a published record.
    """
    taken: dict[str, tuple[PublishedRecord, bytes]] = {}
    pairs = [(PublishedRecord.unpack(ref.published), ref.key) for ref in refs if ref.published]
    pairs.sort(key=lambda pair: (pair[0].shard, pair[0].member, pair[0].start))
    for path, group in itertools.groupby(pairs, lambda pair: pair[0].shard):
        try:
            with open_storage(path).open_at(path) as reader:
                for records in _near(list(group), reader.gap, reader.chunk):
                    taken |= _read_records(reader, records)
        except _FAILURES:
            continue
    return taken


def _range(record: PublishedRecord) -> tuple[int, int]:
    """Return the range of the file that holds a record, or its whole member."""
    if record.member_bytes > 0:
        return record.member, record.member + record.member_bytes
    if record.member_bytes < 0:
        return record.member, record.member + record.record_bytes
    first, last = stored_range(record.start, record.start + record.record_bytes)
    return record.member + first, record.member + last


def _near(
    pairs: Sequence[tuple[PublishedRecord, str]], gap: int, chunk: int
) -> Iterator[list[tuple[PublishedRecord, str]]]:
    """Yield the records that are read at once: at most ``gap`` bytes apart, ``chunk`` in total."""
    group: list[tuple[PublishedRecord, str]] = []
    start = end = 0
    for pair in pairs:
        first, last = _range(pair[0])
        if group and (first - end > gap or last - start > chunk):
            yield group
            group = []
        if not group:
            start = first
        end = last
        group.append(pair)
    yield group


def _read_records(
    reader: RandomReader, pairs: Sequence[tuple[PublishedRecord, str]]
) -> Iterator[tuple[str, tuple[PublishedRecord, bytes]]]:
    # The CRCs of each frame are checked below: a record that fails is decoded from its input.
    start, end = _range(pairs[0][0])[0], _range(pairs[-1][0])[1]
    data = memoryview(reader.read_at(start, end - start))
    inflated: tuple[int, bytes] = -1, b""
    for record, key in pairs:
        first, last = (bound - start for bound in _range(record))
        framed: bytes | memoryview = data[first:last]
        try:
            if record.member_bytes > 0:
                # Records are sorted by member, so each member is inflated once.
                if inflated[0] != record.member:
                    content = b"".join(inflate_member(bytes(framed), record.member))
                    inflated = record.member, content
                framed = inflated[1][record.start : record.start + record.record_bytes]
            elif not record.member_bytes:
                framed = strip_block_headers(framed, record.start)
            yield key, (record, unframe(bytes(framed)))
        except _FAILURES:
            continue
