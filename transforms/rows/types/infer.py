"""Infer column types from a sample of cells.

A column is numeric only if every sampled cell parses and the number preserves the meaning of the
text: leading zeros, phone numbers, integers beyond int64 and dates stay text. Profiles of parts of
the sample can be merged in any order.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.schema_pbtxt.columns import Column, fold_boolean
from shardmill.schemas.schema_pbtxt.schema_text import Kind
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
    """

    counts: Counter[CellKind]
    words: frozenset[str]


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
    masks, words = _kinds(texts.filter(pa.array(~missing)))
    kinds: Counter[CellKind] = Counter(
        {kind: int(counts[~missing][mask].sum()) for kind, mask in masks.items()}
    )
    kinds["cells"] = len(cells)
    kinds["empty"], kinds["nulls"] = int(counts[empty].sum()), int(counts[missing].sum())
    return ColumnProfile(+kinds, words)


def _kinds(texts: pa.Array) -> tuple[dict[CellKind, text_parser.Mask], frozenset[str]]:
    """Classify distinct texts, none of them missing.

    Returns:
        For kinds of ``ColumnProfile``, which texts they are; and ``ColumnProfile.words``.
    """
    whole = text_parser.parse_int64(texts, allow_padding=False).faults
    real = text_parser.parse_float32(texts).faults
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
    return masks, frozenset(others.filter(pa.array(words)).to_pylist())


def merge_profiles(first: ColumnProfile, second: ColumnProfile) -> ColumnProfile:
    """Return the profile of the cells of both."""
    return ColumnProfile(first.counts + second.counts, first.words | second.words)


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
