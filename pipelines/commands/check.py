"""``shardmill check``: loads neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

import argparse
import datetime as dt

from shardmill.loaders.steps import find_manifest, load_manifest
from shardmill.pipelines.commands.steps import complete_publish
from shardmill.pipelines.flags.check import check_parser
from shardmill.pipelines.manifest_rules import Rules, judge
from shardmill.pipelines.report.terminal import clean
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError, UsageError


def main(argv: list[str]) -> int:
    """Says of each rule whether it is kept; returns the exit code."""
    flags = check_parser().parse_args(argv)
    rules = Rules(
        flags.min_examples, flags.max_age, flags.finished_after, flags.max_reject_fraction
    )
    folder, path = find_manifest(flags.dataset)
    if folder:
        complete_publish(folder)
    manifest = load_manifest(path)
    counted = _load_counted(flags.counted) if flags.counted else None
    if manifest.root:
        _refuse_count(path, flags)
    verdicts = list(judge(manifest, rules, dt.datetime.now(dt.timezone.utc), counted))
    print(clean(f"Checked {folder or path}"))
    for verdict in verdicts:
        print(clean(f"  {'ok    ' if verdict.holds else 'fault '} {verdict.line}"))
    broken = [verdict for verdict in verdicts if not verdict.holds]
    if not broken:
        return 0
    more = f" ({len(broken) - 1} more of the rules are broken)" if len(broken) > 1 else ""
    raise OutputError(f"{folder or path}: {broken[0].line}: {broken[0].remedy}{more}.")


def _load_counted(path: str) -> Manifest:
    counted = load_manifest(path)
    if not counted.root:
        raise UsageError(
            f"--counted={path} is the manifest of a dataset, not of a count: "
            "give what `shardmill count --manifest=FILE` wrote."
        )
    return counted


def _refuse_count(path: str, flags: argparse.Namespace) -> None:
    for name in ("max_age", "finished_after", "max_reject_fraction", "counted"):
        if getattr(flags, name):
            raise UsageError(
                f"--{name} asks how a dataset was built, and {path} is the manifest of a count: "
                "give the folder of the dataset."
            )
