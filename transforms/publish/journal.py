"""The journal of a publication: the list of moves that any process can complete."""

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
    """Published files that stay in place and become part of the next dataset.

    Attributes:
        base: Fingerprint of the manifest that lists them. They are valid only while that manifest
            is published. Empty where nothing is kept.
        files: (name, bytes) of each.
    """

    base: str = ""
    files: tuple[tuple[str, int], ...] = ()


NOTHING_KEPT = Kept()


@dataclass(frozen=True)
class Journal:
    """The steps of a publication, in order.

    Attributes:
        manifest: Text of the new manifest.
        moves: Moves of files to their final names, the manifest last.
        deletes: Files of the old dataset that are not part of the new one.
        build: The build folder; it is deleted last.
        kept: Files of the old dataset that stay.
    """

    manifest: str
    moves: tuple[Move, ...]
    deletes: tuple[str, ...]
    build: str
    kept: Kept = field(default=NOTHING_KEPT)

    def to_json(self) -> bytes:
        """Return the text of the journal."""
        return json.dumps(asdict(self), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Journal:
        """Return the journal of a text.

        Raises:
            FormatError: The text is damaged, or names a file outside the output.
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
        """Check that all names are files of a dataset inside the output.

        Raises:
            FormatError: A name is not.
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
    """Return the identity of a manifest's content: 32 hexadecimal digits."""
    return hashlib.blake2b(manifest.to_json().encode(), digest_size=16).hexdigest()


def check_plain(files: Iterable[str]) -> None:
    """Check that names can be files of a dataset: not hidden, and not in another folder.

    Raises:
        FormatError: A name cannot be.
    """
    for name in files:
        top, *below = name.split("/")
        in_other_folder = bool(below) and top != shard_names.TRANSFORM
        hidden = any(not each or each.startswith(".") for each in (top, *below))
        if in_other_folder or hidden or "\0" in name:
            raise FormatError(f"it names {name!r}, which is not a file of a dataset")
