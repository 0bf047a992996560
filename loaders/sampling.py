"""Which records of a selection an epoch reads: as many of each label, or weights of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardmill.loaders.records import Records
from shardmill.loaders.split_statistics import read_labels
from shardmill.loaders.steps import to_int
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.errors import UsageError, format_names

Weights = Mapping[str, float]


class Balance:
    """Draws the records of an epoch by label.

    An epoch has as many examples as the labels have records. Each label gets its share of them;
    records repeat if it has fewer, and take turns over the epochs if it has more.

    Args:
        records: The records.
        balance: ``label`` for equal shares, or the weight of each label; labels without a weight,
            or with weight 0, are left out.

    Raises:
        UsageError: A label is unknown, a weight is invalid, or the records have no labels.
    """

    def __init__(self, records: Records, balance: str | Mapping[str, Any]) -> None:
        if balance != "label" and not isinstance(balance, Mapping):
            raise _balance_invalid(balance)
        if records.source.manifest.label_separator:
            raise UsageError(
                "balance needs one label of each example, and these have several: give each label "
                "a weight in the loss."
            )
        picks = np.arange(len(records.source)) if records.picks is None else records.picks
        labels = np.array([label or "" for label in read_labels(records)])
        has_all = len(labels) == len(records.source)
        labels = labels[picks] if has_all else labels[:0]
        names = [str(name) for name in np.unique(labels) if name]
        if not names:
            raise UsageError("balance needs labels, and some or all of the records have none.")
        weights = balance if isinstance(balance, Mapping) else dict.fromkeys(names, 1.0)
        for name in weights:
            if name not in names:
                raise UsageError(
                    f"balance: the split has no examples of {name!r}: it has {format_names(names)}."
                )
        numbers = [
            weight for weight in weights.values() if isinstance(weight, int | float | np.number)
        ]
        valid = [float(weight) for weight in numbers if weight >= 0]
        total = sum(valid)
        if len(valid) < len(weights) or not 0 < total < float("inf"):
            raise _balance_invalid(balance)
        self.weights = {
            n: float(weight) / total for n, weight in sorted(weights.items()) if weight > 0
        }
        self._numbers = {name: np.asarray(picks)[labels == name] for name in self.weights}
        self.num_examples = sum(map(len, self._numbers.values()))
        ends = np.rint(np.cumsum(list(self.weights.values())) * self.num_examples).astype(int)
        self._sizes = np.diff([0, *ends]).tolist()

    def numbers(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the numbers of the records of an epoch, ascending."""
        chosen = [
            own[(np.arange(size) + epoch * size) % len(own)]
            for own, size in zip(self._numbers.values(), self._sizes, strict=True)
        ]
        return np.sort(np.concatenate(chosen))


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
    return records.pick(Balance(records, balance).numbers(to_int("epoch", epoch)))


def not_records(records: object) -> UsageError:
    """Return the error for not records."""
    return UsageError(f"records={records!r:.60} must be what open_dataset returns.")


def _balance_invalid(balance: object) -> UsageError:
    return UsageError(
        f"balance={balance!r:.99} must be 'label', or a weight of 0 or more for each label, and "
        "one of them positive."
    )
