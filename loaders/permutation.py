"""Permutations that are functions of a key: the same with every version of Python and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
_ROUNDS = 6
_STEP = 0x9E3779B97F4A7C15  # of SplitMix64, as the multipliers of its finalizer


def mix(values: Hashes) -> Hashes:
    """Returns pseudorandom 64-bit numbers that depend on all bits of the given ones."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def shuffled(key: int, size: int) -> npt.NDArray[np.int64]:
    """Returns the numbers 0 to size - 1 in random order."""
    keys = mix(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_STEP) + np.uint64(key))
    return np.argsort(keys, kind="stable")


def permute(key: int, size: int, positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Returns what is at some positions of a random order of the numbers 0 to size - 1.

    Memory does not depend on the size. A Feistel network permutes 2 ** (2 * bits) numbers, fewer
    than four times the size; one that is not below the size is permuted again (cycle walking).

    Args:
        key: Key of the order, below 2 ** 64.
        size: How many numbers are ordered.
        positions: Positions below the size, of any shape.
    """
    bits = np.uint64(max(1, (size - 1).bit_length() + 1 >> 1))
    mask = (np.uint64(1) << bits) - np.uint64(1)
    keys = mix(np.arange(_ROUNDS, dtype=np.uint64) * np.uint64(_STEP) + np.uint64(key))

    def network(values: Hashes) -> Hashes:
        left, right = values >> bits, values & mask
        # A round can be undone for any function in place of ``mix``, since it keeps one half: so
        # the network is a permutation.
        for each in keys:
            left, right = right, left ^ (mix(right + each) & mask)
        joined: Hashes = (left << bits) | right
        return joined

    # Walking ends: the walk is along a cycle of the network, which contains the position itself.
    found = network(positions.astype(np.uint64))
    while (outside := found >= size).any():
        found[outside] = network(found[outside])
    return found.astype(np.int64)
