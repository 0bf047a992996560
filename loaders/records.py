"""Records: a split as a sequence of dicts of NumPy values, with random access."""

from __future__ import annotations

import copy
import difflib
import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, NamedTuple, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from shardmill.loaders.boxes import BOXES
from shardmill.loaders.caches import DiskCache
from shardmill.loaders.epochs import MixedEpochs
from shardmill.loaders.record_decoder import (
    Fill,
    RecordDecoder,
    default_values,
    output_names,
    select_features,
)
from shardmill.loaders.selection import Selection, ShardSlice
from shardmill.loaders.shards import Caches, ShardFiles
from shardmill.loaders.source import (
    LONG_NAMES,
    Source,
    id_of_several_labels,
    open_source,
    record_unlike_schema,
)
from shardmill.loaders.steps import to_int
from shardmill.schemas.arguments import check_arguments, unknown_value
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import (
    FormatError,
    ShardmillError,
    UsageError,
    format_names,
)
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.image_features import MASK
from shardmill.schemas.storage import map_ordered
from shardmill.schemas.user_warnings import warn_user

_LOCAL_THREADS, _REMOTE_THREADS = 2, 64  # that read ahead
_GROUP = 16  # indices that a thread reads in one call
Layout = Literal["HWC", "CHW"]
Transform = Callable[[dict[str, Any]], Any]
Numbers = Sequence[SupportsIndex] | npt.NDArray[Any]


class View(NamedTuple):
    """How records become examples.

    Attributes:
        decoder: Decodes serialized examples.
        supervised: Names of the inputs and of the label if examples are such pairs; else None.
        transform: Function that is applied to each example, or None.
        ids: Whether an example has its ``sample_id``.
    """

    decoder: RecordDecoder
    supervised: tuple[tuple[str, ...], str] | None
    transform: Transform | None
    ids: bool = False


@dataclass(frozen=True)
class MixNumbers:
    """Numbers in the source of the examples of a mix, which are computed when they are read."""

    epochs: MixedEpochs

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.epochs)

    def __iter__(self) -> Iterator[int]:
        """Yields all numbers."""
        return map(self.epochs.number, range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """Returns a number, or those of a slice."""
        if isinstance(index, slice):
            return self.epochs.numbers(np.arange(*index.indices(len(self))))
        return self.epochs.number(index if index >= 0 else index + len(self))


class ExampleKeyError(UsageError, KeyError):
    """A function that asks an example for a name that it has not."""


class Records:
    """The examples of a split by number; ``records[12345]`` is a dict.

    A data source for ``torch.utils.data.DataLoader`` and ``grain.MapDataset.source``: it may be
    pickled, forked and read by several threads. Memory use does not depend on the number of
    records. ``records[100:200]``, ``records[::2]`` and ``records[[1, 5]]`` are some of them, and
    ``a + b`` joins two selections of one dataset. Made by ``open_dataset``.

    Attributes:
        source: The opened dataset and its selection.
        view: How records become examples.
        files: The files of the shards.
        picks: Numbers of the examples in the source, if they are not all of it in its order: a
            range, or int64 of shape [examples]; else None.
    """

    def __init__(self, source: Source, view: View, caches: Caches) -> None:
        self.source = source
        self.view, self._caches = view, caches
        self.files = ShardFiles(source, caches)
        self.picks: range | npt.NDArray[np.int64] | None = None
        self._numbers: range | npt.NDArray[np.int64] | MixNumbers = range(len(source))
        if source.mix is not None:
            self._numbers = MixNumbers(source.mix.epochs)
        self._ends = list(accumulate(part.records for part in source.selection.parts))

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest."""
        return self.source.manifest

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the dataset in the order of class ids."""
        return self.source.manifest.labels

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self._numbers)

    def __repr__(self) -> str:
        """Returns the number of examples, the folder, the split and the features."""
        names = ", ".join(spec.name for spec in self.view.decoder.specs)
        split, picked = self.source.selection.split, "" if self.picks is None else "picked from "
        return f"<{len(self):,} examples of {self.source.folder} ({picked}{split}): {names}>"

    def __enter__(self) -> Self:
        """Returns the records; the end of the block closes their files."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the files."""
        self.close()

    def close(self) -> None:
        """Closes files and drops caches; reading opens them again."""
        self.files.close()

    def __add__(self, other: Records) -> Records:
        """Returns the examples of this selection, followed by another selection's.

        Raises:
            UsageError: They are of different datasets, or decoded differently.
        """
        if not isinstance(other, Records):
            return NotImplemented
        ours, theirs = self.source, other.source
        if ours.mix is not None or theirs.mix is not None:
            raise UsageError("records of a mix cannot be joined: name all datasets in one mix.")
        # By repr: NaN, the value of missing floats, is not equal to itself.
        if ours.folder != theirs.folder or repr(self.view) != repr(other.view):
            raise UsageError(
                f"records of {ours.folder} and {theirs.folder} cannot be joined: they must be of "
                "one dataset, and opened with the same options."
            )
        parts = (*ours.selection.parts, *theirs.selection.parts)
        joined = self._select(f"{ours.selection.split}+{theirs.selection.split}", parts)
        if self.picks is not None or other.picks is not None:
            numbers = (*self._numbers, *(len(ours) + number for number in other._numbers))
            return joined.pick(np.array(numbers, np.int64))
        return joined

    @overload
    def __getitem__(self, index: slice | Numbers) -> Records: ...
    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        """Returns an example, or the records of a slice or list.

        Args:
            index: Number of the example; negative numbers count from the end. Or a slice, or
                several numbers in any order, or a bool for each example.

        Raises:
            IndexError: The index is out of range.
            InputError: The shard does not match the manifest, or the record is damaged.
            UsageError: A list has other values.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1 and isinstance(self._numbers, range) and self.picks is None:
                return self._slice(start, stop)
            return self.pick(self._numbers[index])
        if type(index) is not int and (isinstance(index, list | tuple) or np.ndim(index)):
            return self.pick(self._listed(index))
        return self._example(*self._place(index))

    def pick(self, numbers: range | npt.NDArray[np.int64]) -> Records:
        """Returns some records of the source by number, each once or repeated."""
        picked = copy.copy(self)  # with the same open files and caches
        picked.picks = picked._numbers = numbers  # noqa: SLF001 - of the same class
        return picked

    def keep(self, kept: npt.NDArray[np.bool_]) -> Records:
        """Returns some of the records; of a mix a mix of some records of its datasets.

        Args:
            kept: Whether a record of the source is kept, by its number in it.

        Raises:
            UsageError: None of a dataset of a mix is kept.
        """
        mix = self.source.mix
        if mix is None or self.picks is not None:
            return self[kept if self.picks is None else kept[self.picks]]
        return Records(replace(self.source, mix=mix.keep(kept)), self.view, self._caches)

    def _listed(self, index: Any) -> npt.NDArray[np.int64]:
        """Returns the numbers in the source of a list of numbers, or of bools for all examples."""
        try:
            listed = np.asarray(index)
        except ValueError:  # lists of different lengths
            listed = np.empty((0, 0))
        if listed.dtype == bool and listed.shape == (len(self),):
            listed = np.flatnonzero(listed)
        if listed.ndim != 1 or (listed.size and listed.dtype.kind not in "iu"):
            raise UsageError(
                f"records[{index!r:.60}]: give numbers, or a bool for each of "
                f"{plural(len(self), 'example')}."
            )
        return np.array([self._number(number) for number in listed.tolist()], np.int64)

    def _slice(self, start: int, stop: int) -> Records:
        parts = []
        for end, part in zip(self._ends, self.source.selection.parts, strict=True):
            begin = end - part.records
            low, high = max(start, begin), min(stop, end)
            if low < high:
                first = part.first + low - begin
                parts.append(part._replace(first=first, stop=first + high - low))
        return self._select(f"{self.source.selection.split}[{start}:{stop}]", tuple(parts))

    def _select(self, split: str, parts: tuple[ShardSlice, ...]) -> Records:
        source = replace(self.source, selection=Selection(split, parts))
        return Records(source, self.view, self._caches)

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[Any]:
        """Returns several examples in the requested order; reads them in the order of shards."""
        places = [self._place(index) for index in indices]
        examples: list[Any] = [None] * len(places)
        for number in sorted(range(len(places)), key=places.__getitem__):
            examples[number] = self._example(*places[number])
        return examples

    @check_arguments()
    def read(
        self, indices: Iterable[SupportsIndex], *, workers: int | None = None
    ) -> Iterator[Any]:
        """Yields examples in the order of some indices, as a sampler or a curriculum gives them.

        Examples are read and decoded ahead on threads: at most 32 for each thread are in memory,
        or 2 of a remote storage. The indices may have no end; an error is raised in place of its
        example.

        Args:
            indices: Numbers of examples; negative ones count from the end.
            workers: Number of threads; None for 2, or 64 for a remote storage; 0 to read one
                example after the other.

        Raises:
            UsageError: ``workers`` is not a number of 0 or more.
        """
        is_remote = self.files.is_remote
        if workers is None:
            workers = _REMOTE_THREADS if is_remote else _LOCAL_THREADS
        threads = to_int("workers", workers)
        # A call of a thread costs as much as a small example, but a request is the cost elsewhere.
        size = 1 if is_remote or not threads else _GROUP
        return self._read_groups(_groups(indices, size), threads)

    def _read_groups(self, groups: Iterator[list[SupportsIndex]], threads: int) -> Iterator[Any]:
        for examples in map_ordered(self._read_group, groups, threads, wait=False):
            for example, error in examples:
                if error is not None:
                    raise error
                yield example

    def _read_group(self, indices: list[SupportsIndex]) -> list[tuple[Any, Exception | None]]:
        """Returns the examples of a group; the last one is an error if it cannot be read."""
        examples: list[tuple[Any, Exception | None]] = []
        for index in indices:
            try:
                examples.append((self[index], None))
            except Exception as error:  # noqa: BLE001 - raised in its turn
                examples.append((None, error))
                break
        return examples

    def __iter__(self) -> Iterator[Any]:
        """Yields all examples, in the order of shards if none were picked."""
        if not isinstance(self._numbers, range) or self.picks is not None:
            yield from map(self.__getitem__, range(len(self)))
            return
        for number, part in enumerate(self.source.selection.parts):
            for record, payload in self.files.records(number, part.first, part.stop):
                yield self.decode(number, record, payload)

    def head(self, n: int = 5) -> list[Any]:
        """Returns the first n examples, or all if there are fewer."""
        return [self[number] for number in range(min(n, len(self)))]

    def _repr_html_(self) -> str:
        """Returns a table of the first examples, with thumbnails of images, for notebooks."""
        from shardmill.loaders.html.render import render_examples  # imports Jinja

        try:
            return render_examples(repr(self), self.head(8))
        except ShardmillError as error:
            return render_examples(f"{self!r}: {error}", ())

    def payload(self, index: SupportsIndex) -> bytes:
        """Returns the serialized tf.train.Example of an example after checking its CRCs."""
        return self.files.payload(*self._place(index))

    def _example(self, shard: int, record: int) -> Any:
        return self.decode(shard, record, self.files.payload(shard, record))

    def decode(self, part: int, record: int, payload: bytes, weight: float | None = None) -> Any:
        """Returns the example of a payload.

        Args:
            part: Number of the part of the selection, for messages.
            record: Number of the record in its shard, for messages.
            payload: The serialized tf.train.Example.
            weight: Value that is added: as feature ``weight``, or after inputs and label; None for
                no value.

        Raises:
            InputError: The payload does not match the schema.
            UsageError: A feature has the name of a value that is added.
        """
        decoder, supervised, transform, ids = self.view
        try:
            values = decoder(payload)
        except FormatError as error:
            raise record_unlike_schema(
                path=self.source.paths[part],
                record=record,
                error=error,
                folder=self.source.folder_of(part),
            ) from error
        added: dict[str, Any] = {}
        if weight is not None:
            added["weight"] = np.float32(weight)
        if ids:
            added["sample_id"] = self.files.id_of(part, record, payload)
        example: Any = values | added if added else values
        taken = values.keys() & added
        if supervised is not None:
            example = (*_pair(values, *supervised), *added.values())
        elif taken:
            raise UsageError(
                f"the records have a feature {taken.pop()!r}, and ids=True adds a sample_id to "
                "each example, remainder='pad' a weight: leave it out of features, or omit the "
                "option."
            )
        if transform is None:
            return example
        try:
            return transform(example)
        except KeyError as error:
            explained = self._explain_key(error.args[0] if error.args else None, example)
            if explained is None:
                raise
            raise explained from error

    def _explain_key(self, key: object, example: Any) -> ExampleKeyError | None:
        """Returns what to do about a key that an example lacks; None for one of another dict."""
        if not isinstance(example, dict) or not isinstance(key, str) or key in example:
            return None
        features = {*LONG_NAMES, *(spec.name for spec in self.source.specs)}
        near = difflib.get_close_matches(key, example, 1, 0.8)
        if self.source.has_boxes and key.partition("/")[0] == BOXES:
            hint = "give features=['image', 'boxes/xyxy'] to open_dataset."
        elif near:
            hint = f"did you mean {near[0]!r}?"
        elif key in features or key.partition("/")[0] == BOXES:
            hint = "use one of these, or name it in features=[...] if the dataset has it."
        else:
            return None
        names = format_names([*example])
        return ExampleKeyError(f"transform asks for {key!r}, and the examples have {names}: {hint}")

    def _number(self, index: SupportsIndex) -> int:
        """Returns the number of an example in the source."""
        number = operator.index(index)
        total = len(self._numbers)
        if not -total <= number < total:
            raise IndexError(f"there is no example {number:,}: there are {total:,}.")
        return int(self._numbers[number])

    def _place(self, index: SupportsIndex) -> tuple[int, int]:
        number = self._number(index)
        part = bisect_right(self._ends, number)
        return part, self.source.selection.parts[part].stop - self._ends[part] + number


def _groups(indices: Iterable[SupportsIndex], size: int) -> Iterator[list[SupportsIndex]]:
    """Yields groups of indices; an error of their source is raised after those before it."""
    group: list[SupportsIndex] = []
    try:
        for index in indices:
            group.append(index)
            if len(group) == size:
                yield group
                group = []
    except Exception:
        if group:
            yield group
        raise
    if group:
        yield group


def _pair(values: dict[str, Any], inputs: tuple[str, ...], label: str) -> tuple[Any, Any]:
    given = values[inputs[0]] if len(inputs) == 1 else {name: values[name] for name in inputs}
    return given, values[label]


class Reading(NamedTuple):
    """Options of ``open_dataset``, which explains them."""

    features: Sequence[str] | None = None
    decode: bool = True
    text: bool = False
    as_supervised: bool = False
    label: str = "id"
    ids: bool = False
    fill: Fill | None = None
    transform: Transform | None = None
    cache_bytes: int | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_dir_bytes: int = 100 << 30
    layout: Layout = "HWC"


def open_records(source: Source, reading: Reading) -> Records:
    """Returns the examples of an opened dataset or mix.

    Raises:
        UsageError: A feature is unknown, or a missing integer has no ``fill``.
    """
    features, fill, label, ids = reading.features, reading.fill, reading.label, reading.ids
    if features is None:
        _warn_of_lost_labels(source)
    specs = select_features(source, features)
    names = output_names(specs, features) if reading.decode else {}
    if not reading.as_supervised and label not in ("id", "one_hot"):
        raise UsageError(
            f"label={label!r:.60} chooses the label of pairs: add as_supervised=True, or name "
            "features=['image', ...] of dicts."
        )
    classes = {source.label_id: source.num_classes} if label == "one_hot" else {}
    defaults = default_values(specs, fill)
    decoder = RecordDecoder(
        specs,
        defaults,
        reading.decode,
        source.sides,
        names,
        reading.text,
        classes,
        channels_first=reading.layout == "CHW",
    )
    if ids and reading.as_supervised:
        raise UsageError(
            "as_supervised=True has no place for ids=True: read dicts, or make pairs of them with "
            "transform."
        )
    pair = _supervised(source, decoder, label, features) if reading.as_supervised else None
    disk = None
    if reading.cache_dir is not None:
        disk = DiskCache(reading.cache_dir, reading.cache_dir_bytes)
    view = View(decoder, pair, reading.transform, ids)
    return Records(source, view, Caches(reading.cache_bytes, disk))


def _warn_of_lost_labels(source: Source) -> None:
    """Warns that examples are read without labels, because a split among several has none."""
    unlabeled = source.unlabeled
    files = {shard.file for name in unlabeled for shard in source.manifest.splits[name].shards}
    if unlabeled and any(shard.file not in files for shard in source.shards):
        warn_user(
            f"{source.selection.split} is read without labels, because {' and '.join(unlabeled)} "
            "has none: read the splits alone, or name features."
        )


def open_encoded(path: str | os.PathLike[str], split: str, fill: Fill | None = None) -> Records:
    """Opens a split for its payloads; examples, for predicates, have all features, images encoded.

    An integer that may be missing and has no ``fill`` is left out.
    """
    return encoded_records(open_source(path, split), fill)


def encoded_records(source: Source, fill: Fill | None) -> Records:
    """Returns the payloads of an opened dataset or mix; see ``open_encoded``."""
    defaults = default_values(source.specs, fill, required=False)
    specs = tuple(
        spec
        for spec in source.specs
        if spec.fixed is not None or not spec.single or spec.name in defaults
    )
    decoder = RecordDecoder(specs, defaults, False, source.sides, {})
    return Records(source, View(decoder, None, None), Caches(None))


def _supervised(
    source: Source, decoder: RecordDecoder, form: Any, features: object
) -> tuple[tuple[str, ...], str]:
    """Returns the names of inputs, and of the label, in an example; a mask is one only if chosen.

    Raises:
        UsageError: There is no label, or none of that form.
    """
    if not isinstance(form, str):
        accepted = "'id', 'one_hot', 'text', or the name of one feature"
        raise unknown_value(name="label", value=form, choices=accepted)
    outputs = {spec.name: decoder.names.get(spec.name, spec.name) for spec in decoder.specs}
    forms = {"id": (source.label_id, source.label_text, *source.label_features)}
    forms |= {"one_hot": (source.label_id,), "text": (source.label_text,)}
    names = forms[form] if form in forms else (source.spec_of(form).name,)
    label = next((name for name in names if name in outputs), "")
    if not label:
        source.check_labeled()
        raise UsageError(
            "as_supervised=True needs a label, and the features have none: name it in features, as "
            "in features=['image', 'boxes']."
        )
    if form == "id" and source.manifest.label_separator:
        raise id_of_several_labels()
    mask = source.named_by(MASK) if features is None else ""
    others = [name for name in outputs if name not in {*source.label_features, label, mask}]
    inputs = [name for name in source.arrays if name in others] or others
    return tuple(outputs[name] for name in inputs), outputs[label]
