"""Resolve --input to the arrays of a dataset: features of the same examples, and their label.

Integers that are labels are kept as they are, texts get class ids.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from shardmill.schemas.errors import InputError, UsageError, format_names
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import InputRef
from shardmill.schemas.storage import Entry, absolute, join, open_storage
from shardmill.transforms.match.labels import has_control, sort_labels
from shardmill.transforms.match.walk import input_outside_root, is_junk, is_utf8, make_key
from shardmill.transforms.sources.arrays.array_file import (
    ArrayFile,
    npz_members,
    open_npy,
    open_npz,
    stream_values,
)

DEFAULT_NAMES = ("y", "label", "labels")  # arrays that are the label where --label is not given
LABEL, LABEL_TEXT = "label", "label/text"  # sources of features in the manifest
MAX_TEXTS = 100_000
_CHUNK_VALUES = 1 << 20
_CHUNK_BYTES = 64 << 20
_MAX_LABEL = np.iinfo(np.int64).max


def is_label_like(array: ArrayFile) -> bool:
    """Return whether an array has one integer, boolean or text for each example."""
    return array.dtype.kind in "biuSU" and _is_column(array)


@dataclass(frozen=True)
class ArrayLabels:
    """The labels of the examples.

    Attributes:
        array: The array of labels.
        texts: All labels in the order of their class ids, where they are texts; else empty.
    """

    array: ArrayFile
    texts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the feature that holds the integer or class id."""
        return self.array.name

    @property
    def text_name(self) -> str:
        """Name of the feature that holds the text, where labels are texts."""
        return f"{self.array.name}/text"

    def values(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the labels of rows.

        Args:
            raw: The rows, little-endian; uint8, shape [n, row_bytes].

        Returns:
            int64, or texts in the array's dtype; shape [n].
        """
        dtype = self.array.dtype.newbyteorder("<")
        values: npt.NDArray[Any] = raw.view(dtype).reshape(-1)
        if self.texts:
            return values
        return values.astype(np.int64)


def check_labels(array: ArrayFile) -> ArrayLabels:
    """Read all values of an array and return them as labels.

    Raises:
        InputError: There are several values for each example, or a value is not an integer in the
            range of int64, or not a text that can be a label.
    """
    if not _is_column(array):
        shape = str(array.shape)[:60]
        raise InputError(
            f"{array.source} has the shape {shape}, and labels are one value for each example, "
            f"({array.rows:,},): for one-hot labels save y.argmax(axis=1)."
        )
    if array.dtype.kind in "fc":
        raise InputError(
            f"{array.source} holds labels as {array.dtype.name}, not as integers: save "
            "y.astype('int64'), or pass no label if it is a target to predict."
        )
    if array.is_text:
        return ArrayLabels(array, sort_labels(_distinct_texts(array)))
    if array.dtype.str[1:] != "u8":
        return ArrayLabels(array)
    # Of integers only uint64 has values that overflow; other labels are read with their rows alone.
    for first, values in _chunks(array):
        if int(values.max(initial=0)) > _MAX_LABEL:
            row = first + int(values.argmax())
            raise InputError(
                f"{array.source} has the label {values.max()} at row {row:,}, which overflows "
                "int64: use smaller class ids."
            )
    return ArrayLabels(array)


def _is_column(array: ArrayFile) -> bool:
    return array.shape in ((array.rows,), (array.rows, 1))


def _distinct_texts(array: ArrayFile) -> set[str]:
    """Return the distinct labels.

    Raises:
        InputError: A value cannot be a label, or there are too many distinct ones.
    """
    distinct: set[str] = set()
    for first, values in _chunks(array):
        for value in np.unique(values).tolist():
            text, problem = decode_label(value)
            if problem:
                row = first + int(np.flatnonzero(values == value)[0])
                raise InputError(
                    f"{array.source} has the label {value!r} at row {row:,}, which {problem}: give "
                    "each example a label in plain UTF-8."
                )
            distinct.add(text)
        if len(distinct) > MAX_TEXTS:
            raise InputError(
                f"{array.source} has more than {MAX_TEXTS:,} distinct texts, too many for classes: "
                "save integers, or give another label."
            )
    return distinct


def decode_label(value: bytes | str) -> tuple[str, str]:
    """Return the text of a label, and why it cannot be one or an empty text."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
        text.encode()
    except UnicodeError:
        return "", "is not UTF-8"
    if not text:
        return "", "is empty"
    problem = "has a control character" if has_control(text) else ""
    return text, problem


def _chunks(array: ArrayFile) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield consecutive values, shape [n] or [n, 1], with the row of the first."""
    size = array.row_bytes
    if not size:  # texts of length 0
        yield 0, np.zeros(min(1, array.rows), array.dtype)
        return
    step = max(1, min(_CHUNK_VALUES, _CHUNK_BYTES // size))
    for number, data in enumerate(stream_values(array, step * size)):
        yield number * step, np.frombuffer(data, array.dtype)


X, Y = "x", "label"  # feature names of a single .npy file and of its --labels
_MAX_ARRAYS = 1_000
_MAX_FORTRAN_BYTES = 256 << 20  # that are read into memory
_MAX_RECORD_BYTES = 1 << 30  # protobuf messages are limited to 2 GiB
_FIX = "give one .npy, one .npz or a folder of .npy files"


@dataclass(frozen=True)
class ArraysQuery:
    """The options that name the arrays.

    Attributes:
        input: A .npy or .npz file, or a folder of .npy files.
        root: Folder that the key is relative to; empty for the folder that contains the input.
        labels: A .npy file of labels, or empty.
        label: Name of the array that is the label; empty for none; None to find it by its name.
        arrays: Names of the arrays to write; empty for all.
    """

    input: str
    root: str = ""
    labels: str = ""
    label: str | None = None
    arrays: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputArrays:
    """The arrays of an input, all of the same examples.

    Attributes:
        key: Key of the input, part of the identity of its rows.
        root: Folder that the key is relative to.
        arrays: The features without the label, sorted by name.
        label: The label, if there is one.
        files: A reference to each file.
        warnings: Warnings for the manifest.
    """

    key: str
    root: str
    arrays: tuple[ArrayFile, ...]
    label: ArrayLabels | None
    files: tuple[InputRef, ...]
    warnings: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.every[0].rows

    @property
    def row_bytes(self) -> int:
        """Bytes of the arrays of one example."""
        return sum(array.row_bytes for array in self.every)

    @property
    def input_id(self) -> str:
        """Identity of the files as 32 hexadecimal digits."""
        return f"{sum(ref.digest() for ref in self.files) % (1 << 128):032x}"

    @property
    def ctime(self) -> int:
        """Digest of the ctimes of the files."""
        return sum(ref.ctime_digest() for ref in self.files) % (1 << 63)

    @property
    def layout(self) -> str:
        """Digest of the names, types and shapes of the arrays."""
        headers = [(array.name, array.dtype.str, array.shape) for array in self.every]
        return blake3(repr(headers).encode()).hexdigest()

    @property
    def every(self) -> tuple[ArrayFile, ...]:
        """The features, then the label."""
        if self.label is None:
            return self.arrays
        return (*self.arrays, self.label.array)


class _Source(NamedTuple):
    """The arrays of an input by name, and how to open each.

    Attributes:
        open: Opens an array, by its name.
        others: Files or members that are not .npy files.
        named: Whether the input names its arrays.
    """

    open: dict[str, Callable[[], ArrayFile]]
    others: Sequence[str] = ()
    named: bool = True


def resolve_input(query: ArraysQuery) -> InputArrays:
    """Return the arrays of an input; reads all headers and all labels.

    Raises:
        InputError: The input does not exist, an array cannot be used, or the arrays have different
            numbers of examples.
        UsageError: An option names an array that does not exist, or two options conflict.
    """
    if query.labels and query.label:
        raise UsageError(
            f"--labels={query.labels} and --label={query.label} cannot be combined: give one."
        )
    path, entry = _entry(query.input, "input", _FIX)
    source = _source(entry, query)
    names = _chosen(source, query)
    opened = {name: source.open[name]() for name in names}
    label = _label(query, opened, source)
    arrays = [array for name, array in sorted(opened.items()) if not label or label.name != name]
    if not arrays:
        raise InputError(
            f"--input={query.input} has only the label {names[0]!r}: add an array, or give "
            "--label= to use it as a plain array."
        )
    every = [*arrays, label] if label else arrays
    _check_arrays(arrays, query)
    _check_rows(every, query)
    key, root = _key(path, query)
    checked = check_labels(label) if label else None
    if checked and checked.texts and checked.text_name in opened:
        raise InputError(
            f"--input={query.input} has an array {checked.text_name!r}, which is the name of the "
            f"texts of {checked.name!r}: rename it."
        )
    others = format_names(sorted(source.others))
    warnings = (f"skipped, not .npy files: {others}",) if others else ()
    return InputArrays(key, root, tuple(arrays), checked, _refs(every, path, key), warnings)


def _entry(text: str, flag: str, fix: str) -> tuple[str, Entry]:
    """Return the absolute path of an input, and its entry."""
    if not text:
        raise UsageError(f"--{flag} is empty: {fix}.")
    path = absolute(text)
    entry = open_storage(path).stat(path)
    if entry is None:
        glob = " (patterns are not supported here)" if re.search(r"[*?]", text) else ""
        raise InputError(f"--{flag}={text} does not exist{glob}: {fix}.")
    if entry.kind == "other":
        raise InputError(f"--{flag}={text} is a pipe, socket or device, not a file: {fix}.")
    return path, entry


def _source(entry: Entry, query: ArraysQuery) -> _Source:
    """Return the arrays of an input: of a folder, an .npz file or a .npy file."""
    flag = f"--input={query.input}"
    if entry.kind == "dir":
        return _folder(entry.path, flag)
    if not entry.path.lower().endswith(".npz"):
        return _Source({X: partial(open_npy, entry, X, flag)}, named=False)
    arrays, others = npz_members(entry, flag)
    if not arrays:
        raise InputError(f"{flag} holds no arrays: save some with numpy.savez.")
    return _Source({name: partial(open_npz, entry, name, flag) for name in arrays}, others)


def _folder(path: str, flag: str) -> _Source:
    """Return the .npy files directly in a folder.

    Raises:
        InputError: The folder holds other folders or .npz files, or no .npy files.
    """
    arrays: dict[str, Callable[[], ArrayFile]] = {}
    others = []
    for entry in open_storage(path).list_dir(path):
        name = entry.path.rstrip("/").rpartition("/")[2]
        if is_junk(name):
            continue
        if entry.kind != "dir" and name.endswith(".npy"):
            if not is_utf8(name):
                raise InputError(f"{flag} holds {name!r}, which is not UTF-8: rename it.")
            arrays[name.removesuffix(".npy")] = partial(
                _open_file, entry, name.removesuffix(".npy"), f"{flag}, {name}"
            )
        elif entry.kind == "dir" or name.endswith(".npz"):
            what = "the folder" if entry.kind == "dir" else "the archive"
            raise InputError(
                f"{flag} holds {what} {name!r}: a folder's .npy files are the features of one "
                "dataset, one array each with the examples first; for one file an example join "
                "them with numpy.stack, else give one .npy, one .npz or a folder of .npy files."
            )
        else:
            others.append(name)
    if not arrays:
        raise InputError(
            f"{flag} holds no .npy files: give one .npy, one .npz or a folder of .npy files."
        )
    return _Source(arrays, others)


def _open_file(entry: Entry, name: str, source: str) -> ArrayFile:
    """Open a .npy file of a folder; a link to nothing, or a pipe, is an error."""
    if entry.kind == "other":
        _entry(entry.path, "input", "replace it by a file, or exclude it with --arrays")
    return open_npy(entry, name, source)


def _chosen(source: _Source, query: ArraysQuery) -> list[str]:
    """Return the names of the arrays to open."""
    requested = [("arrays", name) for name in query.arrays]
    if query.label:
        requested.append(("label", query.label))
    for flag, name in requested:
        if name and name not in source.open:
            listed = format_names(sorted(source.open))
            raise UsageError(
                f"--{flag}={name} is not an array: --input={query.input} has {listed}."
            )
    names = sorted(source.open)
    if query.arrays:
        names = sorted({name for _, name in requested})
    if len(names) > _MAX_ARRAYS:
        raise InputError(
            f"--input={query.input} has {plural(len(names), 'array')}, over {_MAX_ARRAYS:,}: one "
            "array holds one feature of all examples; for one array an example join them with "
            "numpy.stack."
        )
    if query.label and not source.named:
        raise UsageError(
            f"--label={query.label} names a member of an .npz or a folder: for one .npy give "
            "--labels=FILE.npy."
        )
    return names


def _label(query: ArraysQuery, opened: dict[str, ArrayFile], source: _Source) -> ArrayFile | None:
    """Return the array that is the label, or None."""
    if query.labels:
        if Y in opened:
            raise InputError(
                f"--input={query.input} has an array {Y!r}, which is the name of --labels: give "
                "only one of them."
            )
        _, entry = _entry(query.labels, "labels", "give one .npy")
        if entry.kind == "dir" or entry.path.lower().endswith(".npz"):
            raise UsageError(f"--labels={query.labels} is not a .npy file: give a 1-D array.")
        return open_npy(entry, Y, f"--labels={query.labels}")
    if query.label is not None or not source.named:
        if query.label:
            return opened[query.label]
        return None
    candidates = [name for name in DEFAULT_NAMES if name in opened and is_label_like(opened[name])]
    if len(candidates) == 1:
        return opened[candidates[0]]
    return None


def _check_arrays(arrays: Sequence[ArrayFile], query: ArraysQuery) -> None:
    """Reject arrays of texts, those that need too much memory, and records that are too large."""
    for array in arrays:
        if array.is_text:
            raise InputError(
                f"{array.source} holds texts ({array.dtype.str}), not numbers: name it with "
                "--label if it is the label, or exclude it with --arrays."
            )
        if array.fortran and array.is_stream and array.num_bytes > _MAX_FORTRAN_BYTES:
            raise InputError(
                f"{array.source} is in Fortran order and has {plural(array.num_bytes, 'byte')}, "
                "over 256 MiB: save numpy.ascontiguousarray(x), or a local .npy."
            )
    size = sum(array.row_bytes for array in arrays)
    if size > _MAX_RECORD_BYTES:
        raise InputError(
            f"One example of --input={query.input} takes {plural(size, 'byte')}, over the limit of "
            f"{_MAX_RECORD_BYTES:,} for a record: make the first axis the examples."
        )


def _check_rows(arrays: Sequence[ArrayFile], query: ArraysQuery) -> None:
    """Reject arrays with different numbers of examples, and arrays without examples."""
    first = arrays[0]
    other = next((array for array in arrays if array.rows != first.rows), None)
    if other is not None:
        raise InputError(
            f"{first.source} has {plural(first.rows, 'example')} and {other.source} has "
            f"{other.rows:,}: the first axes must be equal; exclude one with --arrays, or join the "
            "pieces of one array with numpy.concatenate."
        )
    if not first.rows:
        raise InputError(
            f"--input={query.input} holds no examples (shape {first.shape}): give at least one."
        )


def _key(path: str, query: ArraysQuery) -> tuple[str, str]:
    """Return the key of the input, and the root that it is relative to."""
    folder, name = posixpath.split(path.rstrip("/"))
    root = absolute(query.root) if query.root else folder or "/"
    top = root.rstrip("/") + "/"
    if not path.startswith(top):
        raise input_outside_root(pattern=query.input, root=query.root)
    key = path[len(top) :] if query.root else name
    if not is_utf8(key):
        raise InputError(f"--input={query.input} has a name that is not UTF-8: rename it.")
    return make_key(key), root


def _refs(arrays: Iterable[ArrayFile], path: str, key: str) -> tuple[InputRef, ...]:
    """Return a reference to each file; the key of a file outside the input is ``--labels``."""
    refs = {}
    for array in arrays:
        inside = array.uri == path or array.uri.startswith(join(path, ""))
        name = make_key(key + array.uri[len(path) :]) if inside else "--labels"
        refs[array.uri] = InputRef(name, array.uri, array.size, array.version, ctime=array.ctime)
    return tuple(refs[uri] for uri in sorted(refs))
