"""Names of shards and of the other files of a dataset, all made here.

Also lists the generations in an output, and recognizes deleted generations and lost manifests.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import string
import unicodedata
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from shardmill.schemas.errors import InputError, OutputError, StorageError, UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage import Storage, join, open_storage

DEFAULT_TEMPLATE = "{split}-{index:05d}-of-{total:05d}.tfrecord.gz"
LABEL_TEMPLATE = "{split}-{label}-{index:05d}-of-{total:05d}.tfrecord.gz"
FIELDS = ("split", "index", "total", "records", "label")
MANIFEST = "manifest.json"
SCHEMA = "schema.pbtxt"
LABELS = "labels.txt"
REJECTS = "rejects.jsonl"
BUILD_PREFIX = ".build-"
OUTCOME_PREFIX = ".outcome-"
SPOOL_FOLDER = f"{BUILD_PREFIX}{0:016x}"  # with the records of a Python source
PROGRESS = "progress.json"  # in a build folder
TRANSFORM = "transform_fn"  # a folder
CATALOG = "catalog"  # a folder
CURRENT = "current"  # a symbolic link to the current generation, on a local disk
RESERVED = frozenset({MANIFEST, SCHEMA, LABELS, REJECTS, TRANSFORM, CATALOG})

_GENERATION = re.compile(r"gen-\d{8}T\d{6}Z-[0-9a-f]{12}")
_MAX_NAME_BYTES = 255  # of ext4, XFS, APFS and NTFS, which count bytes or fewer
# Names of devices on Windows, with any suffix.
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NUMBERS = ("index", "total", "records")
_SPEC = re.compile(r"0\d{1,2}d|d?")


def new_generation(existing: Iterable[str] = ()) -> str:
    """Return a new name for the folder of a generation, which sorts after all existing ones.

    It has the time (UTC), or a larger number where the clock is behind the latest generation.
    """
    now = int(dt.datetime.now(dt.timezone.utc).strftime("%Y%m%d%H%M%S"))
    latest = max((int(name[4:12] + name[13:19]) for name in existing), default=0)
    text = f"{max(now, latest + 1):014d}"
    return f"gen-{text[:8]}T{text[8:]}Z-{uuid.uuid4().hex[:12]}"


def is_generation(name: str) -> bool:
    """Return whether a folder's name is a generation's."""
    return _GENERATION.fullmatch(name) is not None


def catalog_name(shard: str) -> str:
    """Return the name of a shard's catalog in the generation."""
    return f"{CATALOG}/{shard.removesuffix('.gz').removesuffix('.tfrecord')}.parquet"


def check_file_names(names: Iterable[str]) -> None:
    """Check that all shards and their catalogs are possible on common file systems, together.

    Args:
        names: The names of the shards.

    Raises:
        OutputError: A name is too long or reserved, or two are equal where case or the Unicode
            form does not count.
    """
    seen = {name.casefold(): name for name in RESERVED}
    for name in names:
        for path in (name, catalog_name(name)):
            size = len(path.rpartition("/")[2].encode())
            if size > _MAX_NAME_BYTES:
                name_text = name[:40]
                raise OutputError(
                    f"The shard {name_text!r}... would have a name of {plural(size, 'byte')}, and "
                    f"file systems allow {_MAX_NAME_BYTES}: shorten the label or --shard_name, or "
                    "build without --shard_by=label."
                )
            folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
            if folded in seen:
                raise OutputError(
                    f"The shards {seen[folded]!r} and {name!r} would be one file on disks that "
                    "ignore case or the form of Unicode text, or have one catalog: rename a label "
                    "or split, or choose another --shard_name."
                )
            seen[folded] = name
        if _DEVICE.fullmatch(name):
            raise OutputError(
                f"The shard {name!r} would have the name of a device on Windows: rename the label "
                "or split, or choose another --shard_name."
            )


def quote_label(label: str) -> str:
    """Return a label as part of a file name: without separators or a leading dot."""
    quoted = quote(label, safe=" +,@=&()[]!'")
    return re.sub(r"^\.", "%2E", quoted)


@dataclass(frozen=True)
class ShardTemplate:
    """The pattern of a dataset's shard names.

    Attributes:
        text: A format string with the fields ``split``, ``index``, ``total``, ``records`` and
            ``label``; numbers may be zero-padded, as in ``{index:05d}``.

    Raises:
        UsageError: A field is unknown, a format is not zero padding, or the name is not safe.
    """

    text: str = DEFAULT_TEMPLATE

    def __post_init__(self) -> None:
        rule = f"--shard_name={self.text!r}"
        try:
            parsed = list(string.Formatter().parse(self.text))
        except ValueError as error:
            raise UsageError(
                f"--shard_name={self.text!r} is not a valid pattern: {error}."
            ) from error
        for _, field, spec, conversion in parsed:
            if field is not None:
                _check_field(rule, field, spec or "", conversion)
        literal = "".join(text for text, *_ in parsed)
        if "/" in literal or "\\" in literal or not literal.isprintable():
            raise UsageError(
                f"--shard_name={self.text!r} has a path separator or control character: give a "
                "file name."
            )
        if self.text.startswith(".") or literal in RESERVED:
            raise UsageError(
                f"--shard_name={self.text!r} is reserved for another file of the dataset: choose "
                "another name."
            )

    @property
    def fields(self) -> frozenset[str]:
        """The fields in the template."""
        parsed = string.Formatter().parse(self.text)
        return frozenset(field for _, field, _, _ in parsed if field is not None)

    def format(self, split: str, index: int, total: int, records: int = 0, label: str = "") -> str:
        """Return the file name of a shard."""
        return self.text.format(
            split=split, index=index, total=total, records=records, label=quote_label(label)
        )


def shard_template(text: str, *, by_label: bool, compression: str) -> ShardTemplate:
    """Return the template of a dataset's shard names.

    Args:
        text: ``--shard_name``; empty for the default.
        by_label: Whether each label has separate shards.
        compression: ``gzip`` or ``none``, which the default shows.
    """
    default = LABEL_TEMPLATE if by_label else DEFAULT_TEMPLATE
    if compression == "none":
        default = default.removesuffix(".gz")
    return ShardTemplate(text or default)


def _check_field(rule: str, field: str, spec: str, conversion: str | None) -> None:
    if field not in FIELDS:
        fields = ", ".join(f"{{{name}}}" for name in FIELDS)
        raise UsageError(f"{rule} has the unknown field {{{field}}}: use only {fields}.")
    if conversion or (spec and field not in _NUMBERS) or not _SPEC.fullmatch(spec):
        raise UsageError(
            f"{rule} formats {{{field}}} in an unknown way: only numbers have a format, zero "
            "padding such as {index:05d}."
        )


def list_generations(storage: Storage, output: str) -> list[str]:
    """Return the names of all generations in an output, the latest first."""
    names = (entry.name for entry in storage.list_dir(output) if entry.kind == "dir")
    return sorted(filter(is_generation, names), reverse=True)


def is_json(data: bytes) -> bool:
    """Return whether a file is JSON; a damaged manifest is not."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def check_not_lost(path: str, data: bytes = b"") -> None:
    """Check that a manifest that cannot be read was not lost, so that a rollback restores it.

    Args:
        path: Path of the manifest.
        data: Its content; empty if it does not exist.

    Raises:
        InputError: It is missing or damaged, and generations are next to it.
    """
    folder, _, name = path.rpartition("/")
    folder = folder or "."
    if name != MANIFEST or is_json(data):
        return
    with contextlib.suppress(StorageError):  # such as a link to itself in another folder
        if list_generations(open_storage(folder), folder):
            raise InputError(
                f"{path} is missing or damaged: run `shardmill rollback {folder}` to publish the "
                "latest version again, or build again."
            )


def check_not_deleted(folder: str) -> None:
    """Check that a generation whose files are missing was not deleted by later publications.

    Args:
        folder: The folder of the generation; others are ignored.

    Raises:
        InputError: The manifest of its output neither names it nor keeps it.
    """
    output, _, name = folder.rpartition("/")
    if not is_generation(name):
        return
    path = join(output or ".", MANIFEST)
    with contextlib.suppress(FileNotFoundError, StorageError, ValueError, KeyError, TypeError):
        body = json.loads(open_storage(path).read(path))
        if name not in (body["generation"], *body.get("previous", ())):
            output_text = output or "."
            raise InputError(
                f"{output_text} was published again, and its version {name} was deleted while it "
                "was read: open the dataset again, or build with a larger --keep to keep more "
                "versions."
            )
