"""Recover an output: complete a publication of release 0.1.0 that was interrupted.

That release moved the files of a build next to the manifest, after it had listed the moves in a
journal, ``OUT/.publish.json``. The files that a journal lists are published as a generation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import FormatError, StaleBuildError
from shardmill.schemas.storage import Storage, join
from shardmill.transforms.publish.generation import (
    Published,
    check_folder,
    check_not_foreign,
    check_plain,
    read_published,
)
from shardmill.transforms.publish.publish import FinalFile, Publisher, update_link


def recover_output(storage: Storage, output: str, *, change: bool = True) -> Published:
    """Return what is published at an output, after completing what another command began.

    Args:
        storage: Storage of the output.
        output: The output folder; it need not exist.
        change: Whether anything may be changed.

    Raises:
        OutputError: The output is not a folder, or holds files that Shardmill did not write.
    """
    if not check_folder(storage, output):
        return Published()
    if change:
        complete_journal(storage, output)
    published = read_published(storage, output)
    if published.manifest is None and not published.version:
        if storage.stat(join(output, shard_names.JOURNAL)) is None:
            check_not_foreign(storage, output)
    elif change and published.manifest is not None and published.manifest.generation:
        update_link(output, published.manifest.generation)
    return published


@dataclass(frozen=True)
class Journal:
    """The steps of a publication.

    Attributes:
        manifest: The new manifest.
        files: (source, name, bytes) of each file to move.
        deletes: Files of the old dataset that are not part of the new one.
        build: The build folder.
    """

    manifest: Manifest
    files: tuple[FinalFile, ...]
    deletes: tuple[str, ...]
    build: str

    @classmethod
    def from_json(cls, data: bytes) -> Journal:
        """Return the journal of a text.

        Raises:
            FormatError: The text is damaged, or names a file outside the output.
        """
        try:
            body = json.loads(data)
            moves = [FinalFile(m["source"], m["target"], m["num_bytes"]) for m in body["moves"]]
            listed = body.get("kept", {}).get("files", [])
            kept = [FinalFile(name, name, size) for name, size in listed]
            journal = cls(
                Manifest.from_json(body["manifest"]), (*moves, *kept), tuple(body["deletes"]),
                body["build"],
            )  # fmt: skip
            journal.check()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"it is damaged ({error})") from error
        return journal

    def check(self) -> None:
        """Check that all names are files of a dataset inside the output.

        Raises:
            FormatError: A name is not.
        """
        if not self.build.startswith(shard_names.BUILD_PREFIX):
            raise FormatError(f"it calls {self.build!r} a build folder")
        names = [file.name for file in self.files]
        sources = [file.source.removeprefix(f"{self.build}/") for file in self.files]
        check_plain([self.build.removeprefix("."), *names, *self.deletes])
        for name in sources:
            if name.startswith("/") or ".." in name.split("/") or "\0" in name:
                raise FormatError(f"it takes {name!r}, which is not in the build folder")


def complete_journal(storage: Storage, output: str) -> str:
    """Complete an unfinished publication of release 0.1.0, if there is one.

    If a file of it is lost, the publication is abandoned: an old dataset that is still there stays,
    and without one the next build replaces what is left.

    Returns:
        What was done, as a clause; empty if there is no journal.
    """
    path = join(output, shard_names.JOURNAL)
    try:
        data, version = storage.read_version(path)
    except FileNotFoundError:
        return ""
    published = read_published(storage, output)
    try:
        journal = Journal.from_json(data)
    except FormatError:
        journal = None
    files = _find_files(storage, output, journal) if journal is not None else None
    if journal is None or files is None:
        if published.manifest is not None:
            storage.delete(path, version)
        return "abandoned an unfinished publication, whose files are damaged or lost"
    what = f"completed the unfinished publication of {journal.manifest.written:,} examples"
    now = published.manifest
    if now is not None and now.build == journal.manifest.build:
        for name in journal.deletes:
            storage.delete(join(output, name))
    else:
        superseded = (*journal.deletes, *(file.name for file in files))
        try:
            Publisher(storage, output, published.version).publish(
                journal.manifest, files, superseded
            )
        except (FileNotFoundError, StaleBuildError):  # unless another process completed it
            if storage.stat(path) is not None:
                raise StaleBuildError(
                    f"Files of the unfinished publication at {output} were changed by another "
                    "command: run again."
                ) from None
    storage.delete_tree(join(output, journal.build))
    storage.delete(path, version)
    return what


def _find_files(storage: Storage, output: str, journal: Journal) -> list[FinalFile] | None:
    """Return where each file of a journal is now; None if one is lost."""
    files = []
    for file in journal.files:
        if file.name == shard_names.MANIFEST:
            continue
        for source in (file.source, file.name):
            entry = storage.stat(join(output, source))
            if entry is not None and entry.size == file.num_bytes:
                files.append(file._replace(source=source))
                break
        else:
            return None
    return files
