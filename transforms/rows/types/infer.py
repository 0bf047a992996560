"""Infer column types from a sample of cells.

A column is numeric only if every sampled cell parses and the number preserves the meaning of the
text: leading zeros, phone numbers, integers beyond int64 and dates stay text. Profiles of parts of
the sample can be merged in any order.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.schema_pbtxt.columns import Column, fold_boolean
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.rows.csv.dialect import shown
from shardmill.transforms.rows.types import text_parser
from shardmill.transforms.rows.types.typed_cells import Nulls

# Pairs of words for true and false. Only one word of a pair ("no", "F") is not enough to infer a
# boolean, except for the first pair.
BOOLEANS = (("true", "false"), ("yes", "no"), ("t", "f"), ("y", "n"))
_WORDS = tuple(word for pair in BOOLEANS for word in pair)
# Numbers whose text carries more than the number: 01234, 01.5 and +491701234567.
_ZEROS = r"\A[+-]?0[0-9]"
_PHONE = r"\A\+[0-9]{7,}\z"


CellKind = Literal[
    "cells", "empty", "nulls", "integers", "decimals", "coded", "wide", "booleans", "texts"
]


class ColumnProfile(NamedTuple):
    """Counts of the cells of a column by kind.

    Attributes:
        counts: Number of cells by kind: all ``cells``; ``empty`` ones, which are missing if the
            column is text; ``nulls``, which are missing if it is numeric. The others are plain
            ``integers`` in the range of int64; other plain numbers in the range of float32
            (``decimals``); numbers with leading zeros, or with a plus sign and at least seven
            digits (``coded``); numbers out of range of int64 or float32, infinity included
            (``wide``); words of ``BOOLEANS`` (``booleans``); and other ``texts``.
        words: Spellings of the words of ``BOOLEANS`` that occur.
        rounding: An example of what float32 would change, as a clause, or empty: an integer that it
            rounds, or two numbers that become equal.
    """

    counts: Counter[CellKind]
    words: frozenset[str]
    rounding: str = ""


def profile_cells(cells: pa.DictionaryArray, nulls: Nulls) -> ColumnProfile:
    """Return the profile of some cells of a column.

    Args:
        cells: dictionary<int32, binary> without nulls; one entry per row.
        nulls: Texts of missing cells.
    """
    counts = np.bincount(cells.indices.to_numpy(), minlength=len(cells.dictionary))
    used = counts > 0
    texts, counts = cells.dictionary.filter(pa.array(used)), counts[used]

    empty, missing = nulls.missing_texts(texts), nulls.missing_numbers(texts)
    masks, words, rounding = _kinds(texts.filter(pa.array(~missing)))
    kinds: Counter[CellKind] = Counter(
        {kind: int(counts[~missing][mask].sum()) for kind, mask in masks.items()}
    )
    kinds["cells"] = len(cells)
    kinds["empty"], kinds["nulls"] = int(counts[empty].sum()), int(counts[missing].sum())
    return ColumnProfile(+kinds, words, rounding)


def _kinds(texts: pa.Array) -> tuple[dict[CellKind, text_parser.Mask], frozenset[str], str]:
    """Classify distinct texts, none of them missing.

    Returns:
        For kinds of ``ColumnProfile``, which texts they are; and its ``words`` and ``rounding``.
    """
    integer = text_parser.parse_int64(texts, allow_padding=False)
    decimal = text_parser.parse_float64(texts)
    whole, real = integer.faults, decimal.faults
    trimmed = text_parser.trim(texts)
    number = (whole != text_parser.CellFault.CAST) | (real != text_parser.CellFault.CAST)
    coded = number & (text_parser.matches(trimmed, _ZEROS) | text_parser.matches(trimmed, _PHONE))
    integers = (whole == text_parser.CellFault.NONE) & ~coded
    decimals = (whole == text_parser.CellFault.CAST) & (real == text_parser.CellFault.NONE) & ~coded
    wide = number & ~coded & ~integers & ~decimals
    rest = np.flatnonzero(~number)
    others = text_parser.as_strings(trimmed.take(pa.array(rest)))
    words = text_parser.to_mask(pc.is_in(pc.ascii_lower(others), value_set=pa.array(_WORDS)))
    booleans = np.zeros(len(texts), np.bool_)
    booleans[rest[words]] = True
    masks: dict[CellKind, text_parser.Mask] = {
        "integers": integers,
        "decimals": decimals,
        "coded": coded,
        "wide": wide,
        "booleans": booleans,
        "texts": ~number & ~booleans,
    }
    rounding = _describe_rounding(texts, text_parser.is_rounded(integer), decimal.values, decimals)
    return masks, frozenset(others.filter(pa.array(words)).to_pylist()), rounding


def _describe_rounding(
    texts: pa.Array, rounded: text_parser.Mask, doubles: npt.NDArray[np.float64],
    decimals: text_parser.Mask,
) -> str:  # fmt: skip
    """Return ``ColumnProfile.rounding``.

    Args:
        texts: Distinct texts.
        rounded: Which of them are integers that float32 rounds.
        doubles: Their values.
        decimals: Which of them are other numbers.
    """
    if rounded.any():
        first = int(np.flatnonzero(rounded)[0])
        return f"{shown(texts[first].as_py())} becomes {int(np.float32(doubles[first]))}"
    numbers = np.flatnonzero(decimals)
    order = numbers[np.argsort(doubles[numbers], kind="stable")]
    values = doubles[order]
    merged = np.flatnonzero((np.diff(values) != 0) & (np.diff(values.astype(np.float32)) == 0))
    if not len(merged):
        return ""
    pair = (shown(texts[number].as_py()) for number in order[merged[0] :][:2].tolist())
    return f"{' and '.join(pair)} become equal"


def merge_profiles(first: ColumnProfile, second: ColumnProfile) -> ColumnProfile:
    """Return the profile of the cells of both."""
    rounding = first.rounding or second.rounding
    return ColumnProfile(first.counts + second.counts, first.words | second.words, rounding)


def infer_column(name: str, profile: ColumnProfile) -> Column:
    """Return the narrowest column type that every profiled cell fits."""
    counts = profile.counts
    optional_number = counts["nulls"] > 0
    if counts["nulls"] == counts["cells"]:
        return Column(name, "bytes", required=False)
    booleans = _booleans(profile)
    if booleans:
        return Column(name, "int64", required=not optional_number, booleans=booleans)
    if counts["booleans"] or counts["texts"] or counts["coded"] or counts["wide"]:
        return Column(name, "bytes", required=counts["empty"] == 0)
    kind: Kind = "float32" if counts["decimals"] else "int64"
    return Column(name, kind, required=not optional_number)


def _booleans(profile: ColumnProfile) -> tuple[str, str] | None:
    """Return the texts for true and false if all cells are words of one pair."""
    counts = profile.counts
    if not counts["booleans"] or counts["booleans"] + counts["nulls"] != counts["cells"]:
        return None
    # Of several spellings the first in sorted order.
    spellings = {fold_boolean(word): word for word in sorted(profile.words, reverse=True)}
    for pair in BOOLEANS:
        if spellings.keys() == set(pair) or (spellings.keys() < set(pair) and pair is BOOLEANS[0]):
            other = min(profile.words)
            yes, no = (spellings.get(word) or _in_case_of(other, word) for word in pair)
            return yes, no
    return None


def _in_case_of(other: str, word: str) -> str:
    """Return a word that does not occur in the case of the other word of its pair."""
    return word.upper() if other.isupper() else word.title() if other.istitle() else word
