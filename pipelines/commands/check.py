"""``shardmill check``: imports neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from shardmill.pipelines.manifest_rules import Rules, Verdict, judge
from shardmill.pipelines.option_file import LIMITS, OPTIONS, read_tables
from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of
from shardmill.schemas.dataset.read_manifest import OpenedManifest, load_manifest, open_manifest
from shardmill.schemas.errors import OutputError, UsageError
from shardmill.schemas.numbers import printable

_SAMPLE = "run again, and see `shardmill verify` for what is damaged"
_OF_COUNTS = ("dataset", "min_examples")


@dataclass(kw_only=True)
class CheckOptions(Rules):
    """Options of ``shardmill check``, besides the rules.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest
        counted: ``FILE``: manifest that shardmill count wrote of the same folder: all files and
            records must agree
        findings: list what may harm training, as shardmill report does, from the manifest and a
            sample of the records
        limits: ``FILE``: TOML file with numbers by the name of a finding, perhaps in a table
            [limits]: those above it fail the check
    """

    usage: ClassVar = "DIR [FLAGS]"
    summary: ClassVar = """\
Check whether a dataset can be used: large enough, fresh, few rejects, same
files and records as counted. Only --findings and --limits read records."""
    example: ClassVar = """\
examples:
  shardmill check ds --min_examples=train:1000,validation:100 --max_age=26h
  shardmill check ds --counted=counted.json
  shardmill check ds --limits=limits.toml

Exit codes: 0 all rules hold, 1 one does not, 2 usage error."""
    dataset: str
    counted: of.Text = of.text()
    findings: of.Switch = of.switch()
    limits: of.Text = of.text()


def run(flags: CheckOptions, answer: Answer) -> int:
    """Print for each rule whether it holds; return the exit code."""
    opened = open_manifest(flags.dataset)
    manifest, path = opened.manifest, opened.path
    counted = load_manifest(flags.counted) if flags.counted else None
    if counted and not counted.root:
        raise UsageError(
            f"--counted={flags.counted} is the manifest of a dataset, not of a count: give what "
            "`shardmill count --manifest=FILE` wrote."
        )
    for rule in fields(flags) if manifest.root else ():
        if rule.name not in _OF_COUNTS and getattr(flags, rule.name) != rule.default:
            raise UsageError(
                f"--{rule.name} asks how a dataset was built, and {opened.file} is the manifest of "
                "a count: give the folder of the dataset."
            )
    verdicts = list(judge(manifest, flags, dt.datetime.now(dt.timezone.utc), counted))
    findings, notes = _find(opened, flags)
    failing = [finding for finding in findings if finding["fails"]]
    verdicts += [
        Verdict(f"{finding['name']}: {finding['line']}", finding["remedy"]) for finding in failing
    ]
    if flags.limits:  # what was not read may be above a limit
        verdicts += [Verdict(f"the sample is not complete: {note}", _SAMPLE) for note in notes]
    answer.say(f"Checked {path}")
    for verdict in verdicts:
        answer.say(f"  {'ok    ' if verdict.holds else 'fault '} {verdict.line}")
    for finding in findings:
        if not finding["fails"]:
            answer.say(f"  found  {finding['name']}: {finding['line']}: {finding['remedy']}")
    for note in () if flags.limits else notes:
        answer.say(f"  note   {note}")
    broken = [verdict for verdict in verdicts if not verdict.holds]
    rules_json = [{"holds": verdict.holds, **asdict(verdict)} for verdict in verdicts]
    status = "failed" if broken else "ok"
    examples = {name: split.num_examples for name, split in manifest.splits.items()}
    facts = {"manifest": opened.file, "config_id": manifest.build.config_id, "examples": examples}
    body = {"status": status, "dataset": path, **facts, "rules": rules_json}
    answer.give({**body, "findings": findings, "notes": notes})
    if not broken:
        return 0
    more = f" ({len(broken) - 1} more of the rules are broken)" if len(broken) > 1 else ""
    sentence = f"{path}: {broken[0].line}: {broken[0].remedy}{more}."
    print(f"shardmill: {printable(sentence)}", file=sys.stderr)
    return OutputError.exit_code


def _find(opened: OpenedManifest, flags: CheckOptions) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the findings, and what could not be read."""
    notes: list[str] = []
    if not flags.findings and not flags.limits:
        return [], notes
    from shardmill.pipelines.report.dataset_report import sample_records  # imports NumPy
    from shardmill.pipelines.report.findings import LIMITS, find_problems

    given = _load_limits(flags.limits, LIMITS) if flags.limits else {}
    samples = sample_records(opened.base, opened.manifest, notes)[1]
    problems = find_problems(opened.manifest, samples, {**LIMITS, **given})
    return [{**problem._asdict(), "fails": problem.name in given} for problem in problems], notes


def _load_limits(path: str, names: Iterable[str]) -> dict[str, float]:
    tables = read_tables("limits", path)
    has_tables = LIMITS in tables or OPTIONS in tables
    limits: dict[str, Any] = tables.get(LIMITS, {}) if has_tables else tables
    for name, value in limits.items():
        if name not in names or isinstance(value, bool) or not isinstance(value, int | float):
            choices = ", ".join(names)
            raise UsageError(
                f"--limits={path}: {name} must be the name of a finding with a number; the names "
                f"are {choices}."
            )
    return limits
