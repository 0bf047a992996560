"""Which records of a selection an epoch reads: by weights of labels, or of the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from shardmill.loaders.epochs import Draws, Epochs, LabelDraws, MixedEpochs, WeightedDraws
from shardmill.loaders.filters import read_columns
from shardmill.loaders.order import Numbers
from shardmill.loaders.records import Records
from shardmill.loaders.split_statistics import read_labels
from shardmill.loaders.steps import to_int
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.errors import UsageError, format_names

Weights = Mapping[str, float]


def draw_by_label(
    records: Records,
    balance: str | Mapping[str, Any],
    first: int = 0,
    numbers: range | Numbers | None = None,
) -> LabelDraws:
    """Returns the records of each epoch by label.

    Args:
        records: The records.
        balance: ``label`` for equal shares, or the weight of each label; labels without a weight,
            or with weight 0, are left out.
        first: Number in the source of the first record of a dataset of a mix.
        numbers: Numbers, from ``first``, of the records; None for all of them.

    Raises:
        UsageError: A label is unknown, a weight is invalid, or the records have no labels.
    """
    if balance != "label" and not isinstance(balance, Mapping):
        raise _balance_invalid(balance)
    if records.source.manifest.label_separator:
        raise UsageError(
            "balance needs one label of each example, and these have several: give each label "
            "a weight in the loss."
        )
    if numbers is None:
        numbers = range(len(records.source)) if records.picks is None else records.picks
    picks = np.asarray(numbers, np.int64)
    labels = np.array([label or "" for label in read_labels(records)])
    has_all = len(labels) == len(records.source)
    labels = labels[picks + first] if has_all else labels[:0]
    names = [str(name) for name in np.unique(labels) if name]
    if not names:
        raise UsageError("balance needs labels, and some or all of the records have none.")
    weights = balance if isinstance(balance, Mapping) else dict.fromkeys(names, 1.0)
    for name in weights:
        if name not in names:
            raise UsageError(
                f"balance: the split has no examples of {name!r}: it has {format_names(names)}."
            )
    given = [weight for weight in weights.values() if isinstance(weight, int | float | np.number)]
    valid = [float(weight) for weight in given if weight >= 0]
    total = sum(valid)
    if len(valid) < len(weights) or not 0 < total < float("inf"):
        raise _balance_invalid(balance)
    shares = {name: float(weight) / total for name, weight in sorted(weights.items()) if weight > 0}
    return LabelDraws({name: picks[labels == name] for name in shares}, shares)


def draw_by_weight(records: Records, column: str) -> WeightedDraws:
    """Returns the records of each epoch by their weights.

    Args:
        records: The records.
        column: A column of numbers, as ``where`` names it.

    Raises:
        InputError: A catalog or record cannot be read.
        UsageError: There is no such column, or a value of it is not a weight.
    """
    if not isinstance(column, str):
        raise UsageError(f"record_weight={column!r:.60} must be the name of a column of numbers.")
    values = read_columns(records, [column], "record_weight")[0].values
    numbers = range(len(values)) if records.picks is None else records.picks
    picks = np.asarray(numbers, np.int64)
    weights = []
    for number in picks.tolist():
        value = values[number]
        is_weight = isinstance(value, int | float) and 0 <= value < float("inf")
        if not is_weight:
            raise UsageError(
                f"record_weight={column!r}: record {number:,} of the split has {value!r:.60}: "
                "weights are numbers of 0 or more; leave out others, as in "
                f"where={{{column!r}: lambda value: ...}}."
            )
        weights.append(value)
    if not any(weights):
        raise UsageError(
            f"record_weight={column!r}: no record has a positive value: choose another column."
        )
    return WeightedDraws(column, picks, np.array(weights, np.float64))


def epochs_of(
    records: Records, balance: str | Mapping[str, Any] | None, record_weight: str | None
) -> Epochs | MixedEpochs:
    """Returns which of some records each epoch reads.

    In a mix, the examples of each dataset are balanced.

    Raises:
        UsageError: A label is unknown, a weight is invalid, or the records have no labels.
    """
    if balance is not None and record_weight is not None:
        raise UsageError(
            "balance gives weights to labels, and record_weight to records: choose one of both."
        )
    mix = records.source.mix
    if mix is not None and records.picks is None:
        if record_weight is not None:
            raise UsageError(
                "record_weight needs records of one dataset: weight the datasets of the mix, or "
                "their labels by balance."
            )
        if balance is None:
            return mix.epochs
        return _balance_mix(records, mix.epochs, balance)
    picks = None if records.picks is None else np.asarray(records.picks)
    draws: Draws | None = None
    if balance is not None:
        draws = draw_by_label(records, balance)
    elif record_weight is not None and len(records):
        draws = draw_by_weight(records, record_weight)
    return Epochs(records.source.selection.parts, picks, draws)


def _balance_mix(
    records: Records, epochs: MixedEpochs, balance: str | Mapping[str, Any]
) -> MixedEpochs:
    for component in epochs.components:
        if component.epochs.draws is not None:
            raise UsageError(
                f"balance: the mix balances {component.name!r} already: give balance to one of "
                "both."
            )
    components = []
    for component, first in zip(epochs.components, epochs.firsts, strict=False):
        own = component.epochs
        picks = range(own.num_records) if own.picks is None else own.picks
        draws = draw_by_label(records, balance, first, picks)
        components.append(component._replace(epochs=replace(own, draws=draws)))
    return replace(epochs, components=tuple(components))


@check_arguments()
def balanced(records: Records, balance: Literal["label"] | Weights, epoch: int = 0) -> Records:
    """Returns the records of an epoch of a balanced stream, for random access.

    Args:
        records: The records.
        balance: ``label`` for as many of each label, or the weight of each; see ``Stream``.
        epoch: Number of the epoch: the records of large labels take turns.

    Raises:
        UsageError: A label is unknown, a weight is invalid, or the records have no labels.
    """
    if not isinstance(records, Records):
        raise not_records(records)
    if records.source.mix is not None:
        raise UsageError(
            "balanced takes records of one dataset: give balance to the datasets of the mix."
        )
    return records.pick(draw_by_label(records, balance).numbers(to_int("epoch", epoch)))


def not_records(records: object) -> UsageError:
    """Return the error for a value that is not the records of a dataset."""
    return UsageError(f"records={records!r:.60} must be what open_dataset returns.")


def _balance_invalid(balance: object) -> UsageError:
    return UsageError(
        f"balance={balance!r:.99} must be 'label', or a weight of 0 or more for each label, and "
        "one of them positive."
    )
