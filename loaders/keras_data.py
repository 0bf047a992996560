"""keras_dataset: a split as a tf.data.Dataset of known length, for ``model.fit``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardmill.loaders.frameworks import require_framework
from shardmill.loaders.record_decoder import Fill, select_features
from shardmill.loaders.shards import ShardFiles
from shardmill.loaders.source import Source, open_source
from shardmill.loaders.steps import Share, count_steps, is_positive_int, parse_share
from shardmill.loaders.tf_parse import array_decoder, batch_parser, label_reader
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.storage import scheme_of

if TYPE_CHECKING:
    import tensorflow as tf

Label = Literal["id", "one_hot", "text"]
Where = Callable[[dict[str, Any]], Any]
_SHUFFLE_BYTES = 128 << 20  # of records, as stored in the files
_MIN_SHUFFLE_BUFFER = 1024
_CYCLE_LENGTH = 4  # shards that are read concurrently
_BLOCK_LENGTH = 16  # consecutive records of one shard
_READ_BUFFER_BYTES = 256 << 10
_PARSE_BATCH = 256  # records that are parsed together before they are filtered or yielded singly


@dataclass(frozen=True)
class ReadOptions:
    """Order and batching; see ``keras_dataset``.

    Raises:
        UsageError: A number is invalid.
    """

    batch_size: int | None
    shuffle: bool | int
    seed: int
    drop_remainder: bool
    host: Share

    def __post_init__(self) -> None:
        if self.batch_size is None:
            if self.drop_remainder:
                raise UsageError("drop_remainder=True needs a batch_size.")
        elif not is_positive_int(self.batch_size):
            raise UsageError(f"batch_size={self.batch_size!r} must be a positive integer, or None.")
        if self.shuffle < 0:
            raise UsageError(f"shuffle={self.shuffle} must be a bool, or a number of examples.")

    @property
    def full_batches(self) -> bool:
        """Whether a last batch that is not full is left out; always with several hosts."""
        return self.drop_remainder or (self.batch_size is not None and self.host.count > 1)


class _Parser(NamedTuple):
    """Functions that turn serialized examples into elements of the dataset.

    Attributes:
        parse: From a batch of serialized examples to a dict of features.
        finish: From the features of a batch to inputs and labels; of an example if ``singly``.
        singly: Whether arrays are decoded one by one, since they may differ in shape.
    """

    parse: Callable[[Any], Any]
    finish: Callable[[Any], Any]
    singly: bool


def keras_dataset(  # noqa: PLR0913 - all but two are keyword-only
    path: str | os.PathLike[str], split: str = "train", *, batch_size: int | None = 32,
    shuffle: bool | int = False, seed: int = 0, drop_remainder: bool = False,
    label: Label | None = "id", features: Sequence[str] | None = None,
    labels: Sequence[str] | Mapping[str, float] | None = None, fill: Fill | None = None,
    where: Where | None = None, host: tuple[int, int] = (0, 1),
) -> tf.data.Dataset:  # fmt: skip
    """Returns a dataset of batches for ``model.fit``, with the length from the manifest.

    A batch is ``(inputs, labels)``. Inputs are the images (uint8, [batch, height, width, channels])
    or arrays of the dataset; for rows, and for several features, a dict by feature. Labels have
    shape [batch]. With ``label=None`` a batch is the inputs alone.

    The dataset can be continued with tf.data: ``repeat``, ``map`` for augmentation, ``take``,
    ``with_options``. ``batch_size=None`` gives single examples for ``cache``, ``shuffle`` and
    ``batch``.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        split: A split, or several as in ``train+validation``.
        batch_size: Examples in a batch, over all hosts; None for single examples.
        shuffle: Whether to shuffle shards, and examples in a buffer of about 128 MiB of records; an
            integer is the size of that buffer in examples. Each epoch has another order.
        seed: Seed of the order.
        drop_remainder: Whether to leave out a last batch that is not full.
        label: Form of the labels: ``id`` (integer or float), ``one_hot`` or ``text``; None for no
            labels.
        features: The features that become inputs; None for images, arrays or all columns.
        labels: The labels to read, for datasets built with ``--shard_by=label``. A mapping gives
            each a sampling weight: examples are drawn from the labels with these weights, labels
            repeat as needed, and an epoch has as many examples as the labels have in total.
        fill: Values by feature that replace missing ones; see ``open_dataset``.
        where: Predicate on a dict of all features of a record, single values as scalars and images
            encoded; the others are left out, and the number of batches is then unknown.
        host: Number of this host, and number of hosts that train together. Each reads its own
            shards, and all get the same number of full batches of ``batch_size / hosts``.

    Raises:
        InputError: The manifest or schema cannot be read, or a shard does not match them.
        UsageError: An option is invalid, or there would be no batch.
    """
    options = ReadOptions(batch_size, shuffle, seed, drop_remainder, parse_share("host", host))
    names = list(labels) if isinstance(labels, Mapping) else labels
    source = open_source(path, split, names)
    length = _count(source, options)
    parser = _parser(source, options, features, label, fill, parse_all=where is not None)
    if isinstance(labels, Mapping):
        serialized = _sample_labels(source, options, labels)
    else:
        serialized = _read_serialized(source, options)
    return _finish(serialized, options, parser, where, None if where else length)


def _count(source: Source, options: ReadOptions) -> int:
    """Returns the number of elements in an epoch of this host: batches, or single examples.

    Raises:
        InputError: The split is empty.
        UsageError: There would be no batch, or the hosts cannot divide batch or shards.
    """
    hosts = options.host.count
    size = options.batch_size or hosts
    steps = count_steps(
        source.selection, size, drop_remainder=options.full_batches, replicas=hosts, noun="hosts"
    )
    if not len(source):
        raise InputError(f"{source.folder} has no examples in {source.selection.split}.")
    if not steps:
        each = f" on each of {hosts} hosts" if hosts > 1 else ""
        raise UsageError(
            f"a batch of {size:,} is larger than the {len(source):,} examples of "
            f"{source.selection.split} can fill{each}, so an epoch would have 0 steps: use a "
            "smaller batch_size" + ("." if hosts > 1 else ", or drop_remainder=False.")
        )
    return steps


def _parser(
    source: Source, options: ReadOptions, features: Sequence[str] | None, label: Label | None,
    fill: Fill | None, *, parse_all: bool,
) -> _Parser:  # fmt: skip
    require_framework("tensorflow")
    import tensorflow as tf

    batched = options.batch_size is not None
    if features is None:
        features = source.arrays or [
            spec.name for spec in source.specs if spec.name not in source.label_features
        ]
    inputs = select_features(source, features)
    decoders = {spec.name: array_decoder(spec, batched=batched) for spec in inputs if spec.encoding}
    singly = bool(decoders) and not batched
    parsed_specs = {spec.name: spec for spec in (source.specs if parse_all else inputs)}
    read_label = None
    if label is not None:
        label_name, read_label = label_reader(source, label)
        parsed_specs[label_name] = source.spec_of(label_name)

    def flatten(values: Any) -> Any:
        return tf.reshape(values, [] if singly else [-1])

    def finish(parsed: dict[str, Any]) -> Any:
        values = {
            spec.name: decoders[spec.name](flatten(parsed[spec.name]))
            if spec.name in decoders
            else parsed[spec.name]
            for spec in inputs
        }
        given = next(iter(values.values())) if len(values) == 1 and decoders else values
        return given if read_label is None else (given, read_label(flatten(parsed[label_name])))

    return _Parser(batch_parser(list(parsed_specs.values()), fill), finish, singly)


def _read_serialized(source: Source, options: ReadOptions) -> tf.data.Dataset:
    """Returns the serialized examples of this host in the order of an epoch."""
    import tensorflow as tf

    shards = list(range(len(source.shards)))[options.host.index :: options.host.count]
    files = tf.data.Dataset.from_tensor_slices(tf.constant(shards, tf.int64))
    if options.shuffle:
        files = files.shuffle(len(shards), options.seed, reshuffle_each_iteration=True)
    examples = files.interleave(
        _shard_reader(source),
        cycle_length=min(_CYCLE_LENGTH, len(shards)),
        block_length=_BLOCK_LENGTH,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    if options.shuffle:
        buffer = _shuffle_buffer(source, options)
        examples = examples.shuffle(buffer, options.seed, reshuffle_each_iteration=True)
    return examples


def _shuffle_buffer(source: Source, options: ReadOptions) -> int:
    if options.shuffle is not True:
        return int(options.shuffle)
    total = sum(shard.bytes for shard in source.shards)
    fitting = _SHUFFLE_BYTES * len(source) // max(1, total)
    return max(1, min(len(source), max(_MIN_SHUFFLE_BUFFER, fitting)))


def _shard_reader(source: Source) -> Callable[[Any], tf.data.Dataset]:
    """Returns a function from the number of a shard to its serialized examples.

    TensorFlow reads local files; Shardmill's storage clients read remote ones, with the
    credentials, endpoints and retries of all other commands.
    """
    import tensorflow as tf

    paths = source.paths
    if not any(map(scheme_of, paths)):
        names = tf.constant(paths)
        compression = _tf_compression(source)
        return lambda number: tf.data.TFRecordDataset(
            names[number], compression_type=compression, buffer_size=_READ_BUFFER_BYTES
        )
    files = ShardFiles(source.folder, paths, source.shards, 0)

    def payloads(number: Any) -> Any:
        return (payloads for _, payloads in files.members(int(number)))

    return lambda number: tf.data.Dataset.from_generator(
        payloads, args=(number,), output_signature=tf.TensorSpec((None,), tf.string)
    ).unbatch()


def _tf_compression(source: Source) -> str:
    """Returns tf.data's name for the compression of a source's files."""
    names = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}
    kind = source.manifest.compression
    if kind not in names:
        raise InputError(
            f"{source.folder} has files of {kind} compression, which one reader cannot read: count "
            "the files of each compression separately."
        )
    return names[kind]


def _sample_labels(
    source: Source, options: ReadOptions, weights: Mapping[str, float]
) -> tf.data.Dataset:
    """Returns an epoch of serialized examples, drawn from labels with weights."""
    import tensorflow as tf

    if min(weights.values()) < 0 or not 0 < sum(weights.values()) < float("inf"):
        raise UsageError(f"labels={dict(weights)!r}: weights must be 0 or more, and one positive.")
    drawn = {name: weight / sum(weights.values()) for name, weight in weights.items() if weight}
    hosts = options.host.count
    datasets = []
    for number, name in enumerate(drawn):
        part = source.with_labels([name])
        if len(part.shards) < hosts or not len(part):
            raise UsageError(
                f"the label {name!r} has {len(part.shards)} shards with {len(part):,} examples in "
                f"{source.selection.split}, too few for {hosts} hosts: leave it out, or build with "
                "more --num_shards."
            )
        shuffled = replace(options, seed=options.seed + number, shuffle=options.shuffle or True)
        datasets.append(_read_serialized(part, shuffled).repeat())
    sampled = tf.data.Dataset.sample_from_datasets(
        datasets, list(drawn.values()), seed=options.seed, rerandomize_each_iteration=True
    )
    return sampled.take(len(source) // hosts)


def _finish(
    serialized: tf.data.Dataset, options: ReadOptions, parser: _Parser, where: Where | None,
    length: int | None,
) -> tf.data.Dataset:  # fmt: skip
    """Returns the elements of an epoch; ``length`` of them, if that is known."""
    import tensorflow as tf

    size = (options.batch_size or 0) // options.host.count or _PARSE_BATCH
    if where is None and not parser.singly:
        dataset = serialized.batch(size, options.full_batches).map(
            lambda batch: parser.finish(parser.parse(batch)), tf.data.AUTOTUNE
        )
    else:
        dataset = serialized.batch(_PARSE_BATCH).map(parser.parse, tf.data.AUTOTUNE).unbatch()
        if where is not None:
            dataset = dataset.filter(lambda row: where(_scalars(row)))
        if not parser.singly:
            dataset = dataset.batch(size, options.full_batches)
        dataset = dataset.map(parser.finish, tf.data.AUTOTUNE)
    if options.batch_size is None and not parser.singly:
        dataset = dataset.unbatch()
    if length is not None:
        if options.host.count > 1:
            dataset = dataset.take(length)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    return dataset.prefetch(tf.data.AUTOTUNE)


def _scalars(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the features of one record with single values as scalars."""
    return {name: value[0] if value.shape == (1,) else value for name, value in row.items()}
