"""What a state of a mix says about each of its datasets, so that another mix can continue them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardmill.loaders.draws_left import DrawsLeft, Interval, intervals_of
from shardmill.loaders.hosts import Share
from shardmill.loaders.mixed_order import window_places
from shardmill.loaders.mixture import Mixture
from shardmill.loaders.order import cut_places
from shardmill.loaders.pieces import Deal, Piece, Reader, redeal
from shardmill.loaders.position import reads_of, resume_position
from shardmill.loaders.steps import Remainder
from shardmill.schemas.errors import UsageError


class ReadSoFar(NamedTuple):
    """How much of a dataset was read.

    Attributes:
        left: What is left of it.
        digest: Digest of its records.
    """

    left: DrawsLeft
    digest: str


def normalize_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a state of a mix says, in one form.

    Args:
        state: The state of a stream, or of the StatefulDataLoader of torchdata that read it.

    Returns:
        The epoch, the deals in it, and the options of the stream.

    Raises:
        UsageError: It is not the state of a mix, or does not say which examples were read.
    """
    reads = reads_of(state)
    if "mix" not in reads:
        raise UsageError(
            "after: the state is not one of a mix: continue it with the dataset that was read."
        )
    only = Share(0, 1)
    epoch, deals, taken, _ = resume_position(dict(state), Reader(only, only, 1), reads)
    if taken:
        deals = (*deals, Deal(taken, 1, 1, 1))
    return {"epoch": epoch, "deals": [list(deal) for deal in deals], "reads": reads}


def read_so_far(state: Mapping[str, Any]) -> dict[str, ReadSoFar]:
    """Returns how much of each dataset was read, by name.

    Args:
        state: What ``normalize_state`` returns.
    """
    described, epoch = state["reads"]["mix"], state["epoch"]
    read = _read_before(described)
    names, weights, _, digests, *_ = zip(*described["datasets"], strict=True)
    mixture, length = Mixture(weights), described["length"]
    whole = mixture.counts(length)
    unread: list[list[Interval]] = [[] for _ in names]
    if state["reads"]["order"] == "blocks" and state["deals"]:
        epoch += 1
        for number, interval in _unread_in_blocks(state, mixture):
            unread[number].append(interval)
        ends = [epoch * size for size in whole]
    else:
        examples = sum(Deal(*deal).examples for deal in state["deals"])
        # Padding that ends an epoch counts as examples too.
        begun = mixture.counts(min(examples, length))
        ends = [epoch * size + count for size, count in zip(whole, begun, strict=True)]
    for number, name in enumerate(names):
        left = read[name].left if name in read else DrawsLeft()
        base = ends[number] - whole[number]
        intervals: list[Interval] = []
        for low, high in unread[number]:
            intervals += left.intervals(base + low, base + high)
        rest = left.after(ends[number]).with_unread(intervals)
        read[name] = ReadSoFar(rest, digests[number])
    return read


def _read_before(described: Mapping[str, Any]) -> dict[str, ReadSoFar]:
    """Returns how much of each dataset was read before a mix began, by name."""
    if described["after"] is not None:
        return read_so_far(described["after"])
    read: dict[str, ReadSoFar] = {}
    for name, (start, digest) in described["absent"].items():
        read[name] = ReadSoFar(DrawsLeft(start), digest)
    for name, _, start, digest, *_ in described["datasets"]:
        read[name] = ReadSoFar(DrawsLeft(start), digest)
    return read


def _unread_in_blocks(state: Mapping[str, Any], mixture: Mixture) -> Iterator[tuple[int, Interval]]:
    """Yields the unread examples of an epoch: the number of a dataset, and some of its draws."""
    reads, epoch = state["reads"], state["epoch"]
    described = reads["mix"]
    pieces: Sequence[Piece] = [Piece(0, described["length"])]
    for values in state["deals"]:
        deal = Deal(*values)
        rule: Remainder = "drop" if deal.hosts > 1 else "keep"
        pieces = redeal(pieces, deal, described["window"], reads["remainder"] or rule)
    permuted = [reads["shuffle"] or is_mixed for *_, is_mixed in described["datasets"]]
    name = f"{reads['seed']}/{epoch if reads['shuffle'] else 0}"
    for start, stop, cuts in pieces:
        if not cuts:
            bounds = zip(mixture.counts(start), mixture.counts(stop), strict=True)
            yield from enumerate(bounds)
            continue
        components, draws = mixture.at(np.arange(start, stop))
        places = cut_places(window_places(components, permuted, name, start), cuts)
        for number in range(len(permuted)):
            own = places[components[places] == number]
            for interval in intervals_of(draws[own]):
                yield number, interval
