"""``shardmill clean``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of
from shardmill.schemas.errors import InputError, ShardmillError, UsageError
from shardmill.schemas.numbers import human_bytes, human_duration, parse_duration, plural, printable
from shardmill.schemas.storage import absolute, open_storage
from shardmill.transforms.publish import cleanup
from shardmill.transforms.publish.generation import check_no_version

_NS = 1_000_000_000


@dataclass(kw_only=True)
class CleanOptions:
    """Options of ``shardmill clean``.

    Attributes:
        directory: ``DIR``: output of a build
        dry_run: print what would be deleted, delete nothing
        older_than: ``TIME``: keep what changed more recently, as a build may be running: 90s, 15m,
            1h, 2d, or 0 to keep nothing
    """

    usage = "DIR [FLAGS]"
    summary = """\
Delete what unfinished builds left in an output: build folders, versions that
the manifest does not name, outcomes of runs, unfinished files. Never changes
the published dataset or the earlier versions that it keeps."""
    example = """\
example, to see what would be deleted:
  shardmill clean ds --dry_run"""
    directory: str
    dry_run: of.Switch = of.switch()
    older_than: of.Text = of.text("1h")


def run(flags: CleanOptions, answer: Answer) -> int:
    """Delete what unfinished builds left behind; return the exit code."""
    limit = parse_duration(flags.older_than, "--older_than") * _NS
    output = find_output(flags.directory)
    storage = open_storage(output)
    now, account = time.time_ns(), cleanup.find_leftovers(storage, output)
    old = [item for item in account.leftovers if not item.is_recent(limit, now)]
    removed: list[cleanup.Leftover] = []
    problems = [*account.problems]
    for item in old:
        try:
            gone = flags.dry_run or cleanup.remove(storage, output, item, limit, now)
        except ShardmillError as error:
            problems.append(str(error))
        except FileNotFoundError as error:
            problems.append(f"{error} was deleted by another process: run again.")
        else:
            removed += [item] * gone
            left = f"left  {item.name}: another command deleted it or uses it"
            word = "would remove" if flags.dry_run else "removed"
            answer.say(f"{word}  {_describe(item, now)}" if gone else left)
    for line in _kept(account, old, flags.older_than, now):
        answer.say(line)
    for problem in problems:
        print(f"shardmill: {printable(problem)}", file=sys.stderr)
    if removed or account.leftovers or problems:
        answer.say(_total(removed, flags.dry_run))
    else:
        answer.say(f"{output}: nothing to clean.")
    answer.give(
        {
            "status": "failed" if problems else "dry_run" if flags.dry_run else "ok",
            "output": output,
            "removed": [item.name for item in removed],
            "kept": [item.name for item in account.leftovers if item not in removed],
            "num_bytes": sum(item.num_bytes for item in removed),
            "problems": problems,
        }
    )
    if problems:
        return ShardmillError.exit_code
    return 0


def find_output(directory: str) -> str:
    """Return the absolute path of an output.

    Raises:
        UsageError: The path is empty.
        InputError: It is not a folder.
        OutputError: It is a version of a dataset.
    """
    if not directory:
        raise UsageError("DIR is empty: give the folder of a dataset.")
    output = absolute(directory)
    entry = open_storage(output).stat(output)
    if entry is None or entry.kind != "dir":
        raise InputError(f"{directory} is not a folder: give the folder of a dataset.")
    check_no_version(output)
    return output


def _describe(item: cleanup.Leftover, now_ns: int) -> str:
    """Return a line about a leftover: its name, size, files and age."""
    size = f"{human_bytes(item.num_bytes)} in {plural(item.num_files, 'file')}"
    return f"{item.name}  {size}, {format_age(item.changed_ns, now_ns)}"


def format_age(changed_ns: int | None, now_ns: int) -> str:
    """Return how long ago an entry changed, for people."""
    if changed_ns is None:
        return "last changed at an unknown time"
    return f"last changed {human_duration(max(0, now_ns - changed_ns) // _NS)} ago"


def _kept(
    account: cleanup.Leftovers, old: list[cleanup.Leftover], older_than: str, now_ns: int
) -> Iterator[str]:
    """Yield a line for each item that is kept, with the reason and remedy."""
    recent = [item for item in account.leftovers if item not in old]
    for item in recent:
        yield f"kept  {_describe(item, now_ns)}"
    for name, why in account.foreign:
        yield f"kept  {name}: {why}"
    if recent:
        yield (
            f"Items that changed within {older_than} are kept, as a build may be running; "
            "if none is, add --older_than=0."
        )


def _total(removed: list[cleanup.Leftover], dry_run: bool) -> str:
    if not removed:
        if dry_run:
            return "Nothing would be removed."
        return "Nothing was removed."
    size = human_bytes(sum(item.num_bytes for item in removed))
    files = plural(sum(item.num_files for item in removed), "file")
    what = f"{plural(len(removed), 'leftover')}: {size} in {files}"
    if dry_run:
        return f"Would remove {what}; nothing was changed."
    return f"Removed {what}."
