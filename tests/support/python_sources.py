"""Indexable sources of Python that other processes can import."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
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


class Stateful(Mixed):
    """A source whose values depend on the order in which they are read."""

    reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return {"a": self.reads}


def _raise(error: BaseException) -> Any:
    raise error


_ODD = {
    "text": lambda: {"a": "x"},
    "float": lambda: {"a": 0.5},
    "field": lambda: {"f": 1},
    "number": lambda: 5,
    "function": lambda: {"a": _ODD["text"]},  # which cannot be pickled
    "error": lambda: _raise(ValueError("no such file")),
    "index": lambda: _raise(IndexError(7)),
    "exit": lambda: sys.exit(3),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
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


class Word(str):  # noqa: SLOT000
    """A text that can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple:
        return int, ("no number",)


class Words:
    """Gives such texts from the middle on."""

    def __len__(self) -> int:
        return 150

    def __getitem__(self, index: int) -> dict:
        return {"id": index, "text": Word(index) if index > 70 else f"{index}"}


class Photos:
    """JPEGs, of which some are cut short: Pillow loads them if the script says so."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict:
        return {"image": Image.open(self.paths[index])}
