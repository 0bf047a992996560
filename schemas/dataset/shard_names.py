"""Names of shards and of the other files of a dataset. All shard names are made and parsed here."""

from __future__ import annotations

import re
import string
from dataclasses import asdict, dataclass
from urllib.parse import quote, unquote

from shardmill.schemas.errors import UsageError

DEFAULT_TEMPLATE = "{split}-{index:05d}-of-{total:05d}.tfrecord.gz"
LABEL_TEMPLATE = "{split}-{label}-{index:05d}-of-{total:05d}.tfrecord.gz"
FIELDS = ("split", "index", "total", "records", "label")
MANIFEST = "manifest.json"
SCHEMA = "schema.pbtxt"
LABELS = "labels.txt"
REJECTS = "rejects.jsonl"
JOURNAL = ".publish.json"
BUILD_PREFIX = ".build-"
OUTCOME_PREFIX = ".outcome-"
PROGRESS = "progress.json"  # in a build folder
TRANSFORM = "transform_fn"  # a folder
RESERVED = frozenset({MANIFEST, SCHEMA, LABELS, REJECTS, TRANSFORM})

_NUMBERS = ("index", "total", "records")
_SPEC = re.compile(r"0\d{1,2}d|d?")


@dataclass(frozen=True)
class ShardName:
    """The fields of a shard's name; fields that the template does not have are None."""

    split: str | None = None
    index: int | None = None
    total: int | None = None
    records: int | None = None
    label: str | None = None


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
            raise UsageError(f"{rule} is not a valid pattern: {error}.") from error
        for _, field, spec, conversion in parsed:
            if field is not None:
                _check_field(rule, field, spec or "", conversion)
        literal = "".join(text for text, *_ in parsed)
        if "/" in literal or "\\" in literal or not literal.isprintable():
            raise UsageError(f"{rule} has a path separator or control character: give a file name.")
        if self.text.startswith(".") or literal in RESERVED:
            raise UsageError(
                f"{rule} is reserved for another file of the dataset: choose another name."
            )

    @property
    def fields(self) -> frozenset[str]:
        """The fields in the template."""
        parsed = string.Formatter().parse(self.text)
        return frozenset(field for _, field, _, _ in parsed if field is not None)

    def format(self, name: ShardName) -> str:
        """Return the file name of a shard."""
        values = {k: v for k, v in asdict(name).items() if v is not None}
        if name.label is not None:
            values["label"] = quote_label(name.label)
        return self.text.format(**values)

    def parse(self, file_name: str) -> ShardName | None:
        """Return the fields of a file name, or None if it does not match the template."""
        match = self._pattern().fullmatch(file_name)
        if match is None:
            return None
        values: dict[str, str] = match.groupdict()
        numbers = {k: int(v) for k, v in values.items() if k in _NUMBERS}
        label = values.get("label")
        name = ShardName(
            split=values.get("split"), label=None if label is None else unquote(label), **numbers
        )
        return name if self.format(name) == file_name else None

    def _pattern(self) -> re.Pattern[str]:
        pieces = []
        seen: set[str] = set()
        for literal, field, _, _ in string.Formatter().parse(self.text):
            pieces.append(re.escape(literal))
            if field is None:
                continue
            body = r"\d+" if field in _NUMBERS else ".+?"
            pieces.append(f"(?P={field})" if field in seen else f"(?P<{field}>{body})")
            seen.add(field)
        return re.compile("".join(pieces))


def _check_field(rule: str, field: str, spec: str, conversion: str | None) -> None:
    if field not in FIELDS:
        raise UsageError(
            f"{rule} has the unknown field {{{field}}}: use only "
            + ", ".join(f"{{{name}}}" for name in FIELDS)
            + "."
        )
    if conversion or (spec and field not in _NUMBERS) or not _SPEC.fullmatch(spec):
        raise UsageError(
            f"{rule} formats {{{field}}} in an unknown way: only numbers have a format, zero "
            "padding such as {index:05d}."
        )
