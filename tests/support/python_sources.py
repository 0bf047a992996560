"""Indexable sources of Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image


class Mixed:
    """Records of random values: images, arrays, ragged lists, texts that are not ASCII, and None.

    Args:
        seed: Decides all values.
        length: Number of records.
        odd: What is special about some record; see ``_ODD``.
        image: Whether the records have images.
    """

    def __init__(self, seed: int, length: int = 150, odd: str = "", image: bool = False) -> None:
        self.seed, self.odd, self.image, self.length = seed, odd, image, length
        self.place = random.Random(seed).randrange(length // 2, length)
        self.names = [["ä", "b" * 9, "日本"][:n] for n in range(4)]  # shared by records

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        rng = np.random.default_rng([self.seed, index])
        if self.odd and index == self.place:
            return _ODD[self.odd]()
        record = {
            "a": int(rng.integers(100)) if index % 7 else None,
            "b": self.names[index % 4],
            "c": rng.random(3, np.float32),
            "d": [float(value) for value in rng.random(index % 5)] or None,
            "e": "é" * (index % 90),
        }
        if self.image:
            pixels = rng.integers(0, 256, (9, 5 + index % 9, 3), np.uint8)
            kinds = (Image.fromarray(pixels), pixels, pixels[..., 0], None)
            record |= {"image": kinds[index % 4 if index % 50 == 3 else index % 3]}
        return record


def _raise(error: BaseException) -> Any:
    raise error


_ODD = {
    "text": lambda: {"a": "x"},
    "float": lambda: {"a": 0.5},
    "field": lambda: {"f": 1},
    "number": lambda: 5,
    "function": lambda: {"a": _raise},
    "error": lambda: _raise(ValueError("no such file")),
}


class Reused:
    """Gives the same list, dict and array again and again, with other values."""

    def __init__(self) -> None:
        self.values, self.array = [0], np.zeros(1, np.int64)

    def __len__(self) -> int:
        return 150

    def __getitem__(self, index: int) -> dict:
        self.values[0] = self.array[0] = index
        return {"id": index, "list": self.values, "of": {"array": self.array, "lists": self.values}}


class Longer(Sequence):
    """Has more items than its length says, which iterating gives."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict:
        if index >= 150:
            raise IndexError(index)
        return {"id": index}
