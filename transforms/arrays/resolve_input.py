"""Finding arrays: what an input means, and whether its arrays are features of the same examples."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import Entry, join, open_storage
from shardmill.transforms.arrays.files import ArrayFile, npz_names, open_npy, open_npz
from shardmill.transforms.arrays.labels import AUTOMATIC, Labels, check_labels, is_label_like
from shardmill.transforms.match.transform import absolute
from shardmill.transforms.match.walk import is_junk, is_utf8, make_key

X, Y = "x", "label"  # features of a single .npy and of its --labels
_MAX_ARRAYS = 1_000
_MAX_RECORD = 1 << 30  # bytes; a tf.train.Example cannot have 2 GiB
_SHOWN = 5
_REMEDY = "give one .npy, one .npz or a folder of .npy files"
_REMEDIES = {"input": _REMEDY, "labels": "give one .npy"}


@dataclass(frozen=True)
class ArraysQuery:
    """What is asked for.

    Attributes:
        input: A .npy or .npz file, or a folder of .npy files.
        root: Folder that the key is relative to; empty for the one that holds the input.
        labels: A .npy of labels, or empty.
        label: Array that is the label; None for the one that is called so; empty for none.
        arrays: Names of those that are taken; empty for all.
        exclude: A folder that is not looked at: the output, when it lies in the input.
    """

    input: str
    root: str = ""
    labels: str = ""
    label: str | None = None
    arrays: tuple[str, ...] = ()
    exclude: str = ""


@dataclass(frozen=True)
class FoundArrays:
    """Arrays that are features of the same examples.

    Attributes:
        key: Of the input: what tells its rows from those of other inputs.
        root: Folder that the key is relative to.
        arrays: The features, sorted by name, the label not among them.
        label: The label, if there is one.
        files: A ref for each file.
        warnings: What the manifest should say.
    """

    key: str
    root: str
    arrays: tuple[ArrayFile, ...]
    label: Labels | None
    files: tuple[InputRef, ...]
    warnings: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self._all[0].rows

    @property
    def row_bytes(self) -> int:
        """Bytes of the arrays of one example."""
        return sum(array.row_bytes for array in self._all)

    @property
    def _all(self) -> tuple[ArrayFile, ...]:
        return self.arrays + ((self.label.array,) if self.label else ())


@dataclass(frozen=True)
class _Source:
    """Arrays by name, none of them opened yet."""

    open: dict[str, Callable[[], ArrayFile]]
    others: tuple[str, ...] = ()
    named: bool = True  # whether the input names its arrays


def find_arrays(query: ArraysQuery) -> FoundArrays:
    """Returns the arrays of an input, their headers read and their labels looked at.

    Raises:
        InputError: Nothing is there, an array is unusable, or they do not belong together.
        UsageError: An option names what is not there, or two exclude each other.
    """
    if query.labels and query.label:
        raise UsageError(
            f"--labels={query.labels} and --label={query.label} exclude each other: give one."
        )
    path, entry = _entry(query.input, "input")
    source = _source(entry, query)
    names = _chosen(source, query)
    opened = {name: source.open[name]() for name in names}
    label = _label(query, opened, source)
    arrays = [array for name, array in sorted(opened.items()) if not label or label.name != name]
    if not arrays:
        raise InputError(
            f"--input={query.input} has no array beside the label {names[0]!r}: add one, or give "
            "--label= to take it as a plain array."
        )
    every = [*arrays, label] if label else arrays
    _check_arrays(arrays, query)
    _check_rows(every, query)
    key, root = _key(path, query)
    checked = check_labels(label) if label else None
    if checked and checked.texts and checked.text_name in opened:
        raise InputError(
            f"--input={query.input} has an array {checked.text_name!r}, the name that the texts of "
            f"{checked.name!r} get: rename it."
        )
    left = ", ".join(sorted(source.others)[:_SHOWN])
    more = len(source.others) - _SHOWN
    warning = f"left out, since they are no .npy: {left}" + (f" and {more:,} more" * (more > 0))
    return FoundArrays(
        key, root, tuple(arrays), checked, _refs(every, path, key), (warning,) if left else ()
    )


def _entry(text: str, flag: str) -> tuple[str, Entry]:
    remedy = _REMEDIES[flag]
    if not text:
        raise UsageError(f"--{flag} is empty: {remedy}.")
    path = absolute(text)
    entry = open_storage(path).stat(path)
    if entry is None:
        glob = " (it is no pattern here)" if re.search(r"[*?]", text) else ""
        raise InputError(f"--{flag}={text} does not exist{glob}: {remedy}.")
    if entry.kind == "other":
        raise InputError(f"--{flag}={text} is a pipe, socket or device, not a file: {remedy}.")
    return path, entry


def _source(entry: Entry, query: ArraysQuery) -> _Source:
    """Returns what an input holds: a folder's files, an .npz's members, or a .npy."""
    shown = f"--input={query.input}"
    if entry.kind == "dir":
        return _folder(entry.path, shown, query.exclude)
    if not entry.path.lower().endswith(".npz"):
        return _Source({X: partial(open_npy, entry, X, shown)}, named=False)
    arrays, others = npz_names(entry, shown)
    if not arrays:
        raise InputError(f"{shown} holds no arrays: save some with numpy.savez.")
    return _Source({name: partial(open_npz, entry, name, shown) for name in arrays}, tuple(others))


def _folder(path: str, shown: str, exclude: str) -> _Source:
    """Returns the .npy files directly in a folder; anything that may mean otherwise is refused."""
    arrays: dict[str, Callable[[], ArrayFile]] = {}
    others = []
    for entry in open_storage(path).list_dir(path):
        name = entry.path.rstrip("/").rpartition("/")[2]
        if is_junk(name) or entry.path.rstrip("/") == exclude:
            continue
        if entry.kind == "file" and name.endswith(".npy"):
            if not is_utf8(name):
                raise InputError(f"{shown} holds {name!r}, which is not UTF-8: rename it.")
            arrays[name.removesuffix(".npy")] = partial(
                open_npy, entry, name.removesuffix(".npy"), f"{shown}, {name}"
            )
        elif entry.kind == "dir" or name.endswith(".npz"):
            what = "the folder" if entry.kind == "dir" else "the archive"
            raise InputError(
                f"{shown} holds {what} {name!r}: a folder's .npy files are the features of one "
                "dataset, one array each with the examples first; for one file an example join "
                f"them with numpy.stack, else {_REMEDY}."
            )
        else:
            others.append(name)
    if not arrays:
        raise InputError(f"{shown} holds no .npy files: {_REMEDY}.")
    return _Source(arrays, tuple(others))


def _chosen(source: _Source, query: ArraysQuery) -> list[str]:
    """Returns the names of the arrays that are opened."""
    wanted = [*query.arrays, *([query.label] if query.label else [])]
    for flag, name in [*(("arrays", name) for name in query.arrays), ("label", query.label)]:
        if name and name not in source.open:
            raise UsageError(
                f"--{flag}={name} is no array: --input={query.input} has {_listed(source.open)}."
            )
    names = sorted(set(wanted)) if query.arrays else sorted(source.open)
    if len(names) > _MAX_ARRAYS:
        raise InputError(
            f"--input={query.input} has {len(names):,} arrays, over {_MAX_ARRAYS:,}: one array "
            "holds one feature of all examples; for one array an example join them with "
            "numpy.stack."
        )
    if query.label and not source.named:
        raise UsageError(
            f"--label={query.label} names a member of an .npz or a folder: for one .npy give "
            "--labels=FILE.npy."
        )
    return names


def _label(query: ArraysQuery, opened: dict[str, ArrayFile], source: _Source) -> ArrayFile | None:
    """Returns the array that is the label, if any."""
    if query.labels:
        if Y in opened:
            raise InputError(
                f"--input={query.input} has an array {Y!r}, the name that --labels gets: leave one "
                "of them out."
            )
        _, entry = _entry(query.labels, "labels")
        if entry.kind == "dir" or entry.path.lower().endswith(".npz"):
            raise UsageError(f"--labels={query.labels} is no .npy file: give a 1-D array.")
        return open_npy(entry, Y, f"--labels={query.labels}")
    if query.label is not None or not source.named:
        return opened[query.label] if query.label else None
    likely = [name for name in AUTOMATIC if name in opened and is_label_like(opened[name])]
    return opened[likely[0]] if len(likely) == 1 else None


def _check_arrays(arrays: Sequence[ArrayFile], query: ArraysQuery) -> None:
    """Refuses arrays of texts, and records that are too large."""
    for array in arrays:
        if array.is_text:
            raise InputError(
                f"{array.shown} holds texts ({array.descr}), which are no numbers: name it with "
                "--label if it is the label, or leave it out with --arrays."
            )
    size = sum(array.row_bytes for array in arrays)
    if size > _MAX_RECORD:
        raise InputError(
            f"One example of --input={query.input} takes {size:,} bytes, over {_MAX_RECORD:,}, "
            "which no record can hold: make the first axis the examples."
        )


def _check_rows(arrays: Sequence[ArrayFile], query: ArraysQuery) -> None:
    """Refuses arrays that are not of the same examples, or of none.

    Raises:
        InputError: They are not.
    """
    first = arrays[0]
    other = next((array for array in arrays if array.rows != first.rows), None)
    if other is not None:
        raise InputError(
            f"{first.shown} has {first.rows:,} examples and {other.shown} has {other.rows:,}: the "
            "first axes must be equal; mend them, leave one out with --arrays, or join pieces of "
            "one array with numpy.concatenate."
        )
    if not first.rows:
        raise InputError(
            f"--input={query.input} holds no examples (shape {first.shape}): give at least one."
        )


def _key(path: str, query: ArraysQuery) -> tuple[str, str]:
    """Returns the key of the input, and the root that it is relative to."""
    folder, name = posixpath.split(path.rstrip("/"))
    root = absolute(query.root) if query.root else folder or "/"
    top = root.rstrip("/") + "/"
    if not path.startswith(top):
        raise UsageError(
            f"--input={query.input} does not lie under --root={query.root}: choose a root above it."
        )
    key = path[len(top) :] if query.root else name
    if not is_utf8(key):
        raise InputError(f"--input={query.input} is not named in UTF-8: rename it.")
    return make_key(key), root


def _refs(arrays: Iterable[ArrayFile], path: str, key: str) -> tuple[InputRef, ...]:
    """Returns a ref for each file; labels from elsewhere are known by their flag."""
    refs = {}
    for array in arrays:
        inside = array.uri == path or array.uri.startswith(join(path, ""))
        name = make_key(key + array.uri[len(path) :]) if inside else "--labels"
        refs[array.uri] = InputRef(name, array.uri, array.size, array.version)
    return tuple(refs[uri] for uri in sorted(refs))


def _listed(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return ", ".join(map(repr, listed[:_SHOWN])) + more


__all__ = ["ArraysQuery", "FoundArrays", "find_arrays"]
