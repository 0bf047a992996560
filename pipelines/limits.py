"""Limits of a dataset: those of ``shardmill check``, and of a build before it publishes."""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from shardmill.pipelines.manifest_rules import Rules, judge
from shardmill.pipelines.option_file import read_limits
from shardmill.pipelines.report.findings import LIMITS, DatasetFinding, find_problems
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import LimitError, UsageError
from shardmill.schemas.option_types import Option, Path, parse_path

if TYPE_CHECKING:
    from rich.console import RenderableType

_RULES = [rule.name for rule in fields(Rules)]
_SAMPLE = "run again, and see `shardmill verify` for what is damaged"


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
        verdicts = [*judge(manifest, self.rules, dt.datetime.now(dt.timezone.utc), counted)]
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

    from shardmill.schemas.numbers import printable

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
            near = difflib.get_close_matches(str(name), names, 1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(names)}."
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
