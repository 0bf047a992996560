"""keras_dataset: a split as a tf.data.Dataset of known length, for ``model.fit``."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardmill.loaders.boxes import BOXES
from shardmill.loaders.epoch_reader import PlacedRecord
from shardmill.loaders.frameworks import require_framework
from shardmill.loaders.mixes import Dataset
from shardmill.loaders.opening import open_for_payloads
from shardmill.loaders.record_decoder import Fill, output_names, select_features
from shardmill.loaders.sampling import Weights
from shardmill.loaders.source import Source
from shardmill.loaders.steps import Remainder, batches, to_int
from shardmill.loaders.stream import Stream, Where
from shardmill.loaders.tf_parse import array_decoder, batch_parser, label_reader
from shardmill.schemas.arguments import check_arguments, unknown_value
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.image_features import MASK

if TYPE_CHECKING:
    import tensorflow as tf

_BLOCK = 256  # records that go to TensorFlow together: each call costs half a millisecond
_BLOCK_BYTES = 8 << 20
_AHEAD = 2  # blocks


class Batching(NamedTuple):
    """Size of batches, and the rule for the last one; see ``keras_dataset``."""

    batch_size: int | None
    remainder: Remainder
    hosts: int

    @property
    def of_host(self) -> int:
        """Number of records in a batch of one host; 1 for single examples."""
        if self.batch_size is None:
            return 1
        return self.batch_size // self.hosts

    def steps(self, stream: Stream) -> int:
        """Returns the number of elements of a host: in an epoch, or in the rest of one.

        Raises:
            InputError: The split is empty.
            UsageError: There would be no batch, or the hosts cannot divide it.
        """
        source, examples = stream.records.source, stream.num_examples
        if not examples:
            raise InputError(f"{source.folder} has no examples in {source.selection.split}.")
        if self.batch_size is None:
            steps = examples // self.hosts
        else:
            steps = batches(examples, self.batch_size, self.remainder, self.hosts)
        if not steps:
            per_host = f" on each of {self.hosts} hosts" if self.hosts > 1 else ""
            size = self.batch_size or self.hosts
            raise UsageError(
                f"a batch of {size:,} is larger than the {plural(examples, 'example')} of "
                f"{source.selection.split} can fill{per_host}, so an epoch would have 0 steps: use "
                "a smaller batch_size, or remainder='pad'."
            )
        if stream.begins_inside:
            return batches(stream.num_left, self.of_host, self.remainder, 1)
        return steps


@check_arguments()
def keras_dataset(  # noqa: PLR0913 - all but two are keyword-only
    dataset: Dataset | Stream,
    split: str = "train",
    *,
    batch_size: int | None = 32,
    shuffle: bool | int = False,
    seed: int = 0,
    remainder: Remainder | None = None,
    label: str | Sequence[str] | None = "id",
    features: Sequence[str] | None = None,
    balance: Literal["label"] | Weights | None = None,
    record_weight: str | None = None,
    fill: Fill | None = None,
    where: Where | None = None,
    limit: int | None = None,
    host: tuple[int, int] | None = None,
) -> tf.data.Dataset:
    """Returns a dataset of batches for ``model.fit``, with the length from the manifest.

    A batch is ``(inputs, labels)``. Inputs are the images (uint8, [batch, height, width, channels])
    or arrays of the dataset; for rows, and for several features, a dict by feature. Labels have
    shape [batch], or [batch, n] for vectors. With ``label=None`` a batch is the inputs alone.
    Several labels are a dict, and so is ``boxes`` or ``boxes/xyxy``, as KerasHub takes it.

    The dataset can be continued with tf.data: ``repeat``, ``map``, ``take``, ``with_options``.
    ``batch_size=None`` gives single examples for ``cache``, ``shuffle`` and ``batch``. Each pass
    over it is a new epoch; with several hosts only after ``set_epoch`` of its ``Stream``.

    Args:
        dataset: The dataset's folder or its manifest.json, on any storage; or a ``mix``. Or a
            ``Stream``, which has a split, an order and a host: ``label``, ``features`` and ``fill``
            apply only.
        split: A split, or several as in ``train+validation``, or slices as in ``train[:10%]``.
        batch_size: Examples in a batch, over all hosts; None for single examples.
        shuffle: Whether to shuffle; an integer is the ``buffer`` of a ``Stream``.
        seed: Seed of the order.
        remainder: The rule for a last batch that is not full: ``keep`` it, ``drop`` it, or
            ``pad`` it: batches are then ``(inputs, labels, weights)``, and the weight of padding is
            0. None for ``keep``, with several hosts ``drop``; they cannot keep it.
        label: ``id`` (integer or float), ``one_hot``, ``text``, a feature; several; or None.
        features: The features that become inputs; None for images, arrays or all columns.
        balance: ``label``, or the weight of each label; see ``Stream``.
        record_weight: A column of weights by which records are read; see ``Stream``.
        fill: Values by feature that replace missing ones; see ``open_dataset``.
        where: Predicate on a dict of all features of a record, images encoded; the others are left
            out, and the number of batches is then unknown. See ``Stream``.
        limit: Number of examples of a predicate ``where`` that each host gets in an epoch.
        host: Number of this host and of all, which get as many batches of ``batch_size / hosts``;
            None to ask the training framework.

    Raises:
        InputError: The manifest or schema cannot be read, or a shard does not match them.
        UsageError: An option is invalid, or there would be no batch.
    """
    stream = _open_stream(
        dataset,
        split,
        fill,
        shuffle=shuffle,
        seed=seed,
        where=where,
        limit=limit,
        host=host,
        remainder=remainder,
        balance=balance,
        record_weight=record_weight,
    )
    batching = _batching_of(stream, batch_size, remainder)
    steps = batching.steps(stream)
    parser = _parser(stream, batching, features, label, fill)
    stream.records.files.member_bounds(0)  # an error of it here is one sentence
    if batching.remainder == "drop" and not stream.host.index and not stream.begins_inside:
        _report_rest(stream, batching, steps)
    cardinality = None if stream.where and stream.limit is None else steps
    made = _to_batches(_Blocks(stream, batching), batching, *parser, cardinality)
    made.class_names = list(stream.records.labels)
    return made


def _batching_of(stream: Stream, size: int | None, remainder: Remainder | None) -> Batching:
    given, hosts = remainder or stream.remainder, stream.host.count
    if size is None and given == "pad":
        raise UsageError("remainder='pad' needs a batch_size.")
    size = None if size is None else to_int("batch_size", size, 1)
    if hosts > 1 and (given == "keep" or given != stream.remainder):
        raise UsageError(
            f"remainder={given!r} of batches and {stream.remainder!r} of the stream would give "
            f"{plural(hosts, 'host')} different numbers of batches: use 'drop' for both, or 'pad' "
            "to evaluate all examples."
        )
    return Batching(size, given, hosts)


def _report_rest(stream: Stream, batching: Batching, steps: int) -> None:
    """Warns how many examples several hosts leave out, unless the stream is filtered."""
    if batching.hosts > 1 and stream.where is None:
        read = steps * (batching.batch_size or batching.hosts)
        stream.report_rest(stream.num_examples - read)


def _open_stream(dataset: Dataset | Stream, split: str, fill: Fill | None, **order: Any) -> Stream:
    """Returns the stream of a split."""
    if isinstance(dataset, Stream):
        given = {"split": split != "train", **order, "remainder": None}
        unused = ", ".join(name for name, value in given.items() if value)
        if unused:
            raise UsageError(f"the stream has {unused} already: give it to open_dataset or Stream.")
        view = dataset.records.view
        if view.transform is not None or view.ids or view.decoder.channels_first:
            raise UsageError(
                "keras_dataset applies neither the transform, the ids nor the layout of the "
                "records: open them without, and use the map method of the result."
            )
        return dataset
    shuffle = order["shuffle"]
    buffer = None if isinstance(shuffle, bool) else to_int("shuffle", shuffle, 1)
    options = {**order, "shuffle": bool(shuffle), "buffer": buffer}
    return Stream(open_for_payloads(dataset, split, fill), **options)


class _Blocks:
    """Gives the serialized examples of several batches; to pad, with their weights.

    If the stream begins inside an epoch, only the rest of that epoch is read: Keras ends all
    epochs after as many batches as the first one has.
    """

    def __init__(self, stream: Stream, batching: Batching) -> None:
        self._stream, self._batching, self._is_over = stream, batching, False
        self._rest = stream.state_dict() if stream.begins_inside else None

    def __call__(self) -> Iterator[Any]:
        """Yields the examples of the next epoch, or of the rest."""
        stream, batching = self._stream, self._batching
        if stream.host.count != batching.hosts:
            raise UsageError(
                f"the dataset was made for {plural(batching.hosts, 'host')}, and there are "
                f"{stream.host.count} now: make it when the training job is initialized, or give "
                "host=(index, count)."
            )
        if self._is_over:
            raise UsageError(
                "the rest of the epoch was read, and whole epochs do not follow in the same "
                "dataset: after fit(rest, initial_epoch=n, epochs=n + 1), continue with "
                "keras_dataset of a stream without at()."
            )
        if self._rest is not None:
            stream.load_state_dict(self._rest)
        read = stream.payloads(partial(_keeps, stream))
        kept = ((payload, place.weight) for place, payload in read)
        stream.read_ahead = True
        for group in _group(kept, batching.of_host):
            if batching.remainder == "pad":
                group.extend([(group[0][0], 0.0)] * (-len(group) % batching.of_host))
            payloads, weights = zip(*group, strict=True)
            if batching.remainder == "pad":
                yield payloads, weights
            else:
                yield payloads
        self._is_over = self._rest is not None


def _group(records: Iterator[tuple[bytes, float]], batch: int) -> Iterator[list[Any]]:
    """Yields groups of whole batches; only the last one may end with a part of one."""
    group: list[Any] = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record[0])
        if len(group) % batch == 0 and (len(group) + batch > _BLOCK or size >= _BLOCK_BYTES):
            yield group
            group, size = [], 0
    if group:
        yield group


def _keeps(stream: Stream, place: PlacedRecord, payload: bytes) -> bool:
    """Returns whether the stream's predicate keeps a record.

    Raises:
        UsageError: The predicate failed: TensorFlow, which shows no more of an exception than its
            text, would hide the place in a long traceback.
    """
    if stream.where is None:
        return True
    part, record, weight = place
    example = stream.records.decode(part, record, payload)
    try:
        return weight > 0 and bool(stream.where(example))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"where raised {error!r:.200} in {at.filename}, line {at.lineno}, for record "
            f"{record:,} of {stream.records.source.paths[part]}: repair it."
        ) from error


def _parser(
    stream: Stream,
    batching: Batching,
    features: Sequence[str] | None,
    label: str | Sequence[str] | None,
    fill: Fill | None,
) -> tuple[Callable[[Any], Any], Callable[..., Any], bool]:
    """Returns functions that turn serialized examples into elements of the dataset.

    Returns:
        A function from a batch of serialized examples to a dict of features; one from them, and
        weights, to an element; and whether it makes single ones: arrays may differ in shape.
    """
    require_framework("tensorflow")
    import tensorflow as tf

    source = stream.records.source
    batched = batching.batch_size is not None
    targets = _targets(source, label)
    if features is None:
        left_out = {
            *source.label_features,
            source.named_by(MASK),
            *(name for name, _ in targets.values()),
        }
        arrays = [name for name in source.arrays if name not in left_out]
        features = arrays or [spec.name for spec in source.specs if spec.name not in left_out]
    inputs = select_features(source, features)
    if fill and stream.where:  # others are filled for the predicate
        names = {spec.name for spec in inputs}
        fill = {name: value for name, value in fill.items() if name in names}
    specs = {spec.name: spec for spec in inputs}
    specs |= {name: source.spec_of(name) for name, _ in targets.values()}
    outputs = output_names(inputs, features)
    decoders = {
        name: array_decoder(spec, batched=batched) for name, spec in specs.items() if spec.encoding
    }
    singly = bool(decoders) and not batched

    def read(name: str, values: Any, *, flat: bool = False) -> Any:
        # Vectors, and lists of any number of values, keep their shape.
        if specs[name].single and (flat or name in decoders):
            values = tf.reshape(values, [] if singly else [-1])
        if name in decoders:
            return decoders[name](values)
        return values

    def finish(parsed: dict[str, Any], *weights: Any) -> Any:
        values: Any = {outputs[spec.name]: read(spec.name, parsed[spec.name]) for spec in inputs}
        if len(inputs) == 1 and inputs[0].encoding:
            (values,) = values.values()
        labels = {
            output: read_label(read(name, parsed[name], flat=True))
            for output, (name, read_label) in targets.items()
        }
        if labels:
            return (values, labels.get("", labels), *weights)
        if weights:
            return (values, *weights)
        return values

    return batch_parser(list(specs.values()), fill), finish, singly


def _targets(
    source: Source, label: str | Sequence[str] | None
) -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """Returns the feature of each target, and a function of its values.

    The name of the target is empty if it is the only one.
    """
    forms: Any = [label] if isinstance(label, str) else label or []
    if not isinstance(forms, list | tuple) or not all(isinstance(form, str) for form in forms):
        choices = "None, 'id', 'one_hot', 'text', or names of features"
        raise unknown_value(name="label", value=label, choices=choices)
    targets: dict[str, tuple[str, Callable[[Any], Any]]] = {}
    for form in forms:
        if form.partition("/")[0] == BOXES and source.has_boxes:
            targets[BOXES] = form, _dense
            targets["labels"] = source.spec_of("classes").name, _dense
        else:
            targets[form] = label_reader(source, form)
    only = isinstance(label, str) and len(targets) == 1
    if only:
        return dict(zip([""], targets.values(), strict=True))
    return targets


def _dense(values: Any) -> Any:
    """Pads ragged values with -1; a single example's are dense already."""
    if hasattr(values, "to_tensor"):
        return values.to_tensor(-1)
    return values


def _to_batches(
    blocks: Callable[[], Iterator[Any]],
    batching: Batching,
    parse: Callable[[Any], Any],
    finish: Callable[..., Any],
    singly: bool,
    steps: int | None,
) -> tf.data.Dataset:
    """Returns the elements of an epoch; their number is ``steps``, or None for an unknown one."""
    import tensorflow as tf

    signature = tf.TensorSpec((None,), tf.string)
    if batching.remainder == "pad":
        signature = (signature, tf.TensorSpec((None,), tf.float32))

    def make(serialized: Any, *weights: Any) -> Any:
        return finish(parse(serialized), *weights)

    # They decide nothing by a tensor, and to convert such functions takes longer than a batch.
    as_they_are = tf.autograph.experimental.do_not_convert
    parse, finish, make = map(as_they_are, (parse, finish, make))
    dataset = tf.data.Dataset.from_generator(blocks, output_signature=signature)
    dataset = dataset.prefetch(_AHEAD)  # read them while others are decoded
    if batching.batch_size is not None:
        dataset = dataset.rebatch(batching.of_host, drop_remainder=batching.remainder != "keep")
    # Blocks are parsed whole, which is faster than one example at a time. Decoded arrays may differ
    # in shape: without batches, they are decoded after the block is divided into examples.
    if singly:
        dataset = dataset.map(parse, tf.data.AUTOTUNE).unbatch()
        dataset = dataset.map(finish, tf.data.AUTOTUNE)
    else:
        dataset = dataset.map(make, tf.data.AUTOTUNE)
        if batching.batch_size is None:
            dataset = dataset.unbatch()
    if batching.hosts > 1:  # each host has its share already
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
    if steps is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset.prefetch(tf.data.AUTOTUNE)
