"""Findings: properties of a dataset that may harm training, the worst first, with remedies.

Pure functions of the manifest and of sampled records; ``shardmill report`` and ``shardmill check``
show the same ones. docs/looking.md explains each.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shardmill.schemas.dataset.catalog import annotation_of, copies_conflict, find_differing
from shardmill.schemas.dataset.manifest import Manifest, Split
from shardmill.schemas.dataset.statistics import Statistics
from shardmill.schemas.example.parse import FeatureValues
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.image_features import DEPTH_REDUCED

_DIVIDE = "divide at random, and use --group_by for records that belong together"
_CLASSES = "add examples, give the split a larger share, or merge or drop these classes"
# The worst first: the number that is allowed, and the remedy.
_FINDINGS: dict[str, tuple[float, str]] = {
    "copies_across_splits": (0, "build with --duplicates=same_split or --duplicates=drop"),
    "copies_with_other_labels": (0, "correct their labels, boxes or masks, or leave copies out"),
    "equals_label": (0, "leave them out with --drop: the model would read the label from them"),
    "few_in_split": (5, _CLASSES),
    "few_in_train": (10, _CLASSES),
    "rejected": (0.05, "repair the inputs that rejects.jsonl lists"),
    "skew": (0.25, _DIVIDE),
    "label_skew": (0.2, _DIVIDE),
    "constant_images": (0, "look at them, and remove those that show nothing"),
    "enlarged": (0.1, "use a smaller --image_size, or larger files"),
    "depth_reduced": (
        0,
        "where the levels matter, as of depth maps, give .npy files to shardmill arrays",
    ),
    "imbalance": (10, 'train with class_weights, or balance="label"'),
    "empty_columns": (0, "leave them out with --drop"),
    "constant_columns": (0, "leave them out with --drop: they say nothing about the label"),
    "equals_key": (0, "leave them out with --drop: a model would learn the rows by heart"),
    "numeric_text": (0, "correct the other cells, or use --types or --null_values"),
}
LIMITS = {name: limit for name, (limit, _) in _FINDINGS.items()}
_COLUMNS = {
    "empty_columns": "without values",
    "constant_columns": "with one value in the {} that were examined",
    "equals_label": "with one value for each label in the {} that were examined",
    "equals_key": "equal to the key in the {} that were examined",
    "numeric_text": "of text that is nearly always a number in the {} that were examined",
}
_COPIES = {
    "copies_across_splits": ("is", "are", "in several splits"),
    "copies_with_other_labels": ("has", "have", "different labels, boxes or masks"),
}
_TRAIN = "train"
_FEWEST_ROWS = 10  # in which columns are compared
_FLAT = 2.0  # levels of 255
_ERRORS = 4  # standard errors that a skew exceeds
_NUMERIC = 0.9  # share of texts
_SHOWN = 8  # images of a finding
_FEW = 3  # keys of a finding


class SampledRecord(NamedTuple):
    """A record.

    Attributes:
        part: Number of its shard in the selection.
        record: Number of the record in the shard.
        label: Its label, or None.
        record_bytes: Bytes of the record with its frame.
        width: Width of the input image, or 0 if unknown.
        height: Its height.
        input_bytes: Size of the input file, or 0 if unknown.
        pixels: Pixels of the record's image; 0 if they are not known.
        pixel_sums: Sum of the values of each channel.
        pixel_squares: Sum of their squares.
        content_hash: Hash of the input file, or empty if unknown.
        key: Key of the input.
        depth_reduced: 1 if a channel of the input has more than 8 bits; None for 0.
        values_digest: Digest of its boxes and mask, or of other columns of a listing; or None.
        features: Values of the record; empty if it was not read.
    """

    part: int
    record: int
    label: str | None
    record_bytes: int
    width: int = 0
    height: int = 0
    input_bytes: int = 0
    pixels: int = 0
    pixel_sums: Sequence[int] = ()
    pixel_squares: Sequence[int] = ()
    content_hash: str = ""
    key: str = ""
    depth_reduced: int | None = 0
    values_digest: str | None = None
    features: dict[str, FeatureValues] = {}  # noqa: RUF012 - is never changed


class DatasetFinding(NamedTuple):
    """A finding, or the verdict of a rule.

    Attributes:
        name: One of ``LIMITS``, or the name of a rule.
        value: The number that exceeds the limit, or falls below it for ``few_in_...``; None for a
            rule about something else.
        line: The finding as a clause.
        remedy: Advice as a clause; empty for a rule that holds.
        fails: Whether the dataset must not be used: a limit names the finding, or a rule is broken.
    """

    name: str
    value: float | None
    line: str
    remedy: str = ""
    fails: bool = False

    @property
    def text(self) -> str:
        """The clause, after the name by which a limit names the finding."""
        if self.name in LIMITS:
            return f"{self.name}: {self.line}"
        return self.line


def find_problems(
    manifest: Manifest, samples: Sequence[SampledRecord], limits: Mapping[str, float] = LIMITS
) -> list[DatasetFinding]:
    """Returns the findings, the worst first.

    Args:
        manifest: The manifest of a dataset.
        samples: Some of its records.
        limits: The number that each finding allows.
    """
    problems = [*_of_copies(manifest, samples), *_of_rejects(manifest), *_of_images(samples)]
    problems += [*_of_columns(manifest, samples), *_of_depth(manifest, samples)]
    train = manifest.splits.get(_TRAIN)
    for name, split in manifest.splits.items():
        problems += _of_classes(name, split, manifest, limits)
        if train and split is not train:
            problems += _of_skew(name, train, split)
    order = [*_FINDINGS].index
    remedies = {name: remedy for name, (_, remedy) in _FINDINGS.items()}
    if conflict := copies_conflict(manifest.build.config):
        remedies["copies_across_splits"] = (
            "remove them from the inputs of all splits but one, since --duplicates cannot be "
            f"combined with {conflict}"
        )
    return [
        DatasetFinding(name, value, line, remedies[name])
        for name, value, line in sorted(problems, key=lambda problem: order(problem[0]))
        if value > limits[name] or name.startswith("few_")
    ]


def choose_examples(
    name: str, samples: Sequence[SampledRecord], manifest: Manifest
) -> list[tuple[SampledRecord, ...]]:
    """Returns a few images that show a finding: pairs of copies, or single ones.

    Args:
        name: The finding.
        samples: Some of the records.
        manifest: The manifest of the dataset.
    """
    if name in _IMAGES:
        return [(sample,) for sample in _IMAGES[name](samples)[:_SHOWN]]
    if name not in _COPIES:
        return []
    splits = splits_of_shards(manifest)

    def value_of(sample: SampledRecord) -> str:
        if name == "copies_across_splits":
            return splits[sample.part]
        return annotation_of(sample.label, sample.values_digest, manifest.build.config)

    contents = defaultdict[str, list[SampledRecord]](list)
    for sample in sorted(samples, key=lambda sample: sample.key):
        contents[sample.content_hash].append(sample)
    pairs = [find_differing(copies, value_of) for copies in contents.values()]
    # As in the warning of the build: the smallest keys.
    ordered = sorted((pair for pair in pairs if pair), key=lambda pair: pair[0].key)
    return [*ordered[: _SHOWN // 2]]


def splits_of_shards(manifest: Manifest) -> list[str]:
    """Returns the name of the split of each shard."""
    return [name for name, split in manifest.splits.items() for _ in split.shards]


_FindingRows = Iterator[tuple[str, float, str]]


def _of_copies(manifest: Manifest, samples: Sequence[SampledRecord]) -> _FindingRows:
    splits = splits_of_shards(manifest)
    for name, (verb, verb_of_several, what) in _COPIES.items():
        count = getattr(manifest.inputs, name)
        line = f"{plural(count, 'image')} {verb if count == 1 else verb_of_several} {what}"
        for first, second in choose_examples(name, samples, manifest)[:1]:
            places = splits[first.part], splits[second.part]
            if name == "copies_with_other_labels":
                places = first.label or "none", second.label or "none"
            if places[0] == places[1]:  # then boxes or masks differ
                line += f", such as {first.key} = {second.key}"
            else:
                line += f", such as {first.key} ({places[0]}) = {second.key} ({places[1]})"
        yield name, count, line


def _of_rejects(manifest: Manifest) -> _FindingRows:
    inputs = manifest.inputs
    considered = inputs.accepted + inputs.rejected
    share = inputs.rejected / max(1, considered)
    line = f"{inputs.rejected:,} of {considered:,} inputs were rejected ({share:.1%})"
    yield "rejected", share, f"{line}: {_listed(inputs.rejected_by_reason)}"


def _of_classes(
    name: str, split: Split, manifest: Manifest, least: Mapping[str, float]
) -> _FindingRows:
    # Those of --labels without examples, too.
    used = {label for other in manifest.splits.values() for label in other.label_counts}
    labels = sorted({*manifest.labels, *used})
    counts = Counter({label: split.label_counts.get(label, 0) for label in labels})
    kind = "few_in_train" if name == _TRAIN else "few_in_split"
    few = {label: count for label, count in counts.items() if count < least[kind]}
    if few and split.labeled and split.num_examples:
        line = f"{len(few):,} of {plural(len(labels), 'label')} have fewer than {least[kind]:g}"
        listed = _listed(few, reverse=False)
        yield kind, min(few.values()), f"{line} examples in {name}: {listed}"
    ordered = (+counts).most_common()
    if name == _TRAIN and ordered:
        (most, large), (label, small) = ordered[0], ordered[-1]
        line = f"{most} has {large:,} training examples, and {label} {small:,}"
        yield "imbalance", large / small, line


def _of_skew(name: str, train: Split, split: Split) -> _FindingRows:
    shifts, moments = {}, _moments(split)
    for feature, (count, mean, std) in _moments(train).items():
        others, other, _ = moments.get(feature, (0, 0, 0))
        if others and abs(mean - other) / std > _ERRORS * math.sqrt(1 / count + 1 / others):
            shifts[feature] = abs(mean - other) / std
    line = f"means in {name} differ from those in train, in standard deviations of train"
    yield "skew", max(shifts.values(), default=0), f"{line}: {_listed(shifts, number='{:.2f}')}"
    one, two = (Counter(side.label_counts) for side in (train, split))
    least = min(one.total(), two.total())
    labels = {*one, *two} if least else set()
    distance = sum(abs(one[k] / one.total() - two[k] / two.total()) for k in labels) / 2
    if distance > math.sqrt(len(labels) / max(1, least)):  # more than in random splits, about
        line = f"{distance:.0%} of {name} would need other labels to have the shares of train"
        yield "label_skew", distance, line


def _moments(split: Split) -> dict[str, tuple[float, float, float]]:
    """Returns count, mean and standard deviation of each channel, and feature that varies."""
    statistics = split.statistics or Statistics()
    moments: dict[str, Any] = {k: (v.count, v.mean, v.std) for k, v in statistics.features.items()}
    if statistics.pixels:
        channels = zip(statistics.pixels.mean, statistics.pixels.std, strict=False)
        moments |= {
            f"channel {n}": (split.num_examples, *channel) for n, channel in enumerate(channels)
        }
    # Features that are not numbers have neither; a damaged manifest may have texts.
    numbers = {
        name: values
        for name, values in moments.items()
        if all(isinstance(value, int | float) for value in values)
    }
    return {name: values for name, values in numbers.items() if values[0] > 0 and values[2] > 0}


def _of_images(samples: Sequence[SampledRecord]) -> _FindingRows:
    images = [sample for sample in samples if sample.pixels and sample.width]
    if not images:
        return
    read = f"of the {plural(len(images), 'image')} that were examined"
    flat, enlarged = (_IMAGES[name](images) for name in ("constant_images", "enlarged"))
    line = f"{len(flat):,} {read} are nearly of one colour: standard deviation below {_FLAT:g}"
    yield "constant_images", len(flat) / len(images), f"{line} of 255{_such_as(flat)}"
    line = f"{len(enlarged):,} {read} were enlarged"
    if enlarged:
        line += f", from as little as {enlarged[0].width}x{enlarged[0].height}"
    yield "enlarged", len(enlarged) / len(images), line


def _of_depth(manifest: Manifest, samples: Sequence[SampledRecord]) -> _FindingRows:
    count = manifest.inputs.counts.get(DEPTH_REDUCED, 0)
    accepted = plural(manifest.inputs.accepted, "image")
    such_as = _such_as(_IMAGES[DEPTH_REDUCED](samples))
    line = f"{count:,} of {accepted} had more than 8 bits a channel, of which records have 8"
    yield DEPTH_REDUCED, count, f"{line}{such_as}"


_IMAGES: dict[str, Callable[[Sequence[SampledRecord]], list[SampledRecord]]] = {
    "constant_images": lambda images: [e for e in images if e.pixels and _deviation(e) < _FLAT],
    "enlarged": lambda images: sorted(
        (sample for sample in images if sample.pixels > sample.width * sample.height > 0),
        key=lambda sample: sample.width * sample.height,
    ),
    DEPTH_REDUCED: lambda images: [sample for sample in images if sample.depth_reduced],
}


def _such_as(images: Sequence[SampledRecord]) -> str:
    """Returns a clause with some keys, or an empty text."""
    keys = [image.key for image in images[:_FEW] if image.key]
    if keys:
        return f", such as {', '.join(keys)}"
    return ""


def _deviation(image: SampledRecord) -> float:
    pairs = zip(image.pixel_sums, image.pixel_squares, strict=True)
    size = image.pixels
    return max(math.sqrt(max(0.0, square / size - (total / size) ** 2)) for total, square in pairs)


def _of_columns(manifest: Manifest, samples: Sequence[SampledRecord]) -> _FindingRows:
    counts = Counter[str]()
    for split in manifest.splits.values():
        features = split.statistics.features if split.statistics else {}
        counts.update({name: feature.count for name, feature in features.items()})
    empty = [name for name, count in counts.items() if not count]
    rows = [sample for sample in samples if sample.features]
    names = {name for row in rows for name in row.features} if len(rows) >= _FEWEST_ROWS else set()
    judged = {"empty_columns": empty}
    for name in sorted(names - manifest.label_features):
        judged.setdefault(_judge_column(name, manifest, rows), []).append(name)
    for kind, columns in judged.items():
        if kind:
            problem = _COLUMNS[kind].format(plural(len(rows), "row"))
            line = f"{plural(len(columns), 'column')} {problem}: {', '.join(columns)}"
            yield kind, len(columns), line


def _judge_column(name: str, manifest: Manifest, rows: Sequence[SampledRecord]) -> str:
    """Returns the name of a column's problem, or an empty text."""
    values = [_values(row, name) for row in rows]
    distinct, labels = set(values), [row.label for row in rows]
    if len(distinct) == 1:
        if values[0]:
            return "constant_columns"
        return ""
    source = next((f.get("source", "") for f in manifest.features if f["name"] == name), "")
    if source.startswith("label"):
        return ""
    if len({*labels}) == len(distinct) == len({*zip(values, labels, strict=True)}) < len(rows):
        return "equals_label"
    key = str(manifest.build.config.get("key") or "")
    if key and name != key and values == [_values(row, key) for row in rows]:
        return "equals_key"
    texts = [cell[0] for cell in values if len(cell) == 1 and isinstance(cell[0], bytes)]
    numbers = sum(_is_number(text) for text in texts)
    if _NUMERIC * len(texts) <= numbers < len(texts):
        return "numeric_text"
    return ""


def _values(row: SampledRecord, name: str) -> tuple[Any, ...]:
    if name in row.features:
        return tuple(row.features[name].values)
    return ()


def _is_number(text: bytes) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _listed(counts: Mapping[str, float], *, number: str = "{:,}", reverse: bool = True) -> str:
    """Returns the largest numbers with their names, or the smallest ones."""
    sign = -1 if reverse else 1
    ordered = sorted(counts.items(), key=lambda item: (sign * item[1], item[0]))
    listed = [f"{name} {number.format(value)}" for name, value in ordered[:5]]
    if len(ordered) > 5:
        listed.append("...")
    return ", ".join(listed)
