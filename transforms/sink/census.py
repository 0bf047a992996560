"""Census: the small summary of all references that planning needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardmill.schemas.refs import InputRef
from shardmill.transforms.match.counts import MatchCounts, describe_skipped, sum_counts
from shardmill.transforms.match.next_steps import next_step
from shardmill.transforms.sink.placement import Series

# What the inputs of a command are named like.
_WANTED = {"images": "an image", "rows": "a table (.csv or .tsv, also .gz, .bz2, .xz, .zst)"}
_EXAMPLES = 3
_MODULUS = 1 << 128


@dataclass
class Census:
    """Counts and identity of the matched files; independent of the order of adding.

    Attributes:
        series: (references, input bytes) of each series; rejected ones under ``REJECTED``.
        labels: All labels of references that were not rejected.
        matched: Number of files, skipped files and duplicates included.
        identity: Sum of the digests of all references, modulo 2**128.
        errors: Number of rejected references by reason.
        examples: The smallest keys by reason, a few of each, and their messages.
        counts: Counts of the files that give no reference.
    """

    series: dict[Series, tuple[int, int]] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)
    matched: int = 0
    identity: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    counts: MatchCounts = MatchCounts()  # noqa: RUF009 - it is a tuple

    @property
    def input_id(self) -> str:
        """Identity of the inputs as 32 hexadecimal digits."""
        return f"{self.identity:032x}"

    @property
    def refs(self) -> int:
        """Number of references that are placed in parts."""
        return sum(count for count, _ in self.series.values())

    def add(self, ref: InputRef, series: Series, size: int | None = None) -> None:
        """Count one reference.

        Args:
            ref: The reference.
            series: Its series.
            size: Bytes for planning, where they are not the size of the file.
        """
        self.matched += 1
        self.identity = (self.identity + ref.digest()) % _MODULUS
        count, total = self.series.get(series, (0, 0))
        self.series[series] = (count + 1, total + (ref.size if size is None else size))
        if ref.error:
            self.errors[ref.error] += 1
            self._show(ref.error, [(ref.key, ref.message)])
        elif ref.label is not None:
            self.labels.add(ref.label)

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
        self.identity = (self.identity + other.identity) % _MODULUS
        self.errors.update(other.errors)
        for reason, examples in other.examples.items():
            self._show(reason, examples)
        self.counts = sum_counts((self.counts, other.counts))

    def _show(self, reason: str, examples: list[tuple[str, str]]) -> None:
        known = self.examples.get(reason, [])
        if len(known) < _EXAMPLES or examples[0] < known[-1]:
            self.examples[reason] = sorted({*known, *examples})[:_EXAMPLES]


def input_warnings(census: Census, label_from: str = "") -> Iterator[str]:
    """Yield warnings about the matched files.

    Args:
        census: Census of the matched files.
        label_from: Where labels come from, if the inputs are images.
    """
    yield from describe_skipped(census.counts.kinds)
    usable = census.refs - sum(census.errors.values())
    if label_from == "filename" and len(census.labels) == usable > 1:
        yield (
            f"each of the {usable:,} files has another label, such as {min(census.labels)!r}: "
            "set a --label_pattern that takes the class out of the name, or --label_from=none"
        )


def why_unusable(census: Census, command: str, root: str) -> str:
    """Return why no dataset can be made of the matched files, or an empty text.

    Args:
        census: Census of the matched files.
        command: Command that reads them, ``images`` or ``rows``.
        root: Folder that was searched.
    """
    if census.counts.fatal:
        return census.counts.fatal
    if not census.matched:
        return f"The input matched no files in {root}: check --input."
    if not census.refs:
        skipped = "".join(describe_skipped(census.counts.kinds))
        _, _, most = max(census.counts.kinds, key=lambda kind: kind[1], default=("", 0, ""))
        return (
            f"None of the {census.matched:,} matched files is named like {_WANTED[command]}: "
            f"{next_step(most, command, 'check --input')} ({skipped})."
        )
    if sum(census.errors.values()) < census.refs:
        return ""
    worst = max(census.errors, key=lambda reason: (census.errors[reason], reason))
    examples = [key for key, _ in census.examples[worst]]
    keys = ", ".join(map(repr, examples))
    flat = not any("/" in key for key in examples)
    remedies = {
        "no_label": "set --label_from=none, or give the folder above as --input" if flat
        else "set --label_from, or a --label_pattern that matches such keys",
        "no_split": "set --splits to shares, or name the first folders train, validation, test",
        "unknown_label": "add the labels to the --labels file",
        "outside_root": "add --follow_links",
        "columns": "give the files the schema's columns, or the schema theirs",
        "header": "name the columns with --columns",
        "not_csv": next_step(examples[0], command, "check --input and --encoding"),
    }  # fmt: skip
    return (
        f"None of the {census.refs:,} inputs can be used: most are {worst}, such as {keys}; "
        f"{remedies.get(worst) or next_step(examples[0], command, 'check --input')}."
    )
