"""``shardmill check``: imports neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from dataclasses import asdict, fields

from shardmill.loaders.steps import find_manifest, load_manifest, read_manifest
from shardmill.pipelines.commands.parser import Parser, add_common, command_parser
from shardmill.pipelines.manifest_rules import Rules, judge
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError, UsageError
from shardmill.schemas.printable import printable

_DESCRIPTION = """\
Check from manifests alone, without reading records, whether a dataset can be
used: large enough, fresh, few rejects, same files and records as counted."""
_EPILOG = """\
examples:
  shardmill check ds --min_examples=train:1000,validation:100 --max_age=26h
  shardmill check ds --counted=counted.json

Exit codes: 0 all rules hold, 1 one does not, 2 usage error."""


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = command_parser("check", "DIR [FLAGS]", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("dataset", metavar="DIR", help="folder of a dataset, or a manifest")
    add("--min_examples", default="", metavar="N",
        help="least number of examples: of all splits together, or per split as in "
        "train:1000,validation:100")  # fmt: skip
    add("--max_age", default="", metavar="TIME",
        help="longest time since the build finished: 90s, 15m, 26h, 2d")  # fmt: skip
    add("--finished_after", default="", metavar="MOMENT",
        help="the build must not have finished before: 2026-11-20T00:00:00Z")  # fmt: skip
    add("--max_reject_fraction", default="", metavar="SHARE",
        help="largest fraction of rejected inputs, such as 0.02; one is allowed")  # fmt: skip
    add("--max_duplicates", default="", metavar="N",
        help="largest number of images that are exact copies of others")  # fmt: skip
    add("--counted", default="", metavar="FILE",
        help="manifest that shardmill count wrote of the same folder: all files and records must "
        "agree")  # fmt: skip
    add_common(add)
    return parser


def main(argv: list[str]) -> int:
    """Print for each rule whether it holds; return the exit code."""
    flags, answer = make_parser().parse(argv)
    rules = Rules(**{rule.name: getattr(flags, rule.name) for rule in fields(Rules)})
    folder, path = find_manifest(flags.dataset)
    manifest = read_manifest(folder, path)
    counted = _load_counted(flags.counted) if flags.counted else None
    if manifest.root:
        _reject_count(path, flags)
    verdicts = list(judge(manifest, rules, dt.datetime.now(dt.timezone.utc), counted))
    answer.say(f"Checked {folder or path}")
    for verdict in verdicts:
        answer.say(f"  {'ok    ' if verdict.holds else 'fault '} {verdict.line}")
    broken = [verdict for verdict in verdicts if not verdict.holds]
    rules_json = [{"holds": each.holds, **asdict(each)} for each in verdicts]
    status = "failed" if broken else "ok"
    answer.give({"status": status, "dataset": folder or path, "rules": rules_json})
    if not broken:
        return 0
    more = f" ({len(broken) - 1} more of the rules are broken)" if len(broken) > 1 else ""
    sentence = f"{folder or path}: {broken[0].line}: {broken[0].remedy}{more}."
    print(f"shardmill: {printable(sentence)}", file=sys.stderr)
    return OutputError.exit_code


def _load_counted(path: str) -> Manifest:
    counted = load_manifest(path)
    if not counted.root:
        raise UsageError(
            f"--counted={path} is the manifest of a dataset, not of a count: "
            "give what `shardmill count --manifest=FILE` wrote."
        )
    return counted


def _reject_count(path: str, flags: argparse.Namespace) -> None:
    for name in ("max_age", "finished_after", "max_reject_fraction", "max_duplicates", "counted"):
        if getattr(flags, name):
            raise UsageError(
                f"--{name} asks how a dataset was built, and {path} is the manifest of a count: "
                "give the folder of the dataset."
            )
