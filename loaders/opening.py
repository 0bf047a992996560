"""Opening of datasets and of mixes of them, for random access and for streams."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import numpy as np

from shardmill.loaders.draws_left import DrawsLeft
from shardmill.loaders.epochs import Component, Epochs, MixedEpochs
from shardmill.loaders.filters import filter_records
from shardmill.loaders.mixed_source import join_sources
from shardmill.loaders.mixed_state import ReadSoFar, read_so_far
from shardmill.loaders.mixes import Dataset, Mix, MixedDataset, read_dataset_name
from shardmill.loaders.record_decoder import Fill
from shardmill.loaders.records import (
    Layout,
    Reading,
    Records,
    Transform,
    encoded_records,
    open_records,
)
from shardmill.loaders.sampling import draw_by_label
from shardmill.loaders.source import Source, open_source
from shardmill.loaders.steps import check_word, to_int
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import map_ordered, storage_threads


@check_arguments()
def open_dataset(  # noqa: PLR0913 - all but two are named
    path: Dataset,
    split: str = "train",
    *,
    features: Sequence[str] | None = None,
    decode: bool = True,
    text: bool = False,
    as_supervised: bool = False,
    label: str = "id",
    ids: bool = False,
    fill: Fill | None = None,
    transform: Transform | None = None,
    cache_bytes: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_dir_bytes: int = 100 << 30,
    layout: Layout = "HWC",
) -> Records:
    """Opens a split for random access, without TensorFlow.

    An example is a dict by feature: images are uint8 of shape [height, width, channels], raw arrays
    have the dtype and shape they were written with, single numbers are NumPy scalars, texts are
    bytes, and features with several values are 1-D arrays. The image and its class id are called
    ``image`` and ``label``; ``features=["image/encoded"]`` gives them the names in the records.

    Args:
        path: The dataset's folder or its manifest.json, on any storage; or a ``mix`` of several
            datasets, or its TOML file.
        split: A split, or several as in ``train+validation``, or slices as in ``train[:10%]``.
        features: The features to read; None for all.
        decode: Whether bytes that hold images or raw arrays become arrays.
        text: Whether other bytes become str.
        as_supervised: Whether an example is a pair of inputs and label; the inputs are the image or
            array, or else a dict of all other features.
        label: ``one_hot`` makes class ids vectors of float32, with a 1 for each label of an image
            that has several. Of pairs also ``text``, or the feature that is the label.
        ids: Whether each example has a ``sample_id``, str, which stays the same when the dataset is
            built again: the key of its image, or the value of the ``--key`` of rows. Of other rows
            and of arrays it is the shard and the number in it, which change.
        fill: Values by feature that replace missing ones; the default is NaN for float32 and
            ``b""`` for bytes.
        transform: Function that is applied to each example; must be picklable for worker processes.
        cache_bytes: Maximum bytes of inflated members that each process caches, and of record
            offsets. None for 64 MiB, and for as many more as random access uses again, up to a
            quarter of the memory of the machine or container, over all workers of a DataLoader.
        cache_dir: Folder for copies of remote shards, for all processes of this machine; or None.
        cache_dir_bytes: Maximum size of these copies; the least recently used are deleted.
        layout: ``CHW`` for decoded images of shape [channels, height, width], as PyTorch's models
            take them.

    Raises:
        InputError: The manifest or schema cannot be read, or a shard is missing or of another size.
        UsageError: A split or feature is unknown, or a missing integer has no ``fill``.
    """
    to_int("cache_bytes", cache_bytes or 0)
    to_int("cache_dir_bytes", cache_dir_bytes)
    check_word("layout", layout, Layout)
    if layout == "CHW" and not decode:
        raise UsageError("layout='CHW' is that of decoded images: leave out decode=False.")
    if transform is not None and not callable(transform):
        raise UsageError(f"transform={transform!r} must be a function of an example.")
    reading = Reading(
        features,
        decode,
        text,
        as_supervised,
        label,
        ids,
        fill,
        transform,
        cache_bytes,
        cache_dir,
        cache_dir_bytes,
        layout,
    )
    return open_records(open_any(path, split, features), reading)


def open_for_payloads(dataset: Dataset, split: str, fill: Fill | None = None) -> Records:
    """Opens a dataset or mix for its payloads; see ``open_encoded``."""
    return encoded_records(open_any(dataset, split), fill)


def open_any(dataset: Dataset, split: str, features: Sequence[str] | None = None) -> Source:
    """Opens a dataset, a mix or its TOML file.

    Args:
        dataset: Any of them.
        split: The split of datasets that name none.
        features: The features that are read, if the mix does not name them; None for all.

    Raises:
        InputError: A dataset cannot be read, or has no examples.
        UsageError: A split is unknown, or the datasets of a mix have different features or labels.
    """
    mix = read_dataset_name(dataset)
    if not isinstance(mix, Mix):
        return open_source(mix, split)
    threads = max(storage_threads(os.fsdecode(named.path)) for named in mix.datasets)
    sources = list(map_ordered(partial(_open_one, split=split), mix.datasets, threads))
    _check_different(mix.datasets, sources)
    read = {} if mix.after is None else read_so_far(mix.after)
    components = [
        _component_of(named, source, read.pop(named.name, ReadSoFar(DrawsLeft(), "")))
        for named, source in zip(mix.datasets, sources, strict=True)
    ]
    lefts = [
        *(component.left for component in components),
        *(absent.left for absent in read.values()),
    ]
    after = mix.after if any(left.unread for left in lefts) else None
    absent = {name: [left.start, digest] for name, (left, digest) in read.items()}
    continues = None if mix.after is None else mix.after["reads"]
    epochs = MixedEpochs(tuple(components), mix.until, absent, after, continues)
    return join_sources(epochs, sources, mix.features or features, mix.labels)


def _open_one(named: MixedDataset, split: str) -> Source:
    try:
        return open_source(named.path, named.split or split)
    except UsageError as error:
        raise UsageError(f"{named.name!r} of the mix: {error}") from error


def _check_different(datasets: Sequence[MixedDataset], sources: Sequence[Source]) -> None:
    """Checks that no dataset is in a mix twice, which one weight can say.

    Raises:
        UsageError: One is.
    """
    names: dict[tuple[str, str], str] = {}
    for named, source in zip(datasets, sources, strict=True):
        key = source.folder, source.selection.split
        if named.where is None and key in names:
            raise UsageError(
                f"{names[key]!r} and {named.name!r} of the mix are the same examples: name them "
                "once, with the sum of the weights."
            )
        if named.where is None:
            names[key] = named.name


def _component_of(named: MixedDataset, source: Source, read: ReadSoFar) -> Component:
    epochs = Epochs(source.selection.parts)
    try:
        if named.where is not None or named.balance is not None:
            epochs = _choose(source, named)
    except UsageError as error:
        raise UsageError(f"{named.name!r} of the mix: {error}") from error
    if len(source) and not len(epochs):
        raise UsageError(
            f"where keeps none of the examples of {named.name!r}: leave this dataset out of the "
            "mix, or check the columns and values that where names."
        )
    return Component(named.name, named.weight, epochs, read.left, read.digest)


def _choose(source: Source, named: MixedDataset) -> Epochs:
    """Returns the examples of a dataset that where and balance choose."""
    records = encoded_records(source, None)
    if named.where is not None:
        records = filter_records(records, named.where)
    picks = None if records.picks is None else np.asarray(records.picks)
    draws = None
    if named.balance is not None and len(records):
        draws = draw_by_label(records, named.balance)
    return Epochs(source.selection.parts, picks, draws)
