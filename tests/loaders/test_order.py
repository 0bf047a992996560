"""The order of an epoch: a permutation of any size, how well it mixes, and what each host reads."""

import numpy as np
import pytest

from shardmill.loaders import order
from shardmill.loaders.hosts import Share
from shardmill.loaders.order import EpochOrder, mix, permute, shuffled
from shardmill.loaders.pieces import Deal, Piece, Reader, redeal, share_of
from shardmill.loaders.selection import ShardSlice
from shardmill.schemas.dataset.manifest import Shard
from tests.conftest import SOAK

BILLION = 10**9
LABELS, EACH = 1000, 260
MEMBER = 90  # photos of 23 kB in a member of 2 MiB
WINDOW = (64 << 20) // 23_000


def invert(key: int, size: int, values):
    """The rounds of ``permute`` in reverse."""
    bits = np.uint64(max(1, (size - 1).bit_length() + 1 >> 1))
    mask = (np.uint64(1) << bits) - np.uint64(1)
    rounds = np.arange(order._ROUNDS, dtype=np.uint64) * np.uint64(order._STEP)
    found = values.astype(np.uint64)
    outside = np.ones(len(found), bool)
    while outside.any():
        left, right = found[outside] >> bits, found[outside] & mask
        for each in mix(rounds + np.uint64(key))[::-1]:
            left, right = right ^ (mix(left + each) & mask), left
        found[outside] = (left << bits) | right
        outside[outside] = found[outside] >= size
    return found.astype(np.int64)


@pytest.mark.parametrize("size", [BILLION, 2**30, 2**30 + 1])
def test_a_billion_records_are_permuted_in_little_memory(size):
    positions = np.unique(np.random.default_rng(1).integers(0, size, 100_000))
    found = permute(7, size, positions)
    assert ((found >= 0) & (found < size)).all()
    assert len(np.unique(found)) == len(positions)
    assert (invert(7, size, found) == positions).all()


@pytest.mark.parametrize("positions", ["first", "spread"])
def test_the_permutation_is_uniform(positions):
    """Chi-square of the place of 100,000 records in 1,000 parts of 10**9, and of their distances."""
    from scipy import stats

    at = np.arange(100_000) * (1 if positions == "first" else BILLION // 100_000)
    for key in range(5):
        found = permute(key, BILLION, at)
        counts = np.bincount(found // (BILLION // 1000), minlength=1000)
        assert stats.chisquare(counts).pvalue > 1e-4
        steps = np.bincount(np.diff(found) % BILLION // (BILLION // 100), minlength=100)
        assert stats.chisquare(steps).pvalue > 1e-4


def test_the_order_is_pinned():
    """A state of one release has to be valid in the next."""
    assert permute(1, 10, np.arange(10)).tolist() == PINNED[0]
    assert shuffled(1, 10).tolist() == PINNED[1]
    assert permute(12345, BILLION, np.arange(3)).tolist() == PINNED[2]


PINNED = (
    [2, 3, 7, 1, 4, 8, 0, 9, 6, 5],
    [8, 4, 3, 7, 0, 1, 5, 9, 6, 2],
    [847027873, 604142397, 464763758],
)


# How well epochs are mixed.


def make(epoch: int, by_label: bool, window: int = WINDOW) -> EpochOrder:
    """Return an order of 1,000 labels of 260 records: by label, or mixed in 100 shards."""
    shards, size = (LABELS, EACH) if by_label else (100, LABELS * EACH // 100)
    parts = [
        ShardSlice(
            Shard(f"train-{n}", size, size * 23_000, None, label=f"{n}" if by_label else None),
            0,
            size,
        )
        for n in range(shards)
    ]
    bounds = [*range(0, size, MEMBER), size]
    return EpochOrder(
        parts, None, True, f"0/{epoch}", lambda: window, lambda parts: [bounds] * len(parts)
    )


def sequence(order: EpochOrder, kind: str) -> np.ndarray:
    """Return the numbers of all records as one host reads them."""
    total, size = len(order), order.parts[0].records
    if kind == "records":
        parts, records = order.places(np.arange(total))
        return parts * size + records
    found = []
    for window in order.windows([Piece(0, total)]):
        chunks = [chunk.part * size + np.array(chunk.records) for chunk in window.chunks]
        firsts = np.cumsum([0, *map(len, chunks)])
        found.append(np.concatenate(chunks)[firsts[window.owners] + window.offsets])
    return np.concatenate(found)


def near_again(first: np.ndarray, second: np.ndarray) -> float:
    """Return the share of the pairs within 256 that are within 256 in the next epoch too."""
    place = np.argsort(second)
    again = pairs = 0
    for distance in range(1, 257, 1 if SOAK else 16):
        apart = np.abs(place[first[distance:]] - place[first[:-distance]])
        again, pairs = again + (apart <= 256).sum(), pairs + len(apart)
    return again / pairs


def distinct_labels(order: np.ndarray, by_label: bool) -> tuple[float, int]:
    """Return mean and minimum of the number of labels in 256 successive records."""
    labels = (
        order // EACH
        if by_label
        else np.random.default_rng(1).permutation(len(order))[order] // EACH
    )
    counts = [len(np.unique(labels[at : at + 256])) for at in range(0, len(order) - 256, 256)]
    return float(np.mean(counts)), min(counts)


# By kind and whether shards have one label: at most so many neighbours again (a full shuffle of
# 260,000 records: 0.2 %), and at least so many labels on average (a full shuffle: 226), and always.
QUALITY = {
    ("records", False): (0.003, 225, 200),
    ("records", True): (0.003, 225, 200),
    ("blocks", False): (0.02, 225, 200),
    ("blocks", True): (0.01, 35, 20),
}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "by_label"),
    [
        pytest.param(*each, marks=[pytest.mark.heavy] * (each == ("blocks", True)))
        for each in QUALITY
    ],
)
def test_the_quality_of_the_shuffle(kind, by_label):
    first, second = (sequence(make(epoch, by_label), kind) for epoch in range(2))
    assert sorted(first) == sorted(second) == list(range(LABELS * EACH))
    most, mean, least = QUALITY[kind, by_label]
    found = near_again(first, second), *distinct_labels(first, by_label)
    assert found[0] <= most
    assert found[1] >= mean
    assert found[2] >= least


# What a host reads.


@pytest.mark.parametrize("by_label", [False, True])
@pytest.mark.parametrize(("hosts", "workers"), [(13, 1), (8, 4)] + [(1, 1), (8, 1)] * SOAK)
def test_hosts_read_little_more_than_their_share_of_members(hosts, workers, by_label):
    """Also the sum over the workers of a host; a member that is cut is read by both."""
    order = make(0, by_label)
    total = [Piece(0, len(order))]
    for host in range(0, hosts, 1 if SOAK else 4):
        read = examples = 0
        for worker in range(workers):
            reader = Reader(Share(host, hosts), Share(worker, workers), 32)
            for window in order.windows(share_of(total, reader, "keep")):
                examples += len(window.owners)
                sizes = [size_of_member(order, chunk) for chunk in window.chunks]
                read += sum(sizes)
        assert examples * hosts == pytest.approx(len(order), rel=0.001)
        assert read <= 1.1 * examples


@pytest.mark.sweep
@pytest.mark.parametrize("read", [0.1, 0.3, 0.5, 0.77, 0.95])
@pytest.mark.parametrize(("before", "after"), [((8, 2), (13, 5)), ((1, 2), (3, 2))])
def test_a_change_of_hosts_reads_one_window_of_each_former_worker_again(before, after, read):
    """6 GB: what is left, the read part of a window for each former worker, and a member where a
    window ends or is cut; each record once."""
    order, batch = make(0, by_label=False), 32
    step = before[0] * batch
    deal = Deal(int(len(order) * read) // step * step, *before, batch)
    left = redeal([Piece(0, len(order))], deal, WINDOW, "keep")
    again = sum(piece.stop - piece.start - piece.size for piece in left if piece.cuts)
    former = before[0] * before[1]
    assert again < former * WINDOW
    loaded, windows, found = 0, 0, []
    for host in range(after[0]):
        for worker in range(after[1]):
            reader = Reader(Share(host, after[0]), Share(worker, after[1]), batch)
            for window in order.windows(share_of(left, reader, "keep")):
                windows += 1
                for owner, chunk in enumerate(window.chunks):
                    taken = window.offsets[window.owners == owner]
                    if len(taken):
                        loaded += size_of_member(order, chunk)
                    part = chunk.part * order.parts[0].records
                    found.append(part + np.asarray(chunk.records)[taken])
    numbers = np.concatenate(found)
    assert len(numbers) == len(order) - deal.examples
    assert len(np.unique(numbers)) == len(numbers)
    assert len(numbers) < loaded <= len(numbers) + again + MEMBER * (windows + former)
    for most, size in ((1.1, 1331 << 20), (1.2, 640 << 20)):  # as docs/training.md says
        assert loaded < most * len(numbers) or len(numbers) * 23_000 < size * former


def size_of_member(order: EpochOrder, chunk) -> int:
    begin = chunk.records[0] // MEMBER * MEMBER
    return min(begin + MEMBER, order.parts[chunk.part].records) - begin


def test_blocks_open_only_the_shards_of_a_share():
    opened, parts = set(), make(0, by_label=False).parts
    bounds = [*range(0, parts[0].records, MEMBER), parts[0].records]
    order = EpochOrder(
        parts, None, True, "0/0", lambda: 100, lambda n: opened.update(n) or [bounds] * len(n)
    )
    reader = Reader(Share(3, 10), Share(0, 1), 1)
    pieces = share_of([Piece(0, len(order))], reader, "keep")
    assert sum(len(w.owners) for w in order.windows(pieces)) == len(order) // 10
    assert len(opened) <= 10 + 2 * 3  # in groups of four


def test_blocks_open_and_fetch_each_shard_once():
    for by_label in (False, True):
        parts, opened, fetched = make(0, by_label).parts, [], []
        bounds = [*range(0, parts[0].records, MEMBER), parts[0].records]
        order = EpochOrder(
            parts,
            None,
            True,
            "0/0",
            lambda: WINDOW,
            lambda n, bounds=bounds, opened=opened: opened.extend(n) or [bounds] * len(n),
            fetched.extend,
        )
        windows = order.windows([Piece(0, len(order))])
        assert sum(len(window.owners) for window in windows) == len(order)
        assert sorted(opened) == [*range(len(parts))]
        assert sorted(fetched) == ([] if by_label else sorted(opened[4:]))
