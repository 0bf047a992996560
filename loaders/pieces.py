"""Dividing examples among hosts and workers, and what is left of them when their number changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardmill.loaders.hosts import Share
from shardmill.loaders.steps import Remainder


class Piece(NamedTuple):
    """Part of the order of an epoch.

    Attributes:
        start: Place of its first example in the order of members.
        stop: Place after the last one.
        first: Number of the first example in the order in which they are read: window by window,
            mixed. Not 0 only in a piece of one window, of which some were read.
        last: Number after the last one.
    """

    start: int
    stop: int
    first: int
    last: int


class Deal(NamedTuple):
    """Examples that were read by some hosts and workers in the order of an epoch.

    Attributes:
        examples: Their number, over all hosts.
        hosts: Number of hosts.
        workers: Number of workers of each.
        batch_size: Number of examples that a worker takes at one time.
    """

    examples: int
    hosts: int
    workers: int
    batch_size: int


class Reader(NamedTuple):
    """A process that reads.

    Attributes:
        host: Its host.
        worker: Its number among the workers of the host.
        batch: Number of examples that a worker takes at one time: the batch size of a DataLoader,
            which yields batches of its workers in turn.
    """

    host: Share
    worker: Share
    batch: int


def count(total: int, share: Share, batch: int = 1) -> int:
    """Returns how many of some items a share gets, if they are dealt in turn by batches."""
    rounds, rest = divmod(total, batch * share.count)
    return rounds * batch + min(max(rest - share.index * batch, 0), batch)


def count_before(total: int, share: Share, batch: int = 1) -> int:
    """Returns how many items all shares before this one get."""
    rounds, rest = divmod(total, batch * share.count)
    return share.index * rounds * batch + min(rest, share.index * batch)


def take(pieces: Sequence[Piece], skip: int, size: int) -> list[Piece]:
    """Returns consecutive examples of some pieces."""
    found, stop = [], skip + size
    for piece in pieces:
        low, high = max(0, skip), min(piece.last - piece.first, stop)
        if low < high:
            if piece.last - piece.first == piece.stop - piece.start:  # nothing of it was read
                cut = Piece(piece.start + low, piece.start + high, 0, high - low)
            else:
                cut = piece._replace(first=piece.first + low, last=piece.first + high)
            found.append(cut)
        skip, stop = skip - (piece.last - piece.first), stop - (piece.last - piece.first)
    return found


def drop(pieces: Sequence[Piece], read: int, window: int) -> Iterator[Piece]:
    """Yields what is left of pieces after some examples were read, in windows of some size."""
    for start, stop, first, last in pieces:
        at = min(first + read, last)
        read -= at - first
        whole = at // window * window
        if whole < at < last:
            end = min(start + whole + window, stop)
            yield Piece(start + whole, end, at - whole, min(last - whole, end - start - whole))
            whole += window
        if at < last and whole < last:
            yield Piece(start + whole, stop, 0, last - whole)


def divided(examples: int, hosts: int, rule: Remainder) -> int:
    """Returns how many examples are divided among hosts."""
    return examples // hosts * hosts if rule == "drop" else examples


def size_of(examples: int, host: Share, rule: Remainder) -> int:
    """Returns how many of some examples a host gets, with its padding."""
    if rule == "pad":
        return -(-examples // host.count)
    return count(divided(examples, host.count, rule), host)


def share_of(pieces: Sequence[Piece], reader: Reader, rule: Remainder) -> list[Piece]:
    """Returns the examples of a worker: consecutive ones.

    Args:
        pieces: What is left of the epoch.
        reader: The worker.
        rule: What happens to examples that hosts cannot divide evenly.
    """
    host, worker, batch = reader
    examples = examples_in(pieces)
    dealt, each = divided(examples, host.count, rule), size_of(examples, host, rule)
    size = count(dealt, host)
    low = min(count_before(each, worker, batch), size)
    high = min(low + count(each, worker, batch), size)
    return take(pieces, count_before(dealt, host) + low, high - low)


def redeal(pieces: Sequence[Piece], deal: Deal, window: int, rule: Remainder) -> list[Piece]:
    """Returns what is left of pieces after a deal; see ``share_of``."""
    left: list[Piece] = []
    for host in range(deal.hosts):
        for number in range(deal.workers):
            worker = Share(number, deal.workers)
            share = share_of(pieces, Reader(Share(host, deal.hosts), worker, deal.batch_size), rule)
            left += drop(share, count(deal.examples // deal.hosts, worker, deal.batch_size), window)
    examples = examples_in(pieces)
    dealt = divided(examples, deal.hosts, rule)
    return left + take(pieces, dealt, examples - dealt)


def examples_in(pieces: Sequence[Piece]) -> int:
    """Returns the number of examples of pieces."""
    return sum(piece.last - piece.first for piece in pieces)
