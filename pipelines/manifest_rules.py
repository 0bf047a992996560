"""Rules that a dataset must keep before somebody builds on it; judged by its manifest alone."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from shardmill.pipelines.report.numbers import parse_duration
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.errors import UsageError

_SKEW = dt.timedelta(minutes=5)  # by which clocks may differ
_SHOWN = 3


@dataclass(frozen=True)
class Verdict:
    """Whether one rule is kept.

    Attributes:
        line: What is so, as a clause without a full stop.
        remedy: What to do about it; empty where the rule is kept.
    """

    line: str
    remedy: str = ""

    @property
    def holds(self) -> bool:
        """Whether the rule is kept."""
        return not self.remedy


@dataclass(frozen=True)
class Rules:
    """What is asked for, each as it was written; an empty text asks for nothing.

    Attributes:
        min_examples: ``1000`` of all splits together, or ``train:1000,validation:100``.
        max_age: Such as ``26h``.
        finished_after: A moment with its time zone.
        max_reject_fraction: From 0 to 1.
    """

    min_examples: str = ""
    max_age: str = ""
    finished_after: str = ""
    max_reject_fraction: str = ""

    def __post_init__(self) -> None:
        """Refuses what breaks the rules of writing.

        Raises:
            UsageError: A text is none of its kind.
        """
        _ = self.fewest, self.age, self.moment, self.fraction

    @property
    def fewest(self) -> dict[str, int]:
        """Least numbers of examples by split; of all together under an empty name."""
        if not self.min_examples:
            return {}
        if _is_number(self.min_examples):
            return {"": int(self.min_examples)}
        found: dict[str, int] = {}
        for item in self.min_examples.split(","):
            name, _, number = item.strip().rpartition(":")
            if not name or not _is_number(number):
                raise UsageError(
                    f"--min_examples={self.min_examples} does not say how many: write it as in "
                    "1000, or train:1000,validation:100."
                )
            if name in found:
                raise UsageError(
                    f"--min_examples={self.min_examples} names {name!r} twice: name each once."
                )
            found[name] = int(number)
        return found

    @property
    def age(self) -> dt.timedelta | None:
        """The longest time since it was finished."""
        if not self.max_age:
            return None
        return dt.timedelta(seconds=parse_duration(self.max_age, "--max_age"))

    @property
    def moment(self) -> dt.datetime | None:
        """The earliest moment at which it may have been finished."""
        if not self.finished_after:
            return None
        found = parse_moment(self.finished_after)
        if found is None:
            raise UsageError(
                f"--finished_after={self.finished_after} is no moment with a time zone: write it "
                "as in 2026-11-20T00:00:00Z or 2026-11-20T00:00:00+01:00."
            )
        return found

    @property
    def fraction(self) -> Fraction | None:
        """The largest share of inputs that may have been rejected."""
        if not self.max_reject_fraction:
            return None
        try:
            found = Fraction(self.max_reject_fraction)
        except (ValueError, ZeroDivisionError):
            found = Fraction(-1)
        if not 0 <= found <= 1:
            raise UsageError(
                f"--max_reject_fraction={self.max_reject_fraction} must be a number from 0 to 1."
            )
        return found


def parse_moment(text: str) -> dt.datetime | None:
    """Returns the moment that an ISO 8601 text with a time zone means, or None."""
    try:
        found = dt.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        return None
    return None if found.tzinfo is None else found


def judge(
    manifest: Manifest, rules: Rules, now: dt.datetime, counted: Manifest | None = None
) -> Iterator[Verdict]:
    """Yields a verdict on each rule; that there are records and no damage is always one.

    Args:
        manifest: Of a dataset, or of a count.
        rules: What is asked for.
        now: The time, with its zone.
        counted: What ``shardmill count`` found in the dataset's folder.
    """
    yield _not_empty(manifest)
    if manifest.damaged:
        yield _damaged(manifest)
    for name, fewest in rules.fewest.items():
        yield _large_enough(manifest, name, fewest)
    if rules.age is not None:
        yield _fresh(manifest, rules.age, rules.max_age, now)
    if rules.moment is not None:
        yield _after(manifest, rules.moment, rules.finished_after)
    if rules.fraction is not None:
        yield _few_rejects(manifest, rules.fraction, rules.max_reject_fraction)
    if counted is not None:
        yield _as_counted(manifest, counted)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def _examples(manifest: Manifest) -> int:
    # Those of the splits are known to be what their shards hold.
    return sum(split.num_examples for split in manifest.splits.values())


def _not_empty(manifest: Manifest) -> Verdict:
    found, shards = _examples(manifest), len(manifest.files)
    line = f"{found:,} {_plural('example', found)} in {shards:,} {_plural('shard', shards)}"
    return Verdict(line, "" if found else "build it of inputs that hold something")


def _damaged(manifest: Manifest) -> Verdict:
    first = manifest.damaged[0]
    count = len(manifest.damaged)
    more = f" ({count - 1:,} more are damaged)" if count > 1 else ""
    return Verdict(
        f"{first.file} is damaged: {first.message}{more}",
        "restore it, or build again, and count again",
    )


def _large_enough(manifest: Manifest, name: str, fewest: int) -> Verdict:
    if name and name not in manifest.splits:
        known = ", ".join(manifest.splits) or "none"
        return Verdict(
            f"there is no split {name!r} that could have the {fewest:,} "
            f"{_plural('example', fewest)} of --min_examples: it has {known}",
            "name one of these, or build with other --splits",
        )
    found = manifest.splits[name].num_examples if name else _examples(manifest)
    what = f"{name} has {found:,}" if name else f"all splits have {found:,}"
    line = f"{what} {_plural('example', found)}"
    if found >= fewest:
        return Verdict(f"{line}, {fewest:,} are enough")
    asked = f"{name}:{fewest}" if name else str(fewest)
    return Verdict(
        f"{line}, fewer than --min_examples={asked} asks for",
        "see whether inputs are missing and build again, or ask for fewer",
    )


def _finished(manifest: Manifest) -> dt.datetime | Verdict:
    found = parse_moment(str(manifest.build.finished))
    if found is not None:
        return found
    return Verdict(
        f"it says finished {manifest.build.finished!r}, which is no moment with a time zone",
        "build it again",
    )


def _fresh(manifest: Manifest, limit: dt.timedelta, written: str, now: dt.datetime) -> Verdict:
    finished = _finished(manifest)
    if isinstance(finished, Verdict):
        return finished
    if finished - now > _SKEW:
        return Verdict(
            f"it was finished at {manifest.build.finished}, which is still to come",
            "set the clock of the machine that built it, or of this one",
        )
    age = max(now - finished, dt.timedelta())
    line = f"finished {_said(age)} ago, at {manifest.build.finished}"
    if age <= limit:
        return Verdict(f"{line}, within {written}")
    return Verdict(f"it was {line}, longer ago than --max_age={written} allows", "build it again")


def _after(manifest: Manifest, moment: dt.datetime, written: str) -> Verdict:
    finished = _finished(manifest)
    if isinstance(finished, Verdict):
        return finished
    if finished >= moment:
        return Verdict(f"finished at {manifest.build.finished}, not before {written}")
    return Verdict(
        f"it was finished at {manifest.build.finished}, before --finished_after={written}, so "
        "inputs may have come since",
        "build it again; if that says it is up to date, nothing came, and the rule can be left out",
    )


def _few_rejects(manifest: Manifest, limit: Fraction, written: str) -> Verdict:
    inputs = manifest.inputs
    if any(type(count) is not int for count in (inputs.accepted, inputs.rejected)):
        return Verdict("the manifest does not say how many inputs were rejected", "build it again")
    considered = inputs.accepted + inputs.rejected
    line = f"{inputs.rejected:,} of {considered:,} inputs were rejected"
    if inputs.rejected <= max(Fraction(1), limit * considered):  # as a build does: one always may
        return Verdict(f"{line}, at most {written} of them")
    worst = sorted(inputs.rejected_by_reason.items(), key=lambda item: (-item[1], item[0]))
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in worst[:_SHOWN])
    return Verdict(
        f"{line} ({reasons}), more than --max_reject_fraction={written} allows",
        "mend those that rejects.jsonl lists and build again, or raise the limit",
    )


def _as_counted(manifest: Manifest, counted: Manifest) -> Verdict:
    if counted.damaged:
        return _damaged(counted)
    ours, theirs = _by_file(manifest), _by_file(counted)
    for file in itertools.chain(ours, theirs.keys() - ours.keys()):
        differs = _difference(ours.get(file), theirs.get(file))
        if differs:
            return Verdict(
                f"{file} {differs} ({counted.root} was counted)",
                "count the dataset's folder again, and build again if that does not help",
            )
    found = _examples(counted)
    what = f"{found:,} {_plural('record', found)} in {len(theirs):,} {_plural('file', len(theirs))}"
    return Verdict(f"the count found the same {what}")


def _by_file(manifest: Manifest) -> Mapping[str, tuple[str, Shard]]:
    return {
        shard.file: (name, shard)
        for name, split in manifest.splits.items()
        for shard in split.shards
    }


def _difference(ours: tuple[str, Shard] | None, theirs: tuple[str, Shard] | None) -> str:
    """Returns how the count of a file differs from what the manifest says, or an empty text."""
    if ours is None or theirs is None:
        return "was not counted" if theirs is None else "was counted, and is not in the manifest"
    (split, shard), (counted_split, counted) = ours, theirs
    pairs = [
        (shard.records, counted.records, "records"),
        (shard.bytes, counted.bytes, "bytes"),
    ]
    for said, found, what in pairs:
        if said != found:
            return f"has {said:,} {what} in the manifest, and {found:,} were counted"
    if counted.crc32c is not None and shard.crc32c not in (None, counted.crc32c):
        return f"has the CRC-32C {shard.crc32c} in the manifest, and {counted.crc32c} was counted"
    if split != counted_split:
        return f"is of the split {split} in the manifest, and was counted as {counted_split}"
    return ""


def _said(age: dt.timedelta) -> str:
    seconds = int(age.total_seconds())
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 2 * size:
            return f"{seconds // size:,} {unit}s"
    return f"{seconds} {_plural('second', seconds)}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
