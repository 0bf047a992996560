"""Census: the small summary of all references that planning needs; and their coders in shuffles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

from apache_beam import coders

from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import InputRef, MatchCounts, SegmentRef, describe_skipped, sum_counts
from shardmill.transforms.runtime.beam_steps import PRIMITIVES, TupleCoder
from shardmill.transforms.sink.placement import PartKey, PlacedRef, Series
from shardmill.transforms.sink.spec import BuildHooks

MAX_FILES = 1_000  # of tables or arrays that the manifest lists
_EXAMPLES = 3
_SHOWN_REASONS = 3  # in a message
_SHOWN_CHARACTERS = 200  # of a message about an input
Examples: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]
_MODULUS = 1 << 128
ChangeKind = Literal["new", "changed", "removed"]
_CHANGED = 10
# The coder writes a reference's index in this tuple: append only.
_REFERENCES: tuple[type[Any], ...] = (InputRef, SegmentRef)


@dataclass
class Census:
    """Counts and identity of the matched files; independent of the order of adding.

    Attributes:
        series: (references, input bytes) of each series; rejected ones under ``REJECTED``.
        labels: All labels of references that were not rejected.
        matched: Number of files, skipped files and duplicates included.
        identity: Sum of the digests of all references, modulo 2**128.
        ctimes: Sum of the digests of their ctimes, modulo 2**128.
        contents: Sum of the digests of the content of tables, modulo 2**128.
        errors: Number of rejected references by reason.
        examples: The smallest keys by reason, a few of each, and their messages.
        counts: Counts of the files that give no reference.
        files: Identity of each file by its key; incomplete above ``MAX_FILES`` files.
        grouped: Number of references to which ``--group_pattern`` gives a group.
    """

    series: dict[Series, tuple[int, int]] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)
    matched: int = 0
    identity: int = 0
    ctimes: int = 0
    contents: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    counts: MatchCounts = MatchCounts()
    files: dict[str, str] = field(default_factory=dict)
    grouped: int = 0

    @property
    def input_id(self) -> str:
        """Identity of the inputs as 32 hexadecimal digits."""
        return f"{self.identity:032x}"

    @property
    def ctime_id(self) -> str:
        """Identity of the ctimes of the inputs."""
        return f"{self.ctimes:032x}"

    @property
    def content_id(self) -> str:
        """Identity of the content of tables, or empty if unknown."""
        if self.contents:
            return f"{self.contents:032x}"
        return ""

    @property
    def file_ids(self) -> dict[str, str]:
        """Identity of each file by its key; empty if there are too many."""
        if len(self.files) <= MAX_FILES:
            return self.files
        return {}

    @property
    def refs(self) -> int:
        """Number of references that are placed in parts."""
        return sum(count for count, _ in self.series.values())

    @property
    def is_rejected(self) -> bool:
        """Whether matching could read the input, but rejected all references."""
        return not self.counts.fatal and 0 < self.refs == sum(self.errors.values())

    def add(
        self, ref: InputRef, series: Series, size: int | None = None, *, grouped: bool = False
    ) -> None:
        """Count one reference.

        Args:
            ref: The reference.
            series: Its series.
            size: Bytes for planning, where they are not the size of the file.
            grouped: Whether ``--group_pattern`` gives it a group.
        """
        self.matched += 1
        self.grouped += grouped
        self.identity = (self.identity + ref.digest()) % _MODULUS
        self.ctimes = (self.ctimes + ref.ctime_digest()) % _MODULUS
        count, total = self.series.get(series, (0, 0))
        if size is None:
            size = ref.size
        self.series[series] = (count + 1, total + size)
        if ref.error:
            self.errors[ref.error] += 1
            self._show(ref.error, [(ref.key, ref.message)])
        else:
            self.labels.update(ref.labels)

    def with_counts(self, counts: MatchCounts) -> Census:
        """Return this census with the counts of files that give no reference."""
        matched = self.matched + counts.skipped + counts.duplicates
        return replace(self, matched=matched, counts=sum_counts((self.counts, counts)))

    def merge(self, other: Census) -> None:
        """Add another census to this one."""
        for series, (count, size) in other.series.items():
            mine = self.series.get(series, (0, 0))
            self.series[series] = (mine[0] + count, mine[1] + size)
        self.labels |= other.labels
        self.matched += other.matched
        self.grouped += other.grouped
        self.identity = (self.identity + other.identity) % _MODULUS
        self.ctimes = (self.ctimes + other.ctimes) % _MODULUS
        self.contents = (self.contents + other.contents) % _MODULUS
        if len(self.files) <= MAX_FILES:
            self.files |= other.files
        self.errors.update(other.errors)
        for reason, examples in other.examples.items():
            self._show(reason, examples)
        self.counts = sum_counts((self.counts, other.counts))

    def _show(self, reason: str, examples: list[tuple[str, str]]) -> None:
        kept = self.examples.get(reason, [])
        if len(kept) < _EXAMPLES or examples[0] < kept[-1]:
            self.examples[reason] = sorted({*kept, *examples})[:_EXAMPLES]


def input_warnings(census: Census, hooks: BuildHooks) -> Iterator[str]:
    """Yield warnings about the matched files.

    Args:
        census: Census of the matched files.
        hooks: Hooks of the kind of input.
    """
    yield from describe_skipped(census.counts.kinds)
    for kind, number, key in census.counts.kinds:
        if kind in hooks.archives:
            yield (
                f"not read: {plural(number, f'{kind} archive')}, such as {key}; "
                f"--input='FOLDER/**/*{kind}' reads the archives of a folder"
            )
    yield from census.counts.warnings
    yield from hooks.unused_options(census.counts.used_options)
    for encoding, number, key in census.counts.guessed:
        yield (
            f"names in zip archives that are not UTF-8 and were read as {encoding}: {number:,}, "
            f"such as {key}; --zip_encoding names their encoding, such as cp932 for Japanese"
        )
    yield from hooks.input_warnings(census.labels, census.refs - sum(census.errors.values()))


def why_unusable(census: Census, hooks: BuildHooks, source: str) -> str:
    """Return why no dataset can be made of the matched files, or an empty text.

    Args:
        census: Census of the matched files.
        hooks: Hooks of the kind of input.
        source: The input as the user named it, or the folder that was searched.
    """
    if census.counts.fatal:
        return census.counts.fatal
    if not census.matched:
        step = "check --input"
        if "*" in source and "**" not in source:
            step = "`**` also matches subfolders"
        return f"{source!r} matches no file: {step}."
    if not census.refs:
        left_out = hooks.why_none(census.counts.kinds)
        if left_out:
            return left_out
        skipped = "".join(describe_skipped(census.counts.kinds))
        _, _, most = max(census.counts.kinds, key=lambda kind: kind[1], default=("", 0, ""))
        remedy = hooks.next_step(most, "check --input")
        return f"No matched file is named like {hooks.input_description}: {remedy} ({skipped})."
    if not census.is_rejected:
        return ""
    examples = show_examples(census.errors, census.examples)
    remedy = find_remedy(census.errors, census.examples, hooks) or "check --input"
    return f"No input can be used: all are rejected, such as {examples}; {remedy}."


def order_reasons(counts: Mapping[str, int]) -> list[str]:
    """Return the reasons of rejects, the most frequent one first."""
    return sorted(counts, key=lambda reason: (-counts[reason], reason))


def show_examples(counts: Mapping[str, int], examples: Examples) -> str:
    """Return an input for each of the most frequent reasons, with its message.

    Args:
        counts: Number of rejects by reason.
        examples: See ``Census``.
    """
    texts = []
    for reason in order_reasons(counts)[:_SHOWN_REASONS]:
        key, message = examples[reason][0]
        if len(message) > _SHOWN_CHARACTERS:
            message = message[:_SHOWN_CHARACTERS] + "…"
        texts.append(f"{key!r} ({reason}: {message})")
    return ", ".join(texts)


def find_remedy(counts: Mapping[str, int], examples: Examples, hooks: BuildHooks) -> str:
    """Return advice for the most frequent reason of rejects, or an empty text.

    Args:
        counts: Number of rejects by reason.
        examples: See ``Census``.
        hooks: Hooks of the kind of input.
    """
    reason = order_reasons(counts)[0]
    keys = [key for key, _ in examples[reason]]
    return hooks.remedy(reason, keys) or hooks.next_step(keys[0], "")


@dataclass
class Changes:
    """Changes since the dataset was published; independent of the order of adding.

    Attributes:
        counts: Number of inputs by kind of change.
        examples: The smallest keys of each kind.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, change: tuple[ChangeKind, str]) -> None:
        """Add one input."""
        kind, key = change
        self.merge(Changes({kind: 1}, {kind: [key]}))

    def merge(self, other: Changes) -> None:
        """Add other changes."""
        for kind, count in other.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count
            # The smallest keys of all are among the smallest of each part, in any order.
            keys = [*self.examples.get(kind, []), *other.examples[kind]]
            self.examples[kind] = sorted(keys)[:_CHANGED]

    def lines(self) -> tuple[str, ...]:
        """Return a line for each kind of change, with its number and some keys."""
        lines = []
        for kind, count in sorted(self.counts.items()):
            keys = self.examples[kind]
            more = ", ..." if count > len(keys) else ""
            lines.append(f"{count:,} {kind}: {', '.join(keys)}{more}")
        return tuple(lines)

    def __str__(self) -> str:
        """Return the numbers, as in ``12 new, 3 changed, 1 removed``, or an empty text."""
        kinds = ("new", "changed", "removed")
        return ", ".join(f"{self.counts[kind]:,} {kind}" for kind in kinds if kind in self.counts)


def compare_files(old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
    """Compare files by their identities; no changes if either mapping is empty."""
    changes = Changes()
    if not old or not new:
        return changes
    for key in old.keys() | new.keys():
        if key not in old:
            changes.add(("new", key))
        elif key not in new:
            changes.add(("removed", key))
        elif old[key] != new[key]:
            changes.add(("changed", key))
    return changes


class PlacedRefCoder(TupleCoder):
    """Coder of ``PlacedRef``: a flat tuple of the reference's type, the order and its fields."""

    def encode(self, value: tuple[object, ...]) -> bytes:
        """Return the bytes of a ``PlacedRef``."""
        order, ref = cast("PlacedRef", value)
        return super().encode((_REFERENCES.index(type(ref)), order, *ref))

    def decode(self, encoded: bytes) -> PlacedRef:
        """Return the ``PlacedRef`` of some bytes."""
        number, order, *fields = PRIMITIVES.decode(encoded)
        return PlacedRef(order, _REFERENCES[number](*fields))


INPUTS, PLACED = TupleCoder(InputRef), PlacedRefCoder(PlacedRef)
coders.registry.register_coder(PartKey, TupleCoder)
coders.registry.register_coder(PlacedRef, PlacedRefCoder)
