"""Following a journal: what is left to do of a publication, whoever began it.

Several processes may follow one journal at a time where there are no locks, and any of them may
stand still before any call while the others finish and publish something else. So what is deleted
is deleted as the version that was seen while the journal stood, and who finds a file gone looks
whether the journal still stands before calling it damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import FormatError, OutputError, StaleBuildError
from shardmill.schemas.storage import Entry, Storage, join
from shardmill.transforms.publish.journal import Journal, Kept, Move, fingerprint


def find_journal(storage: Storage, output: str) -> tuple[Journal, str] | None:
    """Returns the journal of a publication under way and its version, or None.

    Raises:
        OutputError: It cannot be followed.
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
    """Completes a publication; does nothing more once another process has completed it.

    Args:
        storage: Of the output.
        output: The output folder.
        journal: What there is to do.
        version: The journal's, as ``find_journal`` gave it.

    Raises:
        OutputError: It cannot be completed.
        StaleBuildError: It was taken back, before it touched anything.
    """

    def stands() -> bool:
        return _stands(storage, output, version)

    try:
        _move_all(storage, output, journal, version)
    except OutputError:
        if stands():
            raise
        return
    deletes = list(_find_deletes(storage, output, journal))
    if deletes and not stands():
        return
    for entry in deletes:
        storage.delete(entry.path, entry.version)
    transform = join(output, shard_names.TRANSFORM)
    if any("/" in name for name in journal.deletes) and not any(
        entry.kind == "file" for entry in storage.walk(transform)
    ):
        storage.delete_tree(transform)
    storage.delete_tree(join(output, journal.build), stands)
    storage.delete(join(output, shard_names.JOURNAL), version)


def _stands(storage: Storage, output: str, version: str) -> bool:
    """Tells whether a journal is still the one that was read; nobody else's where locks are."""
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
        # The old dataset is still whole: the last moment to see that the new one will be.
        problem = _find_problem(storage, output, journal, current)
        if problem is not None and _unchanged(storage, manifest, current):
            storage.delete(join(output, shard_names.JOURNAL), version)
            raise problem
        storage.delete(manifest, seen)
    for move in journal.moves[:-1]:
        _complete_move(storage, output, move)
    gone = _find_lost(storage, output, journal.kept)
    if gone:
        raise _beyond_repair(output, f"{join(output, gone)} was taken away, which was to stay")
    _complete_move(storage, output, journal.moves[-1])


def _unchanged(storage: Storage, manifest: str, current: bytes) -> bool:
    """Tells whether nobody has begun to move: then a file that was not found is truly gone."""
    try:
        return storage.read(manifest) == current
    except FileNotFoundError:
        return False


def _find_problem(
    storage: Storage, output: str, journal: Journal, current: bytes
) -> StaleBuildError | None:
    """Returns what to raise where a file of the new dataset is gone or not what it is taken for."""
    if not _is_base(current, journal.kept):
        return replaced_error(output)
    gone = find_missing(storage, output, journal.moves)
    gone = gone or _find_lost(storage, output, journal.kept)
    return missing_error(output, gone) if gone else None


def _is_base(current: bytes, kept: Kept) -> bool:
    """Tells whether a published manifest is the one that names the files that are kept."""
    try:
        return not kept.base or fingerprint(Manifest.from_json(current)) == kept.base
    except FormatError:
        return False


def _find_lost(storage: Storage, output: str, kept: Kept) -> str:
    """Returns the first kept file that is missing or has another size, or nothing; one listing."""
    if not kept.files:
        return ""
    sizes = {
        found.path.rsplit("/", 1)[-1]: found.size
        for found in storage.list_dir(output)
        if found.kind == "file"
    }
    return next((name for name, size in kept.files if sizes.get(name) != size), "")


def _find_deletes(storage: Storage, output: str, journal: Journal) -> Iterator[Entry]:
    """Yields the files of the old dataset that are still there; one listing, or two."""
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
    """Returns the first file that is to be moved and is not there as it was, or nothing."""
    for move in moves:
        entry = storage.stat(join(output, move.source))
        if entry is None or entry.size != move.num_bytes:
            return move.source
    return ""


def missing_error(output: str, source: str) -> StaleBuildError:
    """Returns what to raise where a file of a build was taken away."""
    return StaleBuildError(
        f"{join(output, source)} is gone, another command took it away: run again."
    )


def replaced_error(output: str) -> StaleBuildError:
    """Returns what to raise where files that were to be kept are not what they were."""
    return StaleBuildError(
        f"Another command replaced the dataset at {output}, of which shards were to be kept: "
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
        raise _beyond_repair(output, f"{source} was taken away before it became {target}")


def _beyond_repair(output: str, problem: str) -> OutputError:
    return OutputError(
        f"{problem}, so the publication cannot be completed: delete {output} and build again."
    )
