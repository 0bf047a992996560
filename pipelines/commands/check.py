"""``shardmill check``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

from shardmill.pipelines.limits import (
    Limits,
    LimitsOption,
    Rules,
    describe_failure,
    limits_option,
    render_verdicts,
)
from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of
from shardmill.schemas.dataset.read_manifest import OpenedManifest, load_manifest, open_manifest
from shardmill.schemas.errors import OutputError, UsageError
from shardmill.schemas.numbers import printable
from shardmill.schemas.user_warnings import warn_deprecated

_OF_COUNTS = {"min_examples"}


@dataclass(kw_only=True)
class CheckOptions(Rules):
    """Options of ``shardmill check``, besides the rules.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest
        counted: ``FILE``: manifest that shardmill count wrote of the same folder: all files and
            records must agree
        strict: fail for all findings, also for those that no limit names
        limits: ``FILE``: TOML file with limits of these names and of findings, perhaps in a table
            [limits]
        findings: deprecated: findings are always listed
    """

    usage = "DIR [FLAGS]"
    summary = """\
Check whether a dataset can be used: list what may harm training, from its
manifest and a sample of its records, the worst first. Limits make findings
fail."""
    example = """\
examples:
  shardmill check ds
  shardmill check ds --min_examples=train:1000,validation:100 --max_age=26h
  shardmill check ds --counted=counted.json
  shardmill check ds --limits=limits.toml

Exit codes: 0 no finding fails, 1 one fails, 2 usage error."""
    dataset: str
    counted: of.Text = of.text()
    strict: of.Switch = of.switch()
    limits: LimitsOption = limits_option()
    findings: of.Switch = of.switch()


def run(flags: CheckOptions, answer: Answer) -> int:
    """Print the findings, the worst first; return the exit code."""
    if flags.findings:
        instead = "`shardmill check DIR`, which lists them"
        warn_deprecated("--findings", instead=instead, removed_in="0.5.0")
    opened = open_manifest(flags.dataset)
    manifest, path = opened.manifest, opened.path
    counted = load_manifest(flags.counted) if flags.counted else None
    if counted and not counted.root:
        raise UsageError(
            f"--counted={flags.counted} is the manifest of a dataset, not of a count: give what "
            "`shardmill count --manifest=FILE` wrote."
        )
    limits = _limits_of(flags, opened)
    verdicts, notes = limits.judge(opened.base, manifest, counted)
    answer.say(f"Checked {path}")
    answer.show(lambda _: [render_verdicts(verdicts, notes)])
    failure = describe_failure(verdicts)
    rules = [
        {"holds": not verdict.fails, "line": verdict.text, "remedy": verdict.remedy}
        for verdict in verdicts
        if verdict.fails or not verdict.remedy
    ]
    answer.give(
        {
            "status": "failed" if failure else "ok",
            "dataset": path,
            "manifest": opened.file,
            "config_id": manifest.build.config_id,
            "examples": {name: split.num_examples for name, split in manifest.splits.items()},
            "rules": rules,
            "findings": [verdict._asdict() for verdict in verdicts if verdict.remedy],
            "notes": notes,
        }
    )
    if not failure:
        return 0
    print(f"shardmill: {printable(f'{path}: {failure}.')}", file=sys.stderr)
    return OutputError.exit_code


def _limits_of(flags: CheckOptions, opened: OpenedManifest) -> Limits:
    """Return the limits of the file, and of the flags, which win.

    Raises:
        UsageError: A rule is about a build, and the manifest is that of a count.
    """
    limits = flags.limits or Limits()
    rules = {}
    for rule in fields(Rules):
        rules[rule.name] = getattr(flags, rule.name)
        if rules[rule.name] is None:
            rules[rule.name] = getattr(limits.rules, rule.name)
    if opened.manifest.root:
        given = {name for name, value in rules.items() if value is not None}
        if flags.counted:
            given.add("counted")
        for name in sorted(given - _OF_COUNTS):
            raise UsageError(
                f"--{name} asks how a dataset was built, and {opened.file} is the manifest of "
                "a count: give the folder of the dataset."
            )
    return Limits(Rules(**rules), limits.numbers, strict=flags.strict)
