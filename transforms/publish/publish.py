"""Publish a build: write its files as a new generation, then replace the manifest.

All files of a build are written once, into a folder that no other process uses
(``OUT/gen-.../``). Once they are on the disk, ``OUT/manifest.json`` is replaced in one atomic step,
provided that it is still the version that the build has seen. Published files are never moved or
changed, so a reader of an earlier generation is not disturbed.

On a local disk publishers hold a lock on the output, which the operating system releases when they
die: an unnamed generation is then the remains of a killed process. Object stores have no locks:
there such a folder is deleted only when it has not changed for an hour.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest, missing_dataset
from shardmill.schemas.dataset.shard_names import list_generations
from shardmill.schemas.errors import (
    InputError,
    OutputError,
    ShardmillError,
    StaleBuildError,
    StorageError,
)
from shardmill.schemas.storage import Storage, join, map_ordered, scheme_of, storage_threads
from shardmill.schemas.storage.local import replace_link
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.publish.check_version import check_version
from shardmill.transforms.publish.generation import (
    Published,
    check_no_version,
    find_damage,
    find_sound,
    is_shard,
    read_published,
)
from shardmill.transforms.runtime.lifeline import end_if_orphaned

# After this time without a change, no publisher is writing a generation.
UNNAMED_NS = 3600 * 10**9


class FinalFile(NamedTuple):
    """One file of a build.

    Attributes:
        source: Current path, relative to the output.
        name: Name in the generation.
        num_bytes: Size.
        crc32c: CRC-32C as 8 hexadecimal digits, of a file that no shard of the manifest lists.
    """

    source: str
    name: str
    num_bytes: int
    crc32c: str = ""


class Publication(NamedTuple):
    """The published manifest.

    Attributes:
        manifest: The manifest at the output.
        text: Its text.
        remark: A sentence about files that could not be deleted afterwards, or empty.
    """

    manifest: Manifest
    text: str
    remark: str


@dataclass(frozen=True)
class Publisher:
    """Publishes one build.

    Attributes:
        storage: Storage of the output.
        output: The output folder.
        base: Version of the manifest that the build has seen, or empty.
        keep: Number of earlier generations to keep.
        check: Raises an error if a finished generation must not be published; see ``SinkSpec``.
    """

    storage: Storage
    output: str
    base: str
    keep: int = 1
    check: Callable[[str, str, Manifest], None] | None = None

    def publish(self, manifest: Manifest, files: Sequence[FinalFile]) -> Publication | None:
        """Publish a finished build.

        Args:
            manifest: Its manifest, without a generation.
            files: All its other files.

        Returns:
            The publication; None if another builder has published the same dataset.

        Raises:
            LimitError: The generation is beyond a limit.
            OutputError: Another builder has published another dataset.
            StaleBuildError: A file of the build was replaced.
            FileNotFoundError: A file of the build was deleted.
        """
        storage, output = self.storage, self.output
        with storage.lock(output) as locked:
            old = read_published(storage, output)
            if old.version != self.base:
                self._check_same(manifest, old)
                return None
            with contextlib.ExitStack() as undo:
                earlier = self._keep_earlier(manifest, old.manifest, locked=locked)
                generation, crc = self._write(manifest, files, undo)
                if self.check:
                    self.check(output, join(output, generation), manifest)
                manifests = {
                    generation: crc,
                    **checksum_manifests(storage, output, earlier, old.manifest),
                }
                new = replace(
                    manifest, generation=generation, previous=earlier, manifests=manifests
                )
                text = new.to_json()
                # From here on the new manifest may be published, also if the call fails.
                undo.pop_all()
                end_if_orphaned()
                if storage.replace_if(join(output, shard_names.MANIFEST), text.encode(), self.base):
                    return Publication(new, text, self._clean_up(new, old.manifest, locked=locked))
            now = read_published(storage, output)
            named = now.manifest and (now.manifest.generation, *now.manifest.previous)
            if generation in (named or ()):
                # The answer of the service was lost, and another builder published before the call
                # was tried again. It has kept this version.
                return Publication(new, text, "")
            self._discard(generation)
            self._check_same(manifest, now)
            return None

    def _check_same(self, manifest: Manifest, now: Published) -> None:
        """Check that another builder has published the same dataset.

        Raises:
            OutputError: It is another dataset.
        """
        ids = manifest.build.config_id, manifest.build.input_id
        if now.manifest is None or not now.manifest.is_dataset(*ids):
            raise OutputError(
                f"Another command has changed the dataset at {self.output} since this one started: "
                "run again; finished parts are kept."
            )

    def _write(
        self, manifest: Manifest, files: Sequence[FinalFile], undo: contextlib.ExitStack
    ) -> tuple[str, str]:
        """Write a generation and wait until it is on the disk.

        Returns:
            Its name, and the CRC-32C of its manifest.
        """
        storage = self.storage
        generation = shard_names.new_generation(list_generations(storage, self.output))
        folder = join(self.output, generation)
        undo.callback(self._discard, generation)

        def copy(file: FinalFile) -> None:
            storage.copy(join(self.output, file.source), join(folder, file.name))

        for _ in map_ordered(copy, files, storage_threads(folder)):
            pass
        sizes = {entry.path: entry.size for entry in storage.walk(folder)}
        for file in files:
            if sizes.get(join(folder, file.name)) != file.num_bytes:
                source = join(self.output, file.source)
                raise StaleBuildError(f"{source} was changed by another command: run again.")
        text = manifest.to_json().encode()
        storage.replace(join(folder, shard_names.MANIFEST), text)
        storage.sync(folder)
        return generation, f"{crc32c(text):08x}"

    def _keep_earlier(
        self, new: Manifest, old: Manifest | None, *, locked: bool
    ) -> tuple[str, ...]:
        """Return the earlier generations to keep."""
        if not self.keep:
            return ()
        if old is None:  # never published, or the manifest was lost
            sound = [
                name
                for name, manifest in find_sound(self.storage, self.output).items()
                if not new.is_dataset(manifest.build.config_id, manifest.build.input_id)
                and (locked or _is_abandoned(self.storage, join(self.output, name)))
            ]
            return tuple(sound[: self.keep])
        damaged = find_damage(self.storage, old.folder(self.output), old)
        kept = old.previous if damaged else (old.generation, *old.previous)
        return kept[: self.keep]

    def _discard(self, generation: str) -> None:
        """Delete a generation that was not published; `clean` finds the rest."""
        with contextlib.suppress(ShardmillError, OSError):
            self.storage.delete_tree(join(self.output, generation))

    def _clean_up(self, new: Manifest, old: Manifest | None, *, locked: bool) -> str:
        """Delete generations that the new manifest does not name; return a failure, or "".

        The dataset is published: no error may fail the build any more.
        """
        storage, output = self.storage, self.output
        try:
            update_link(output, new.generation)
            recorded = {old.generation, *old.previous} if old is not None else set()
            for name in list_generations(storage, output):
                if name in {new.generation, *new.previous}:
                    continue
                if locked or name in recorded or _is_abandoned(storage, join(output, name)):
                    storage.delete_tree(join(output, name))
        except (ShardmillError, OSError) as error:
            return f"Earlier files could not be deleted ({error}): run `shardmill clean {output}`."
        return ""


def _is_abandoned(storage: Storage, folder: str) -> bool:
    """Return whether a generation has not changed for so long that no publisher writes it."""
    times = [entry.changed_ns for entry in storage.walk(folder) if entry.kind != "dir"]
    limit = time.time_ns() - UNNAMED_NS
    return all(changed is not None and changed < limit for changed in times)


def update_link(output: str, generation: str) -> None:
    """Point ``OUT/current`` to a generation, where the storage has symbolic links."""
    path = join(output, shard_names.CURRENT)
    # Of several publishers the last one may be overtaken here; the next command corrects it.
    if scheme_of(output):
        return
    with contextlib.suppress(OSError):  # not supported: the link is only for people
        replace_link(path, generation)


def _check_sound(folder: str, manifest: Manifest, stated: str) -> None:
    """Check that no file of a generation was damaged.

    Args:
        folder: The folder of the generation.
        manifest: Its manifest.
        stated: CRC-32C of its manifest, or empty if unknown.

    Raises:
        InputError: A file is missing or damaged.
    """
    for finding in check_version(folder, manifest, stated):
        path = join(folder, finding.file)
        raise _rollback_version_damaged(path=path, why=finding.message)
    same = map_ordered(
        lambda shard: is_shard(join(folder, shard.file), shard),
        manifest.shards,
        storage_threads(folder),
    )
    for file, is_same in zip(manifest.files, same, strict=True):
        if not is_same:
            why = "its bytes are not those of the manifest"
            raise _rollback_version_damaged(path=join(folder, file), why=why)


def checksum_manifests(
    storage: Storage, output: str, generations: Sequence[str], published: Manifest | None
) -> dict[str, str]:
    """Return the CRC-32C of the manifest inside each generation that has one.

    CRCs in the published manifest are not computed again: a file may be damaged since.

    Args:
        storage: Storage of the output.
        output: The output folder.
        generations: Names of the generations.
        published: The manifest at the output, or None.
    """
    stated = published.manifests if published is not None else {}
    checksums = {}
    for name in generations:
        if name in stated:
            checksums[name] = stated[name]
            continue
        with contextlib.suppress(FileNotFoundError, StorageError):
            checksum = storage.checksum(join(output, name, shard_names.MANIFEST))
            checksums[name] = f"{checksum:08x}"
    return checksums


def roll_back(
    storage: Storage, output: str, generation: str = "", *, hold: bool = False
) -> Manifest:
    """Publish an earlier generation again; the current one becomes an earlier one.

    A call whose answer was lost may be repeated with ``generation`` or ``hold``: it changes nothing
    then. Without them, a second call returns to the generation that the first one replaced.

    Args:
        storage: Storage of the output.
        output: The output folder.
        generation: Its name, or empty for the latest one kept. All its files are read.
        hold: Whether builds must not publish another generation until ``release``.

    Returns:
        The manifest that is published now.

    Raises:
        InputError: There is no such generation, or it is damaged: see ``check_version``; or the
            dataset is held, and neither argument is given.
        OutputError: Another command published at the same time, or the output is a version.
    """
    check_no_version(output)
    with storage.lock(output):
        published = read_published(storage, output)
        now = published.manifest
        if now is not None:
            kept = list(now.previous)
        else:
            kept = [*find_sound(storage, output)] or list_generations(storage, output)
        if now is not None and now.held and not (hold or generation):
            raise InputError(
                f"{output} is held at {now.generation} by a rollback before: name another version "
                f"by --to, or end that by `shardmill rollback {output} --release`."
            )
        is_repeated = now is not None and (
            (now.held and not generation) or generation == now.generation
        )
        if now is not None and is_repeated:
            new = replace(now, held=hold or now.held)
            _replace_manifest(storage, output, published, new)
            return new
        if not kept:
            raise InputError(f"{output} keeps no earlier version: build with --keep=1 or more.")
        name = generation or kept[0]
        if name not in kept:
            have = ", ".join(kept)
            raise InputError(f"{output} has no earlier version {name!r}: it has {have}.")
        folder = join(output, name)
        manifest = read_published(storage, folder).manifest
        if manifest is None:
            path = join(folder, shard_names.MANIFEST)
            raise _rollback_version_damaged(path=path, why="it is not a manifest")
        stated = now.manifests.get(name, "") if now is not None else ""
        _check_sound(folder, manifest, stated)
        earlier = [now.generation] if now is not None else []
        previous = tuple(earlier + [other for other in kept if other != name])
        manifests = checksum_manifests(storage, output, (name, *previous), now)
        new = replace(manifest, generation=name, previous=previous, manifests=manifests, held=hold)
        _replace_manifest(storage, output, published, new)
        update_link(output, name)
    return new


def _rollback_version_damaged(path: object, why: object) -> InputError:
    return InputError(f"{path} is missing or damaged ({why}): choose another --to.")


def release(storage: Storage, output: str) -> Manifest:
    """Let builds publish versions of a dataset again that ``roll_back`` held; return its manifest.

    Raises:
        InputError: There is no manifest.
        OutputError: Another command published at the same time, or the output is a version.
    """
    check_no_version(output)
    with storage.lock(output):
        published = read_published(storage, output)
        if published.manifest is None:
            raise missing_dataset(join(output, shard_names.MANIFEST))
        new = replace(published.manifest, held=False)
        _replace_manifest(storage, output, published, new)
        return new


def _replace_manifest(
    storage: Storage, output: str, published: Published, manifest: Manifest
) -> None:
    """Replace the manifest at an output, unless it is the same.

    Raises:
        OutputError: It is not the one that was read.
    """
    if manifest == published.manifest:
        return
    path = join(output, shard_names.MANIFEST)
    if not storage.replace_if(path, manifest.to_json().encode(), published.version):
        raise OutputError(f"Another command published at {output} at the same time: run again.")
