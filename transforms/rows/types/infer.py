"""Inference: what the columns of a table are, from a sample of their cells.

A column gets a type only when every cell seen fits it and the number gives its text back in all
that matters: leading zeros, phone numbers and integers beyond int64 stay text, and so do dates.
Facts about parts of the sample merge in any order to the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.schema_pbtxt.columns import Column, fold_boolean
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.rows.types.casts import (
    Fault,
    Mask,
    Padding,
    as_strings,
    mask_of,
    matches,
    read_float32,
    read_int64,
    trim,
)
from shardmill.transforms.rows.types.typed import Nulls

# Words for true and false that go together. One alone of a pair says nothing ("no", "F"), apart
# from the words of the first pair.
BOOLEANS = (("true", "false"), ("yes", "no"), ("t", "f"), ("y", "n"))
_WORDS = tuple(word for pair in BOOLEANS for word in pair)
# Numbers whose text says more than the number: 01234, 01.5 and +491701234567.
_ZEROS = r"\A[+-]?0[0-9]"
_PHONE = r"\A\+[0-9]{7,}\z"


@dataclass(frozen=True)
class ColumnProfile:
    """Facts about the cells of a column; each counts cells.

    Attributes:
        cells: All of them.
        empty: Those that are missing if the column is text.
        nulls: Those that are missing if the column holds numbers.
        integers: Plain integers within int64.
        decimals: Other plain numbers within float32.
        coded: Numbers whose text says more: with leading zeros, or a plus before seven digits.
        wide: Numbers beyond int64 or float32, infinities among them.
        booleans: The words of ``BOOLEANS``.
        texts: All others.
        words: The spellings of the words of ``BOOLEANS`` that were seen; few at most.
    """

    cells: int = 0
    empty: int = 0
    nulls: int = 0
    integers: int = 0
    decimals: int = 0
    coded: int = 0
    wide: int = 0
    booleans: int = 0
    texts: int = 0
    words: frozenset[str] = frozenset()


def profile_cells(cells: pa.DictionaryArray, nulls: Nulls) -> ColumnProfile:
    """Returns the facts about some cells of a column.

    Args:
        cells: dictionary<int32, binary> without nulls; one entry a row.
        nulls: Which texts are missing cells.
    """
    counts = np.bincount(cells.indices.to_numpy(), minlength=len(cells.dictionary))
    used = counts > 0
    texts, counts = cells.dictionary.filter(pa.array(used)), counts[used]

    def count(mask: Mask | None) -> int:
        return 0 if mask is None else int(counts[mask].sum())

    empty, missing = nulls.missing_texts(texts), nulls.missing_numbers(texts)
    rest = np.ones(len(texts), np.bool_) if missing is None else ~missing
    kinds = _kinds(texts.filter(pa.array(rest)))
    return ColumnProfile(
        cells=len(cells),
        empty=count(empty),
        nulls=count(missing),
        words=kinds.words,
        **{name: int(counts[rest][mask].sum()) for name, mask in kinds.masks.items()},
    )


@dataclass(frozen=True)
class _Kinds:
    masks: dict[str, Mask]
    words: frozenset[str]


def _kinds(texts: pa.Array) -> _Kinds:
    """Returns what each of some distinct texts, none of them missing, is."""
    none = np.zeros(len(texts), np.uint8)
    whole, real = read_int64(texts, Padding.REFUSED).faults, read_float32(texts).faults
    whole = none if whole is None else whole
    real = none if real is None else real
    trimmed = trim(texts)
    number = (whole != Fault.CAST) | (real != Fault.CAST)
    coded = number & (matches(trimmed, _ZEROS) | matches(trimmed, _PHONE))
    integers = (whole == Fault.NONE) & ~coded
    decimals = (whole == Fault.CAST) & (real == Fault.NONE) & ~coded
    wide = number & ~coded & ~integers & ~decimals
    rest = np.flatnonzero(~number)
    others = as_strings(trimmed.take(pa.array(rest)))
    words = mask_of(pc.is_in(pc.ascii_lower(others), value_set=pa.array(_WORDS)))
    booleans = np.zeros(len(texts), np.bool_)
    booleans[rest[words]] = True
    return _Kinds(
        {
            "integers": integers,
            "decimals": decimals,
            "coded": coded,
            "wide": wide,
            "booleans": booleans,
            "texts": ~number & ~booleans,
        },
        frozenset(others.filter(pa.array(words)).to_pylist()),
    )


def merge(first: ColumnProfile, second: ColumnProfile) -> ColumnProfile:
    """Returns the facts about the cells of both."""
    return ColumnProfile(
        words=first.words | second.words,
        **{
            field.name: getattr(first, field.name) + getattr(second, field.name)
            for field in fields(ColumnProfile)
            if field.name != "words"
        },
    )


def infer_column(name: str, profile: ColumnProfile) -> Column:
    """Returns what a column is, so that every cell that was seen fits it."""
    optional_number = profile.nulls > 0
    if profile.nulls == profile.cells:
        return Column(name, "bytes", required=False)
    booleans = _booleans(profile)
    if booleans:
        return Column(name, "int64", required=not optional_number, booleans=booleans)
    if profile.booleans or profile.texts or profile.coded or profile.wide:
        return Column(name, "bytes", required=profile.empty == 0)
    kind: Kind = "float32" if profile.decimals else "int64"
    return Column(name, kind, required=not optional_number)


def _booleans(profile: ColumnProfile) -> tuple[str, str] | None:
    """Returns the texts for true and false when all cells are words of one pair."""
    if not profile.booleans or profile.booleans + profile.nulls != profile.cells:
        return None
    seen = {fold_boolean(word) for word in profile.words}
    for pair in BOOLEANS:
        if seen == set(pair) or (seen < set(pair) and pair is BOOLEANS[0]):
            yes, no = (_spelling(profile, word) for word in pair)
            return yes, no
    return None


def _spelling(profile: ColumnProfile, word: str) -> str:
    """Returns a word as it was seen; of several spellings the first in sorted order."""
    spellings = sorted(text for text in profile.words if fold_boolean(text) == word)
    if spellings:
        return spellings[0]
    # The other word of the pair was seen, and shows the style.
    other = min(profile.words)
    return word.upper() if other.isupper() else word.title() if other.istitle() else word
