"""The journal of a publication: the list of moves that whoever meets it completes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import FormatError


@dataclass(frozen=True)
class Move:
    """One file of a publication, all paths relative to the output."""

    source: str
    target: str
    num_bytes: int


@dataclass(frozen=True)
class Kept:
    """Published files that stay where they are and become part of the next dataset.

    Attributes:
        base: Fingerprint of the manifest that names them; only while it is the published one are
            they what they are taken for. Empty where nothing is kept.
        files: (name, bytes) of each.
    """

    base: str = ""
    files: tuple[tuple[str, int], ...] = ()


NOTHING_KEPT = Kept()


@dataclass(frozen=True)
class Journal:
    """What a publication does, in order.

    Attributes:
        manifest: The new manifest's text.
        moves: Files to their final names, the manifest last.
        deletes: Files of the old dataset that the new one does not have.
        build: The build folder, deleted in the end.
        kept: Files of the old dataset that stay.
    """

    manifest: str
    moves: tuple[Move, ...]
    deletes: tuple[str, ...]
    build: str
    kept: Kept = field(default=NOTHING_KEPT)

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
            journal = cls(
                body["manifest"], moves, tuple(body["deletes"]), body["build"],
                _kept(**body.get("kept", {})),
            )  # fmt: skip
            Manifest.from_json(journal.manifest)
            journal.check()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"it is damaged ({error})") from error
        return journal

    def check(self) -> None:
        """Refuses names that lead out of the output, or to what is no file of a dataset.

        Raises:
            FormatError: A name does.
        """
        if not self.build.startswith(shard_names.BUILD_PREFIX):
            raise FormatError(f"it calls {self.build!r} a build folder")
        check_plain([self.build.removeprefix(".")])
        check_plain([move.target for move in self.moves])
        check_plain(self.deletes)
        kept = {name for name, _ in self.kept.files}
        check_plain(kept)
        if kept & {*self.deletes, *(move.target for move in self.moves)}:
            raise FormatError("it keeps a file that it replaces or deletes")
        for move in self.moves:
            folder, *below = move.source.split("/")
            if folder != self.build or not below:
                raise FormatError(f"it takes {move.source!r}, which is not in the build folder")
            check_plain(below)
        if not self.moves or self.moves[-1].target != shard_names.MANIFEST:
            raise FormatError(f"{shard_names.MANIFEST} is not its last file")


def _kept(base: str = "", files: Iterable[tuple[str, int]] = ()) -> Kept:
    return Kept(str(base), tuple((str(name), int(size)) for name, size in files))


def fingerprint(manifest: Manifest) -> str:
    """Returns the identity of a manifest's whole content: 32 hexadecimal digits."""
    return hashlib.blake2b(manifest.to_json().encode(), digest_size=16).hexdigest()


def check_plain(files: Iterable[str]) -> None:
    """Refuses names that no file of a dataset has: hidden ones, or in a folder that is not ours.

    Raises:
        FormatError: One is such a name.
    """
    for name in files:
        top, *below = name.split("/")
        if (below and top != shard_names.TRANSFORM) or "\0" in name:
            raise FormatError(f"it names {name!r}, which is no file of a dataset")
        if any(not each or each.startswith(".") for each in (top, *below)):
            raise FormatError(f"it names {name!r}, which is no file of a dataset")
