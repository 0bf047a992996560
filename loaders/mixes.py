"""Mix: a value that names several datasets, their weights, and what an epoch of them is."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from shardmill.loaders.mixed_state import normalize_state
from shardmill.loaders.mixture import MAX_PERIOD, Mixture, Until
from shardmill.loaders.steps import to_int
from shardmill.schemas.arguments import check_arguments, unknown_value
from shardmill.schemas.errors import UsageError, format_names
from shardmill.schemas.storage import join, open_storage, scheme_of
from shardmill.schemas.text_file import TextError, decode_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_EXAMPLE = "as in mix({'photos': 3, 'drawings': 1})"
_KEYS = ("path", "weight", "split", "where", "balance", "name")
_OPTIONS = ("until", "features", "labels")
_TABLE = "dataset"


class MixedDataset(NamedTuple):
    """One dataset of a mix.

    Attributes:
        name: Its name in states and messages.
        path: Its folder or manifest.json.
        weight: A positive integer.
        split: The split to read; None for the split that the reader is given.
        where: Which examples to read, by column; see ``Stream``.
        balance: ``label``, or the weight of each label; see ``Stream``.
    """

    name: str
    path: str
    weight: int
    split: str | None = None
    where: Mapping[str, Any] | None = None
    balance: str | Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Mix:
    """Several datasets that are read as one; made by ``mix``.

    Attributes:
        datasets: The datasets.
        until: What an epoch is.
        features: Names of the features to read; None for all.
        labels: ``union`` to give equal names of classes one id; None if all have the same.
        after: The state that it continues; see ``normalize_state``. Or None.
    """

    datasets: tuple[MixedDataset, ...]
    until: Until | int = "first"
    features: tuple[str, ...] | None = None
    labels: Literal["union"] | None = None
    after: Mapping[str, Any] | None = None


Dataset = str | os.PathLike[str] | Mix


@check_arguments()
def mix(
    datasets: Mapping[Any, int] | Sequence[Mapping[str, Any]] | str | os.PathLike[str],
    *,
    until: Until | int = "first",
    features: Sequence[str] | None = None,
    labels: Literal["union"] | None = None,
    after: Mapping[str, Any] | None = None,
) -> Mix:
    """Returns a dataset of datasets, for readers in place of a path.

    After any number of examples, each dataset has had its weighted share of them, within one
    example. Which dataset the next example is of depends on nothing but its number, so that hosts,
    workers, states and changes of their number work as for one dataset. Each dataset has its own
    order and its own epochs: it begins again when all of its examples were read, and continues in
    the next epoch of the mix where it ended in the last one.

    Args:
        datasets: The weight of each dataset, a positive integer, by its path. Or a list of tables
            with ``path`` and ``weight``, and perhaps ``split``; ``where``, values or predicates by
            column; ``balance``; and ``name``, which is the path if it is not given. Or the path of
            a TOML file with these tables and all options but ``after``.
        until: What an epoch is: ``first`` ends it before the first example that would repeat,
            ``all`` when each example was read, a number after so many examples.
        features: The features to read; None for all, which must be the same in all datasets.
        labels: ``union`` where datasets have different labels: an equal name has one class id.
        after: A state of a stream of another mix, to change weights or datasets: those that it
            names continue after the examples that were read, others begin. Epochs count from 0.

    Raises:
        UsageError: There are no datasets, a weight is not a positive integer, a name is there
            twice, or the state is of another kind.
    """
    if isinstance(datasets, str | os.PathLike):
        return _continue_file(os.fspath(datasets), (until, features, labels), after)
    listed = tuple(_parse_datasets(datasets))
    if not listed:
        raise UsageError(f"a mix needs datasets: give the weight of each, {_EXAMPLE}.")
    for name, count in Counter(dataset.name for dataset in listed).items():
        if count > 1:
            raise UsageError(
                f"two datasets of the mix are called {name!r}: give one of them another name, as "
                f"in {{'path': {name!r}, 'name': 'other', ...}}."
            )
    _check_weights(listed)
    if until not in ("first", "all"):
        if isinstance(until, str | bool):
            choices = "'first', 'all' or a number of examples"
            raise unknown_value(name="until", value=until, choices=choices)
        until = to_int("until", until, 1)
    if labels not in (None, "union"):
        raise unknown_value(name="labels", value=labels, choices="None or 'union'")
    if isinstance(features, str):
        raise UsageError(f"features={features!r} must be a list of names: write [{features!r}].")
    names = None if features is None else tuple(features)
    state = None if after is None else normalize_state(after)
    return Mix(listed, until, names, labels, state)


def _continue_file(path: str, options: tuple[Any, ...], after: Mapping[str, Any] | None) -> Mix:
    """Returns the mix of a TOML file, after a state."""
    if not path.endswith(".toml"):
        raise UsageError(f"mix: {path!r:.60}: give the weight of each dataset, {_EXAMPLE}.")
    if options != ("first", None, None):
        raise UsageError(f"mix: write until, features and labels in {path}.")
    state = None if after is None else normalize_state(after)
    return replace(read_mix(path), after=state)


def _parse_datasets(datasets: object) -> Iterator[MixedDataset]:
    if isinstance(datasets, Mapping):
        for path, weight in datasets.items():
            yield _parse_dataset({"path": path, "weight": weight})
    elif isinstance(datasets, Sequence) and not isinstance(datasets, str | bytes):
        for table in datasets:
            if not isinstance(table, Mapping):
                raise UsageError(f"mix: {table!r:.60} is not a table with path and weight.")
            yield _parse_dataset(table)
    else:
        raise UsageError(f"mix: {datasets!r:.60}: give the weight of each dataset, {_EXAMPLE}.")


def _parse_dataset(table: Mapping[str, Any]) -> MixedDataset:
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"mix: a dataset has no {key!r}: it has {format_names(_KEYS)}.")
    if not isinstance(table.get("path"), str | os.PathLike):
        raise UsageError(f"mix: {dict(table)!r:.99} needs a path: the folder of a dataset.")
    path = os.fspath(table["path"])
    values = {**table, "path": path, "name": table.get("name", path)}
    if "weight" not in table:
        raise UsageError(f"mix: the dataset {values['name']!r} needs a weight, such as 1.")
    weight = table["weight"]
    is_number = not isinstance(weight, bool | float) and hasattr(weight, "__index__")
    if not is_number or weight < 1:
        raise UsageError(
            f"mix: the weight {weight!r:.30} of {values['name']!r} must be a positive integer: "
            "multiply all weights by one number, or leave the dataset out."
        )
    where = table.get("where")
    if where is not None and not isinstance(where, Mapping):
        raise UsageError(
            f"mix: where={where!r:.60} of {values['name']!r} must name columns, as in "
            "where={'label': 'roses'}: a function of an example leaves out an unknown number."
        )
    return MixedDataset(**{**values, "weight": int(weight)})


def _check_weights(datasets: Sequence[MixedDataset]) -> None:
    period = Mixture(tuple(dataset.weight for dataset in datasets)).period
    if period > MAX_PERIOD:
        raise UsageError(
            f"the weights of the mix add up to {period:,}, without common divisors, and may add up "
            f"to {MAX_PERIOD:,}: round them."
        )


def read_dataset_name(dataset: Dataset) -> Dataset:
    """Returns what names a dataset: of a TOML file the mix that it describes."""
    if isinstance(dataset, str | os.PathLike) and os.fsdecode(dataset).endswith(".toml"):
        return read_mix(os.fsdecode(dataset))
    return dataset


def read_mix(path: str) -> Mix:
    """Returns the mix of a TOML file, whose paths are relative to its folder.

    Raises:
        UsageError: The file does not exist, or is not a mix in TOML.
    """
    storage = open_storage(path)
    if storage.stat(path) is None:
        raise UsageError(f"{path} does not exist: give a dataset, or a TOML file with a mix.")
    try:
        tables = tomllib.loads(decode_text(storage.read(path)))
        datasets = tables.pop(_TABLE, [])
        for name in tables:
            if name not in _OPTIONS:
                raise UsageError(
                    f"unknown name {name!r}: use {format_names(_OPTIONS)} or [[{_TABLE}]]."
                )
        if not isinstance(datasets, list):
            raise UsageError("write [[dataset]] with two brackets.")
        return mix([_with_path(path, table) for table in datasets], **tables)
    except UsageError as error:
        raise UsageError(f"{path} is not a mix in TOML: {error}") from error
    except (ValueError, TextError) as error:
        raise UsageError(f"{path} is not a mix in TOML: {error}: correct it.") from error


def _with_path(file: str, table: Any) -> Any:
    """Returns a table with its path below the folder of a file, and the name as it is written."""
    if not isinstance(table, dict) or not isinstance(table.get("path"), str):
        return table
    path = table["path"]
    if not scheme_of(path) and not os.path.isabs(path):
        path = join(os.path.dirname(file) or ".", path)
    return {"name": table["path"], **table, "path": path}
