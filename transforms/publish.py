"""Publishing: finished files move to their final names, the manifest last.

A journal, ``OUT/.publish.json``, lists the moves before the first is made. Whoever meets a journal
completes it, so a publication that was begun is always finished, by this process or a later one.
All that is written lies in the build folder before the journal is; from then on files only change
their names, so a full disk cannot stop a publication half-way.

On a local disk publishers, and whoever looks at the output, hold a lock on the folder; the
operating system frees it when they die.

Files of the old dataset that the new one keeps are not touched at all. They are what they are taken
for only while the manifest that names them is the published one, so that is looked at again once
the journal stands, from when on nobody else can publish.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardmill.schemas import names
from shardmill.schemas.errors import FormatError, OutputError, StaleBuildError
from shardmill.schemas.manifest import Manifest
from shardmill.schemas.storage import Storage, join
from shardmill.transforms.journal import (
    NOTHING_KEPT,
    Journal,
    Kept,
    Move,
    check_plain,
    fingerprint,
)


def read_manifest(storage: Storage, output: str) -> Manifest | None:
    """Returns the published manifest, or None when there is none.

    While a publication is under way it waits for its end, or returns what it will publish.

    Raises:
        OutputError: A file of that name is no manifest that this release can read.
    """
    try:
        with storage.lock(output):
            journal = _read_journal(storage, output)
            if journal is not None:
                return Manifest.from_json(journal.manifest)
            return _read_manifest(storage, output)
    except FileNotFoundError:
        return None


def _read_manifest(storage: Storage, output: str) -> Manifest | None:
    path = join(output, names.MANIFEST)
    try:
        manifest = Manifest.from_json(storage.read(path))
        check_plain((*manifest.files, *manifest.beside))
    except FileNotFoundError:
        return None
    except FormatError as error:
        raise OutputError(
            f"{path} cannot be read: {error}; move it away or choose another --output."
        ) from error
    return manifest


def settle(storage: Storage, output: str) -> Manifest | None:
    """Completes an unfinished publication and returns the dataset that then stands at output.

    Returns:
        The dataset, or None when a first one may be built there.

    Raises:
        OutputError: Something stands there that Shardmill did not make.
    """
    if not _is_folder(storage, output):
        return None
    with storage.lock(output):
        return _settle_locked(storage, output)


def _settle_locked(storage: Storage, output: str) -> Manifest | None:
    while True:
        _recover_locked(storage, output)
        found = _look(storage, output)
        # Without locks another publication may have begun in between: its files are yet to move.
        if found is None or _read_journal(storage, output) is None:
            return found


def check_output(storage: Storage, output: str) -> Manifest | None:
    """Returns what ``settle`` would return, but changes nothing."""
    if not _is_folder(storage, output):
        return None
    with storage.lock(output):
        return _look(storage, output)


def _is_folder(storage: Storage, output: str) -> bool:
    entry = storage.stat(output)
    if entry is not None and entry.kind != "dir":
        raise OutputError(f"--output={output} is a file: choose a folder.")
    return entry is not None


def _look(storage: Storage, output: str) -> Manifest | None:
    """Returns the dataset at output; where a publication is under way, the one that it makes."""
    while True:
        journal = _read_journal(storage, output)
        if journal is not None:
            return Manifest.from_json(journal.manifest)
        manifest = _read_manifest(storage, output)
        if manifest is not None:
            return manifest
        foreign = _find_foreign(storage, output)
        if not foreign:
            return None
        # Where there are no locks, a publication may have begun or ended since the first look.
        if not any(storage.stat(join(output, name)) for name in (names.JOURNAL, names.MANIFEST)):
            raise OutputError(
                f"--output={output} holds {foreign!r} and no {names.MANIFEST}, so it is not "
                "Shardmill's to write to: choose an empty or new folder."
            )


def _find_foreign(storage: Storage, output: str) -> str:
    own = (names.BUILD_PREFIX, names.OUTCOME_PREFIX, names.JOURNAL)
    for found in storage.list_dir(output):
        name = found.path.rsplit("/", 1)[-1]
        if not name.startswith(own):
            return name
    return ""


def find_damage(storage: Storage, output: str, manifest: Manifest) -> str:
    """Returns the first file of a dataset that is missing or has another size, or nothing.

    One listing answers it; what the bytes are is not looked at.
    """
    sizes = {found.path.rsplit("/", 1)[-1]: found.size for found in storage.list_dir(output)}
    for split in manifest.splits.values():
        for shard in split.shards:
            if sizes.get(shard.file) != shard.bytes:
                return shard.file
    for name in sorted(_own_files(manifest)):
        if name not in sizes and ("/" not in name or storage.stat(join(output, name)) is None):
            return name
    return ""


def _read_journal(storage: Storage, output: str) -> Journal | None:
    path = join(output, names.JOURNAL)
    try:
        return Journal.from_json(storage.read(path))
    except FileNotFoundError:
        return None
    except FormatError as error:
        raise OutputError(
            f"{path} cannot be followed: {error}; delete it and run again, "
            "or choose another --output."
        ) from error


def _recover_locked(storage: Storage, output: str) -> bool:
    journal = _read_journal(storage, output)
    if journal is None:
        return False
    try:
        _roll_forward(storage, output, journal)
    except StaleBuildError:  # taken back before it touched anything
        return False
    return True


def _roll_forward(storage: Storage, output: str, journal: Journal) -> None:
    manifest = join(output, names.MANIFEST)
    try:
        current = storage.read(manifest)
    except FileNotFoundError:
        current = None
    if current != journal.manifest.encode():
        if current is not None:
            # The old dataset is still whole: the last moment to see that the new one will be.
            _check_sources(storage, output, journal, current)
            storage.delete(manifest)
        for move in journal.moves[:-1]:
            _complete_move(storage, output, move)
        gone = _find_lost(storage, output, journal.kept)
        if gone:
            raise _beyond_repair(output, f"{join(output, gone)} was taken away, which was to stay")
        _complete_move(storage, output, journal.moves[-1])
    for name in journal.deletes:
        storage.delete(join(output, name))
    transform = join(output, names.TRANSFORM)
    if any("/" in name for name in journal.deletes) and not any(
        entry.kind == "file" for entry in storage.walk(transform)
    ):
        storage.delete_tree(transform)
    storage.delete_tree(join(output, journal.build))
    storage.delete(join(output, names.JOURNAL))


def _check_sources(storage: Storage, output: str, journal: Journal, current: bytes) -> None:
    """Takes the journal back when a file of the new dataset is gone or not what it is taken for.

    Raises:
        StaleBuildError: It was taken back.
    """
    if not _is_base(current, journal.kept):
        problem = replaced_error(output)
    else:
        gone = _find_gone(storage, output, journal.moves)
        gone = gone or _find_lost(storage, output, journal.kept)
        if not gone:
            return
        problem = _stale(output, gone)
    storage.delete(join(output, names.JOURNAL))
    raise problem


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


def _find_gone(storage: Storage, output: str, moves: Iterable[Move]) -> str:
    for move in moves:
        entry = storage.stat(join(output, move.source))
        if entry is None or entry.size != move.num_bytes:
            return move.source
    return ""


def _stale(output: str, source: str) -> StaleBuildError:
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


def publish(
    storage: Storage, output: str, manifest: Manifest, moves: Sequence[Move], build: str,
    *, overwrite: bool, kept: Kept = NOTHING_KEPT,
) -> bool:  # fmt: skip
    """Publishes a finished build.

    Args:
        storage: Of the output.
        output: The output folder.
        manifest: The new manifest.
        moves: All files but the manifest and those that are kept.
        build: Name of the build folder.
        overwrite: Whether another dataset may be replaced.
        kept: Files of the published dataset that stay and become part of the new one.

    Returns:
        False when the same dataset was published meanwhile and nothing was left to do.

    Raises:
        OutputError: Another dataset, or a file that is not ours, stands in the way.
        StaleBuildError: Somebody took this build's files away, or published another dataset than
            the one whose files are kept.
    """
    text = manifest.to_json()
    data = text.encode()
    last = Move(
        f"{build}/final-{uuid.uuid4().hex[:12]}/{names.MANIFEST}", names.MANIFEST, len(data)
    )
    ids = manifest.build.config_id, manifest.build.input_id
    with storage.lock(output):
        while True:
            old = _settle_locked(storage, output)
            if old is not None:
                problem = why_not_up_to_date(storage, output, old, *ids)
                if not problem:
                    storage.delete_tree(join(output, build))
                    return False
                if not overwrite:
                    raise OutputError(problem)
            if kept.base and (old is None or fingerprint(old) != kept.base):
                raise replaced_error(output)
            storage.replace(join(output, last.source), data)
            try:
                draft = Journal(text, (*moves, last), (), build, kept)
                journal = _checked(storage, output, draft, old)
            except (OutputError, StaleBuildError):
                # Without locks another publisher may have come between: what is in the way is his.
                if _look(storage, output) == old:
                    raise
                continue
            # False only where locks are not to be had and another publisher came first.
            path = join(output, names.JOURNAL)
            if storage.create(path, journal.to_json(), aside=join(output, build)):
                _roll_forward(storage, output, journal)
                return True


def _checked(storage: Storage, output: str, draft: Journal, old: Manifest | None) -> Journal:
    """Returns a journal with what is to be deleted, once nothing stands in its way."""
    gone = _find_gone(storage, output, draft.moves)
    if gone:
        raise _stale(output, gone)
    ours, new = _own_files(old), {move.target for move in draft.moves}
    strange = _tops(new) - _tops(ours)
    for found in storage.list_dir(output):
        name = found.path.rsplit("/", 1)[-1]
        if name in strange or (name in ours and found.kind != "file"):
            raise OutputError(
                f"{found.path} exists and is not part of the dataset there: "
                "move it away and run again, finished parts are kept."
            )
    deletes = ours - new - {name for name, _ in draft.kept.files}
    journal = replace(draft, deletes=tuple(sorted(deletes)))
    journal.check()
    return journal


def _own_files(old: Manifest | None) -> set[str]:
    if old is None:
        return set()
    own = {*old.files, *old.beside, names.SCHEMA, names.REJECTS, names.MANIFEST}
    return own | {names.LABELS} if old.labels else own


def _tops(files: Iterable[str]) -> set[str]:
    """Returns the files, those in a folder as the folder."""
    return {name.split("/", 1)[0] for name in files}


def why_not_up_to_date(
    storage: Storage, output: str, old: Manifest, config_id: str, input_id: str
) -> str:
    """Returns why what is published is not what is wanted, as a sentence; nothing when it is.

    Args:
        storage: Of the output.
        output: The output folder.
        old: The published dataset.
        config_id: Identity of the wanted options.
        input_id: Identity of the wanted inputs.
    """
    if not old.is_dataset(config_id, input_id):
        return (
            f"--output={output} holds a dataset of other inputs or options: "
            "add --overwrite to replace it, or choose another folder."
        )
    # Files that a publication under way has yet to move are no damage.
    moving = storage.stat(join(output, names.JOURNAL)) is not None
    damaged = "" if moving else find_damage(storage, output, old)
    if not damaged:
        return ""
    return (
        f"{join(output, damaged)} is missing or has not the size that {names.MANIFEST} states: "
        "add --overwrite to build the dataset again."
    )
