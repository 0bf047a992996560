"""Rules for a dataset that is about to be used; they need its manifest only."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import human_duration, parse_duration, plural

_CLOCK_SKEW = dt.timedelta(minutes=5)
_MAX_REASONS = 3


@dataclass(frozen=True)
class Verdict:
    """Whether a dataset meets one rule.

    Attributes:
        line: The finding, as a clause without a full stop.
        remedy: How to fix it; empty if the rule is met.
    """

    line: str
    remedy: str = ""

    @property
    def holds(self) -> bool:
        """Whether the rule is met."""
        return not self.remedy


@dataclass(frozen=True)
class Rules:
    """The values of the flags; an empty text means no such rule.

    Attributes:
        min_examples: ``1000`` of all splits together, or ``train:1000,validation:100``.
        max_age: Such as ``26h``.
        finished_after: A time with its time zone.
        max_reject_fraction: From 0 to 1.
        max_duplicates: Largest number of exact copies.

    Raises:
        UsageError: A value is malformed.
    """

    min_examples: str = ""
    max_age: str = ""
    finished_after: str = ""
    max_reject_fraction: str = ""
    max_duplicates: str = ""

    def __post_init__(self) -> None:
        _ = self.least_counts
        for text, value in (
            (self.max_age, "age"), (self.finished_after, "earliest"),
            (self.max_reject_fraction, "fraction"), (self.max_duplicates, "copies"),
        ):  # fmt: skip
            _ = getattr(self, value) if text else None

    @property
    def least_counts(self) -> dict[str, int]:
        """Least number of examples by split; an empty name means all splits together."""
        if not self.min_examples:
            return {}
        if _is_number(self.min_examples):
            return {"": int(self.min_examples)}
        counts: dict[str, int] = {}
        for item in self.min_examples.split(","):
            name, _, number = item.strip().rpartition(":")
            if not name or not _is_number(number):
                raise UsageError(
                    f"--min_examples={self.min_examples} is malformed: write it as in 1000, or "
                    "train:1000,validation:100."
                )
            if name in counts:
                raise UsageError(
                    f"--min_examples={self.min_examples} names {name!r} twice: name each split "
                    "once."
                )
            counts[name] = int(number)
        return counts

    @property
    def age(self) -> dt.timedelta:
        """Longest time since the build finished."""
        return dt.timedelta(seconds=parse_duration(self.max_age, "--max_age"))

    @property
    def earliest(self) -> dt.datetime:
        """Earliest time at which the build may have finished."""
        earliest = parse_time(self.finished_after)
        if earliest is None:
            raise UsageError(
                f"--finished_after={self.finished_after} is not a time with a time zone: write it "
                "as in 2026-11-20T00:00:00Z or 2026-11-20T00:00:00+01:00."
            )
        return earliest

    @property
    def fraction(self) -> Fraction:
        """Largest fraction of rejected inputs."""
        try:
            fraction = Fraction(self.max_reject_fraction)
        except (ValueError, ZeroDivisionError):
            fraction = Fraction(-1)
        if not 0 <= fraction <= 1:
            raise UsageError(
                f"--max_reject_fraction={self.max_reject_fraction} must be a number from 0 to 1."
            )
        return fraction

    @property
    def copies(self) -> int:
        """Largest number of exact copies."""
        if not _is_number(self.max_duplicates):
            raise UsageError(
                f"--max_duplicates={self.max_duplicates} is not a number: give 0 or more."
            )
        return int(self.max_duplicates)


def parse_time(text: str) -> dt.datetime | None:
    """Return the time of an ISO 8601 text with a time zone, or None."""
    try:
        # Python 3.10 does not parse "Z".
        time = dt.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        return None
    return None if time.tzinfo is None else time


def judge(
    manifest: Manifest, rules: Rules, now: dt.datetime, counted: Manifest | None = None
) -> Iterator[Verdict]:
    """Yield a verdict for each rule; a dataset must always have records and no damaged file.

    Args:
        manifest: Manifest of a dataset or a count.
        rules: The rules.
        now: The current time, with its zone.
        counted: Manifest that ``shardmill count`` wrote for the dataset's folder.
    """
    examples = _num_examples(manifest)
    yield Verdict(
        f"{plural(examples, 'example')} in {plural(len(manifest.files), 'shard')}",
        "" if examples else "build it from inputs that are not empty",
    )
    if manifest.damaged:
        yield _report_damage(manifest)
    for name, least in rules.least_counts.items():
        yield _check_size(manifest, name, least)
    if rules.max_age or rules.finished_after:
        yield from _check_times(manifest, rules, now)
    if rules.max_reject_fraction:
        yield _check_rejects(manifest, rules)
    if rules.max_duplicates:
        yield _check_copies(manifest, rules.copies)
    if counted is not None:
        yield _compare(manifest, counted)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def _num_examples(manifest: Manifest) -> int:
    # Not manifest.written: load_manifest checks the splits against their shards.
    return sum(split.num_examples for split in manifest.splits.values())


def _report_damage(manifest: Manifest) -> Verdict:
    first, others = manifest.damaged[0], len(manifest.damaged) - 1
    more = f" ({others:,} more are damaged)" if others else ""
    return Verdict(
        f"{first.file} is damaged: {first.message}{more}",
        "restore it, or build again, and count again",
    )


def _check_size(manifest: Manifest, name: str, least: int) -> Verdict:
    if name and name not in manifest.splits:
        known = ", ".join(manifest.splits) or "none"
        return Verdict(
            f"--min_examples={name}:{least} names a split that does not exist: it has {known}",
            "name one of these, or build with other --splits",
        )
    examples = manifest.splits[name].num_examples if name else _num_examples(manifest)
    subject = f"{name} has" if name else "all splits have"
    line = f"{subject} {plural(examples, 'example')}"
    if examples >= least:
        return Verdict(f"{line}, {least:,} are enough")
    asked = f"{name}:{least}" if name else str(least)
    return Verdict(
        f"{line}, fewer than --min_examples={asked} asks for",
        "check whether inputs are missing and build again, or ask for fewer",
    )


def _check_copies(manifest: Manifest, most: int) -> Verdict:
    inputs = manifest.inputs
    line = (
        f"{inputs.copies:,} images are exact copies, {inputs.copies_across_splits:,} "
        f"in several splits, {inputs.copies_with_other_labels:,} with several labels"
    )
    if not manifest.catalogs:
        return Verdict("copies are not counted: only images have a catalog", "omit the rule")
    if inputs.copies <= most:
        return Verdict(f"{line}; --max_duplicates={most} allows them")
    return Verdict(
        f"{line}, more than --max_duplicates={most} allows",
        "build with --duplicates=drop or same_split, or allow more",
    )


def _check_times(manifest: Manifest, rules: Rules, now: dt.datetime) -> Iterator[Verdict]:
    text = manifest.build.finished
    finished = parse_time(str(text))
    if finished is None:
        yield Verdict(
            f"the manifest has finished {text!r}, which is not a time with a time zone",
            "build it again",
        )
        return
    if rules.max_age:
        yield _check_age(f"at {text}", now - finished, rules)
    if rules.finished_after and finished >= rules.earliest:
        yield Verdict(f"finished at {text}, not before {rules.finished_after}")
    elif rules.finished_after:
        yield Verdict(
            f"it was finished at {text}, before --finished_after={rules.finished_after}, so "
            "inputs may have been added since",
            "build it again; if that reports it as up to date, no inputs were added, and the rule "
            "can be omitted",
        )


def _check_age(when: str, age: dt.timedelta, rules: Rules) -> Verdict:
    if -age > _CLOCK_SKEW:
        return Verdict(
            f"it was finished {when}, which is in the future",
            "set the clock of the machine that built it, or of this one",
        )
    line = f"finished {human_duration(max(0, int(age.total_seconds())))} ago, {when}"
    if age <= rules.age:
        return Verdict(f"{line}, within {rules.max_age}")
    return Verdict(
        f"it was {line}, longer ago than --max_age={rules.max_age} allows", "build it again"
    )


def _check_rejects(manifest: Manifest, rules: Rules) -> Verdict:
    inputs, written = manifest.inputs, rules.max_reject_fraction
    if any(type(count) is not int for count in (inputs.accepted, inputs.rejected)):
        return Verdict("the manifest does not say how many inputs were rejected", "build it again")
    considered = inputs.accepted + inputs.rejected
    line = f"{inputs.rejected:,} of {considered:,} inputs were rejected"
    # Builds allow one reject too.
    if inputs.rejected <= max(Fraction(1), rules.fraction * considered):
        return Verdict(f"{line}, at most {written} of them")
    worst = sorted(inputs.rejected_by_reason.items(), key=lambda item: (-item[1], item[0]))
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in worst[:_MAX_REASONS])
    return Verdict(
        f"{line} ({reasons}), more than --max_reject_fraction={written} allows",
        "fix the inputs that rejects.jsonl lists and build again, or raise the limit",
    )


def _compare(manifest: Manifest, counted: Manifest) -> Verdict:
    if counted.damaged:
        return _report_damage(counted)
    expected, actual = _by_file(manifest), _by_file(counted)
    for file in itertools.chain(expected, actual.keys() - expected.keys()):
        difference = _find_difference(expected.get(file), actual.get(file))
        if difference:
            return Verdict(
                f"{file} {difference} ({counted.root} was counted)",
                "count the dataset's folder again, and build again if that does not help",
            )
    counts = f"{plural(_num_examples(counted), 'record')} in {plural(len(actual), 'file')}"
    return Verdict(f"the count found the same {counts}")


def _by_file(manifest: Manifest) -> dict[str, tuple[str, Shard]]:
    splits = manifest.splits.items()
    return {shard.file: (name, shard) for name, split in splits for shard in split.shards}


def _find_difference(expected: tuple[str, Shard] | None, actual: tuple[str, Shard] | None) -> str:
    """Return how the count of a file differs from the manifest, or an empty text."""
    if expected is None:
        return "was counted, and is not in the manifest"
    if actual is None:
        return "was not counted"
    (split, shard), (counted_split, counted) = expected, actual
    if shard.records != counted.records:
        return (
            f"has {shard.records:,} records in the manifest, and {counted.records:,} were counted"
        )
    if shard.bytes != counted.bytes:
        return f"has {shard.bytes:,} bytes in the manifest, and {counted.bytes:,} were counted"
    if counted.crc32c is not None and shard.crc32c not in (None, counted.crc32c):
        return f"has the CRC-32C {shard.crc32c} in the manifest, and {counted.crc32c} was counted"
    if split != counted_split:
        return f"is of the split {split} in the manifest, and was counted as {counted_split}"
    return ""
