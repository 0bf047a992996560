"""Infer column types from a sample of cells.

A column is numeric only if every sampled cell parses and the number preserves the meaning of the
text: leading zeros, phone numbers, integers beyond int64 and dates stay text. Profiles of parts of
the sample can be merged in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

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


@dataclass(frozen=True)
class ColumnProfile:
    """Counts of the cells of a column by kind.

    Attributes:
        cells: All cells.
        empty: Cells that are missing if the column is text.
        nulls: Cells that are missing if the column is numeric.
        integers: Plain integers in the range of int64.
        decimals: Other plain numbers in the range of float32.
        coded: Numbers with leading zeros, or with a plus sign and at least seven digits.
        wide: Numbers out of range of int64 or float32, infinity included.
        booleans: Words of ``BOOLEANS``.
        texts: Other texts.
        words: Spellings of the words of ``BOOLEANS`` that occur.
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
    """Return the profile of some cells of a column.

    Args:
        cells: dictionary<int32, binary> without nulls; one entry per row.
        nulls: Texts of missing cells.
    """
    counts = np.bincount(cells.indices.to_numpy(), minlength=len(cells.dictionary))
    used = counts > 0
    texts, counts = cells.dictionary.filter(pa.array(used)), counts[used]

    def count(mask: text_parser.Mask | None) -> int:
        return 0 if mask is None else int(counts[mask].sum())

    empty, missing = nulls.missing_texts(texts), nulls.missing_numbers(texts)
    rest = np.ones(len(texts), np.bool_) if missing is None else ~missing
    masks, words = _kinds(texts.filter(pa.array(rest)))
    return ColumnProfile(
        cells=len(cells),
        empty=count(empty),
        nulls=count(missing),
        words=words,
        **{name: int(counts[rest][mask].sum()) for name, mask in masks.items()},
    )


def _kinds(texts: pa.Array) -> tuple[dict[str, text_parser.Mask], frozenset[str]]:
    """Classify distinct texts, none of them missing.

    Returns:
        For fields of ``ColumnProfile``, which texts they count; and ``ColumnProfile.words``.
    """
    none = np.zeros(len(texts), np.uint8)
    whole, real = (
        text_parser.parse_int64(texts, allow_padding=False).faults,
        text_parser.parse_float32(texts).faults,
    )
    whole = none if whole is None else whole
    real = none if real is None else real
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
    masks = {
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
    return ColumnProfile(
        words=first.words | second.words,
        **{
            field.name: getattr(first, field.name) + getattr(second, field.name)
            for field in fields(ColumnProfile)
            if field.name != "words"
        },
    )


def infer_column(name: str, profile: ColumnProfile) -> Column:
    """Return the narrowest column type that every profiled cell fits."""
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
    """Return the texts for true and false if all cells are words of one pair."""
    if not profile.booleans or profile.booleans + profile.nulls != profile.cells:
        return None
    seen = {fold_boolean(word) for word in profile.words}
    for pair in BOOLEANS:
        if seen == set(pair) or (seen < set(pair) and pair is BOOLEANS[0]):
            yes, no = (_spelling(profile, word) for word in pair)
            return yes, no
    return None


def _spelling(profile: ColumnProfile, word: str) -> str:
    """Return the spelling of a word in the sample; of several the first in sorted order."""
    spellings = sorted(text for text in profile.words if fold_boolean(text) == word)
    if spellings:
        return spellings[0]
    # Only the other word of the pair occurs: copy its case.
    other = min(profile.words)
    return word.upper() if other.isupper() else word.title() if other.istitle() else word
