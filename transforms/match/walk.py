"""Walk folders and match globs; check names without opening files."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import re
import stat
import unicodedata
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from shardmill.schemas.dataset.foreign_names import SIDE_SUFFIXES, claims_other
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.refs import DUPLICATE, InputRef, Linked, MatchCounts, count_skipped
from shardmill.schemas.storage import absolute, join, open_storage, resolve_links, scheme_of

_JUNK_NAMES = frozenset(
    {
        "thumbs.db",
        "desktop.ini",
        "icon\r",
        "__macosx",
        "ehthumbs.db",
        "lost+found",
        "$recycle.bin",
        "system volume information",
    }
)
# Suffixes of side files in folders of images. A listing may still name such files.
_OTHER_SUFFIXES = SIDE_SUFFIXES | {
    ".names",
    ".data",
    ".tfrecord",
    ".tfrec",
    ".gz",
    ".webm",
    ".m4v",
    ".mpg",
    ".mpeg",
}

FileKind = Literal["images", "records", "rows", "any"]
Match = InputRef | Linked | MatchCounts
OUTSIDE_ROOT = ("outside_root", "the link leads outside the root; --follow_links allows that")
_MAX_LISTED = 10_000  # objects: a folder without subfolders may have millions
_NOT_ESCAPED = bytes(set(range(128)) - {ord("%")})
_GLOB_TOKEN = re.compile(r"\*\*/|\*\*|\[!?\]?[^\]]*\]|.", re.DOTALL)
_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_TABLE = re.compile(
    r"\.((csv|tsv|tab|jsonl|ndjson)(\.(gz|bz2|xz|zst))?|parquet|pq|parq)\Z", re.IGNORECASE
)


class WalkTask(NamedTuple):
    """One piece of a walk: a folder relative to the root, alone or with its subfolders."""

    folder: str
    deep: bool


def is_junk(name: str) -> bool:
    """Return whether a name is that of a hidden or system file or folder."""
    return name.startswith(".") or name.lower() in _JUNK_NAMES


def is_other(name: str, file_kind: FileKind = "images") -> bool:
    """Return whether the name of a file says that it is not of the wanted kind."""
    if file_kind == "records":
        return claims_other(name)
    if file_kind in ("rows", "any"):
        return file_kind == "rows" and not _TABLE.search(name)
    return os.path.splitext(name)[1].lower() in _OTHER_SUFFIXES


def escape_name(text: str) -> str:
    """Return a path with ``%`` and each byte that is not UTF-8 percent-escaped."""
    return urllib.parse.quote_from_bytes(os.fsencode(text), safe=_NOT_ESCAPED)


def make_key(relative: str) -> str:
    """Return the key of a path relative to the root: NFC-normalised."""
    return unicodedata.normalize("NFC", relative)


def is_utf8(text: str) -> bool:
    """Return whether a path is valid UTF-8 (undecodable bytes are surrogates)."""
    return text.encode(errors="ignore").decode() == text


def leads_outside(path: str, root: str) -> bool:
    """Return whether the target of a local path is outside a folder."""
    real_root = os.path.realpath(root)
    return os.path.commonpath((os.path.realpath(path), real_root)) != real_root


def check_apart(source: str, output: str) -> None:
    """Check that an output is not inside a folder or glob: the next build would match its files.

    Args:
        source: The value of ``--input``.
        output: The value of ``--output``.

    Raises:
        UsageError: It is.
    """
    real, inner = (resolve_links(absolute(path)) for path in (source, output))
    glob = re.search(r"[*?\[]", real.split("://", 1)[-1]) is not None
    above = join(inner, "").startswith(join(real, ""))
    if above or (
        glob and inner.startswith(glob_root(real)) and glob_folders(real).fullmatch(inner)
    ):
        where = "is the input" if inner == real else f"is inside --input={source}"
        raise UsageError(f"--output={output} {where}: choose a folder outside it.")


def glob_root(pattern: str) -> str:
    """Return the longest literal folder of a glob."""
    names = pattern.split("/")
    magic = next(i for i, name in enumerate(names) if re.search(r"[*?\[]", name))
    root = "/" if pattern.startswith("/") else "."
    return "/".join(names[:magic]) or root


def glob_regex(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a glob: ``*`` and ``?`` stop at ``/``, ``**`` does not."""
    return re.compile(_translate(_GLOB_TOKEN.findall(pattern)), re.DOTALL)


def glob_folders(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for the folders below which a glob may match files."""
    tokens = _GLOB_TOKEN.findall(pattern)
    deep = next((i for i, token in enumerate(tokens) if token.startswith("**")), len(tokens))
    texts = [_translate(tokens[:i]) for i in range(deep) if tokens[i] == "/"]
    texts += [_translate(tokens[:deep]) + ".*"] * (deep < len(tokens))
    return re.compile("|".join(texts), re.DOTALL)


def _translate(tokens: Iterable[str]) -> str:
    out = []
    for token in tokens:
        if token in _WILDCARDS:
            out.append(_WILDCARDS[token])
        elif len(token) > 1:  # fnmatch translates unusual ranges; a set never matches a separator
            out.append(f"(?!/)(?:{fnmatch.translate(token)[:-2]})")
        else:
            out.append(re.escape(token))
    return "".join(out)


def folder_names(root: str) -> list[str]:
    """Return the names of the visible folders in a folder; see ``list_names``."""
    return list_names(root)[0]


def list_names(root: str) -> tuple[list[str], list[str]]:
    """Return the names of the visible folders and files in a folder; none if it cannot be listed.

    Of an object store, only those among the first entries are returned.
    """
    if scheme_of(root):
        listed = itertools.islice(open_storage(root).list_dir(root), _MAX_LISTED)
        entries = [(entry.path.rpartition("/")[2], entry.kind == "dir") for entry in listed]
    else:
        entries = []
        with contextlib.suppress(OSError):
            entries = [(entry.name, _is_dir(entry)) for entry in _scan(root)]
    visible = [(name, is_dir) for name, is_dir in entries if name and not is_junk(name)]
    folders = [name for name, is_dir in visible if is_dir]
    return folders, [name for name, is_dir in visible if not is_dir]


def first_level(root: str) -> Iterator[WalkTask]:
    """Yield the pieces of a walk: the files of the root, and each folder in it."""
    if scheme_of(root):
        yield WalkTask("", deep=False)
        for entry in open_storage(root).list_dir(root):
            if entry.kind == "dir":
                yield WalkTask(entry.path.rsplit("/", 1)[-1] or "/", deep=True)
        return
    try:
        names = _list_folders(root)
    except OSError:  # the walk reports it, unless the folder can be listed by then
        yield WalkTask("", deep=True)
        return
    yield WalkTask("", deep=False)
    for name in names:
        # Names cross a shuffle as text: undecodable bytes with a reversible escape.
        yield WalkTask(os.fsencode(name).decode("latin-1"), deep=True)


class PathFilter(NamedTuple):
    """Functions of a path relative to the root.

    Attributes:
        file: Returns whether a file is matched.
        folder: Returns whether files below a folder may be matched.
    """

    file: Callable[[str], bool]
    folder: Callable[[str], bool]


_ALL = PathFilter(lambda _: True, lambda _: True)


def walk(
    root: str,
    task: WalkTask,
    *,
    follow_links: bool,
    file_kind: FileKind = "images",
    matches: PathFilter = _ALL,
    prefix: str = "",
) -> Iterator[Match]:
    """Walk one piece of a folder; yield references, links and counts.

    A link to a file or folder that the walk finds by its real path too is a duplicate. Of the
    links in one piece to any other folder, the first is entered. Links that lead outside the root
    need ``follow_links``.

    Args:
        root: A local folder, or a folder's URI.
        task: The piece.
        follow_links: Whether links may lead outside the root.
        file_kind: Kind of files that are inputs; other files are skipped, by their names.
        matches: Which files are matched; by default all.
        prefix: Text before the path relative to the root in all keys.

    Raises:
        InputError: A folder cannot be listed.
    """
    if scheme_of(root):
        yield from _walk_objects(root, task, file_kind, matches, prefix)
        return
    folder = os.fsdecode(task.folder.encode("latin-1"))
    if folder and not matches.folder(folder):
        return
    try:
        walker = _LocalWalk(root, follow_links, file_kind, matches, prefix)
        yield from walker.walk(folder, walker.real_path(folder), deep=task.deep)
    except PermissionError as error:
        escaped = escape_name(error.filename or root)
        raise InputError(
            f"The folder {escaped} cannot be listed, and all its files would be missing: give "
            "this user the permission to read it, or set --input to a glob that leaves it out."
        ) from error
    except OSError as error:  # the disk fails, or a folder was moved or deleted meanwhile
        path, why = escape_name(error.filename or root), error.strerror
        raise InputError(
            f"The folder {path} cannot be listed ({why}), and all its files would be missing: run "
            "again when it is there, and nothing moves or deletes folders of the input."
        ) from error


def _list_folders(root: str) -> list[str]:
    return [folder.name for folder in _scan(root) if _is_dir(folder) and not is_junk(folder.name)]


def _scan(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: os.fsencode(entry.name))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


class _LocalWalk:
    def __init__(
        self, root: str, follow_links: bool, file_kind: FileKind, matches: PathFilter, prefix: str
    ) -> None:
        self.root, self.prefix = root, prefix
        self.real_root = os.path.realpath(root)
        self.follow_links = follow_links
        self.file_kind: FileKind = file_kind
        self.matches = matches
        self.entered: set[str] = set()  # real paths of folders that were entered by a link

    def real_path(self, relative: str) -> str:
        """Return the real path of a file or folder, unless links lead to it."""
        if relative:
            return os.path.join(self.real_root, relative)
        return self.real_root

    def walk(self, folder: str, real: str, *, deep: bool) -> Iterator[Match]:
        """Yield the contents of a folder.

        Args:
            folder: Its path relative to the root.
            real: Its real path, unless it is a link itself.
            deep: Whether to enter its subfolders.
        """
        path = os.path.join(self.root, folder) if folder else self.root
        if folder and os.path.islink(path):
            real = os.path.realpath(path)
            unused = self._unused_link(path, folder, real)
            if unused is not None:
                yield unused
                return
        linked = real != self.real_path(folder)
        if linked and real in self.entered:
            return
        if linked:
            self.entered.add(real)
        for entry in _scan(path):
            relative = f"{folder}/{entry.name}" if folder else entry.name
            entry_real = os.path.join(real, entry.name)
            if _is_dir(entry) and not is_junk(entry.name):
                if deep and self.matches.folder(relative):
                    yield from self.walk(relative, entry_real, deep=True)
            elif self.matches.file(relative):
                match = self._file(entry, relative, entry_real)
                if linked and isinstance(match, InputRef):
                    yield Linked(escape_name(entry_real), match)
                else:
                    yield match

    def _unused_link(self, path: str, folder: str, real: str) -> InputRef | MatchCounts | None:
        """Return the reject or duplicate for a folder link that is not followed."""
        rejected = self._reject_link(path, folder)
        if rejected is None and self.matches is _ALL:
            if self._is_walked(real) or real in self.entered:
                return DUPLICATE
            return None
        return rejected  # of a glob, only some files of the folder may be matched by real paths

    def _is_walked(self, real: str) -> bool:
        """Return whether the walk of the root gets to a real path without links."""
        if real == self.real_root:
            return True
        if not real.startswith(os.path.join(self.real_root, "")):
            return False
        relative = os.path.relpath(real, self.real_root)
        return not any(map(is_junk, relative.split(os.sep)))

    def _is_matched(self, real: str) -> bool:
        """Return whether a real file is matched without links."""
        if not self._is_walked(real) or is_other(real, self.file_kind) or not is_utf8(real):
            return False
        return self.matches.file(os.path.relpath(real, self.real_root))

    def _reject_link(self, path: str, relative: str) -> InputRef | None:
        """Return a rejected reference if a link leads outside the root and that is not allowed."""
        if self.follow_links or not leads_outside(path, self.root):
            return None
        return self._ref(relative, path).rejected(*OUTSIDE_ROOT)

    def _ref(self, relative: str, path: str, status: os.stat_result | None = None) -> InputRef:
        if not is_utf8(relative):
            name = escape_name(relative)
            return InputRef(self.prefix + name, join(self.root, name)).rejected(
                "bad_name", "the name is not valid UTF-8: rename the file"
            )
        ref = InputRef(self.prefix + make_key(relative), path)
        if status is None:
            return ref
        version, ctime = str(status.st_mtime_ns), status.st_ctime_ns
        return ref._replace(size=status.st_size, version=version, ctime=ctime)

    def _file(self, entry: os.DirEntry[str], relative: str, real: str) -> InputRef | MatchCounts:
        if is_junk(entry.name) or is_other(entry.name, self.file_kind):
            return count_skipped(self.prefix + escape_name(relative))
        if entry.is_symlink():
            rejected = self._reject_link(entry.path, relative)
            if rejected is not None:
                return rejected
        try:
            status = entry.stat()
        except FileNotFoundError:
            why = "the link has no target" if entry.is_symlink() else "the file was deleted"
            return self._ref(relative, entry.path).rejected("not_found", why)
        except OSError as error:  # a link to itself, or a name too long
            return self._ref(relative, entry.path).rejected("not_found", str(error.strerror))
        ref = self._ref(relative, entry.path, status)
        if not ref.error and not stat.S_ISREG(status.st_mode):
            return ref.rejected("not_a_file", "a pipe, socket or device")
        if entry.is_symlink():
            real = os.path.realpath(entry.path)
        if real != self.real_path(relative) and self._is_matched(real):
            return DUPLICATE
        return ref


def _walk_objects(
    root: str, task: WalkTask, file_kind: FileKind, matches: PathFilter, prefix: str
) -> Iterator[InputRef | MatchCounts]:
    storage = open_storage(root)
    folder = join(root, task.folder) if task.folder else root.rstrip("/")
    entries = storage.walk(folder) if task.deep else storage.list_dir(folder)
    for entry in entries:
        if entry.kind != "file":
            continue
        relative = entry.path[len(root.rstrip("/")) + 1 :]
        if not matches.file(relative):
            continue
        if any(map(is_junk, relative.split("/"))) or is_other(relative, file_kind):
            yield count_skipped(prefix + relative)
        else:
            yield InputRef(prefix + make_key(relative), entry.path, entry.size, entry.version)


def input_outside_root(pattern: object, root: object) -> UsageError:
    """Return the error for an input that is not inside ``--root``."""
    return UsageError(f"--input={pattern} is not inside --root={root}: choose a root above it.")
