"""Clean an output: find and delete leftovers of unfinished commands.

Only names that Shardmill gives to unpublished files are considered: hidden files and folders with
a fixed form of names, and generations that the manifest does not name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.shard_names import list_generations
from shardmill.schemas.errors import OutputError, ShardmillError
from shardmill.schemas.storage import Entry, Storage, is_link, join
from shardmill.transforms.publish.generation import find_sound, read_published

LeftoverKind = Literal["build", "generation", "file"]

_ID = r"[0-9a-f]{12}"
_OUTCOME = re.escape(shard_names.OUTCOME_PREFIX) + _ID + r"\.json"
# Temporary files of local storage: only of files written into the output itself, with the
# hexadecimal digits of a random UUID.
_FIXED = (shard_names.MANIFEST, shard_names.SCHEMA, shard_names.LABELS, shard_names.REJECTS)
_UUID = r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"
_IS_FILE = re.compile(
    rf"{_OUTCOME}|\.(?:{_OUTCOME}|{'|'.join(map(re.escape, _FIXED))})\.{_UUID}\.tmp"
)
# Created by the check for a writable output where the file system has no unnamed files.
_IS_PROBE = re.compile(re.escape(shard_names.BUILD_PREFIX) + r"probe-[a-z0-9_]{8}")
_IS_BUILD = re.compile(re.escape(shard_names.BUILD_PREFIX) + r"[0-9a-f]{16}")
_IN_BUILD = re.compile(
    rf"parts|shards|runs|spool|transforms|progress\.json|transform-[0-9a-f]{{32}}\.json|final-{_ID}|rejects\.jsonl|\..+\.{_UUID}\.tmp"
)


@dataclass(frozen=True)
class Leftover:
    """A file or folder in an output that an unfinished command left.

    Attributes:
        name: Name in the output.
        kind: A build folder, an unnamed generation, or a file: the outcome of a run, or unfinished.
        num_files: Number of files in it.
        num_bytes: Their total size.
        changed_ns: Time of the last change in it, in nanoseconds since 1970; None if unknown.
    """

    name: str
    kind: LeftoverKind
    num_files: int
    num_bytes: int
    changed_ns: int | None

    def is_recent(self, older_than_ns: int, now_ns: int) -> bool:
        """Return whether it changed so recently that a build may be using it."""
        if not older_than_ns:
            return False
        return self.changed_ns is None or now_ns - self.changed_ns < older_than_ns


@dataclass(frozen=True)
class Leftovers:
    """Unpublished files in an output.

    Attributes:
        leftovers: Files and folders that unfinished commands left.
        foreign: (name, reason) of items that are kept: others with such a name, which Shardmill did
            not write, and generations that a rollback can publish.
        problems: Messages about items that could not be examined.
    """

    leftovers: tuple[Leftover, ...]
    foreign: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


def classify(name: str, entry_kind: str, size: int) -> LeftoverKind | None:
    """Return the kind of a leftover by its name, or None if Shardmill does not use such names.

    Args:
        name: Name of the file or folder in the output.
        entry_kind: ``file``, ``dir`` or ``other``.
        size: Size in bytes.
    """
    if entry_kind == "dir":
        if shard_names.is_generation(name):
            return "generation"
        if name.startswith(shard_names.BUILD_PREFIX):
            return "build"
        return None
    if entry_kind != "file":
        return None
    probe = size == 0 and _IS_PROBE.fullmatch(name)
    if probe or _IS_FILE.fullmatch(name):
        return "file"
    return None


def find_leftovers(storage: Storage, output: str) -> Leftovers:
    """Return the leftovers of unfinished commands in an output; changes nothing.

    Raises:
        StorageError: The output cannot be listed.
    """
    named = _named(storage, output)
    foreign = [(name, why) for name, why in named.items() if why]
    leftovers, problems = [], []
    for entry in storage.list_dir(output):
        kind = classify(entry.name, entry.kind, entry.size)
        if kind is None or entry.name in named:
            continue
        try:
            why = _why_foreign(storage, entry, kind)
            if why:
                foreign.append((entry.name, why))
            else:
                leftovers.append(_measure(storage, entry, kind))
        except ShardmillError as error:
            problems.append(str(error))
        except FileNotFoundError:  # another command deleted it
            continue
    return Leftovers(tuple(leftovers), tuple(foreign), tuple(problems))


def _why_foreign(storage: Storage, entry: Entry, kind: LeftoverKind) -> str:
    """Return why Shardmill did not write an item with such a name, or an empty text."""
    if is_link(entry.path):
        return "it is a link, which Shardmill never creates; delete it yourself if it is not needed"
    if kind != "build" or _IS_BUILD.fullmatch(entry.name):
        return ""
    for child in storage.list_dir(entry.path):
        if not _IN_BUILD.fullmatch(child.name):
            return (
                f"it holds {child.name!r}, which builds never create; "
                "delete it yourself if it is not needed"
            )
    return ""


def _measure(storage: Storage, entry: Entry, kind: LeftoverKind) -> Leftover:
    if kind == "file":
        return Leftover(entry.name, kind, 1, entry.size, entry.changed_ns)
    files = size = 0
    changed = [entry.changed_ns] if entry.version else []  # folders of object stores have no time
    for child in storage.walk(entry.path):
        changed.append(child.changed_ns)
        if child.kind != "dir":
            files += 1
            size += child.size
    times = [time for time in changed if time is not None]
    is_dated = bool(times) and len(times) == len(changed)
    latest = max(times) if is_dated else None
    return Leftover(entry.name, kind, files, size, latest)


def remove(storage: Storage, output: str, item: Leftover, older_than_ns: int, now_ns: int) -> bool:
    """Delete a leftover, unless it has changed or disappeared since it was found.

    On a local disk publishers hold the output's lock, so none uses the leftover meanwhile.

    Args:
        storage: Storage of the output.
        output: The output folder.
        item: The leftover.
        older_than_ns: Keep it if it changed more recently than this; 0 deletes it in any case.
        now_ns: Current time in nanoseconds since 1970.

    Returns:
        Whether it existed and was deleted.

    Raises:
        ShardmillError: It could not be deleted.
    """
    path = join(output, item.name)
    with storage.lock(output):
        entry = storage.stat(path)
        if entry is None or is_link(path):
            return False
        if item.kind == "file":
            storage.delete(path)
            return True
        if item.kind == "generation" and item.name in _named(storage, output):
            return False
        if _measure(storage, entry, item.kind).is_recent(older_than_ns, now_ns):
            return False
        storage.delete_tree(path)
        for remaining in storage.walk(path):
            if remaining.kind != "dir":
                storage.delete(remaining.path)  # raises the error that delete_tree ignores
        if storage.stat(path) is not None:
            raise OutputError(
                f"{path} cannot be deleted completely: check its permissions and those of "
                f"{output}, and that no build is running there, and run again."
            )
    return True


def _named(storage: Storage, output: str) -> dict[str, str]:
    """Return the generations that are not leftovers, and why if no manifest names them."""
    try:
        manifest = read_published(storage, output).manifest
    except OutputError:
        return dict.fromkeys(list_generations(storage, output), "")
    if manifest is not None:
        return dict.fromkeys((manifest.generation, *manifest.previous), "")
    why = f"the manifest is lost; `shardmill rollback {output}` publishes the latest version"
    return dict.fromkeys(find_sound(storage, output), why)
