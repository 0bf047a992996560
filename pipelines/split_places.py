"""The files, folders and globs that ``--splits`` names, as in ``train:1,test=test/``."""

from __future__ import annotations

import glob
import os
import posixpath
import shlex
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import absolute, join, open_storage, scheme_of
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.walk import make_key

_MAGIC = frozenset("*?[")


def relative_places(splits: Splits, match: MatchSpec, sources: Sequence[str]) -> Splits:
    """Return splits whose places are written as keys are: relative to the root, without ``./``.

    Args:
        splits: The splits.
        match: The input.
        sources: The values of ``--input``.

    Raises:
        UsageError: A place does not exist, or is not an input.
    """
    is_archive = match.archives and not match.parts
    named = []
    for name, place in splits.named:
        candidates = [*_candidates(place, match.root)]
        existing = [candidate for candidate in candidates if _exists(candidate, match.root)]
        if existing:
            # A folder may be called a[1].
            relative = glob.escape(existing[0])
        elif candidates and (is_archive or _MAGIC.intersection(place)):
            relative = candidates[0]
        else:
            path = absolute(place)
            if open_storage(path).stat(path) is not None:
                flags = _input_flags(*sources, path)
                raise UsageError(_splits_place_no_input(splits=splits, place=place, flags=flags))
            root = match.root
            raise UsageError(
                f"--splits={splits}: {place!r} does not exist in {root}: give a path relative to "
                "it, or a glob."
            )
        slash = "/" * place.endswith(("/", "\\"))
        # All files of the root, or those of a path in it.
        relative = "**" if relative == "." else make_key(relative) + slash
        named.append((name, relative))
    return replace(splits, named=tuple(named))


def _candidates(place: str, root: str) -> Iterator[str]:
    """Yield the paths relative to the root that a place may mean, the likeliest first."""
    spellings = [place]
    if "\\" in place:
        spellings.append(place.replace("\\", "/"))
    for spelling in spellings:
        path = absolute(spelling)
        if scheme_of(path) and path != root:
            scheme, _, rest = path.partition("://")
            path = f"{scheme}://{posixpath.normpath(rest)}"
        if path == root:
            yield "."
        elif path.startswith(join(root, "")):
            yield path[len(join(root, "")) :]
        if not (os.path.isabs(spelling) or scheme_of(spelling)):
            relative = posixpath.normpath(spelling)
            if relative.partition("/")[0] != "..":
                yield relative
        # A link may lead to the root or from it.
        if not (scheme_of(path) or scheme_of(root)):
            real = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
            if real.partition("/")[0] != "..":
                yield real


def _exists(relative: str, root: str) -> bool:
    """Return whether a path exists, in any of the forms that Unicode has for it."""
    forms = dict.fromkeys([relative, *(unicodedata.normalize(f, relative) for f in ("NFC", "NFD"))])
    return any(open_storage(root).stat(join(root, form)) is not None for form in forms)


def why_unused(
    splits: Splits, used: Collection[str], match: MatchSpec, sources: Sequence[str]
) -> str:
    """Return why a place of the splits is a mistake, or an empty text.

    Args:
        splits: The splits, whose places are relative to the root.
        used: The places with inputs.
        match: The input.
        sources: The values of ``--input``.
    """
    unused = [place for _, place in splits.named if place not in used]
    if not unused:
        return ""
    place, root = unused[0], match.root
    path = join(root, place.rstrip("/"))
    parts = match.parts or (match,)
    inside = any(part.kind == "directory" and path.startswith(part.input) for part in parts)
    if not inside and not match.archives and open_storage(root).stat(path) is not None:
        flags = _input_flags(*sources, path)
        return _splits_place_no_input(splits=splits, place=place, flags=flags)
    return (
        f"--splits={splits}: no input in {root} is in {place!r}, or an earlier item has them all: "
        "name a path relative to that folder, or leave the item out."
    )


def _splits_place_no_input(splits: object, place: object, flags: object) -> str:
    return f"--splits={splits}: {place!r} exists but is not an input: give it, too, as in {flags}."


def _input_flags(*paths: str) -> str:
    return " ".join(f"--input={shlex.quote(path)}" for path in paths)
