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

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import FormatError, OutputError, StaleBuildError
from shardmill.schemas.storage import Storage, join
from shardmill.transforms.publish.journal import (
    NOTHING_KEPT,
    Journal,
    Kept,
    Move,
    check_plain,
    fingerprint,
)
from shardmill.transforms.publish.roll_forward import (
    find_journal,
    find_missing,
    missing_error,
    replaced_error,
    roll_forward,
)

__all__ = [
    "check_output",
    "find_damage",
    "publish",
    "read_manifest",
    "recover_output",
    "replaced_error",
    "why_not_up_to_date",
]


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
    path = join(output, shard_names.MANIFEST)
    try:
        manifest = Manifest.from_json(storage.read(path))
        check_plain((*manifest.files, *manifest.side_files))
    except FileNotFoundError:
        return None
    except FormatError as error:
        raise OutputError(
            f"{path} cannot be read: {error}; move it away or choose another --output."
        ) from error
    return manifest


def recover_output(storage: Storage, output: str) -> Manifest | None:
    """Completes an unfinished publication and returns the dataset that then stands at output.

    Returns:
        The dataset, or None when a first one may be built there.

    Raises:
        OutputError: Something stands there that Shardmill did not make.
    """
    if not _is_folder(storage, output):
        return None
    with storage.lock(output):
        return _recover_output_locked(storage, output)


def _recover_output_locked(storage: Storage, output: str) -> Manifest | None:
    while True:
        _recover_locked(storage, output)
        found = _look(storage, output)
        # Without locks another publication may have begun in between: its files are yet to move.
        if found is None or _read_journal(storage, output) is None:
            return found


def check_output(storage: Storage, output: str) -> Manifest | None:
    """Returns what ``recover_output`` would return, but changes nothing."""
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
        if not any(
            storage.stat(join(output, name)) for name in (shard_names.JOURNAL, shard_names.MANIFEST)
        ):
            raise OutputError(
                f"--output={output} holds {foreign!r} and no {shard_names.MANIFEST}, so it is not "
                "Shardmill's to write to: choose an empty or new folder."
            )


def _find_foreign(storage: Storage, output: str) -> str:
    own = (shard_names.BUILD_PREFIX, shard_names.OUTCOME_PREFIX, shard_names.JOURNAL)
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


def _recover_locked(storage: Storage, output: str) -> bool:
    found = find_journal(storage, output)
    if found is None:
        return False
    try:
        roll_forward(storage, output, *found)
    except StaleBuildError:  # taken back before it touched anything
        return False
    return True


def _read_journal(storage: Storage, output: str) -> Journal | None:
    found = find_journal(storage, output)
    return found[0] if found else None


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
    source = f"{build}/final-{uuid.uuid4().hex[:12]}/{shard_names.MANIFEST}"
    last = Move(source, shard_names.MANIFEST, len(data))
    ids = manifest.build.config_id, manifest.build.input_id
    with storage.lock(output):
        while True:
            old = _recover_output_locked(storage, output)
            if old is not None:
                problem = why_not_up_to_date(storage, output, old, *ids)
                if not problem:
                    _clear(storage, output, build)
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
            path = join(output, shard_names.JOURNAL)
            written = storage.create(path, journal.to_json(), aside=join(output, build))
            if written and _follow(storage, output, journal):
                return True


def _follow(storage: Storage, output: str, journal: Journal) -> bool:
    """Completes a journal that was just written; False when somebody met it and took it back."""
    found = find_journal(storage, output)
    if found is not None and found[0].to_json() == journal.to_json():
        roll_forward(storage, output, *found)
        return True
    try:
        return storage.read(join(output, shard_names.MANIFEST)) == journal.manifest.encode()
    except FileNotFoundError:
        return False


def _clear(storage: Storage, output: str, build: str) -> None:
    """Deletes a build folder, unless another publication has begun that may take from it."""
    journal = join(output, shard_names.JOURNAL)
    storage.delete_tree(join(output, build), lambda: storage.stat(journal) is None)


def _checked(storage: Storage, output: str, draft: Journal, old: Manifest | None) -> Journal:
    """Returns a journal with what is to be deleted, once nothing stands in its way."""
    gone = find_missing(storage, output, draft.moves)
    if gone:
        raise missing_error(output, gone)
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
    own = {
        *old.files,
        *old.side_files,
        shard_names.SCHEMA,
        shard_names.REJECTS,
        shard_names.MANIFEST,
    }
    return own | {shard_names.LABELS} if old.labels else own


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
    moving = storage.stat(join(output, shard_names.JOURNAL)) is not None
    damaged = "" if moving else find_damage(storage, output, old)
    if not damaged:
        return ""
    return (
        f"{join(output, damaged)} is missing or has not the size that "
        f"{shard_names.MANIFEST} states: add --overwrite to build the dataset again."
    )
