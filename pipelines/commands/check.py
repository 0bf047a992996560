"""``shardmill check``: imports neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

import datetime as dt
import sys
from dataclasses import asdict, dataclass
from typing import ClassVar

from shardmill.pipelines.manifest_rules import Rules, judge
from shardmill.pipelines.report.answer import Answer
from shardmill.schemas import option_types as of
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.read_manifest import find_manifest, load_manifest, read_manifest
from shardmill.schemas.errors import OutputError, UsageError
from shardmill.schemas.printable import printable


@dataclass(kw_only=True)
class CheckOptions(Rules):
    """Options of ``shardmill check``, besides the rules.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest
        counted: ``FILE``: manifest that shardmill count wrote of the same folder: all files and
            records must agree
    """

    usage: ClassVar = "DIR [FLAGS]"
    summary: ClassVar = """\
Check from manifests alone, without reading records, whether a dataset can be
used: large enough, fresh, few rejects, same files and records as counted."""
    example: ClassVar = """\
examples:
  shardmill check ds --min_examples=train:1000,validation:100 --max_age=26h
  shardmill check ds --counted=counted.json

Exit codes: 0 all rules hold, 1 one does not, 2 usage error."""
    dataset: str
    counted: of.Text = of.text()


def run(flags: CheckOptions, answer: Answer) -> int:
    """Print for each rule whether it holds; return the exit code."""
    folder, path = find_manifest(flags.dataset)
    manifest = read_manifest(folder, path)
    counted = _load_counted(flags.counted) if flags.counted else None
    if manifest.root:
        _reject_count(path, flags)
    verdicts = list(judge(manifest, flags, dt.datetime.now(dt.timezone.utc), counted))
    answer.say(f"Checked {folder or path}")
    for verdict in verdicts:
        answer.say(f"  {'ok    ' if verdict.holds else 'fault '} {verdict.line}")
    broken = [verdict for verdict in verdicts if not verdict.holds]
    rules_json = [{"holds": each.holds, **asdict(each)} for each in verdicts]
    status = "failed" if broken else "ok"
    examples = {name: split.num_examples for name, split in manifest.splits.items()}
    facts = {"manifest": path, "config_id": manifest.build.config_id, "examples": examples}
    answer.give({"status": status, "dataset": folder or path, **facts, "rules": rules_json})
    if not broken:
        return 0
    more = f" ({len(broken) - 1} more of the rules are broken)" if len(broken) > 1 else ""
    sentence = f"{folder or path}: {broken[0].line}: {broken[0].remedy}{more}."
    print(f"shardmill: {printable(sentence)}", file=sys.stderr)
    return OutputError.exit_code


def _load_counted(path: str) -> Manifest:
    counted = load_manifest(path)
    if not counted.root:
        raise UsageError("counted-not-count", path=path)
    return counted


def _reject_count(path: str, flags: CheckOptions) -> None:
    for name in ("max_age", "finished_after", "max_reject_fraction", "max_duplicates", "counted"):
        if getattr(flags, name):
            raise UsageError("check-rule-of-dataset", name=name, path=path)
