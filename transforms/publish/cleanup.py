"""Clean an output: find and delete what unfinished commands left there.

Only names that Shardmill gives to unpublished files are considered. All of them begin with a dot,
and the name of a published file never does.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError, ShardmillError
from shardmill.schemas.storage import Entry, Storage, is_link, join, scheme_of
from shardmill.transforms.publish.journal import Journal, Move
from shardmill.transforms.publish.publish import read_manifest, recover_output

Kind = Literal["build", "outcome", "temporary"]

_ID = r"[0-9a-f]{12}"
_OUTCOME = re.escape(shard_names.OUTCOME_PREFIX) + _ID + r"\.json"
_IS_OUTCOME = re.compile(_OUTCOME)
# Temporary files of local storage: only of files written into the output itself, with the
# hexadecimal digits of a random UUID.
_FIXED = (
    shard_names.MANIFEST,
    shard_names.SCHEMA,
    shard_names.LABELS,
    shard_names.REJECTS,
    shard_names.JOURNAL,
)
_UUID = r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"
_IS_TEMPORARY = re.compile(rf"\.(?:{_OUTCOME}|{'|'.join(map(re.escape, _FIXED))})\.{_UUID}\.tmp")
# Created by the check for a writable output where the file system has no unnamed files.
_IS_PROBE = re.compile(re.escape(shard_names.BUILD_PREFIX) + r"probe-[a-z0-9_]{8}")
_IS_BUILD = re.compile(re.escape(shard_names.BUILD_PREFIX) + r"[0-9a-f]{16}")
_IN_BUILD = re.compile(
    rf"parts|shards|runs|transforms|progress\.json|transform-[0-9a-f]{{32}}\.json|final-{_ID}|rejects\.jsonl|\..+\.{_UUID}\.tmp"
)
_TRIES = 5


@dataclass(frozen=True)
class Leftover:
    """A file or folder in an output that an unfinished command left.

    Attributes:
        name: Name in the output.
        kind: A build folder, the outcome of a run, or an unfinished file.
        num_files: Number of files in it.
        num_bytes: Their total size.
        changed_ns: Time of the last change in it, in nanoseconds since 1970; None if unknown.
    """

    name: str
    kind: Kind
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
        foreign: (name, reason) of items with such a name that Shardmill did not write.
        problems: Messages about items that could not be examined.
    """

    leftovers: tuple[Leftover, ...]
    foreign: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


def classify(name: str, entry_kind: str, size: int) -> Kind | None:
    """Return the kind of a leftover by its name, or None if Shardmill does not use such names.

    Args:
        name: Name of the file or folder in the output.
        entry_kind: ``file``, ``dir`` or ``other``.
        size: Size in bytes.
    """
    if entry_kind == "dir":
        return "build" if name.startswith(shard_names.BUILD_PREFIX) else None
    if entry_kind != "file":
        return None
    if _IS_OUTCOME.fullmatch(name):
        return "outcome"
    probe = size == 0 and _IS_PROBE.fullmatch(name)
    return "temporary" if probe or _IS_TEMPORARY.fullmatch(name) else None


def find_leftovers(storage: Storage, output: str, *, publishing: str = "") -> Leftovers:
    """Return what unfinished commands left in an output; changes nothing.

    Args:
        storage: Storage of the output.
        output: The output folder.
        publishing: Name of the build folder that a journal is publishing; it is left out.

    Raises:
        StorageError: The output cannot be listed.
    """
    leftovers, foreign, problems = [], [], []
    for entry in storage.list_dir(output):
        name = entry.path.rsplit("/", 1)[-1]
        kind = classify(name, entry.kind, entry.size)
        if kind is None or name == publishing:
            continue
        try:
            why = _why_foreign(storage, entry, name, kind)
            if why:
                foreign.append((name, why))
            else:
                leftovers.append(_measure(storage, entry, name, kind))
        except ShardmillError as error:
            problems.append(str(error))
        except FileNotFoundError:  # another command deleted it
            continue
    return Leftovers(tuple(leftovers), tuple(foreign), tuple(problems))


def _why_foreign(storage: Storage, entry: Entry, name: str, kind: Kind) -> str:
    """Return why Shardmill did not write an item with such a name, or an empty text."""
    if is_link(entry.path):
        return "it is a link, which Shardmill never creates; delete it yourself if it is not needed"
    if kind != "build" or _IS_BUILD.fullmatch(name):
        return ""
    for found in storage.list_dir(entry.path):
        inner = found.path.rsplit("/", 1)[-1]
        if not _IN_BUILD.fullmatch(inner):
            return (
                f"it holds {inner!r}, which builds never create; "
                "delete it yourself if it is not needed"
            )
    return ""


def _measure(storage: Storage, entry: Entry, name: str, kind: Kind) -> Leftover:
    if kind != "build":
        return Leftover(name, kind, 1, entry.size, entry.changed_ns)
    files = size = 0
    changed = [entry.changed_ns] if entry.version else []  # folders of object stores have no time
    for found in storage.walk(entry.path):
        changed.append(found.changed_ns)
        if found.kind != "dir":
            files += 1
            size += found.size
    times = [time for time in changed if time is not None]
    known = bool(times) and len(times) == len(changed)
    return Leftover(name, kind, files, size, max(times) if known else None)


def complete(storage: Storage, output: str, journal: Journal) -> bool:
    """Complete an unfinished publication.

    Returns:
        False if it was rolled back, because its files are gone; the published dataset stays.

    Raises:
        OutputError: It can be neither completed nor rolled back.
    """
    return recover_output(storage, output) == Manifest.from_json(journal.manifest)


def remove(storage: Storage, output: str, item: Leftover, older_than_ns: int, now_ns: int) -> bool:
    """Delete a leftover, unless it has changed or disappeared since it was found.

    A publisher never uses a build folder while it is deleted: on a local disk both hold the
    output's lock, on object stores both must create the journal. Only a first publication on an
    object store is not excluded; it has no published dataset to damage.

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
    if item.kind != "build":
        entry = storage.stat(path)
        storage.delete(path)
        return entry is not None
    for _ in range(_TRIES):
        recover_journal(storage, output)
        with _lock_output(storage, output) as free:
            entry = storage.stat(path)
            if entry is None or is_link(path):
                return False
            if not free:
                continue
            now = _measure(storage, entry, item.name, item.kind)
            if now.is_recent(older_than_ns, now_ns):
                return False
            if not scheme_of(output):
                _remove_tree(storage, path)
            else:
                _remove_by_journal(storage, output, item.name)
            if storage.stat(path) is None:
                return True
    raise OutputError(
        f"{path} cannot be deleted completely: check its permissions and those of {output}, and "
        "that no build is running there, and run again."
    )


def recover_journal(storage: Storage, output: str) -> None:
    """Complete an unfinished publication if there is one; the output may hold other files."""
    if storage.stat(join(output, shard_names.JOURNAL)) is not None:
        recover_output(storage, output)


@contextlib.contextmanager
def _lock_output(storage: Storage, output: str) -> Iterator[bool]:
    """Hold the output's lock; yield False if a publication has begun."""
    with storage.lock(output):
        yield storage.stat(join(output, shard_names.JOURNAL)) is None


def _remove_tree(storage: Storage, path: str) -> None:
    storage.delete_tree(path)
    for found in storage.walk(path):
        if found.kind != "dir":
            storage.delete(found.path)  # raises the error that delete_tree ignores


def _remove_by_journal(storage: Storage, output: str, build: str) -> None:
    """Delete a build folder on an object store, unless a publisher was first.

    Creates a journal that publishes the current dataset from that folder. A process that follows
    it finds the dataset published and only deletes the folder. While the journal exists, no other
    publication can begin.
    """
    try:
        published = read_manifest(storage, output)
        text = storage.read(join(output, shard_names.MANIFEST)).decode()
    except (OutputError, FileNotFoundError, UnicodeDecodeError):
        published = None
    if published is None:
        storage.delete_tree(join(output, build))
        return
    source = f"{build}/final-{uuid.uuid4().hex[:12]}/{shard_names.MANIFEST}"
    move = Move(source, shard_names.MANIFEST, len(text.encode()))
    journal = Journal(text, (move,), (), build)
    if storage.create(join(output, shard_names.JOURNAL), journal.to_json()):
        recover_output(storage, output)
