"""Cleaning: what unfinished builds left in an output, what of it may go, and taking it away.

Only names that Shardmill gives to what is not published are looked at. All of them begin with a
dot, and no published file's name does, so nothing published is ever among them.
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
from shardmill.transforms.publish.publish import check_output, read_manifest, recover_output

Kind = Literal["build", "outcome", "temporary"]

_ID = r"[0-9a-f]{12}"
_OUTCOME = re.escape(shard_names.OUTCOME_PREFIX) + _ID + r"\.json"
_IS_OUTCOME = re.compile(_OUTCOME)
# A file that local storage had not finished: of what is written into the output itself only, with
# the hexadecimal digits of a random UUID.
_FIXED = (
    shard_names.MANIFEST,
    shard_names.SCHEMA,
    shard_names.LABELS,
    shard_names.REJECTS,
    shard_names.JOURNAL,
)
_UUID = r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"
_IS_TEMPORARY = re.compile(rf"\.(?:{_OUTCOME}|{'|'.join(map(re.escape, _FIXED))})\.{_UUID}\.tmp")
# What the check for a writable output makes for a moment where files cannot be nameless.
_IS_PROBE = re.compile(re.escape(shard_names.BUILD_PREFIX) + r"probe-[a-z0-9_]{8}")
_IS_BUILD = re.compile(re.escape(shard_names.BUILD_PREFIX) + r"[0-9a-f]{16}")
_IN_BUILD = re.compile(
    rf"parts|shards|runs|transforms|progress\.json|transform-[0-9a-f]{{32}}\.json|final-{_ID}|rejects\.jsonl|\..+\.{_UUID}\.tmp"
)
_TRIES = 5


@dataclass(frozen=True)
class Leftover:
    """Something in an output that an unfinished command left.

    Attributes:
        name: Its name in the output.
        kind: A build folder, the outcome of a run, or an unfinished file.
        num_files: Files in it.
        num_bytes: Their size.
        changed_ns: When anything in it last changed, in nanoseconds since 1970; None when nobody
            knows.
    """

    name: str
    kind: Kind
    num_files: int
    num_bytes: int
    changed_ns: int | None

    def is_recent(self, older_than_ns: int, now_ns: int) -> bool:
        """Tells whether it changed so lately that a build may be at work on it."""
        if not older_than_ns:
            return False
        return self.changed_ns is None or now_ns - self.changed_ns < older_than_ns


@dataclass(frozen=True)
class Account:
    """What stands in an output beside the dataset.

    Attributes:
        leftovers: What unfinished commands left.
        foreign: Things with a name like ours that are not: (name, why).
        problems: Sentences on what could not be looked at.
    """

    leftovers: tuple[Leftover, ...]
    foreign: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


def classify(name: str, entry_kind: str, size: int) -> Kind | None:
    """Returns what kind of leftover a name in an output says, or None when it is none of ours.

    Args:
        name: Of the file or folder.
        entry_kind: ``file``, ``dir`` or ``other``.
        size: Bytes.
    """
    if entry_kind == "dir":
        return "build" if name.startswith(shard_names.BUILD_PREFIX) else None
    if entry_kind != "file":
        return None
    if _IS_OUTCOME.fullmatch(name):
        return "outcome"
    probe = size == 0 and _IS_PROBE.fullmatch(name)
    return "temporary" if probe or _IS_TEMPORARY.fullmatch(name) else None


def find_leftovers(storage: Storage, output: str, *, publishing: str = "") -> Account:
    """Returns what unfinished commands left in an output; changes nothing.

    Args:
        storage: Of the output.
        output: The folder.
        publishing: Name of the build folder that a journal is about, not to be counted.

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
        except FileNotFoundError:  # another command took it meanwhile
            continue
    return Account(tuple(leftovers), tuple(foreign), tuple(problems))


def _why_foreign(storage: Storage, entry: Entry, name: str, kind: Kind) -> str:
    """Returns why something with a name like ours is not ours, or nothing."""
    if is_link(entry.path):
        return "it is a link, which Shardmill never makes; delete it yourself if it is not needed"
    if kind != "build" or _IS_BUILD.fullmatch(name):
        return ""
    for found in storage.list_dir(entry.path):
        inner = found.path.rsplit("/", 1)[-1]
        if not _IN_BUILD.fullmatch(inner):
            return f"it holds {inner!r}, which no build does; delete it yourself if it is no use"
    return ""


def _measure(storage: Storage, entry: Entry, name: str, kind: Kind) -> Leftover:
    if kind != "build":
        return Leftover(name, kind, 1, entry.size, entry.changed_ns)
    files = size = 0
    changed = [entry.changed_ns] if entry.version else []  # a folder of a store has no time
    for found in storage.walk(entry.path):
        changed.append(found.changed_ns)
        if found.kind != "dir":
            files += 1
            size += found.size
    times = [time for time in changed if time is not None]
    known = bool(times) and len(times) == len(changed)
    return Leftover(name, kind, files, size, max(times) if known else None)


def read_journal(storage: Storage, output: str) -> Journal | None:
    """Returns the journal of an unfinished publication, or None.

    Raises:
        OutputError: There is one that cannot be followed.
    """
    try:
        data = storage.read(join(output, shard_names.JOURNAL))
    except FileNotFoundError:
        return None
    with contextlib.suppress(ShardmillError):
        return Journal.from_json(data)
    check_output(storage, output)  # says it in the words that every command uses
    return None  # it was completed meanwhile


def complete(storage: Storage, output: str, journal: Journal) -> bool:
    """Completes an unfinished publication.

    Returns:
        False when it was taken back, because its files were gone; what was published stays.

    Raises:
        OutputError: It can be neither completed nor taken back.
    """
    return recover_output(storage, output) == Manifest.from_json(journal.manifest)


def remove(storage: Storage, output: str, item: Leftover, older_than_ns: int, now_ns: int) -> bool:
    """Takes a leftover away, unless it changed or went meanwhile.

    A publication and this never work on one build folder at the same time: on a local disk both
    hold the output's lock, elsewhere both need the one journal. Only where there are no locks and
    nothing is published yet, nothing holds back a first publication; that has no dataset to harm.

    Args:
        storage: Of the output.
        output: The folder.
        item: What to remove.
        older_than_ns: What changed less long ago stays; 0 for nothing.
        now_ns: The time.

    Returns:
        Whether it was there and was removed.

    Raises:
        ShardmillError: It could not be removed.
    """
    path = join(output, item.name)
    if item.kind != "build":
        entry = storage.stat(path)
        storage.delete(path)
        return entry is not None
    for _ in range(_TRIES):
        recover_journal(storage, output)
        with _held(storage, output) as free:
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
        f"{path} cannot be removed wholly: check the permissions of it and of {output}, and that "
        "no build runs there, and run again."
    )


def recover_journal(storage: Storage, output: str) -> None:
    """Completes an unfinished publication if there is one, and asks nothing else of the output."""
    if storage.stat(join(output, shard_names.JOURNAL)) is not None:
        recover_output(storage, output)


@contextlib.contextmanager
def _held(storage: Storage, output: str) -> Iterator[bool]:
    """Holds the output; gives False when a publication began before."""
    with storage.lock(output):
        yield storage.stat(join(output, shard_names.JOURNAL)) is None


def _remove_tree(storage: Storage, path: str) -> None:
    storage.delete_tree(path)
    for found in storage.walk(path):
        if found.kind != "dir":
            storage.delete(found.path)  # says why, where removing the whole folder did not


def _remove_by_journal(storage: Storage, output: str, build: str) -> None:
    """Removes a build folder where there are no locks, unless a publisher came first.

    The journal says that the dataset which stands there is to be published from that folder.
    Whoever follows it finds that done, and only deletes the folder. While it is there no other
    publication can begin.
    A local disk has locks, and may be too full to take a journal.
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
