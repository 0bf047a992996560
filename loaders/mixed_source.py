"""The datasets of a mix as one source: equal features, and class ids of one list of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Literal

from shardmill.loaders.components import Components
from shardmill.loaders.epochs import MixedEpochs
from shardmill.loaders.selection import Selection
from shardmill.loaders.source import Source
from shardmill.schemas.errors import InputError, UsageError, format_names
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec
from shardmill.schemas.schema_pbtxt.image_features import CLASS_ID

_ID_SOURCES = (CLASS_ID, "image/object/class/label", "label")
_MAX_DIFFERENCES = 4  # in a message
Labels = Literal["union"]


def join_sources(
    epochs: MixedEpochs,
    sources: Sequence[Source],
    features: Sequence[str] | None,
    labels: Labels | None,
) -> Source:
    """Returns the datasets of a mix as one source.

    Args:
        epochs: The examples that are read of each dataset.
        sources: The datasets.
        features: Names of the features that must be the same; None for all.
        labels: ``union`` to give equal names of classes one id.

    Raises:
        InputError: A dataset has no examples in its split.
        UsageError: Features or labels differ.
    """
    first, names = sources[0], epochs.names
    for name, source in zip(names, sources, strict=True):
        if not len(source):
            raise InputError(
                f"{name!r} has no examples in {source.selection.split}: leave it out of the mix."
            )
    specs = _common_specs(names, sources, features)
    _check_label_features(names, sources, specs)
    listed = _common_labels(names, sources, specs, labels)
    splits = dict.fromkeys(source.selection.split for source in sources)
    parts = [part for source in sources for part in source.selection.parts]
    components = Components(
        epochs,
        tuple(source.folder for source in sources),
        tuple(_class_ids(source, listed) for source in sources),
        tuple(_id_features(first)),
        max(map(_count_classes, sources)),
    )
    return replace(
        first,
        folder=", ".join(source.folder for source in sources),
        manifest=replace(first.manifest, splits={}, labels=listed),
        selection=Selection(", ".join(splits), tuple(parts)),
        specs=specs,
        lacking=frozenset().union(*(source.lacking for source in sources)),
        mix=components,
        versions={path: version for source in sources for path, version in source.versions.items()},
    )


def _common_specs(
    names: Sequence[str], sources: Sequence[Source], features: Sequence[str] | None
) -> tuple[FeatureSpec, ...]:
    """Returns the specs of the features of all datasets.

    Raises:
        UsageError: They differ.
    """
    listed = [
        _chosen_specs(name, source, features) for name, source in zip(names, sources, strict=True)
    ]
    differences: list[str] = []
    common = listed[0]
    for name, specs in zip(names[1:], listed[1:], strict=True):
        for only, has, lacks in ((common, names[0], specs), (specs, name, common)):
            differences += [f"only {has!r} has {key!r}" for key in only if key not in lacks]
        for key in common.keys() & specs.keys():
            merged = _merge(common[key], specs[key])
            if merged is None:
                how = _describe_difference(common[key], specs[key])
                differences.append(f"{key!r} has {how} in {names[0]!r} and {name!r}")
            else:
                common[key] = merged
    if differences:
        texts = "; ".join(sorted(set(differences))[:_MAX_DIFFERENCES])
        fix = "build them alike"
        if features is None:
            fix += ", or choose, as in mix(..., features=['image', 'label'])"
        raise UsageError(f"the datasets of a mix have different features: {texts}: {fix}.")
    return tuple(common[key] for key in sorted(common, key=str.encode))


def _chosen_specs(
    name: str, source: Source, features: Sequence[str] | None
) -> dict[str, FeatureSpec]:
    if features is None:
        return {spec.name: spec for spec in source.specs}
    chosen: dict[str, FeatureSpec] = {}
    for feature in features:
        try:
            spec = source.spec_of(feature)
        except UsageError as error:
            raise UsageError(f"{name!r} of the mix: {error}") from error
        for part in spec.parts or (spec.name,):
            chosen[part] = source.spec_of(part)
    return chosen


def _merge(ours: FeatureSpec, theirs: FeatureSpec) -> FeatureSpec | None:
    """Returns the spec of records of both; None if they differ by more than missing values."""
    if ours == theirs:
        return ours
    optional = ours if ours.fixed is None else theirs
    if ours.single and theirs.single and replace(ours, fixed=None) == replace(theirs, fixed=None):
        return optional
    return None


def _describe_difference(ours: FeatureSpec, theirs: FeatureSpec) -> str:
    for entry in fields(FeatureSpec):
        values = getattr(ours, entry.name), getattr(theirs, entry.name)
        if values[0] != values[1]:
            return f"{entry.name} {values[0]} and {values[1]}"
    return "different types"


def _common_labels(
    names: Sequence[str],
    sources: Sequence[Source],
    specs: Sequence[FeatureSpec],
    labels: Labels | None,
) -> tuple[str, ...]:
    """Returns the labels of the mix in the order of their class ids.

    Raises:
        UsageError: The datasets have different labels, and ``labels`` does not join them.
    """
    lists = [source.manifest.labels for source in sources]
    if len(set(lists)) == 1:
        return lists[0]
    if labels == "union" and all(lists):
        return tuple(sorted(set().union(*lists), key=str.encode))
    read = {spec.name for spec in specs}
    if not read & {*_id_features(sources[0]), *sources[0].label_features}:
        return ()
    for name, own in zip(names, lists, strict=True):
        if own != lists[0]:
            raise _different_labels(names[0], lists[0], name, own)
    return lists[0]


def _different_labels(
    first: str, labels: tuple[str, ...], name: str, others: tuple[str, ...]
) -> UsageError:
    if not labels or not others:
        return UsageError(
            f"only one of {first!r} and {name!r} lists its labels: leave the label out, as in "
            "mix(..., features=['image'])."
        )
    differing = sorted(set(labels) ^ set(others), key=str.encode)
    return UsageError(
        f"{first!r} and {name!r} have different labels ({format_names(differing)} in only one), so "
        "that their class ids differ: give mix(..., labels='union'), by which equal names have one "
        "id."
    )


def _check_label_features(
    names: Sequence[str], sources: Sequence[Source], specs: Sequence[FeatureSpec]
) -> None:
    """Checks that the labels are the same features, and of one kind.

    Raises:
        UsageError: They are not.
    """
    first, read = sources[0], {spec.name for spec in specs}
    for name, source in zip(names[1:], sources[1:], strict=True):
        if read & source.label_features != read & first.label_features:
            raise UsageError(
                f"the labels of {names[0]!r} and {name!r} are other features: build them alike."
            )
        if source.manifest.label_separator != first.manifest.label_separator:
            raise UsageError(
                f"only one of {names[0]!r} and {name!r} has several labels of an example: build "
                "them alike."
            )


def _id_features(source: Source) -> list[str]:
    """Returns the names of the features with class ids."""
    integers = {spec.name for spec in source.specs if spec.kind == "int64"}
    named = [source.named_by(feature) for feature in _ID_SOURCES]
    return [name for name in named if name in integers]


def _class_ids(source: Source, listed: tuple[str, ...]) -> tuple[int, ...]:
    """Returns the class ids of the mix by those of a dataset; empty if they are the same."""
    numbers = {label: number for number, label in enumerate(listed)}
    if not listed:
        return ()
    class_ids = tuple(numbers[label] for label in source.manifest.labels)
    if class_ids == tuple(range(len(class_ids))):
        return ()
    return class_ids


def _count_classes(source: Source) -> int:
    """Returns the number of classes, or 0 if it is not known."""
    try:
        return source.num_classes
    except UsageError:
        return 0
