"""Roll a journal forward: complete a publication that any process has begun.

On object stores, which have no locks, several processes may follow one journal at the same time.
One of them may pause before any call while the others finish and publish another dataset. So files
are deleted only in the version that was read while the journal existed, and a missing file counts
as damage only if the journal still exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import FormatError, OutputError, StaleBuildError
from shardmill.schemas.storage import Entry, Storage, join
from shardmill.transforms.publish.journal import Journal, Kept, Move, fingerprint


def find_journal(storage: Storage, output: str) -> tuple[Journal, str] | None:
    """Return the journal of an unfinished publication and its version, or None.

    Raises:
        OutputError: The journal cannot be followed.
    """
    path = join(output, shard_names.JOURNAL)
    try:
        data, version = storage.read_version(path)
        return Journal.from_json(data), version
    except FileNotFoundError:
        return None
    except FormatError as error:
        raise OutputError(
            f"{path} cannot be followed: {error}; delete it and run again, "
            "or choose another --output."
        ) from error


def roll_forward(storage: Storage, output: str, journal: Journal, version: str) -> None:
    """Complete a publication; stop once another process has completed it.

    Args:
        storage: Storage of the output.
        output: The output folder.
        journal: The steps.
        version: Version of the journal, as ``find_journal`` returned it.

    Raises:
        OutputError: It cannot be completed.
        StaleBuildError: It was rolled back before any file was changed.
    """

    def is_current() -> bool:
        return _is_current(storage, output, version)

    try:
        _move_all(storage, output, journal, version)
    except OutputError:
        if is_current():
            raise
        return
    deletes = list(_find_deletes(storage, output, journal))
    if deletes and not is_current():
        return
    for entry in deletes:
        storage.delete(entry.path, entry.version)
    transform = join(output, shard_names.TRANSFORM)
    if any("/" in name for name in journal.deletes) and not any(
        entry.kind == "file" for entry in storage.walk(transform)
    ):
        storage.delete_tree(transform)
    storage.delete_tree(join(output, journal.build), is_current)
    storage.delete(join(output, shard_names.JOURNAL), version)


def _is_current(storage: Storage, output: str, version: str) -> bool:
    """Return whether the journal is still the one that was read; always, on a locked output."""
    if not version:
        return True
    entry = storage.stat(join(output, shard_names.JOURNAL))
    return entry is not None and entry.version == version


def _move_all(storage: Storage, output: str, journal: Journal, version: str) -> None:
    manifest = join(output, shard_names.MANIFEST)
    try:
        current, seen = storage.read_version(manifest)
    except FileNotFoundError:
        current, seen = None, ""
    if current == journal.manifest.encode():
        return
    if current is not None:
        # The old dataset is still complete: the last chance to check the new one.
        problem = _find_problem(storage, output, journal, current)
        if problem is not None and _unchanged(storage, manifest, current):
            storage.delete(join(output, shard_names.JOURNAL), version)
            raise problem
        storage.delete(manifest, seen)
    for move in journal.moves[:-1]:
        _complete_move(storage, output, move)
    gone = _find_missing_kept(storage, output, journal.kept)
    if gone:
        raise _incomplete_error(output, f"{join(output, gone)}, a file to keep, was deleted")
    _complete_move(storage, output, journal.moves[-1])


def _unchanged(storage: Storage, manifest: str, current: bytes) -> bool:
    """Return whether no process has begun to move files: then a missing file is really gone."""
    try:
        return storage.read(manifest) == current
    except FileNotFoundError:
        return False


def _find_problem(
    storage: Storage, output: str, journal: Journal, current: bytes
) -> StaleBuildError | None:
    """Return the error if a file of the new dataset is missing or not the expected one."""
    if not _is_base(current, journal.kept):
        return replaced_error(output)
    gone = find_missing(storage, output, journal.moves)
    gone = gone or _find_missing_kept(storage, output, journal.kept)
    return missing_error(output, gone) if gone else None


def _is_base(current: bytes, kept: Kept) -> bool:
    """Return whether the published manifest is the one that lists the kept files."""
    try:
        return not kept.base or fingerprint(Manifest.from_json(current)) == kept.base
    except FormatError:
        return False


def _find_missing_kept(storage: Storage, output: str, kept: Kept) -> str:
    """Return the first kept file that is missing or has another size, or an empty text."""
    if not kept.files:
        return ""
    sizes = {
        found.path.rsplit("/", 1)[-1]: found.size
        for found in storage.list_dir(output)
        if found.kind == "file"
    }
    return next((name for name, size in kept.files if sizes.get(name) != size), "")


def _find_deletes(storage: Storage, output: str, journal: Journal) -> Iterator[Entry]:
    """Yield the files to delete that still exist; costs one listing, or two."""
    wanted = {join(output, name) for name in journal.deletes}
    if not wanted:
        return
    found = list(storage.list_dir(output))
    if any("/" in name for name in journal.deletes):
        found += storage.walk(join(output, shard_names.TRANSFORM))
    for entry in found:
        if entry.path in wanted:
            yield entry


def find_missing(storage: Storage, output: str, moves: Iterable[Move]) -> str:
    """Return the first file to move that is missing or has another size, or an empty text."""
    for move in moves:
        entry = storage.stat(join(output, move.source))
        if entry is None or entry.size != move.num_bytes:
            return move.source
    return ""


def missing_error(output: str, source: str) -> StaleBuildError:
    """Return the error for a file of a build that is missing."""
    path = join(output, source)
    return StaleBuildError(f"{path} is gone, another command deleted it: run again.")


def replaced_error(output: str) -> StaleBuildError:
    """Return the error for published files that changed before they could be kept."""
    return StaleBuildError(
        f"Another command replaced the dataset at {output}, whose shards were to be kept: "
        "run again."
    )


def _complete_move(storage: Storage, output: str, move: Move) -> None:
    source, target = join(output, move.source), join(output, move.target)
    try:
        storage.move(source, target)
        entry = storage.stat(target)
    except FileNotFoundError:
        entry = None
    if entry is None or entry.size != move.num_bytes:
        raise _incomplete_error(output, f"{source} was deleted before it was moved to {target}")


def _incomplete_error(output: str, problem: str) -> OutputError:
    return OutputError(
        f"{problem}, so the publication cannot be completed: delete {output} and build again."
    )
