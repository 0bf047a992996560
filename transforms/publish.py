"""Publishing: finished files move to their final names, the manifest last.

A journal, ``OUT/.publish.json``, lists the moves before the first is made. Whoever meets a journal
completes it, so a publication that was begun is always finished, by this process or a later one.
On a local disk publishers hold a lock on the folder; the operating system frees it when they die.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from shardmill.schemas import names
from shardmill.schemas.errors import FormatError, OutputError, StaleBuildError
from shardmill.schemas.manifest import Manifest
from shardmill.schemas.storage import Storage, join


@dataclass(frozen=True)
class Move:
    """One file of a publication, all paths relative to the output."""

    source: str
    target: str
    num_bytes: int


@dataclass(frozen=True)
class Journal:
    """What a publication does, in order.

    Attributes:
        manifest: The new manifest's text.
        moves: Files to their final names.
        deletes: Files of the old dataset that the new one does not have.
        build: The build folder, deleted in the end.
    """

    manifest: str
    moves: tuple[Move, ...]
    deletes: tuple[str, ...]
    build: str

    def to_json(self) -> bytes:
        """Returns the journal's text."""
        return json.dumps(asdict(self), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Journal:
        """Returns the journal that a text holds.

        Raises:
            FormatError: It holds none, or names a file outside the output.
        """
        try:
            body = json.loads(data)
            moves = tuple(Move(**move) for move in body["moves"])
            journal = cls(body["manifest"], moves, tuple(body["deletes"]), body["build"])
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"{names.JOURNAL} is damaged: {error}") from error
        plain = [move.target for move in moves] + list(journal.deletes) + [journal.build]
        if any("/" in name or name in ("", ".", "..") for name in plain) or any(
            not move.source.startswith(names.BUILD_PREFIX) or ".." in move.source for move in moves
        ):
            raise FormatError(f"{names.JOURNAL} names a file outside the output")
        return journal


def read_manifest(storage: Storage, output: str) -> Manifest | None:
    """Returns the published manifest, or None when there is none.

    Raises:
        OutputError: A file of that name is no manifest that this release can read.
    """
    path = join(output, names.MANIFEST)
    try:
        return Manifest.from_json(storage.read(path))
    except FileNotFoundError:
        return None
    except FormatError as error:
        raise OutputError(
            f"{path} cannot be read: {error}; move it away or choose another --output."
        ) from error


def recover(storage: Storage, output: str) -> bool:
    """Completes a publication that somebody began; returns whether there was one."""
    if storage.stat(join(output, names.JOURNAL)) is None:
        return False
    with storage.lock(output):
        return _recover_locked(storage, output)


def _recover_locked(storage: Storage, output: str) -> bool:
    try:
        data = storage.read(join(output, names.JOURNAL))
    except FileNotFoundError:
        return False
    try:
        journal = Journal.from_json(data)
    except FormatError as error:
        raise OutputError(
            f"{join(output, names.JOURNAL)} cannot be followed: {error}; delete it and run again."
        ) from error
    _roll_forward(storage, output, journal)
    return True


def _roll_forward(storage: Storage, output: str, journal: Journal) -> None:
    manifest = join(output, names.MANIFEST)
    text = journal.manifest.encode()
    if storage.stat(manifest) is not None and storage.read(manifest) != text:
        storage.delete(manifest)
    for move in journal.moves:
        _complete_move(storage, output, move)
    storage.replace(manifest, text)
    for name in journal.deletes:
        storage.delete(join(output, name))
    storage.delete_tree(join(output, journal.build))
    storage.delete(join(output, names.JOURNAL))


def _complete_move(storage: Storage, output: str, move: Move) -> None:
    source, target = join(output, move.source), join(output, move.target)
    try:
        storage.move(source, target)
    except FileNotFoundError as error:
        raise OutputError(
            f"{source} is gone before it was published as {move.target}: "
            f"delete {join(output, names.JOURNAL)} and build again with --overwrite."
        ) from error
    entry = storage.stat(target)
    if entry is None or entry.size != move.num_bytes:
        raise OutputError(
            f"{target} has not the {move.num_bytes} bytes that were built: "
            f"delete {join(output, names.JOURNAL)} and build again with --overwrite."
        )


def check_output(storage: Storage, output: str) -> Manifest | None:
    """Returns the dataset published at output, or None when it may be built there.

    Raises:
        OutputError: Something stands there that Shardmill did not make.
    """
    entry = storage.stat(output)
    if entry is None:
        return None
    if entry.kind != "dir":
        raise OutputError(f"--output={output} is a file: choose a folder.")
    manifest = read_manifest(storage, output)
    if manifest is not None:
        return manifest
    own = (names.BUILD_PREFIX, names.OUTCOME_PREFIX, names.JOURNAL)
    for found in storage.list_dir(output):
        name = found.path.rsplit("/", 1)[-1]
        if not name.startswith(own):
            raise OutputError(
                f"--output={output} holds {name!r} and no {names.MANIFEST}, so it is not "
                "Shardmill's to write to: choose an empty or new folder."
            )
    return None


def publish(
    storage: Storage, output: str, manifest: Manifest, moves: Sequence[Move], build: str,
    *, overwrite: bool,
) -> bool:  # fmt: skip
    """Publishes a finished build.

    Args:
        storage: Of the output.
        output: The output folder.
        manifest: The new manifest.
        moves: All files but the manifest.
        build: Name of the build folder.
        overwrite: Whether another dataset may be replaced.

    Returns:
        False when the same dataset was published meanwhile and nothing was left to do.

    Raises:
        OutputError: Another dataset, or a file that is not ours, stands in the way.
        StaleBuildError: Somebody took this build's files away.
    """
    with storage.lock(output):
        while True:
            _recover_locked(storage, output)
            old = check_output(storage, output)
            if old and old.is_dataset(manifest.build.config_id, manifest.build.input_id):
                storage.delete_tree(join(output, build))
                return False
            journal = _journal(storage, output, manifest, moves, build, old, overwrite=overwrite)
            # False only where locks are not to be had and another publisher came first.
            if storage.create(join(output, names.JOURNAL), journal.to_json()):
                _roll_forward(storage, output, journal)
                return True


def _journal(
    storage: Storage, output: str, manifest: Manifest, moves: Sequence[Move], build: str,
    old: Manifest | None, *, overwrite: bool,
) -> Journal:  # fmt: skip
    if old is not None and not overwrite:
        raise OutputError(other_dataset(output))
    ours = _own_files(old)
    for move in moves:
        if storage.stat(join(output, move.source)) is None:
            raise StaleBuildError(
                f"{join(output, move.source)} is gone, another command took it away: run again."
            )
        if move.target not in ours and storage.stat(join(output, move.target)) is not None:
            raise OutputError(
                f"{join(output, move.target)} exists and is not part of the dataset there: "
                "move it away and run again, finished parts are kept."
            )
    new = {move.target for move in moves}
    return Journal(manifest.to_json(), tuple(moves), tuple(sorted(ours - new)), build)


def _own_files(old: Manifest | None) -> set[str]:
    if old is None:
        return set()
    own = {*old.files, names.SCHEMA, names.REJECTS}
    return own | {names.LABELS} if old.labels else own


def other_dataset(output: str) -> str:
    """Returns the sentence for an output that holds another dataset."""
    return (
        f"--output={output} holds a dataset of other inputs or options: "
        "add --overwrite to replace it, or choose another folder."
    )
