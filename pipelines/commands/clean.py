"""``shardmill clean``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardmill.pipelines.commands.parser import Parser, add_debug, command_parser
from shardmill.pipelines.report.numbers import human_bytes, parse_duration
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import InputError, ShardmillError, UsageError
from shardmill.schemas.storage import Storage, open_storage, scheme_of
from shardmill.transforms.publish import cleanup, publish
from shardmill.transforms.publish.journal import Journal

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NS = 1_000_000_000

_DESCRIPTION = """\
Delete what unfinished builds left in an output: build folders, outcomes of
runs, unfinished files. Completes an unfinished publish first. Never changes
the published dataset."""
_EPILOG = """\
example, to see what would be deleted:
  shardmill clean ds --dry_run"""


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = command_parser("clean", "DIR [FLAGS]", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("directory", metavar="DIR", help="output of a build")
    add("--dry_run", action="store_true", help="print what would be deleted, delete nothing")
    add("--older_than", default="1h", metavar="TIME",
        help="keep what changed more recently, as a build may be running: 90s, 15m, 1h, 2d, or 0 "
        "to keep nothing (default: 1h)")  # fmt: skip
    add_debug(parser)
    return parser


def main(argv: list[str]) -> int:
    """Delete what unfinished builds left behind; return the exit code."""
    flags = make_parser().parse_args(argv)
    limit = parse_duration(flags.older_than, "--older_than") * _NS
    output = _absolute(flags.directory)
    storage = open_storage(output)
    entry = storage.stat(output)
    if entry is None:
        raise InputError(f"{flags.directory} does not exist: give the folder of a dataset.")
    if entry.kind != "dir":
        raise InputError(f"{flags.directory} is not a folder: give the folder of a dataset.")
    job = _Job(storage, output, limit, time.time_ns(), flags.dry_run)
    journal = publish.read_journal(storage, output)
    if journal is not None:
        _say(job.complete(journal))
    busy = journal.build if journal is not None and flags.dry_run else ""
    account = cleanup.find_leftovers(storage, output, publishing=busy)
    going = [item for item in account.leftovers if not item.is_recent(limit, job.now_ns)]
    removed, problems = job.remove(going)
    for line in _kept(account, going, flags.older_than, job):
        _say(line)
    problems = [*account.problems, *problems]
    for problem in problems:
        print(f"shardmill: {shown(problem)}", file=sys.stderr)
    if removed or account.leftovers or problems:
        _say(_total(removed, flags.dry_run))
    else:
        _say("Nothing else to clean." if journal else f"{output}: nothing to clean.")
    return ShardmillError.exit_code if problems else 0


def _absolute(path: str) -> str:
    if not path:
        raise UsageError("DIR is empty: give the folder of a dataset.")
    return path.rstrip("/") if scheme_of(path) else os.path.abspath(os.path.expanduser(path))


@dataclass(frozen=True)
class _Job:
    storage: Storage
    output: str
    limit: int
    now_ns: int
    dry_run: bool

    def complete(self, journal: Journal) -> str:
        """Completes a publication, or says that it would, as a sentence."""
        manifest = Manifest.from_json(journal.manifest)
        what = f"the unfinished publish of {manifest.written:,} examples"
        rest = f"{journal.build} goes with it"
        if self.dry_run:
            return f"would complete {what}; {rest}"
        if cleanup.complete(self.storage, self.output, journal):
            return f"completed {what}; {rest}"
        return f"took back {what}: its files are gone, what was published before stays"

    def remove(self, going: Iterable[cleanup.Leftover]) -> tuple[list[cleanup.Leftover], list[str]]:
        """Removes leftovers and says so one by one; returns those, and what went wrong."""
        removed: list[cleanup.Leftover] = []
        problems: list[str] = []
        word = "would remove" if self.dry_run else "removed"
        for item in going:
            try:
                gone = self.dry_run or cleanup.remove(
                    self.storage, self.output, item, self.limit, self.now_ns
                )
            except (ShardmillError, FileNotFoundError) as error:
                problems.append(_plain(error))
                continue
            if gone:
                removed.append(item)
                _say(f"{word}  {self.describe(item)}")
            else:
                _say(f"left  {item.name}: another command took it, or works on it")
        return removed, problems

    def describe(self, item: cleanup.Leftover) -> str:
        """Returns a line on a leftover: its name, size, files and age."""
        size = f"{human_bytes(item.num_bytes)} in {_files(item.num_files)}"
        return f"{item.name}  {size}, {age(item.changed_ns, self.now_ns)}"


def _plain(error: Exception) -> str:
    if isinstance(error, ShardmillError):
        return str(error)
    return f"{error} was taken away at the same time: run again."


def _say(line: str) -> None:
    print(shown(line), flush=True)


def shown(text: str) -> str:
    """Returns a text with names of any kind in it as one line that can be printed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def age(changed_ns: int | None, now_ns: int) -> str:
    """Returns how long ago something changed, as a person says it."""
    if changed_ns is None:
        return "changed nobody knows when"
    seconds = max(0, now_ns - changed_ns) // _NS
    for unit, name in (("d", "day"), ("h", "hour"), ("m", "minute")):
        count = seconds // _UNITS[unit]
        if count:
            return f"last changed {count:,} {name}{'' if count == 1 else 's'} ago"
    return f"last changed {seconds} second{'' if seconds == 1 else 's'} ago"


def _kept(
    account: cleanup.Leftovers, going: list[cleanup.Leftover], older_than: str, job: _Job
) -> Iterator[str]:
    """Yields what stays, each with its reason and remedy."""
    recent = [item for item in account.leftovers if item not in going]
    for item in recent:
        yield f"kept  {job.describe(item)}"
    for name, why in account.foreign:
        yield f"kept  {name}: {why}"
    if recent:
        yield (
            f"What changed within {older_than} is kept, as a build may be running; "
            "when none is, add --older_than=0."
        )


def _total(removed: list[cleanup.Leftover], dry_run: bool) -> str:
    if not removed:
        return "Nothing would be removed." if dry_run else "Nothing was removed."
    items = f"{len(removed):,} leftover{'' if len(removed) == 1 else 's'}"
    size = human_bytes(sum(item.num_bytes for item in removed))
    files = _files(sum(item.num_files for item in removed))
    what = f"{items}: {size} in {files}"
    return f"Would remove {what}; nothing was changed." if dry_run else f"Removed {what}."
