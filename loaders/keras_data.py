"""keras_dataset: a split as a tf.data.Dataset that ``model.fit`` takes, its length known."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from shardmill.loaders.frameworks import need
from shardmill.loaders.shards import ShardFiles
from shardmill.loaders.source import Source, open_source
from shardmill.loaders.steps import count_steps, is_count
from shardmill.loaders.tf_parse import ImageSize, array_decoder, batch_parser, label_reader
from shardmill.loaders.values import Fill, chosen
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.storage import scheme_of

if TYPE_CHECKING:
    import tensorflow as tf

Label = Literal["id", "one_hot", "text"]
Reader = Literal["auto", "tensorflow", "python"]
_SHUFFLE_BYTES = 128 << 20  # of records, as they lie in the files
_LEAST_SHUFFLED = 1024
_CYCLE = 4  # shards that are read at a time
_BLOCK = 16  # records of one shard before the next
_BUFFER = 256 << 10
_PARSED = 256  # records that are parsed at a time where a filter follows


@dataclass(frozen=True)
class ReadOptions:
    """How records are read; see ``keras_dataset``.

    Raises:
        UsageError: A number breaks its rule.
    """

    batch_size: int
    shuffle: bool | int
    seed: int
    repeat: bool | int
    drop_remainder: bool
    cache: bool | str
    deterministic: bool
    host: int
    hosts: int
    reader: Reader

    def __post_init__(self) -> None:
        if not is_count(self.batch_size):
            raise UsageError(f"batch_size={self.batch_size!r} must be a whole number, 1 or more.")
        if not 0 <= self.host < self.hosts:
            raise UsageError(f"host={self.host} of hosts={self.hosts}: hosts count from 0.")
        if self.shuffle < 0:
            raise UsageError(f"shuffle={self.shuffle} must be a number of examples, or a boolean.")
        if self.repeat is not True and self.repeat < 0:
            raise UsageError(f"repeat={self.repeat} must be a number of epochs, or a boolean.")
        if self.reader not in ("auto", "tensorflow", "python"):
            raise UsageError(
                f"reader={self.reader!r} is unknown: use 'auto', 'tensorflow' or 'python'."
            )

    @property
    def full_batches(self) -> bool:
        """Whether a last batch that is not full is left out; on several hosts it always is."""
        return self.drop_remainder or self.hosts > 1


def keras_dataset(  # noqa: PLR0913 - all but two are named
    path: str | os.PathLike[str], split: str = "train", *, batch_size: int = 32,
    shuffle: bool | int = False, seed: int = 0, augment: Callable[[Any], Any] | None = None,
    label: Label | None = "id", features: Sequence[str] | None = None,
    labels: Sequence[str] | None = None, mix: Mapping[str, float] | None = None,
    where: Callable[[dict[str, Any]], Any] | None = None, fill: Fill | None = None,
    image_size: ImageSize | None = None, repeat: bool | int = False, drop_remainder: bool = False,
    cache: bool | str = False, deterministic: bool = True, host: int = 0, hosts: int = 1,
    reader: Reader = "auto",
) -> tf.data.Dataset:  # fmt: skip
    """Returns batches of a split for ``model.fit``; Keras knows how many from the manifest.

    A batch is ``(inputs, labels)``: inputs are the pictures (uint8, [batch, height, width,
    channels]) or arrays of the dataset, or of rows a dict of all other columns; a dict too where
    there are several. Labels have shape [batch]. With ``label=None`` a batch is the inputs alone.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        split: A split, or several as in ``train+validation``.
        batch_size: Examples in a batch, over all hosts.
        shuffle: Whether to shuffle: shards, and examples from a buffer of about 128 MiB of
            records; or how many examples that buffer holds. Each epoch has an order of its own.
        seed: Another one gives other orders.
        augment: Applied to each batch of inputs as ``augment(inputs, training=True)`` if it is a
            Keras layer, else as ``augment(inputs)``; such as ``augmentation(flip="horizontal")``.
        label: ``id`` (integers or numbers as they stand), ``one_hot``, ``text``, or None.
        features: Features that become inputs.
        labels: Of a dataset made with ``--shard_by=label``: the only ones to read.
        mix: Of such a dataset: weight by label. Examples are drawn label by label with these
            weights, again and again; an epoch has as many as the labels have together.
        where: Which records are kept: takes a dict of all features of one record, single values
            as scalars and pictures still encoded. The number of batches is then not known.
        fill: What stands for a missing value; see ``open_dataset``.
        image_size: Height and width to resize pictures to.
        repeat: Whether to go on for ever, or for how many epochs; give Keras steps_per_epoch.
        drop_remainder: Whether to leave out a last batch that is not full.
        cache: Keep parsed and decoded examples in memory, or in files that begin with this path.
        deterministic: Whether the seed alone decides order and augmentation; else what is ready.
        host: Number of this host.
        hosts: How many hosts train together; each reads shards of its own, and all get the same
            number of full batches of ``batch_size / hosts``.
        reader: What reads the files: TensorFlow, or Shardmill's own client in Python.

    Raises:
        InputError: The manifest or schema cannot be read, or a shard is not what they say.
        UsageError: An option breaks a rule, or not even one batch would come.
    """
    options = ReadOptions(
        batch_size, shuffle, seed, repeat, drop_remainder, cache, deterministic, host, hosts, reader
    )
    source = open_source(path, split, list(mix) if mix is not None and labels is None else labels)
    steps = _steps(source, options)
    make = _maker(source, features, label, fill, image_size, parse_all=where is not None)
    serialized = _serialized(source, options) if mix is None else _mixed(source, options, mix)
    return _batches(serialized, options, make, augment, where, None if where else steps)


def _steps(source: Source, options: ReadOptions) -> int:
    """Returns how many batches an epoch of this host has.

    Raises:
        UsageError: None, or a number breaks its rule.
    """
    size, hosts = options.batch_size, options.hosts
    if size % hosts:
        raise UsageError(
            f"batch_size={size} cannot be shared by {hosts} hosts: give a multiple of {hosts}, "
            f"such as {-(-size // hosts) * hosts}."
        )
    if hosts > len(source.shards) > 0:
        raise UsageError(
            f"{source.selection.split} has {len(source.shards)} shards, so of {hosts} hosts some "
            f"would have nothing to read: use fewer, or build with --num_shards={hosts} or a "
            "multiple of it."
        )
    steps = count_steps(source.selection, size, drop_remainder=options.full_batches, replicas=hosts)
    if not steps and len(source):
        each = f" on each of {hosts} hosts" if hosts > 1 else ""
        raise UsageError(
            f"a batch of {size:,} is more than the {len(source):,} examples of "
            f"{source.selection.split} fill{each}, so an epoch would have 0 steps: use a smaller "
            "batch_size" + ("." if hosts > 1 else ", or drop_remainder=False.")
        )
    if not steps:
        raise InputError(f"{source.folder} has no examples in {source.selection.split}.")
    return steps


class _Maker:
    """What turns a batch of serialized examples into inputs and labels."""

    def __init__(self, parse: Any, finish: Any) -> None:
        self.parse, self.finish = parse, finish

    def __call__(self, serialized: Any) -> Any:
        return self.finish(self.parse(serialized))


def _maker(
    source: Source, features: Sequence[str] | None, label: Label | None, fill: Fill | None,
    image_size: ImageSize | None, *, parse_all: bool,
) -> _Maker:  # fmt: skip
    need("tensorflow")
    if features is None:
        features = source.arrays or [
            spec.name for spec in source.specs if spec.name not in source.label_features
        ]
    inputs = chosen(source, features)
    arrays = {spec.name: array_decoder(spec, image_size) for spec in inputs if spec.encoding}
    wanted = {spec.name: spec for spec in (source.specs if parse_all else inputs)}
    read_label = None
    if label is not None:
        name, read_label = label_reader(source, label)
        wanted[name] = source.spec_of(name)
    parse = batch_parser(list(wanted.values()), fill)

    def finish(parsed: dict[str, Any]) -> Any:
        found = {
            spec.name: arrays[spec.name](parsed) if spec.name in arrays else parsed[spec.name]
            for spec in inputs
        }
        given = next(iter(found.values())) if len(found) == 1 and arrays else found
        return given if read_label is None else (given, read_label(parsed[name]))

    return _Maker(parse, finish)


def _serialized(source: Source, options: ReadOptions) -> tf.data.Dataset:
    """Returns the serialized examples of a source, in the order of an epoch; one host's."""
    import tensorflow as tf

    mine = list(range(len(source.shards)))[options.host :: options.hosts]
    files = tf.data.Dataset.from_tensor_slices(tf.constant(mine, tf.int64))
    if options.shuffle:
        files = files.shuffle(len(mine), options.seed, reshuffle_each_iteration=True)
    read = _shard_reader(source, options)
    examples = files.interleave(
        read,
        cycle_length=min(_CYCLE, len(mine)),
        block_length=_BLOCK,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=options.deterministic,
    )
    if options.shuffle and not options.cache:
        buffer = _buffer(source, options)
        examples = examples.shuffle(buffer, options.seed, reshuffle_each_iteration=True)
    return examples


def _buffer(source: Source, options: ReadOptions) -> int:
    if options.shuffle is not True:
        return int(options.shuffle)
    total = sum(shard.bytes for shard in source.shards)
    fitting = _SHUFFLE_BYTES * len(source) // max(1, total)
    return max(1, min(len(source), max(_LEAST_SHUFFLED, fitting)))


def _shard_reader(source: Source, options: ReadOptions) -> Callable[[Any], tf.data.Dataset]:
    """Returns a function from the number of a shard to its serialized examples."""
    import tensorflow as tf

    paths = source.paths
    remote = any(map(scheme_of, paths))
    if options.reader == "tensorflow" or (options.reader == "auto" and not remote):
        names = tf.constant(paths)
        packing = _packing(source)
        return lambda number: tf.data.TFRecordDataset(
            names[number], compression_type=packing, buffer_size=_BUFFER
        )
    files = ShardFiles(source.folder, paths, source.shards, 0)

    def payloads(number: Any) -> Any:
        first = 0
        for size in files.member_sizes(int(number)).tolist():
            yield files.payloads(int(number), first, first + size)
            first += size

    return lambda number: tf.data.Dataset.from_generator(
        payloads, args=(number,), output_signature=tf.TensorSpec((None,), tf.string)
    ).unbatch()


def _packing(source: Source) -> str:
    """Returns what tf.data calls the compression of a source's files."""
    names = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}
    kind = source.manifest.compression
    if kind not in names:
        raise InputError(
            f"{source.folder} holds files of {kind} compression, and one reader reads one kind: "
            "count each kind by itself."
        )
    return names[kind]


def _mixed(source: Source, options: ReadOptions, mix: Mapping[str, float]) -> tf.data.Dataset:
    """Returns an epoch of examples drawn from labels with weights."""
    import tensorflow as tf

    if not mix or min(mix.values()) < 0 or not 0 < sum(mix.values()) < float("inf"):
        raise UsageError(f"mix={dict(mix)!r}: each label takes a weight that is not negative.")
    drawn = {name: weight / sum(mix.values()) for name, weight in mix.items() if weight}
    each = []
    for number, name in enumerate(drawn):
        part = source.with_labels([name])
        if len(part.shards) < options.hosts or not len(part):
            raise UsageError(
                f"the label {name!r} has {len(part.shards)} shards with {len(part):,} examples in "
                f"{source.selection.split}, too few for {options.hosts} hosts to draw from: leave "
                "it away, or build with more --num_shards."
            )
        own = replace(options, seed=options.seed + number, shuffle=options.shuffle or True)
        each.append(_serialized(part, own).repeat())
    mixed = tf.data.Dataset.sample_from_datasets(
        each, list(drawn.values()), seed=options.seed, rerandomize_each_iteration=True
    )
    return mixed.take(len(source) // options.hosts)


def _batches(
    serialized: tf.data.Dataset, options: ReadOptions, make: _Maker,
    augment: Callable[[Any], Any] | None, where: Callable[[dict[str, Any]], Any] | None,
    steps: int | None,
) -> tf.data.Dataset:  # fmt: skip
    """Returns batches of inputs and labels; ``steps`` of them an epoch, where that is known."""
    import tensorflow as tf

    ready = tf.data.AUTOTUNE
    order = options.deterministic
    size = options.batch_size // options.hosts
    # What a cache leaves out is decided behind it, so that a shuffle leaves out others.
    full = options.full_batches and not options.cache
    if where is not None:
        parsed = serialized.batch(_PARSED).map(make.parse, ready, order).unbatch()
        batches = parsed.filter(lambda row: where(_scalars(row)))
        batches = batches.batch(size, full).map(make.finish, ready, order)
    else:
        batches = serialized.batch(size, full).map(make, ready, order)
    if options.cache:
        batches = _cached(batches, options, size)
    if options.hosts > 1 and steps is not None:
        batches = _first(batches, steps) if options.cache else batches.take(steps)
    if steps is not None:
        batches = batches.apply(tf.data.experimental.assert_cardinality(steps))
    if options.repeat is True or options.repeat > 1:
        batches = batches.repeat(-1 if options.repeat is True else int(options.repeat))
    if augment is not None:
        # One after the other: what is drawn at random comes from a state that all calls change.
        batches = batches.map(_augmented(augment), None if order else ready)
    return batches.prefetch(ready)


def _cached(batches: tf.data.Dataset, options: ReadOptions, size: int) -> tf.data.Dataset:
    """Returns batches that are parsed and decoded in the first epoch alone, shuffled if asked."""
    held = batches.unbatch().cache("" if options.cache is True else str(options.cache))
    if options.shuffle:
        buffer = 8 * _LEAST_SHUFFLED if options.shuffle is True else int(options.shuffle)
        held = held.shuffle(buffer, options.seed, reshuffle_each_iteration=True)
    return held.batch(size, options.full_batches)


def _first(batches: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """Returns the first batches, all the same read to the end: else a cache is not complete."""
    numbered = batches.enumerate().filter(lambda number, batch: number < steps)  # noqa: ARG005
    return numbered.map(lambda number, batch: batch)  # noqa: ARG005


def _scalars(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the features of one record with single values as scalars."""
    return {name: value[0] if value.shape == (1,) else value for name, value in row.items()}


def _augmented(augment: Callable[[Any], Any]) -> Callable[..., Any]:
    import keras

    is_layer = isinstance(augment, keras.Layer)

    def apply(inputs: Any, *labels: Any) -> Any:
        changed = augment(inputs, training=True) if is_layer else augment(inputs)  # type: ignore[call-arg]
        return (changed, *labels) if labels else changed

    return apply
