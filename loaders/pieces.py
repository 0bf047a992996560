"""Dividing examples among hosts and workers, and dividing the rest when their number changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardmill.loaders.hosts import Share
from shardmill.loaders.steps import Remainder


class Cut(NamedTuple):
    """The rest of a window after some of it was read.

    Attributes:
        read: Number of examples that were read.
        low: Rank of the first one left, among the unread examples in the order of members.
        high: Rank after the last one.
    """

    read: int
    low: int
    high: int


class Piece(NamedTuple):
    """Part of the order of an epoch.

    Attributes:
        start: Place of its first example in the order of members.
        stop: Place after the last one.
        cuts: Empty if nothing of it was read. Else it is one window, and each cut is its rest
            after another reading.
    """

    start: int
    stop: int
    cuts: tuple[Cut, ...] = ()

    @property
    def size(self) -> int:
        """Number of examples."""
        if self.cuts:
            return self.cuts[-1].high - self.cuts[-1].low
        return self.stop - self.start

    def cut(self, low: int, high: int) -> Piece:
        """Returns some examples, which are consecutive in the order of members."""
        if not self.cuts:
            return Piece(self.start + low, self.start + high)
        # The window was read in a random order, so the unread examples are not a range of places:
        # this is a range of ranks among them.
        *before, (read, first, _) = self.cuts
        return self._replace(cuts=(*before, Cut(read, first + low, first + high)))


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
    taken: list[Piece] = []
    stop = skip + size
    for piece in pieces:
        low, high = max(0, skip), min(piece.size, stop)
        if low < high:
            taken.append(piece.cut(low, high))
        skip, stop = skip - piece.size, stop - piece.size
    return taken


def drop(pieces: Sequence[Piece], read: int, window: int) -> Iterator[Piece]:
    """Yields the rest of pieces after ``read`` examples were read, in windows of ``window``."""
    for piece in pieces:
        at = min(read, piece.size)
        read -= at
        # Whole windows that were read go. Of the one that was begun, the rest is another
        # piece, which remembers that window; later windows begin where they would have begun.
        whole = 0 if piece.cuts else at // window * window
        if whole < at:
            begun = piece.cut(whole, min(whole + window, piece.size))
            if at < whole + begun.size:
                rest = Cut(at - whole, 0, whole + begun.size - at)
                yield begun._replace(cuts=(*begun.cuts, rest))
            whole += begun.size
        if whole < piece.size:
            yield piece.cut(whole, piece.size)


def divided(examples: int, hosts: int, rule: Remainder) -> int:
    """Returns how many examples are divided among hosts."""
    if rule == "drop":
        return examples // hosts * hosts
    return examples


def size_of(examples: int, host: Share, rule: Remainder) -> int:
    """Returns how many of some examples a host gets, with its padding."""
    if rule == "pad":
        return -(-examples // host.count)
    return count(divided(examples, host.count, rule), host)


def share_of(pieces: Sequence[Piece], reader: Reader, rule: Remainder) -> list[Piece]:
    """Returns the examples of a worker: consecutive ones.

    Args:
        pieces: The rest of the epoch.
        reader: The worker.
        rule: The rule for examples that hosts cannot divide evenly.
    """
    host, worker, batch = reader
    examples = sum(piece.size for piece in pieces)
    dealt = divided(examples, host.count, rule)
    host_size = size_of(examples, host, rule)
    size = count(dealt, host)
    low = min(count_before(host_size, worker, batch), size)
    high = min(low + count(host_size, worker, batch), size)
    return take(pieces, count_before(dealt, host) + low, high - low)


def redeal(pieces: Sequence[Piece], deal: Deal, window: int, rule: Remainder) -> list[Piece]:
    """Returns the rest of pieces after a deal; see ``share_of``."""
    # All hosts of a deal have read as many examples, and workers take batches in turn: so one
    # number says how far each has read. The rest is listed in the order of hosts and workers, the
    # same on each machine; examples that hosts could not divide evenly come last.
    left: list[Piece] = []
    for host in range(deal.hosts):
        for number in range(deal.workers):
            worker = Share(number, deal.workers)
            share = share_of(pieces, Reader(Share(host, deal.hosts), worker, deal.batch_size), rule)
            left += drop(share, count(deal.examples // deal.hosts, worker, deal.batch_size), window)
    examples = sum(piece.size for piece in pieces)
    dealt = divided(examples, deal.hosts, rule)
    return left + take(pieces, dealt, examples - dealt)
