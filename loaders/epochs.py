"""Epochs: which examples of a selection, or of a mix of several, each epoch reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shardmill.loaders.draws_left import DrawsLeft
from shardmill.loaders.mixed_order import ComponentOrder, MixedOrder
from shardmill.loaders.mixture import Mixture, Until
from shardmill.loaders.order import EpochOrder, Numbers
from shardmill.loaders.selection import ShardSlice
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import plural

_GOLDEN_RATIO = (5**0.5 - 1) / 2


class Draws(Protocol):
    """Which records each epoch reads, and how often."""

    num_examples: int

    def numbers(self, epoch: int) -> Numbers:
        """Returns the numbers of the records of an epoch, ascending."""
        ...

    def keep(self, kept: npt.NDArray[np.bool_]) -> Draws:
        """Returns the same of some records only, by whether a record is kept, by its number."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns what determines them, for the states of streams."""
        ...


class LabelDraws:
    """The records of an epoch by label.

    An epoch has as many examples as the labels have records. Each label gets its share of them;
    records repeat if it has fewer, and take turns over the epochs if it has more.

    Args:
        numbers: Numbers of the records of each label.
        weights: The share of each label; their sum is 1.
    """

    def __init__(
        self, numbers: Mapping[str, npt.NDArray[np.int64]], weights: Mapping[str, float]
    ) -> None:
        self.weights, self._numbers = dict(weights), dict(numbers)
        self.num_examples = sum(map(len, self._numbers.values()))
        ends = np.rint(np.cumsum(list(self.weights.values())) * self.num_examples).astype(int)
        self._sizes = np.diff([0, *ends]).tolist()
        self._last: tuple[int, Numbers] | None = None  # which random access asks for again

    def numbers(self, epoch: int) -> Numbers:
        """Returns the numbers of the records of an epoch, ascending."""
        last = self._last
        if last is None or last[0] != epoch:
            chosen = [
                own[(np.arange(size) + epoch * size) % len(own)]
                for own, size in zip(self._numbers.values(), self._sizes, strict=True)
            ]
            last = self._last = epoch, np.sort(np.concatenate(chosen))
        return last[1]

    def describe(self) -> dict[str, Any]:
        """Returns the share of each label."""
        return self.weights

    def keep(self, kept: npt.NDArray[np.bool_]) -> LabelDraws:
        """Returns the same of some records only.

        Raises:
            UsageError: None of a label is.
        """
        numbers = {name: own[kept[own]] for name, own in self._numbers.items()}
        for name, own in numbers.items():
            if not len(own):
                raise UsageError(
                    f"where keeps no example of {name!r}, which balance reads: leave the label out "
                    "of balance."
                )
        return LabelDraws(numbers, self.weights)


class WeightedDraws:
    """The records of an epoch by their weights.

    An epoch has as many examples as records have a weight. With 2.4 times the mean weight, a record
    is read two or three times, and over the epochs 2.4 times on average. This is systematic
    sampling: points at equal distances meet the records, each as wide as its weight.

    Args:
        column: Name of the column with the weights.
        numbers: Numbers of the records, ascending.
        weights: Their weights; one at least is positive.
    """

    def __init__(
        self, column: str, numbers: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]
    ) -> None:
        self.column, self._numbers, self._weights = column, numbers, weights
        self.num_examples = int(np.count_nonzero(weights))
        sums = np.cumsum(weights)
        self._ends = sums / sums[-1] * self.num_examples

    def numbers(self, epoch: int) -> Numbers:
        """Returns the numbers of the records of an epoch, ascending."""
        # The golden ratio spreads the first points of any number of epochs evenly.
        first = epoch * _GOLDEN_RATIO % 1
        points = np.arange(self.num_examples) + first
        return self._numbers[np.searchsorted(self._ends, points, side="right")]

    def keep(self, kept: npt.NDArray[np.bool_]) -> WeightedDraws:
        """Returns the same of some records only.

        Raises:
            UsageError: None of them has a weight.
        """
        own = kept[self._numbers]
        if not self._weights[own].any():
            raise UsageError(
                f"where keeps no example with a positive weight in {self.column!r}: choose another "
                "record_weight."
            )
        return WeightedDraws(self.column, self._numbers[own], self._weights[own])

    def describe(self) -> dict[str, Any]:
        """Returns the column and a digest of the weights."""
        digest = hashlib.blake2b(self._weights.tobytes(), digest_size=8).hexdigest()
        return {"record_weight": self.column, "digest": digest}


class ShardOpener(Protocol):
    """What an order needs of the files of shards."""

    def bounds_of(self, shards: Sequence[int]) -> Iterable[Sequence[int]]:
        """Returns the member bounds of several shards."""
        ...

    def open_ahead(self, shards: Sequence[int]) -> None:
        """Starts to open shards; does not wait."""
        ...


class Shuffling(NamedTuple):
    """How the order of an epoch is made.

    Attributes:
        shuffle: Whether to shuffle.
        seed: Seed of the order.
        window: Returns the number of examples in a window.
        files: The files of the shards.
    """

    shuffle: bool
    seed: int
    window: Callable[[], int]
    files: ShardOpener

    def name_of(self, epoch: int) -> str:
        """Returns the seed and the epoch; without shuffling, each epoch has the same order."""
        return f"{self.seed}/{epoch if self.shuffle else 0}"


@dataclass(frozen=True)
class Epochs:
    """The examples of a selection, by epoch.

    Attributes:
        parts: The parts of the selection.
        picks: Numbers of the examples in it, ascending; None for all of it.
        draws: The examples of each epoch, in place of ``picks``; or None.
    """

    parts: Sequence[ShardSlice]
    picks: Numbers | None = None
    draws: Draws | None = None

    def __len__(self) -> int:
        """Returns the number of examples in an epoch."""
        if self.draws is not None:
            return self.draws.num_examples
        if self.picks is not None:
            return len(self.picks)
        return self.num_records

    @property
    def num_records(self) -> int:
        """Number of records of the selection."""
        return sum(part.records for part in self.parts)

    def numbers(self, epoch: int) -> Numbers | None:
        """Returns the numbers of the examples of an epoch, ascending; None for all."""
        if self.draws is None:
            return self.picks
        return self.draws.numbers(epoch)

    @property
    def has_labels(self) -> bool:
        """Whether shards of different labels are mixed, also without shuffling."""
        return any(part.shard.label is not None for part in self.parts)

    @cached_property
    def digest(self) -> str:
        """A digest of the selected records and of their version of the dataset."""
        # The checksums of shards make versions differ although their files have the same names.
        digest = hashlib.blake2b(digest_size=8)
        for part in self.parts:
            if part.records:
                place = f"{part.shard.file} {part.shard.crc32c} {part.first} {part.stop}\n"
                digest.update(place.encode())
        if self.picks is not None:
            digest.update(self.picks.tobytes())
        return digest.hexdigest()

    def keep(self, kept: npt.NDArray[np.bool_]) -> Epochs:
        """Returns the epochs of some of the examples.

        Args:
            kept: Whether an example is kept, by its number in the selection.
        """
        picks = np.flatnonzero(kept) if self.picks is None else self.picks[kept[self.picks]]
        draws = None if self.draws is None else self.draws.keep(kept)
        return replace(self, picks=picks, draws=draws)

    def order(self, epoch: int, how: Shuffling, first_part: int = 0) -> EpochOrder:
        """Returns the order of an epoch.

        Args:
            epoch: Number of the epoch.
            how: How the order is made.
            first_part: Number of the first part in the files.
        """

        def bounds_of(parts: Sequence[int]) -> Iterable[Sequence[int]]:
            return how.files.bounds_of([part + first_part for part in parts])

        def open_ahead(parts: Sequence[int]) -> None:
            how.files.open_ahead([part + first_part for part in parts])

        return EpochOrder(
            self.parts,
            self.numbers(epoch),
            how.shuffle or self.has_labels,
            how.name_of(epoch),
            how.window,
            bounds_of,
            open_ahead,
        )


class Component(NamedTuple):
    """One dataset of a mix.

    Attributes:
        name: Its name.
        weight: Its weight.
        epochs: Its examples by its own epochs.
        left: Its draws that the mix takes.
        read_digest: Digest of its records when these were read; empty if none were.
    """

    name: str
    weight: int
    epochs: Epochs
    left: DrawsLeft = DrawsLeft()
    read_digest: str = ""


@dataclass(frozen=True)
class MixedEpochs:
    """The examples of a mix, by epoch.

    Attributes:
        components: The datasets, in the order of their parts.
        until: What an epoch is; see ``Mixture.length``.
        absent: Of datasets that were in the mix before, and are not in it now: number of examples
            that were read, and digest; by name.
        after: The state that the mix continues, if these numbers do not say which examples were
            read; else None.
        continues: Options of the stream whose state the mix continues: ``order``, ``shuffle`` and
            ``seed``; else None.
    """

    components: tuple[Component, ...]
    until: Until | int
    absent: Mapping[str, list[Any]] = field(default_factory=dict)
    after: Mapping[str, Any] | None = None
    continues: Mapping[str, Any] | None = None

    @cached_property
    def length(self) -> int:
        """Number of examples in an epoch."""
        sizes = [len(component.epochs) for component in self.components]
        return self.mixture.length(sizes, self.until)

    @cached_property
    def mixture(self) -> Mixture:
        """The turns that the datasets take."""
        return Mixture(tuple(component.weight for component in self.components))

    def __len__(self) -> int:
        """Returns the number of examples in an epoch."""
        return self.length

    @property
    def has_labels(self) -> bool:
        """Whether shards of different labels are mixed, also without shuffling."""
        return any(component.epochs.has_labels for component in self.components)

    @cached_property
    def digest(self) -> str:
        """A digest of the records of all datasets, and of the turns that they take."""
        text = json.dumps(self.describe(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _check_unshuffled(self) -> None:
        if self.continues is not None and self.continues["shuffle"]:
            raise UsageError(
                "the mix continues a state of a shuffled stream, and open_dataset reads by number "
                "in an order that is not shuffled: read the mix with a Stream."
            )

    @property
    def names(self) -> list[str]:
        """Names of the datasets."""
        return [component.name for component in self.components]

    def check(self) -> None:
        """Checks that each epoch reads each dataset, and that a state was of the same records.

        Raises:
            UsageError: One is not read, or has other records than in the state.
        """
        counts = self.mixture.counts(self.length)
        for component, count in zip(self.components, counts, strict=True):
            if not count:
                raise UsageError(
                    f"an epoch of {plural(self.length, 'example')} (until={self.until!r}) has none "
                    f"of {component.name!r}: give a larger until, or another weight."
                )
            if component.read_digest not in ("", component.epochs.digest):
                raise UsageError(
                    f"{component.name!r} has other examples than at the state that the mix "
                    "continues: it was built again, or read with another split or where: give it "
                    "another name to begin at its first example."
                )

    def describe(self) -> dict[str, Any]:
        """Returns what determines the mix, for the states of its streams."""
        datasets = []
        for component in self.components:
            name, weight, epochs, left, _ = component
            weights = None if epochs.draws is None else epochs.draws.describe()
            is_mixed = epochs.has_labels
            datasets.append([name, weight, left.start, epochs.digest, weights, is_mixed])
        return {
            "length": self.length,
            "datasets": datasets,
            "absent": dict(self.absent),
            "after": self.after,
        }

    def counts(self, epoch: int, examples: int) -> list[int]:
        """Returns how many examples of each dataset are read before an example of an epoch.

        Args:
            epoch: Number of the epoch.
            examples: Number of the example in it; padding that ends the epoch does not count.
        """
        whole = self.mixture.counts(self.length)
        begun = self.mixture.counts(min(examples, self.length))
        return [
            component.left.num_read + epoch * size + read
            for component, size, read in zip(self.components, whole, begun, strict=True)
        ]

    def order(self, epoch: int, how: Shuffling) -> MixedOrder:
        """Returns the order of an epoch."""
        orders = []
        first_part = 0
        whole = self.mixture.counts(self.length)
        for component, size in zip(self.components, whole, strict=True):
            own = component.epochs
            order = partial(own.order, how=how, first_part=first_part)
            permuted = how.shuffle or own.has_labels
            start = epoch * size
            orders.append(
                ComponentOrder(order, len(own), component.left, start, first_part, permuted)
            )
            first_part += len(own.parts)
        return MixedOrder(orders, self.mixture, self.length, how.name_of(epoch), how.window)

    @cached_property
    def firsts(self) -> list[int]:
        """Number of the first example of each dataset in the joined selections, and of all."""
        sizes = [component.epochs.num_records for component in self.components]
        return list(accumulate(sizes, initial=0))

    def number(self, index: int) -> int:
        """Returns the number, in the joined selections, of an example of the first epoch.

        Raises:
            UsageError: The mix continues a state of a stream that is shuffled.
        """
        self._check_unshuffled()
        chosen, draw = self.mixture.find(index)
        component = self.components[chosen]
        if component.left != DrawsLeft():
            draw = int(component.left.draws(np.array([draw]))[0])
        epoch, place = divmod(draw, len(component.epochs))
        listed = component.epochs.numbers(epoch)
        return self.firsts[chosen] + (place if listed is None else int(listed[place]))

    def numbers(self, indices: npt.NDArray[Any]) -> Numbers:
        """Returns the numbers, in the joined selections, of several examples of the first epoch."""
        self._check_unshuffled()
        components, draws = self.mixture.at(indices)
        numbers = np.empty_like(draws)
        for number, component in enumerate(self.components):
            own = np.flatnonzero(components == number)
            left = component.left.draws(draws[own])
            epochs, places = np.divmod(left, len(component.epochs))
            for epoch in np.unique(epochs).tolist():
                chosen = epochs == epoch
                listed = component.epochs.numbers(epoch)
                at = places[chosen]
                numbers[own[chosen]] = self.firsts[number] + (at if listed is None else listed[at])
        return numbers
