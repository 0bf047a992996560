"""Publish a build: move the finished files to their final names, the manifest last.

A journal, ``OUT/.publish.json``, lists the moves before the first one is made. A process that finds
a journal completes it, so a publication that has begun is always finished. All files are in the
build folder before the journal is written; from then on they are only renamed, so a full disk
cannot interrupt a publication.

On a local disk, publishers and readers of the output hold a lock on the folder, which the operating
system releases when they die.

Files of the old dataset that the new one keeps are not moved. They are valid only while the
manifest that lists them is published, so that is checked again once the journal exists: from then
on no other process can publish.
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


def read_manifest(storage: Storage, output: str) -> Manifest | None:
    """Return the published manifest, or None if there is none.

    During a publication, wait for its end or return the manifest that it publishes.

    Raises:
        OutputError: The file is not a manifest that this release can read.
    """
    try:
        with storage.lock(output):
            journal = read_journal(storage, output)
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
    """Complete an unfinished publication and return the dataset at the output.

    Returns:
        The dataset's manifest, or None if a first one may be built there.

    Raises:
        OutputError: The output holds files that Shardmill did not write.
    """
    if not _is_folder(storage, output):
        return None
    with storage.lock(output):
        return _recover_output_locked(storage, output)


def _recover_output_locked(storage: Storage, output: str) -> Manifest | None:
    while True:
        _recover_locked(storage, output)
        found = _read_dataset(storage, output)
        # Without locks another publication may have begun in between and not moved its files yet.
        if found is None or read_journal(storage, output) is None:
            return found


def check_output(storage: Storage, output: str) -> Manifest | None:
    """Return what ``recover_output`` would return, without changing anything."""
    if not _is_folder(storage, output):
        return None
    with storage.lock(output):
        return _read_dataset(storage, output)


def _is_folder(storage: Storage, output: str) -> bool:
    entry = storage.stat(output)
    if entry is not None and entry.kind != "dir":
        raise OutputError(f"--output={output} is a file: choose a folder.")
    return entry is not None


def _read_dataset(storage: Storage, output: str) -> Manifest | None:
    """Return the dataset at the output; during a publication, the one that it publishes."""
    while True:
        journal = read_journal(storage, output)
        if journal is not None:
            return Manifest.from_json(journal.manifest)
        manifest = _read_manifest(storage, output)
        if manifest is not None:
            return manifest
        foreign = _find_foreign(storage, output)
        if not foreign:
            return None
        # Without locks a publication may have begun or ended since the first check.
        if not any(
            storage.stat(join(output, name)) for name in (shard_names.JOURNAL, shard_names.MANIFEST)
        ):
            raise OutputError(
                f"--output={output} holds {foreign!r} but no {shard_names.MANIFEST}, so it is not "
                "a Shardmill dataset: choose an empty or new folder."
            )


def _find_foreign(storage: Storage, output: str) -> str:
    own = (shard_names.BUILD_PREFIX, shard_names.OUTCOME_PREFIX, shard_names.JOURNAL)
    for found in storage.list_dir(output):
        name = found.path.rsplit("/", 1)[-1]
        if not name.startswith(own):
            return name
    return ""


def find_damage(storage: Storage, output: str, manifest: Manifest) -> str:
    """Return the first file of a dataset that is missing or has another size, or an empty text.

    Costs one listing; the content of files is not read.
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
    except StaleBuildError:  # rolled back before any file was changed
        return False
    return True


def read_journal(storage: Storage, output: str) -> Journal | None:
    """Return the journal of an unfinished publication, or None.

    Raises:
        OutputError: The journal cannot be followed.
    """
    found = find_journal(storage, output)
    return found[0] if found else None


def publish(
    storage: Storage, output: str, manifest: Manifest, moves: Sequence[Move], build: str,
    *, overwrite: bool, kept: Kept = NOTHING_KEPT,
) -> bool:  # fmt: skip
    """Publish a finished build.

    Args:
        storage: Storage of the output.
        output: The output folder.
        manifest: The new manifest.
        moves: Moves of all files except the manifest and the kept ones.
        build: Name of the build folder.
        overwrite: Whether another dataset may be replaced.
        kept: Files of the published dataset that stay and become part of the new one.

    Returns:
        False if another process has published the same dataset.

    Raises:
        OutputError: The output holds another dataset, or a file that Shardmill did not write.
        StaleBuildError: Another process deleted files of this build, or published another dataset
            than the one whose files are kept.
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
                    _delete_build(storage, output, build)
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
                # Without locks the conflicting files may be those of another publisher.
                if _read_dataset(storage, output) == old:
                    raise
                continue
            # False only on storage without locks, if another publisher was first.
            path = join(output, shard_names.JOURNAL)
            written = storage.create(path, journal.to_json(), aside=join(output, build))
            if written and _follow(storage, output, journal):
                return True


def _follow(storage: Storage, output: str, journal: Journal) -> bool:
    """Complete a journal that was just written; False if another process rolled it back."""
    found = find_journal(storage, output)
    if found is not None and found[0].to_json() == journal.to_json():
        roll_forward(storage, output, *found)
        return True
    try:
        return storage.read(join(output, shard_names.MANIFEST)) == journal.manifest.encode()
    except FileNotFoundError:
        return False


def _delete_build(storage: Storage, output: str, build: str) -> None:
    """Delete a build folder, unless another publication has begun that may use its files."""
    journal = join(output, shard_names.JOURNAL)
    storage.delete_tree(join(output, build), lambda: storage.stat(journal) is None)


def _checked(storage: Storage, output: str, draft: Journal, old: Manifest | None) -> Journal:
    """Return the journal with its deletes, after checking that no file is missing or in the way."""
    gone = find_missing(storage, output, draft.moves)
    if gone:
        raise missing_error(output, gone)
    ours, new = _own_files(old), {move.target for move in draft.moves}
    unowned = _top_level(new) - _top_level(ours)
    for found in storage.list_dir(output):
        name = found.path.rsplit("/", 1)[-1]
        if name in unowned or (name in ours and found.kind != "file"):
            raise OutputError(
                f"{found.path} exists and is not part of the published dataset: "
                "move it away and run again; finished parts are reused."
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


def _top_level(files: Iterable[str]) -> set[str]:
    """Return the top-level names of files: the folder of a file that is in one."""
    return {name.split("/", 1)[0] for name in files}


def why_not_up_to_date(
    storage: Storage, output: str, old: Manifest, config_id: str, input_id: str
) -> str:
    """Return why the published dataset is not the wanted one, or an empty text if it is.

    Args:
        storage: Storage of the output.
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
    # During a publication, files that are not moved yet do not count as missing.
    moving = storage.stat(join(output, shard_names.JOURNAL)) is not None
    damaged = "" if moving else find_damage(storage, output, old)
    if not damaged:
        return ""
    return (
        f"{join(output, damaged)} is missing or does not have the size in "
        f"{shard_names.MANIFEST}: add --overwrite to build the dataset again."
    )
