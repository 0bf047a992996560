"""Limits of a dataset: those of ``shardmill check``, and of a build before it publishes.

A limit is the number that a finding allows, or a rule, which needs the manifest only.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from shardmill.pipelines.option_file import read_limits
from shardmill.pipelines.report.findings import LIMITS, DatasetFinding, find_problems
from shardmill.schemas.dataset.catalog import copies_conflict
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.errors import LimitError, UsageError
from shardmill.schemas.numbers import human_duration, parse_duration, plural, printable
from shardmill.schemas.option_types import (
    MaybeInt,
    MaybeText,
    Option,
    Path,
    parse_path,
    propose,
    value_out_of_range,
    whole,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_SAMPLE = "run again, and see `shardmill verify` for what is damaged"
_CLOCK_SKEW = dt.timedelta(minutes=5)
_MAX_REASONS = 3


def _rule(parse: Callable[[str, str], Any]) -> Any:
    """Return an option of a rule, whose value is a text; an empty one means no such rule."""

    def check(flag: str, text: Any) -> str | None:
        if text:
            parse(flag, text)
        return text or None

    return Option("text", check, None)


def _parse_counts(flag: str, text: str) -> dict[str, int]:
    """Return the least number of examples by split; an empty name means all splits together."""
    if _is_number(text):
        return {"": int(text)}
    counts: dict[str, int] = {}
    for item in text.split(","):
        name, _, number = item.strip().rpartition(":")
        if not name or not _is_number(number):
            raise UsageError(
                f"--{flag}={text} is malformed: write it as in 1000, or train:1000,validation:100."
            )
        if name in counts:
            raise UsageError(f"--{flag}={text} names {name!r} twice: name each split once.")
        counts[name] = int(number)
    return counts


def _parse_age(flag: str, text: str) -> dt.timedelta:
    return dt.timedelta(seconds=parse_duration(text, f"--{flag}"))


def _parse_earliest(flag: str, text: str) -> dt.datetime:
    earliest = parse_time(text)
    if earliest is None:
        raise UsageError(
            f"--{flag}={text} is not a time with a time zone: write it as in 2026-11-20T00:00:00Z "
            "or 2026-11-20T00:00:00+01:00."
        )
    return earliest


def _parse_fraction(flag: str, text: str) -> Fraction:
    try:
        fraction = Fraction(text)
    except (ValueError, ZeroDivisionError):
        fraction = Fraction(-1)
    if not 0 <= fraction <= 1:
        raise value_out_of_range(flag=flag, value=text, rule="a number from 0 to 1")
    return fraction


@dataclass(kw_only=True)
class Rules:
    """The rules of ``shardmill check``.

    Attributes:
        min_examples: ``N``: least number of examples: of all splits together, or per split as in
            train:1000,validation:100
        max_age: ``TIME``: longest time since the build finished: 90s, 15m, 26h, 2d
        finished_after: ``MOMENT``: the build must not have finished before: 2026-11-20T00:00:00Z
        max_reject_fraction: ``SHARE``: largest fraction of rejected inputs, such as 0.02; one is
            allowed
        max_duplicates: ``N``: largest number of images that are exact copies of others
    """

    min_examples: MaybeText = _rule(_parse_counts)
    max_age: MaybeText = _rule(_parse_age)
    finished_after: MaybeText = _rule(_parse_earliest)
    max_reject_fraction: MaybeText = _rule(_parse_fraction)
    max_duplicates: MaybeInt = whole(None)


def parse_time(text: str) -> dt.datetime | None:
    """Return the time of an ISO 8601 text with a time zone, or None."""
    if text.endswith("Z"):  # which Python 3.10 does not parse
        text = text[:-1] + "+00:00"
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is None:
        return None
    return time


_RULES = [rule.name for rule in fields(Rules)]


@dataclass(frozen=True)
class Limits:
    """Which findings a dataset may not have.

    Attributes:
        rules: Rules that need the manifest only.
        numbers: The number that a finding allows, by its name. Other findings fail nothing.
        strict: Whether all findings fail, at their usual numbers where no other is given.
    """

    rules: Rules = field(default_factory=Rules)
    numbers: Mapping[str, float] = field(default_factory=dict)
    strict: bool = False

    def judge(
        self, folder: str, manifest: Manifest, counted: Manifest | None = None
    ) -> tuple[list[DatasetFinding], list[str]]:
        """Return the findings and the rules that hold, the worst first; and what was not read.

        Args:
            folder: Folder of the shards.
            manifest: The manifest of a dataset or a count.
            counted: Manifest that ``shardmill count`` wrote for the dataset's folder.
        """
        from shardmill.pipelines.report.sample import sample_records  # imports NumPy

        notes: list[str] = []
        now = dt.datetime.now(dt.timezone.utc)
        verdicts = [*judge_manifest(manifest, self.rules, now, counted)]
        if not manifest.root:  # a count has no records to look at
            samples = sample_records(folder, manifest, notes)[1]
            for problem in find_problems(manifest, samples, {**LIMITS, **self.numbers}):
                fails = self.strict or problem.name in self.numbers
                verdicts.append(problem._replace(fails=fails))
        if self.strict or self.numbers:  # what was not read may be beyond a limit
            for note in notes:
                line = f"the sample is not complete: {note}"
                verdicts.append(DatasetFinding("sample", None, line, _SAMPLE, fails=True))
            notes = []
        # The sort is stable: rules come before findings, and the worst finding first.
        verdicts.sort(key=lambda verdict: (not verdict.fails, not verdict.remedy))
        return verdicts, notes

    def check_build(self, output: str, folder: str, manifest: Manifest) -> None:
        """Check a finished build before it is published.

        Args:
            output: The folder of the dataset.
            folder: Folder of the shards that are not published yet.
            manifest: Their manifest.

        Raises:
            LimitError: It must not be published.
        """
        findings = [verdict for verdict in self.judge(folder, manifest)[0] if verdict.remedy]
        problem = describe_failure(findings)
        if problem:
            raise LimitError(
                f"{output} was not published: {problem}; finished parts are kept.",
                [finding._asdict() for finding in findings],
            )


LimitsOption = Option[Limits | None, Limits | Path | Mapping[str, Any] | None]


def describe_failure(verdicts: Sequence[DatasetFinding]) -> str:
    """Return the worst finding and its remedy as a clause; empty if none fails."""
    failing = [verdict for verdict in verdicts if verdict.fails]
    if not failing:
        return ""
    clause = f"{failing[0].text}: {failing[0].remedy}"
    others = len(failing) - 1
    if others:
        clause += f" ({others} more {'limit is' if others == 1 else 'limits are'} broken)"
    return clause


def render_verdicts(verdicts: Sequence[DatasetFinding], notes: Sequence[str]) -> RenderableType:
    """Return a table for a terminal, which wraps long lines: a mark, and the text below it."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=5)
    table.add_column()
    for verdict in verdicts:
        mark, style = ("fault", "red") if verdict.fails else ("warn", "yellow")
        if not verdict.remedy:
            mark, style = "ok", "green"
        table.add_row(Text(mark, style), Text(printable(verdict.text)))
        if verdict.remedy:
            table.add_row("", Text(printable(verdict.remedy), "dim"))
    for note in notes:
        table.add_row("note", Text(printable(note)))
    return Padding(table, (0, 0, 0, 2))


def parse_limits(source: str, value: Any) -> Limits:
    """Return limits that an option gives.

    Args:
        source: What gives them, for messages.
        value: Limits, their values by name, or the path of a TOML file.

    Raises:
        UsageError: A name is unknown, or a value breaks its rule.
    """
    if isinstance(value, Limits):
        return value
    if not isinstance(value, Mapping):
        path = parse_path(source, value)
        return parse_limits(f"--{source}={path}", read_limits(source, path))
    rules: dict[str, Any] = {}
    numbers: dict[str, float] = {}
    for name, limit in value.items():
        if name in _RULES:
            rules[name] = _text_of(source, name, limit)
        elif name not in LIMITS:
            names = [*_RULES, *LIMITS]
            hint = propose(name, names, f"use {', '.join(names)}.")
            raise UsageError(f"{source}: {name!r} is not the name of a limit; {hint}")
        elif isinstance(limit, bool) or not isinstance(limit, int | float):
            raise UsageError(f"{source}: {name} must be a number, not {limit!r}.")
        else:
            numbers[name] = limit
    try:
        return Limits(Rules(**rules), numbers)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def limits_option() -> Any:
    """Return an option whose value is ``Limits``, or None."""
    return Option("text", parse_limits, None, decides=False)


def _text_of(source: str, name: str, limit: Any) -> str:
    """Return the limit of a rule as its flag has it."""
    if isinstance(limit, Mapping):
        return ",".join(f"{key}:{number}" for key, number in limit.items())
    if isinstance(limit, dt.datetime):
        return limit.isoformat()
    if isinstance(limit, bool) or not isinstance(limit, int | float | str):
        raise UsageError(f"{source}: {name} must be a number or a text, not {limit!r}.")
    return str(limit)


def judge_manifest(
    manifest: Manifest, rules: Rules, now: dt.datetime, counted: Manifest | None = None
) -> Iterator[DatasetFinding]:
    """Yield a verdict for each rule; a dataset must always have records and no damaged file.

    Args:
        manifest: Manifest of a dataset or a count.
        rules: The rules.
        now: The current time, with its zone.
        counted: Manifest that ``shardmill count`` wrote for the dataset's folder.
    """
    examples = _num_examples(manifest)
    line = f"{plural(examples, 'example')} in {plural(len(manifest.files), 'shard')}"
    remedy = "" if examples else "build it from inputs that are not empty"
    yield _verdict("examples", examples, line, remedy)
    if manifest.damaged:
        yield _report_damage(manifest)
    if rules.min_examples:
        for name, least in _parse_counts("min_examples", rules.min_examples).items():
            yield _check_size(manifest, name, least)
    if rules.max_age or rules.finished_after:
        yield from _check_times(manifest, rules, now)
    if rules.max_reject_fraction:
        yield _check_rejects(manifest, rules.max_reject_fraction)
    if rules.max_duplicates is not None:
        yield _check_copies(manifest, rules.max_duplicates)
    if counted is not None:
        yield _compare(manifest, counted)


def _verdict(name: str, value: float | None, line: str, remedy: str = "") -> DatasetFinding:
    return DatasetFinding(name, value, line, remedy, fails=bool(remedy))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def _num_examples(manifest: Manifest) -> int:
    # Not manifest.written: load_manifest checks the splits against their shards.
    return sum(split.num_examples for split in manifest.splits.values())


def _report_damage(manifest: Manifest) -> DatasetFinding:
    first, others = manifest.damaged[0], len(manifest.damaged) - 1
    more = f" ({others:,} more are damaged)" if others else ""
    return _verdict(
        "damaged",
        len(manifest.damaged),
        f"{first.file} is damaged: {first.message}{more}",
        "restore it, or build again, and count again",
    )


def _check_size(manifest: Manifest, name: str, least: int) -> DatasetFinding:
    if name and name not in manifest.splits:
        names = ", ".join(manifest.splits) or "none"
        return _verdict(
            "min_examples",
            None,
            f"min_examples={name}:{least} names a split that does not exist: it has {names}",
            "name one of these, or build with other --splits",
        )
    examples = manifest.splits[name].num_examples if name else _num_examples(manifest)
    subject = f"{name} has" if name else "all splits have"
    line = f"{subject} {plural(examples, 'example')}"
    if examples >= least:
        return _verdict("min_examples", examples, f"{line}, {least:,} are enough")
    asked = f"{name}:{least}" if name else str(least)
    return _verdict(
        "min_examples",
        examples,
        f"{line}, fewer than min_examples={asked} asks for",
        "check whether inputs are missing and build again, or ask for fewer",
    )


def _check_copies(manifest: Manifest, most: int) -> DatasetFinding:
    inputs = manifest.inputs
    line = (
        f"{inputs.copies:,} images are exact copies, {inputs.copies_across_splits:,} "
        f"in several splits, {inputs.copies_with_other_labels:,} with different labels, boxes or "
        "masks"
    )
    if not manifest.catalogs:
        return _verdict(
            "max_duplicates",
            inputs.copies,
            "copies are not counted: only images have a catalog",
            "omit the rule",
        )
    if inputs.copies <= most:
        return _verdict(
            "max_duplicates", inputs.copies, f"{line}; max_duplicates={most} allows them"
        )
    remedy = "build with --duplicates=drop, or allow more"
    if conflict := copies_conflict(manifest.build.config):
        remedy = (
            f"remove copies from the input, since --duplicates cannot be combined with {conflict}, "
            "or allow more"
        )
    return _verdict(
        "max_duplicates",
        inputs.copies,
        f"{line}, more than max_duplicates={most} allows",
        remedy,
    )


def _check_times(manifest: Manifest, rules: Rules, now: dt.datetime) -> Iterator[DatasetFinding]:
    text = manifest.build.finished
    finished = parse_time(str(text))
    if finished is None:
        yield _verdict(
            "finished",
            None,
            f"the manifest has finished {text!r}, which is not a time with a time zone",
            "build it again",
        )
        return
    if rules.max_age:
        yield _check_age(f"at {text}", now - finished, rules.max_age)
    earliest = rules.finished_after
    if earliest and finished >= _parse_earliest("finished_after", earliest):
        yield _verdict("finished_after", None, f"finished at {text}, not before {earliest}")
    elif earliest:
        yield _verdict(
            "finished_after",
            None,
            f"it was finished at {text}, before finished_after={earliest}, so "
            "inputs may have been added since",
            "build it again; if that reports it as up to date, no inputs were added, and the rule "
            "can be omitted",
        )


def _check_age(when: str, age: dt.timedelta, most: str) -> DatasetFinding:
    if -age > _CLOCK_SKEW:
        return _verdict(
            "max_age",
            age.total_seconds(),
            f"it was finished {when}, which is in the future",
            "set the clock of the machine that built it, or of this one",
        )
    line = f"finished {human_duration(max(0, int(age.total_seconds())))} ago, {when}"
    if age <= _parse_age("max_age", most):
        return _verdict("max_age", age.total_seconds(), f"{line}, within {most}")
    return _verdict(
        "max_age",
        age.total_seconds(),
        f"it was {line}, longer ago than max_age={most} allows",
        "build it again",
    )


def _check_rejects(manifest: Manifest, most: str) -> DatasetFinding:
    inputs = manifest.inputs
    considered = inputs.accepted + inputs.rejected
    share = inputs.rejected / max(1, considered)
    line = f"{inputs.rejected:,} of {considered:,} inputs were rejected"
    # Builds allow one reject too.
    if inputs.rejected <= max(
        Fraction(1), _parse_fraction("max_reject_fraction", most) * considered
    ):
        return _verdict("max_reject_fraction", share, f"{line}, at most {most} of them")
    worst = sorted(inputs.rejected_by_reason.items(), key=lambda item: (-item[1], item[0]))
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in worst[:_MAX_REASONS])
    return _verdict(
        "max_reject_fraction",
        share,
        f"{line} ({reasons}), more than max_reject_fraction={most} allows",
        "fix the inputs that rejects.jsonl lists and build again, or raise the limit",
    )


def _compare(manifest: Manifest, counted: Manifest) -> DatasetFinding:
    if counted.damaged:
        return _report_damage(counted)
    expected, actual = _by_file(manifest), _by_file(counted)
    for file in itertools.chain(expected, sorted(actual.keys() - expected.keys())):
        difference = _find_difference(expected.get(file), actual.get(file))
        if difference:
            return _verdict(
                "counted",
                None,
                f"{file} {difference} ({counted.root} was counted)",
                "count the dataset's folder again, and build again if that does not help",
            )
    counts = f"{plural(_num_examples(counted), 'record')} in {plural(len(actual), 'file')}"
    return _verdict("counted", None, f"the count found the same {counts}")


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
