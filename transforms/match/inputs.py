"""Find the inputs that ``--input`` names: a folder, a glob, a file, or a listing of others."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.option_types import empty_input
from shardmill.schemas.refs import (
    InputRef,
    Linked,
    MatchCounts,
    keep_first,
    sum_counts,
)
from shardmill.schemas.storage import Entry, absolute, join, open_storage, scheme_of
from shardmill.schemas.storage.base import replaced_error
from shardmill.schemas.text_file import TextError, decode_head, decode_lines, unreadable_text
from shardmill.transforms.match.containers.expand import is_archive
from shardmill.transforms.match.next_steps import next_step
from shardmill.transforms.match.walk import (
    OUTSIDE_ROOT,
    FileKind,
    Match,
    PathFilter,
    WalkTask,
    first_level,
    glob_folders,
    glob_regex,
    glob_root,
    input_outside_root,
    is_other,
    leads_outside,
    make_key,
    walk,
)

PathKind = Literal["directory", "glob", "listing", "file", "several"]
_MAX_LISTING_BYTES = 2 << 30
_MAX_OPENED = 1_000  # files in which an archive is looked for
_HEAD_BYTES, _FEW_LINES = 64 << 10, 10  # of a text file that may be a table
_DELIMITER = re.compile(r"[,;|\s]")
# Suffixes of files that list inputs, one path per line or as tables; a table's CSV is an input.
_LISTS: dict[FileKind, tuple[str, ...]] = {
    "images": (".csv", ".jsonl"),
    "records": (".csv", ".txt"),
    "rows": (".txt",),
    "any": (),
}


def parse_paths(data: bytes, source: str, root: str) -> Iterator[InputRef]:
    """Yield a reference for each line of a list of paths, except empty and ``#`` lines.

    Raises:
        InputError: It is not text, or an entry has another scheme or leads outside the root.
    """
    try:
        lines = decode_lines(data)
    except TextError as error:
        raise unreadable_text(source=source, problem=error) from error
    is_folder = functools.cache(is_remote_folder)
    for number, line in enumerate(lines, 1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield InputRef(*key_of_entry(entry, root, f"{source}, line {number}", is_folder))


def key_of_entry(
    entry: str, root: str, where: str, is_folder: Callable[[str], bool]
) -> tuple[str, str]:
    """Return the key and the URI of an entry of a listing.

    Args:
        entry: A path, relative to the root or absolute, or a URI.
        root: Folder that the entry must not leave.
        where: Place of the entry, for messages.
        is_folder: ``is_remote_folder``, which remembers what it returned for a listing.

    Raises:
        InputError: The entry is outside the root.
    """
    if scheme_of(entry) != scheme_of(root) and (scheme_of(entry) or entry.startswith("/")):
        raise InputError(
            f"{where}: {entry!r} is not under the root {root}: all entries must share its scheme; "
            "set --root to their common folder."
        )
    entry = _with_slashes(entry, root, is_folder)
    absolute = scheme_of(entry) or entry.startswith("/")
    path = entry if absolute else join(root, entry)
    prefix = root.rstrip("/") + "/"
    leaves = "\0" in path
    if scheme_of(path):
        leaves |= ".." in path[len(prefix) :].split("/")
    else:
        path = os.path.normpath(path)
    if leaves or not path.startswith(prefix):
        advice = "remove the entry or set --root to a folder that holds it"
        if not absolute:  # another root would move the entry, too
            advice = (
                "remove the entry, or write all entries relative to a folder that holds the files "
                "and give that folder as --root"
            )
        raise InputError(f"{where}: {entry!r} leads outside the root {root}: {advice}.")
    relative = path[len(prefix) :]
    return make_key(relative), join(root, relative)


def _with_slashes(entry: str, root: str, is_folder: Callable[[str], bool]) -> str:
    r"""Return an entry of a listing with slashes between folders.

    Programs for Windows write ``cat\1.jpg``; elsewhere, a name may have a backslash.
    """
    if "\\" not in entry:
        return entry
    is_whole = scheme_of(entry) or entry.startswith("/")
    path = entry if is_whole else join(root, entry)
    if scheme_of(path):
        # A request for each file would take hours.
        is_plain = not is_folder(path.replace("\\", "/").rpartition("/")[0])
    else:
        is_plain = os.path.lexists(path) if "\0" not in path else True
    if is_plain:
        return entry
    return entry.replace("\\", "/")


def is_remote_folder(path: str) -> bool:
    """Return whether a storage has a folder."""
    entry = open_storage(path).stat(path)
    return entry is not None and entry.kind == "dir"


def _find_form(uri: str, root: str) -> tuple[str, Entry | None]:
    """Return the path of a file in the form of Unicode that it has on its disk, and its entry.

    Keys are in NFC, and a listing may have another form than the names of files.
    """
    storage = open_storage(uri)
    entry = storage.stat(uri)
    if entry is None and not uri.isascii():
        below = uri.removeprefix(root)
        for form in ("NFC", "NFD"):
            path = uri[: len(uri) - len(below)] + unicodedata.normalize(form, below)
            entry = storage.stat(path) if path != uri else None
            if entry is not None:
                return path, entry
    return uri, entry


def find_sizes(ref: InputRef, root: str, *, follow_links: bool) -> InputRef:
    """Return a listed reference with its size and version, or rejected if it cannot be read."""
    try:
        uri, entry = _find_form(ref.uri, root)
    except OSError as error:
        return ref.rejected("not_found", str(error))
    ref = ref._replace(uri=uri)
    if entry is None:
        return ref.rejected("not_found", "the file does not exist")
    if not scheme_of(ref.uri) and not follow_links and leads_outside(ref.uri, root):
        return ref.rejected(*OUTSIDE_ROOT)
    if entry.kind != "file":
        return ref.rejected("not_a_file", "a folder, pipe, socket or device")
    return ref._replace(size=entry.size, version=entry.version, ctime=entry.ctime)


def merge_entries(key: str, refs: Iterable[InputRef]) -> Iterator[InputRef | MatchCounts]:
    """Yield one reference of a key that is listed once or more, and a count for each other.

    Raises:
        InputError: Two entries of the key disagree.
    """
    first, *others = ordered = sorted(refs, key=lambda ref: (ref.label or "", ref))
    mine = _values(first)
    for theirs in map(_values, others):
        for field in {**mine, **theirs}:
            one, two = mine.get(field), theirs.get(field)
            if one != two:
                raise InputError(
                    f"{key!r} is listed with the {field} {one!r} and with {two!r}: keep one of the "
                    "two entries."
                )
    yield from keep_first(ordered)


def _values(ref: InputRef) -> dict[str, Any]:
    """Return the values of a listing's row, apart from the path."""
    attached = parse_example(ref.attached).items() if ref.attached else ()
    columns = {name.removeprefix("listing/"): [*feature.values] for name, feature in attached}
    return {"label": ref.label, "split": ref.split, "group": ref.group, **columns}


@dataclass(frozen=True)
class MatchSpec:
    """An input and what to match in it; made by ``find_input``.

    Attributes:
        kind: Kind of the input.
        input: The input as an absolute path or URI.
        root: Folder that keys are relative to.
        follow_links: Whether symlinks may lead outside the root.
        file_kind: Kind of files to match in folders and globs.
        parts: The inputs if they are several, all with the same root; ``input`` lists them.
        archives: Whether files may be archives, whose members are the inputs; those of a listing
            are ``spooled``.
        table: The ``Listing`` of a listing that is a table; None for a list of paths.
    """

    kind: PathKind
    input: str
    root: str
    follow_links: bool = False
    file_kind: FileKind = "images"
    parts: tuple[MatchSpec, ...] = ()
    archives: bool = False
    table: Any = None

    @property
    def top(self) -> str:
        """Folder in which the walk of a folder or glob starts."""
        if self.kind == "directory":
            return self.input
        return glob_root(self.input)


def find_inputs(patterns: Sequence[str], root: str = "", **options: Any) -> MatchSpec:
    """Return the input that several ``--input`` values name together; see ``find_input``.

    Raises:
        ShardmillError: As ``find_input``, or the inputs are on several storages.
    """
    specs = [find_input(pattern, root, **options) for pattern in patterns]
    if len(specs) == 1:
        (one,) = specs
        # The keys of the members of one archive are their names.
        is_one = one.archives and one.kind == "file" and not root
        if is_one:
            return replace(one, root=one.input)
        return one
    common = root or common_root([spec.root for spec in specs])
    parts = tuple(find_input(pattern, common, **options) for pattern in patterns)
    whole, archives = ", ".join(part.input for part in parts), any(p.archives for p in parts)
    root, file_kind = parts[0].root, parts[0].file_kind
    return MatchSpec("several", whole, root, file_kind=file_kind, parts=parts, archives=archives)


def common_root(roots: Sequence[str]) -> str:
    """Return the longest folder that contains all of some folders.

    Raises:
        UsageError: There is none.
    """
    if len({scheme_of(root) for root in roots}) > 1:
        raise UsageError(
            "--input names files of several storages: count each storage separately, since a "
            "manifest has one root."
        )
    common = posixpath.commonpath([root.replace("://", ":/") for root in roots])
    scheme = scheme_of(roots[0])
    if not scheme:
        return common
    if common.rstrip("/") == f"{scheme}:":
        raise UsageError("--input names several buckets: count each bucket separately.")
    return common.replace(":/", "://", 1)


def find_input(
    pattern: str,
    root: str = "",
    *,
    listing: bool = False,
    follow_links: bool = False,
    wanted: FileKind = "images",
) -> MatchSpec:
    """Return the input that an ``--input`` value names.

    An existing path is a folder or file, even if its name has glob characters; else a pattern
    with such characters is a glob.

    Args:
        pattern: The value.
        root: Folder that keys are relative to; by default the longest literal folder of the input.
        listing: Whether a file is a listing; files named ``.csv`` or ``.jsonl`` always are.
        follow_links: See ``MatchSpec``.
        wanted: Kind of files to match in folders and globs: ``images``, ``records``, ``rows`` or
            ``any``. With ``records``, a ``.txt`` is a list too, one path per line.

    Raises:
        InputError: The input does not exist.
        UsageError: The input is not inside the root.
    """
    if not pattern:
        raise empty_input()
    path = absolute(pattern)
    entry = open_storage(path).stat(path)
    kind: PathKind
    if entry is not None and entry.kind == "dir":
        kind, literal = "directory", path
    elif entry is not None:
        kind, literal = "file", path.rsplit("/", 1)[0] or "/"
        named = listing or path.lower().endswith(_LISTS[wanted])
        if named and not (wanted == "rows" and _is_table(path, root or literal)):
            kind = "listing"
    elif re.search(r"[*?\[]", path.split("://", 1)[-1]):
        kind, literal = "glob", glob_root(path)
        folder = open_storage(path).stat(literal)
        if folder is None or folder.kind != "dir":
            raise InputError(f"--input={pattern} matched no files: there is no folder {literal}.")
    else:
        raise InputError(
            f"--input={pattern} does not exist: give a folder, a glob, a listing or a file."
        )
    archives = kind == "file" and wanted == "images" and _is_archive(path, pattern)
    top = absolute(root) if root else literal
    if kind != "listing" and literal != top and not literal.startswith(top.rstrip("/") + "/"):
        raise input_outside_root(pattern=pattern, root=root)
    spec = MatchSpec(kind, path, top, follow_links, wanted, archives=archives)
    if kind in ("directory", "glob") and wanted == "images":
        return replace(spec, archives=_holds_archives(spec))
    return spec


def _is_archive(path: str, pattern: str) -> bool:
    """Return whether a file is an archive of images, or else may be an image.

    Raises:
        InputError: It is neither.
    """
    if is_archive(path):
        return True
    if is_other(path):
        step = next_step(path, "images", "give an image, a folder, or a listing (.csv)")
        raise InputError(f"--input={pattern} is not named like an image: {step}.")
    return False


def _holds_archives(spec: MatchSpec) -> bool:
    """Return whether the files of a folder or glob are archives, and not images.

    The first file that is named like an image decides; if there is none, any archive does.
    """
    first = next(_walk_refs(spec), "")
    if first:
        return is_archive(first)
    others = itertools.islice(_walk_refs(replace(spec, archives=True)), _MAX_OPENED)
    return any(map(is_archive, others))


def _walk_refs(spec: MatchSpec) -> Iterator[str]:
    """Yield the paths of the inputs in a folder or glob, as far as it can be listed."""
    with contextlib.suppress(InputError):
        for task in first_level(spec.top):
            for match in walk_input(spec, task):
                ref = match.ref if isinstance(match, Linked) else match
                if isinstance(ref, InputRef) and not ref.error:
                    yield ref.uri


def _is_table(path: str, root: str) -> bool:
    """Return whether a text file is a table: its first lines have delimiters and name no file."""
    with open_storage(path).open_at(path) as reader:
        head = decode_head(reader.read_at(0, min(_HEAD_BYTES, reader.size)))
    lines = [line.strip() for line in head.splitlines()[:_FEW_LINES] if line.strip()]
    root = absolute(root)
    paths = [line for line in lines if "\0" not in line]
    listed = any(
        scheme_of(path)
        or open_storage(root).stat(join(root, _with_slashes(path, root, is_remote_folder)))
        for path in paths
    )
    return not listed and any(map(_DELIMITER.search, lines))


def walk_input(spec: MatchSpec, task: WalkTask) -> Iterator[Match]:
    """Walk one piece of a folder or glob; keys are relative to the root."""
    prefix, file_kind = spec.top[len(spec.root) :].strip("/"), spec.file_kind
    options: dict[str, PathFilter] = {}
    if spec.kind == "glob":
        file, folder = glob_regex(spec.input), glob_folders(spec.input)
        options["matches"] = PathFilter(
            lambda path: file.fullmatch(join(spec.top, path)) is not None,
            lambda path: folder.fullmatch(join(spec.top, path)) is not None,
        )
        # A pattern for tables means all files that it matches, with any suffix.
        file_kind = "any" if file_kind == "rows" else file_kind
    file_kind = "any" if spec.archives else file_kind
    yield from walk(
        spec.top,
        task,
        follow_links=spec.follow_links,
        file_kind=file_kind,
        prefix=prefix and f"{prefix}/",
        **options,
    )


def find_single(spec: MatchSpec) -> InputRef:
    """Return the reference of an input that is one file."""
    key = make_key(spec.input[len(spec.root.rstrip("/")) + 1 :])
    return find_sizes(InputRef(key, spec.input), spec.root, follow_links=True)


def match_now(spec: MatchSpec) -> tuple[list[InputRef], MatchCounts]:
    """Match an input in this process.

    Returns:
        All references sorted by key, and the counts of what gives none.

    Raises:
        ShardmillError: A listing is broken, or a folder cannot be listed.
    """
    matches: list[Match]
    if spec.kind == "several":
        refs, counts = zip(*map(match_now, spec.parts), strict=True)
        matches = [*counts, *_merge((ref.key, ref) for ref in itertools.chain(*refs))]
    elif spec.kind == "file":
        matches = [find_single(spec)]
    elif spec.kind == "listing":
        listed = _merge(((ref.key, ref) for ref in read_listing(spec)), merge_entries)
        matches = []
        for match in listed:
            if isinstance(match, InputRef):
                matches.append(find_listed(match, spec))
            else:
                matches.append(match)
    else:
        walked = [match for task in first_level(spec.top) for match in walk_input(spec, task)]
        linked = _merge(match for match in walked if isinstance(match, Linked))
        matches = [*(match for match in walked if not isinstance(match, Linked)), *linked]
    total = sum_counts(match for match in matches if isinstance(match, MatchCounts))
    return sorted(match for match in matches if isinstance(match, InputRef)), total


def _merge(
    named: Iterable[tuple[str, InputRef]],
    merge: Callable[[str, Iterable[InputRef]], Iterable[Match]] = lambda _, refs: keep_first(refs),
) -> Iterator[Match]:
    """Merge references with the same name: yield one, and a count for each other."""
    groups: dict[str, list[InputRef]] = {}
    for name, ref in named:
        groups.setdefault(name, []).append(ref)
    for name, refs in groups.items():
        yield from merge(name, refs)


def find_listed(ref: InputRef, spec: MatchSpec) -> InputRef:
    """Return a reference of a listing with its size and version."""
    if ref.error:
        return ref
    return find_sizes(ref, spec.root, follow_links=spec.follow_links)


def read_listing(spec: MatchSpec) -> Iterator[InputRef]:
    """Yield the references of a listing, without sizes.

    Raises:
        ShardmillError: The listing is broken or too large, or was deleted since it was found.
    """
    if spec.table is not None:
        yield from spec.table.entries(spec.root)
        return
    try:
        data = open_storage(spec.input).read(spec.input)
    except FileNotFoundError as error:  # such as that of `write`, by another call for its output
        raise replaced_error("read", spec.input) from error
    if len(data) > _MAX_LISTING_BYTES:
        raise InputError(f"{spec.input} is over 2 GiB: cut the listing into several.")
    yield from parse_paths(data, spec.input, spec.root)
