"""Splits: exact shares of the examples, decided only by a hash of each key."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Literal, cast

from shardmill.schemas.errors import UsageError

SplitMode = Literal["fractions", "directory", "imagesets", "listing", "named"]
# Names of splits in data, and the name of each split.
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
# Names of folders: also as in test1, train_images or validation-set; ignores case.
SPLIT_FOLDER = rf"({'|'.join(SPLIT_FOLDERS)}|eval)(?:[_ -]?(?:set|data|images|split|[0-9]+))?"
DEFAULT_SPLITS = "train:0.9,validation:0.1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")
_NAMED = re.compile(r"[^:]*=(?!\s*[\d./]+\s*\Z)")  # a path after the sign, and not a share
_BARE_SHARES = re.compile(r"\s*[\d./]+\s*([,:]\s*[\d./]+\s*){0,2}")
_SPACE = 1 << 64


@dataclass(frozen=True)
class Splits:
    """How examples are divided into splits.

    Attributes:
        mode: ``fractions`` of the key hash, first ``directory`` of the key, ``imagesets`` of PASCAL
            VOC, a column of the ``listing``, or ``named`` for files that have no other split.
        shares: Name and share of each split, in order; empty unless the mode is ``fractions``.
        named: Name of a split, and the file, folder or glob whose files are in it, relative to the
            root; the first that contains a file counts.
    """

    mode: SplitMode
    shares: tuple[tuple[str, Fraction], ...] = ()
    named: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> Splits:
        """Return the splits of a ``--splits`` value; of ``None`` the default.

        Raises:
            UsageError: A name or share is malformed, or the shares do not sum to 1.
        """
        text = DEFAULT_SPLITS if text is None else text
        if text in ("directory", "imagesets", "listing"):
            return cls(cast("SplitMode", text))
        if _BARE_SHARES.fullmatch(text):
            given = re.split("[,:]", text)
            if len(given) == 1 and _parse_share(text, f"train:{text.strip()}")[1] < 1:
                given.append(f"{1 - float(Fraction(text.strip())):g}")
            pairs = zip(("train", "validation", "test"), given, strict=False)
            shares = tuple(_parse_share(text, f"{name}:{share.strip()}") for name, share in pairs)
            raise UsageError(f"--splits={text} has no names: did you mean {_scaled(shares)}?")
        items = text.split(",")
        named = tuple(_parse_named(text, item) for item in items if _NAMED.match(item))
        if len(named) == len(items):
            return cls("named", (), named)
        shares = tuple(_parse_share(text, item) for item in items if not _NAMED.match(item))
        names = [name for name, _ in shares]
        if len(set(names)) != len(names):
            raise UsageError(f"--splits={text} names a split twice: give each one share.")
        total = sum(share for _, share in shares)
        if total != 1:
            number = int(total) if total.denominator == 1 else float(total)
            right = _scaled(shares)
            raise UsageError(f"--splits={text} sums to {number}, not 1: did you mean {right}?")
        return cls("fractions", shares, named)

    def __str__(self) -> str:
        """Return the shortest ``--splits`` value that means the same."""
        shares = [f"{name}:{_share_text(share)}" for name, share in self.shares]
        return ",".join([*shares, *map("=".join, self.named)]) or self.mode

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the splits that have shares."""
        return tuple(name for name, _ in self.shares)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the splits that must exist, in order."""
        shares = (name for name, share in self.shares if share)
        return tuple(dict.fromkeys([*shares, *(name for name, _ in self.named)]))

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """The 64-bit hash at which each split ends."""
        totals = accumulate(share for _, share in self.shares)
        return tuple(math.ceil(total * _SPACE) for total in totals)

    def of_hash(self, hash64: int) -> str:
        """Return the split of an unsigned 64-bit hash; only for the mode ``fractions``."""
        for name, bound in zip(self.names, self.bounds, strict=True):
            if hash64 < bound:
                return name
        raise ValueError(f"{hash64} is not a 64-bit hash, or the splits have no fractions")


def _scaled(shares: tuple[tuple[str, Fraction], ...]) -> Splits:
    """Return splits of the same proportions whose shares sum to 1."""
    total = sum(share for _, share in shares) or 1
    return Splits("fractions", tuple((name, share / total) for name, share in shares))


def _share_text(share: Fraction) -> str:
    decimal = f"{float(share):g}"
    if Fraction(decimal) == share:
        return decimal
    return str(share)


def split_of_folder(name: str) -> str:
    """Return the split that the name of a folder means, or an empty text."""
    match = re.fullmatch(SPLIT_FOLDER, name, re.IGNORECASE)
    if match is None:
        return ""
    return SPLIT_FOLDERS.get(match[1].lower(), "validation")


def check_split_name(name: str) -> str | None:
    """Return why a name is not a valid split name, or None if it is valid."""
    if _NAME.fullmatch(name):
        return None
    return f"the split name {name!r} must be letters, digits and underscores"


def _parse_named(text: str, item: str) -> tuple[str, str]:
    name, _, place = item.strip().partition("=")
    problem = check_split_name(name)
    if problem or not place:
        raise _splits_problem(text=text, problem=problem or f"{item!r} names no file")
    return name, place


def _parse_share(text: str, item: str) -> tuple[str, Fraction]:
    name, colon, share = item.strip().partition(":")
    problem = check_split_name(name)
    if problem:
        raise _splits_problem(text=text, problem=problem)
    try:
        fraction = Fraction(share)
    except (ValueError, ZeroDivisionError):
        fraction = Fraction(-1)
    if not colon or fraction < 0 or name.isdecimal():
        raise UsageError(
            f"--splits={text}: {item.strip()!r} is not NAME:SHARE with a share from 0 to 1, as in "
            "train:0.9,validation:0.1, or NAME=PATH; or use directory or listing."
        )
    return name, fraction


def _splits_problem(text: object, problem: object) -> UsageError:
    return UsageError(f"--splits={text}: {problem}.")


def split_order(name: str) -> tuple[int, str]:
    """Return the sort key of a split: train, validation, test, then others by name."""
    return {"train": 0, "validation": 1, "test": 2}.get(name, 3), name
