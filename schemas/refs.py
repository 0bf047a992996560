"""References: small pointers to inputs. They cross shuffles so that payload bytes need not.

Also the outcomes of inputs that become no record: rejects, with a reason from a fixed list, and
counts of skipped files and duplicates.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# docs/images.md and docs/rows.md list the same reasons; a test compares them.
REASONS: dict[str, str] = {
    "annotation": "the annotation of the image is damaged, or a box has no class or sides",
    "bad_name": "the file name is not valid UTF-8",
    "cast": "the cell is not a value of its column's type",
    "changed": "the file changed between listing and reading",
    "color": "the pixels cannot be converted to 8-bit color (16-bit FITS, unusual palettes)",
    "columns": "the file does not have the columns of the dataset",
    "compressed": "the compressed file is damaged (no row is used) or cut short (earlier rows are)",
    "decode": "the file has the signature of an image but does not decode",
    "decoder_crashed": "decoding the file crashes the decoder, also alone in a fresh process",
    "decoder_memory": "decoding the file needs more memory than --decoder_memory",
    "decoder_timeout": "decoding the file takes longer than --decoder_seconds",
    "domain": "the text is not in its column's string_domain",
    "empty": "the file or image has no bytes",
    "encode": "the decoded image cannot be stored in the chosen encoding",
    "encoding": "bytes that are not valid in the encoding",
    "float_range": "floating-point pixels outside [0, 1]",
    "header": "the first row does not give valid column names",
    "int_range": "signed integer pixels, or wider than 16 bits",
    "json": "the line is not a JSON object with values of the columns' types",
    "jsonl": "the file is JSON Lines, among CSV files",
    "key_conflict": "another input has the same key, but is another file or has other values",
    "label_text": "the label has a line break or another control character",
    "mask": "the mask has several channels, values above 255, or another size than the image",
    "member": "the member of an archive is damaged, encrypted, a link, or outside of the archive, "
    "or a record has several images",
    "missing": "the cell is missing and its column is required",
    "missing_extra": "the file is an HEIC image, and shardmill[heic] is not installed",
    "no_annotation": "no file or entry of --annotations describes the image",
    "no_label": "the key, listing, record, or `.cls` or `.json` member has no label, or not one "
    "text or whole number",
    "no_split": "the first folder of the key, or the cell of --split_by, does not name a split",
    "not_a_file": "a pipe, socket or device, not a regular file",
    "not_an_image": "the file does not have the signature of a supported image format",
    "not_csv": "the file is not CSV text but another kind of file",
    "not_found": "the file does not exist",
    "outside_root": "the link leads outside the root",
    "other_table": "the file is of another kind than the first one, such as CSV among Parquet",
    "parquet": "the Parquet file is damaged, cut short, encrypted, or among files of other kinds",
    "quote": "a quote is not closed, or text follows a closing quote",
    "ragged": "the row has more or fewer cells than the header",
    "range": "the number is outside its type or its column's domain",
    "too_large": "more pixels or bytes than is safe to read, decode or scale to",
    "unknown_label": "the label is not in the given labels file",
    "unreadable": "reading the file is not permitted, or the disk reports an error",
}
# Reasons that depend on the time of reading: the next run reads such an input again.
TRANSIENT = frozenset({"changed", "decoder_timeout", "not_found", "unreadable"})
_MAX_KINDS = 8  # in a message
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,9}")


class Reject(NamedTuple):
    """One input that could not become a record.

    Attributes:
        key: Stable identity of the input: of a row the key of its file, a colon and the line.
        uri: Path or URI of the file.
        stage: ``match``, ``read``, ``decode`` or ``encode``.
        error: A reason, one of ``REASONS``.
        message: One sentence with the details, without line and column.
        inputs: Number of inputs that this reject counts; more than 1 if a file has so many bad
            rows that they are not listed individually.
        line: Number of the first line of a rejected row in its file, from 1; None for a file.
        column: Name of the column with the wrong value, or None.
    """

    key: str
    uri: str
    stage: str
    error: str
    message: str
    inputs: int = 1
    line: int | None = None
    column: str | None = None

    def to_json(self) -> str:
        """Return the reject as a line of ``rejects.jsonl``, without fields at their defaults."""
        defaults = self._field_defaults
        body = {
            name: value
            for name, value in self._asdict().items()
            if name not in defaults or value != defaults[name]
        }
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


class RejectedError(Exception):
    """Raised inside a stage to reject one input.

    Attributes:
        stage: As in ``Reject``.
        error: As in ``Reject``.
        message: As in ``Reject``.
    """

    def __init__(self, stage: str, error: str, message: str) -> None:
        super().__init__(stage, error, message)
        self.stage = stage
        self.error = error
        self.message = message


class EncodedImage(NamedTuple):
    """Facts of an encoded image: fields of ``CatalogRow``."""

    content_hash: str
    width: int
    height: int
    multi_frame: bool
    pixels: int
    pixel_sums: Sequence[int]
    pixel_squares: Sequence[int]
    features: Mapping[str, Any]


class PublishedRecord(NamedTuple):
    """A published record that was made of the same input with the same options.

    Attributes:
        shard: Path of the shard; its number in the plan while the record crosses shuffles.
        image: The facts of its image in the catalog.
        member: Offset of the member of the record, of the first block of a stored member, or of
            the record in an uncompressed shard.
        member_bytes: Size of a deflated member; 0 for a stored one, -1 for an uncompressed shard.
        start: Offset of the record in the content of the member.
        record_bytes: Bytes of the record with its frame.
    """

    shard: str
    image: EncodedImage
    member: int
    member_bytes: int
    start: int
    record_bytes: int

    def pack(self) -> bytes:
        """Return the record as few bytes: many cross shuffles and are in memory at one time."""
        shard, image, *place = self
        # Few datasets have values of all of the many columns.
        columns = {name: value for name, value in image.features.items() if value is not None}
        packed = pickle.dumps((tuple(image._replace(features=columns)), place))
        return b"%b\0%b" % (shard.encode(), packed)

    @classmethod
    def unpack(cls, data: bytes) -> PublishedRecord:
        """Undo ``pack``."""
        shard, _, packed = data.partition(b"\0")
        image, place = pickle.loads(packed)  # noqa: S301 - only pack writes them
        return cls(shard.decode(), EncodedImage(*image), *place)


class MemberRange(NamedTuple):
    """Where the bytes of a member of an archive are.

    Attributes:
        path: Path of the archive, or of its spool.
        file_size: Bytes of that file.
        file_version: Version of that file; empty for a spool, whose content follows from its name.
        offset: Offset of the bytes; of a zip member, of its local header.
        length: Number of stored bytes.
        crc32: CRC-32 of a zip member, as its directory says; -1 for bytes that are stored as they
            are.
    """

    path: str
    file_size: int
    file_version: str
    offset: int
    length: int
    crc32: int = -1


class InputRef(NamedTuple):
    """A pointer to one input: a file, or a member of an archive.

    Attributes:
        key: Stable identity: the NFC-normalised path relative to the root.
        uri: Path or URI of the file; for a member, of the archive, with the member's name; for a
            record of Python, its place in the source.
        size: Bytes at matching.
        version: Modification time in nanoseconds, or an object's generation, as text; for a
            member, its time or checksum, so that members of a changed archive may be unchanged.
        label: Label text, or None where the dataset has no labels.
        split: Name of its split; empty until it is placed.
        group: Examples of one group share a split; empty means that the key is the group.
        error: Why the input was rejected (a reason of ``refs.REASONS``), or empty.
        message: Details of the error.
        published: The packed ``PublishedRecord``, or empty; not part of the identity of the input.
        ctime: Time of the last change of the file or its attributes, or a digest of the identity of
            a member's archive; not part of the identity, since copies of an input differ in it.
        member: Fields of the ``MemberRange`` of a member; empty for a file.
        attached: Values of features that are not in the file but in a listing or an annotation: a
            serialized tf.train.Example of their fields, or empty.
        classes: The labels of a record that may have several, sorted; empty for others.
        mask: Path, size and version of its mask; ``attached`` has the hash of its content.
    """

    key: str
    uri: str
    size: int = 0
    version: str = ""
    label: str | None = None
    split: str = ""
    group: str = ""
    error: str = ""
    message: str = ""
    published: bytes = b""
    ctime: int = 0
    member: tuple[Any, ...] = ()
    attached: bytes = b""
    classes: tuple[str, ...] = ()
    mask: tuple[Any, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Its labels: several, one or none."""
        if self.classes or self.label is None:
            return self.classes
        return (self.label,)

    @property
    def file(self) -> str:
        """Path of the file, or of the archive of a member."""
        if self.member:
            return MemberRange(*self.member).path
        return self.uri

    @property
    def offset(self) -> int:
        """Offset of a member in its archive; 0 for a file."""
        if self.member:
            return MemberRange(*self.member).offset
        return 0

    def digest(self) -> int:
        """Return a 128-bit digest of all fields that identify the input and its content."""
        fields = (self.key, str(self.size), self.version, self.error, self.split, self.group)
        label = () if self.label is None else (self.label,)
        attached = (f"\1{self.attached.hex()}",) if self.attached else ()
        return _digest(*fields, *label, *attached)

    def values_digest(self) -> str:
        """Return a digest of the attached values as 32 hexadecimal digits, or an empty text."""
        if not self.attached:
            return ""
        return hashlib.blake2b(self.attached, digest_size=16).hexdigest()

    def ctime_digest(self) -> int:
        """Return a 128-bit digest of the key and the ctime."""
        return _digest(self.key, str(self.ctime))

    def rejected(self, error: str, message: str) -> InputRef:
        """Return this reference, marked as rejected for a reason of ``refs.REASONS``."""
        return self._replace(error=error, message=message)

    def to_reject(self) -> Reject:
        """Return the reject of an input that was rejected while matching."""
        return Reject(self.key, self.uri, "match", self.error, self.message)


class SegmentRef(NamedTuple):
    """A pointer to the records of one part, or to the rejects, in a run file: consecutive blocks.

    The first and last block may hold records of neighboring parts too.

    Attributes:
        key: Identity of the run; segments of a part are ordered by it.
        uri: Path of the run file.
        offset: Offset of the first block in the run file.
        length: Bytes of all blocks in the run file.
        crc32c: CRC-32C of these bytes.
        split: Split of the records; empty where the segment holds rejects.
        part: Number of the part in the split, from 0.
        parts: Number of parts of the split.
    """

    key: str
    uri: str
    offset: int
    length: int
    crc32c: int
    split: str
    part: int
    parts: int

    def digest(self) -> int:
        """Return a 128-bit digest of the run, the content, the split and the part."""
        version = f"{self.crc32c:08x}"
        part = f"{self.part}/{self.parts}"
        return _digest(self.key, str(self.length), version, "", self.split, part)


Reference = InputRef | SegmentRef


def _digest(*fields: str) -> int:
    raw = hashlib.blake2b(
        "\0".join(fields).encode(), digest_size=16, person=b"shardmill-ref"
    ).digest()
    return int.from_bytes(raw, "big")


class Linked(NamedTuple):
    """A file in a folder that only links lead to; several may lead to it.

    Attributes:
        path: Real path of the file's folder and the file's name, percent-escaped like a key.
        ref: The reference by the path of the link.
    """

    path: str
    ref: InputRef


class MatchCounts(NamedTuple):
    """Counts of matched files that give no reference.

    Attributes:
        skipped: Number of files that are not inputs, by their names.
        duplicates: Number of entries that repeat another.
        fatal: Message of the error that makes the whole input unusable, or empty.
        kinds: Suffix, number and smallest key of skipped files, sorted by suffix.
        guessed: Encoding, number and smallest key of names in archives that do not say theirs.
        has_labels: Whether members of an archive are labels.
        warnings: Sentences about the input, sorted.
        used_options: Options of archives that had an effect, sorted.
    """

    skipped: int = 0
    duplicates: int = 0
    fatal: str = ""
    kinds: tuple[tuple[str, int, str], ...] = ()
    guessed: tuple[tuple[str, int, str], ...] = ()
    has_labels: bool = False
    warnings: tuple[str, ...] = ()
    used_options: tuple[str, ...] = ()


DUPLICATE = MatchCounts(duplicates=1)


def keep_first(refs: Iterable[InputRef]) -> Iterator[InputRef | MatchCounts]:
    """Yield the first of the references to one input, and a count for each other."""
    first, *others = sorted(refs, key=lambda ref: (bool(ref.error), ref))
    yield first
    yield from [DUPLICATE] * len(others)


def count_skipped(key: str) -> MatchCounts:
    """Return the counts of a file that is not an input, by its name.

    Args:
        key: Path relative to the root; bytes that are not UTF-8 are percent-escaped.
    """
    stem, suffix = os.path.splitext(key.rpartition("/")[2])
    if stem.startswith("."):
        kind = "hidden"
    elif _SUFFIX.fullmatch(suffix):
        kind = suffix.lower()
    else:
        kind = "other"
    return MatchCounts(1, kinds=((kind, 1, key),))


def sum_counts(counts: Iterable[MatchCounts]) -> MatchCounts:
    """Return the sum of partial counts; of several fatal errors the smallest message."""
    columns = zip(MatchCounts(), *counts, strict=True)
    skipped, duplicates, messages, kinds, guessed, has_labels, warnings, used = columns
    return MatchCounts(
        sum(skipped),
        sum(duplicates),
        min(filter(None, messages), default=""),
        _sum_kinds(kinds),
        _sum_kinds(guessed),
        any(has_labels),
        tuple(sorted({*itertools.chain(*warnings)})),
        tuple(sorted({*itertools.chain(*used)})),
    )


def _sum_kinds(
    counted: Iterable[tuple[tuple[str, int, str], ...]],
) -> tuple[tuple[str, int, str], ...]:
    merged: dict[str, tuple[int, str]] = {}
    for kind, number, key in itertools.chain(*counted):
        total, first = merged.get(kind, (0, key))
        merged[kind] = total + number, min(first, key)
    return tuple((kind, *merged[kind]) for kind in sorted(merged))


def describe_skipped(kinds: Iterable[tuple[str, int, str]]) -> tuple[str, ...]:
    """Return at most one warning, which lists the kinds of skipped files."""
    ordered = sorted(kinds, key=lambda kind: (-kind[1], kind))
    if not ordered:
        return ()
    texts = [f"{number:,} {kind} ({key})" for kind, number, key in ordered[:_MAX_KINDS]]
    if len(ordered) > _MAX_KINDS:
        texts.append(f"{len(ordered) - _MAX_KINDS} more kinds")
    return (f"skipped: {', '.join(texts)}",)
