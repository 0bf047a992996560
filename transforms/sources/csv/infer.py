"""Infer column types from a sample of cells.

A column is numeric only if every sampled cell parses and the number preserves the meaning of the
text: leading zeros, phone numbers, integers beyond int64 and dates stay text. Profiles of parts of
the sample can be merged in any order. Findings say what keeps a column from being numeric, and
which flag helps.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.errors import format_names, format_value
from shardmill.schemas.schema_pbtxt.columns import Column, fold_boolean
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.sources.csv import text_parser
from shardmill.transforms.sources.csv.cells import Cells
from shardmill.transforms.sources.csv.marked_numbers import (
    FEW_TEXTS,
    MOST_TEXTS,
    find_marked,
    may_be_marked,
)
from shardmill.transforms.sources.csv.quotes import Ints
from shardmill.transforms.sources.csv.text_parser import CellRules

# Pairs of words for true and false. Only one word of a pair ("no", "F") is not enough to infer a
# boolean, except for the first pair.
BOOLEANS = (("true", "false"), ("yes", "no"), ("t", "f"), ("y", "n"))
_WORDS = tuple(word for pair in BOOLEANS for word in pair)
# Numbers whose text carries more than the number: 01234, 01.5 and +491701234567.
_ZEROS = r"\A[+-]?0[0-9]"
_PHONE = r"\A\+[0-9]{7,}\z"
_NONE, _CAST = text_parser.CellFault.NONE, text_parser.CellFault.CAST


CellKind = Literal[
    "cells", "empty", "nulls", "integers", "decimals", "coded", "wide", "booleans", "texts"
]
_NOT_NUMBERS: tuple[CellKind, ...] = ("texts", "wide", "coded")  # they make a column text
_NEARLY = 0.9  # share of the cells with a value that are numbers in a nearly numeric column
_MANY = 0.5  # share that an option reads of cells that are numbers with separators and the like
_FORMS = {  # the first one counts where a cell is a number in several
    "--thousands=,": CellRules(thousands=","),
    "--decimal=,": CellRules(decimal=","),
    "--decimal=, --thousands=.": CellRules(decimal=",", thousands="."),
}
_QUOTED = {" ": "' '", "'": '"\'"', "\u00a0": r"$'\u00a0'", "\u202f": r"$'\u202f'"}  # for shells
for _mark, _quoted in _QUOTED.items():
    _FORMS[f"--thousands={_quoted}"] = CellRules(thousands=_mark)
    _FORMS[f"--decimal=, --thousands={_quoted}"] = CellRules(decimal=",", thousands=_mark)


class ColumnProfile(NamedTuple):
    """Counts of the cells of a column by kind.

    Attributes:
        counts: Number of cells by kind: all ``cells``; ``empty`` ones, which are missing if the
            column is text; ``nulls``, which are missing if it is numeric. The others are plain
            ``integers`` in the range of int64; other plain numbers in the range of float32, and
            infinity (``decimals``); numbers with leading zeros, or with a plus sign and at least
            seven digits (``coded``); numbers out of range of int64 or float32 (``wide``); words of
            ``BOOLEANS`` (``booleans``); and other ``texts``.
        words: Spellings of the words of ``BOOLEANS`` that occur.
        rounding: An example of what float32 would change, as a clause, or empty: an integer that it
            rounds, or two numbers that become equal.
        example: A cell, quoted: of a text column one that is not a number; no text for empty cells.
        distinct: Number of distinct texts, at least.
        low: Smallest number; infinite if there is none.
        high: Largest number.
        problem: Why a column that is nearly numeric is text, or empty.
        markers: Texts such as NA, which are missing if the column is numeric.
    """

    counts: Counter[CellKind]
    words: frozenset[str]
    rounding: str = ""
    example: str = ""
    distinct: int = 0
    low: float = math.inf
    high: float = -math.inf
    problem: str = ""
    markers: frozenset[str] = frozenset()

    @property
    def is_text(self) -> bool:
        """Whether a cell is not a number that a record can hold."""
        return any(self.counts[kind] for kind in _NOT_NUMBERS)


def profile_columns(
    columns: Mapping[str, pa.DictionaryArray], rules: CellRules
) -> dict[str, ColumnProfile]:
    """Return the profile of some cells of each column.

    Args:
        columns: For each column its cells, dictionary<int32, binary> without nulls.
        rules: How cells are read.
    """
    cells, profiles = [*columns.values()], list[ColumnProfile]()
    rows = len(cells[0]) if cells else 0
    step = text_parser.columns_at_once(rows)
    for start in range(0, len(cells), step):
        profiles += _profile_together(cells[start : start + step], rules)
    return dict(zip(columns, profiles, strict=True))


def _profile_together(
    cells: Sequence[pa.DictionaryArray], rules: CellRules
) -> Iterator[ColumnProfile]:
    """Yield the profile of each column; see ``profile_columns``."""
    uses = [np.bincount(column.indices, minlength=len(column.dictionary)) for column in cells]
    counts = np.concatenate(uses)
    used = counts > 0
    texts = pa.concat_arrays([column.dictionary for column in cells]).filter(pa.array(used))
    owners, counts = np.repeat(np.arange(len(cells)), [*map(len, uses)])[used], counts[used]

    def count(chosen: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the number of cells of each column with the chosen texts."""
        return np.bincount(owners[chosen], counts[chosen], len(cells)).astype(np.int64)

    empty, missing = rules.missing_texts(texts), rules.missing_numbers(texts)
    kinds: dict[CellKind, npt.NDArray[np.int64]] = {
        "cells": np.array([*map(len, cells)]),
        "empty": count(empty),
        "nulls": count(missing),
    }
    distinct = np.bincount(owners, minlength=len(cells)).tolist()
    low, high = np.full(len(cells), math.inf), np.full(len(cells), -math.inf)
    present = np.flatnonzero(~missing)
    text_kinds = _find_kinds(texts.take(pa.array(present)), owners[present], rules)
    kinds |= {kind: count(present[mask]) for kind, mask in text_kinds.masks.items()}
    real = text_kinds.masks["integers"] | text_kinds.masks["decimals"]
    np.minimum.at(low, owners[present[real]], text_kinds.numbers[real])
    np.maximum.at(high, owners[present[real]], text_kinds.numbers[real])
    words: dict[int, set[str]] = defaultdict(set)
    for owner, word in text_kinds.words:
        words[owner].add(word)
    markers: dict[int, set[str]] = defaultdict(set)
    for number in np.flatnonzero(missing & ~empty).tolist():
        text = texts[number].as_py().decode("utf-8", "replace")
        markers[int(owners[number])].add(text)
    # The first text of a column that is not a number, or else its first text.
    examples: dict[int, str] = {}
    for mask in (
        *(text_kinds.masks[kind] for kind in _NOT_NUMBERS),
        np.ones(len(present), np.bool_),
    ):
        chosen = present[mask]
        for owner, first in zip(*np.unique(owners[chosen], return_index=True), strict=True):
            examples.setdefault(int(owner), format_value(texts[int(chosen[first])].as_py()))
    of_columns = zip(*(numbers.tolist() for numbers in kinds.values()), strict=True)
    for owner, numbers in enumerate(of_columns):
        yield ColumnProfile(
            +Counter(dict(zip(kinds, numbers, strict=True))),
            frozenset(words[owner]),
            text_kinds.roundings.get(owner, ""),
            examples.get(owner, ""),
            distinct[owner],
            float(low[owner]),
            float(high[owner]),
            markers=frozenset(markers[owner]),
        )


class _Kinds(NamedTuple):
    """Kinds of distinct texts.

    Attributes:
        masks: For kinds of ``ColumnProfile``, which texts they are.
        words: The ``words`` of ``ColumnProfile``, each with the number of its column.
        roundings: The ``rounding`` of ``ColumnProfile`` by number of the column.
        numbers: Value of each text that is a number.
    """

    masks: dict[CellKind, text_parser.Mask]
    words: list[tuple[int, str]]
    roundings: dict[int, str]
    numbers: npt.NDArray[np.float64]


def _find_kinds(texts: pa.Array, owners: npt.NDArray[np.int64], rules: CellRules) -> _Kinds:
    """Classify distinct texts of columns, none of them missing.

    Args:
        texts: Distinct texts of columns, column by column.
        owners: Number of the column of each text.
        rules: How cells are read.
    """
    plain = rules.plain(texts)
    integer = text_parser.parse_int64(plain, allow_padding=False)
    decimal = text_parser.parse_float64(plain)
    whole, real = integer.faults, decimal.faults
    trimmed = text_parser.trim(plain)
    number = (whole != _CAST) | (real != _CAST)
    coded = number & (text_parser.matches(trimmed, _ZEROS) | text_parser.matches(trimmed, _PHONE))
    integers = (whole == _NONE) & ~coded
    decimals = (whole == _CAST) & (real == _NONE) & ~coded
    wide = number & ~coded & ~integers & ~decimals
    words = text_parser.as_strings(trimmed)
    booleans = text_parser.to_mask(pc.is_in(pc.ascii_lower(words), value_set=pa.array(_WORDS)))
    masks: dict[CellKind, text_parser.Mask] = {
        "integers": integers,
        "decimals": decimals,
        "coded": coded,
        "wide": wide,
        "booleans": booleans,
        "texts": ~number & ~booleans,
    }
    boolean_words = words.filter(pa.array(booleans)).to_pylist()
    return _Kinds(
        masks,
        [*zip(owners[booleans].tolist(), boolean_words, strict=True)],
        _describe_merged(texts, owners, decimal.values, decimals)
        | _describe_rounded(texts, owners, decimal.values, text_parser.is_rounded(integer)),
        decimal.values,
    )


def _describe_rounded(
    texts: pa.Array,
    owners: npt.NDArray[np.int64],
    doubles: npt.NDArray[np.float64],
    rounded: text_parser.Mask,
) -> dict[int, str]:
    """Return the first integer that float32 rounds, by number of its column; see _Kinds.

    Args:
        texts: Distinct texts.
        owners: Number of the column of each text.
        doubles: Their values.
        rounded: Which of them are integers that float32 rounds.
    """
    numbers = np.flatnonzero(rounded)
    columns, firsts = np.unique(owners[numbers], return_index=True)
    return {
        column: f"{format_value(texts[first].as_py())} becomes {int(np.float32(doubles[first]))}"
        for column, first in zip(columns.tolist(), numbers[firsts].tolist(), strict=True)
    }


def _describe_merged(
    texts: pa.Array,
    owners: npt.NDArray[np.int64],
    doubles: npt.NDArray[np.float64],
    decimals: text_parser.Mask,
) -> dict[int, str]:
    """Return the two least numbers that become equal as float32, by number of their column.

    Args:
        texts: Distinct texts.
        owners: Number of the column of each text.
        doubles: Their values.
        decimals: Which of them are numbers that are not integers.
    """
    numbers = np.flatnonzero(decimals & np.isfinite(doubles))
    order = numbers[np.lexsort((doubles[numbers], owners[numbers]))]
    values, sorted_owners = doubles[order], owners[order]
    merged = np.flatnonzero(
        (np.diff(sorted_owners) == 0)
        & (np.diff(values) != 0)
        & (np.diff(values.astype(np.float32)) == 0)
    )
    columns, firsts = np.unique(sorted_owners[merged], return_index=True)
    pairs = (order[first : first + 2].tolist() for first in merged[firsts].tolist())
    described = {}
    for owner, pair in zip(columns.tolist(), pairs, strict=True):
        values_of_pair = " and ".join(format_value(texts[index].as_py()) for index in pair)
        described[owner] = f"{values_of_pair} become equal"
    return described


def may_be_index(profile: ColumnProfile) -> bool:
    """Return whether cells are different integers, as the numbers of rows, also of some rows."""
    counts = profile.counts
    return counts["integers"] == counts["cells"] == profile.distinct > 1


def merge_profiles(first: ColumnProfile, second: ColumnProfile) -> ColumnProfile:
    """Return the profile of the cells of both."""
    rounding = first.rounding or second.rounding
    exemplar = second if second.is_text and not first.is_text else first
    example = exemplar.example or second.example
    return ColumnProfile(
        first.counts + second.counts,
        first.words | second.words,
        rounding,
        example,
        max(first.distinct, second.distinct),
        min(first.low, second.low),
        max(first.high, second.high),
        first.problem or second.problem,
        first.markers | second.markers,
    )


def infer_column(name: str, profile: ColumnProfile, given: Column | None = None) -> Column:
    """Return the narrowest column type that every profiled cell fits.

    Args:
        name: Name of the column.
        profile: Counts of its cells.
        given: A column of the type to use instead.
    """
    counts = profile.counts
    if given is not None:
        missing = counts["empty"] if given.kind == "bytes" else counts["nulls"]
        return replace(given, name=name, required=not missing)
    optional_number = counts["nulls"] > 0
    if counts["nulls"] == counts["cells"]:
        return Column(name, "bytes", required=False)
    booleans = _booleans(profile)
    if booleans:
        return Column(name, "int64", required=not optional_number, booleans=booleans)
    if counts["booleans"] or profile.is_text:
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
    if other.isupper():
        return word.upper()
    return word.title() if other.istitle() else word


def find_problem(
    name: str, profile: ColumnProfile, cells: Cells, key: str, rules: CellRules
) -> str:
    """Explain why a nearly numeric column is text, with the fix; return no text for others.

    Args:
        name: Name of the column.
        profile: Profile of its cells.
        cells: Cells of a file.
        key: The file.
        rules: How cells are read.
    """
    counts, example = profile.counts, profile.example
    numbers, values = counts["integers"] + counts["decimals"], counts["cells"] - counts["nulls"]
    nearly = numbers >= _NEARLY * values
    if not counts["texts"] or counts["coded"] or counts["wide"]:
        return ""
    texts, rows = cells.columns[name].dictionary, cells.columns[name].indices.to_numpy()
    marked = _find_marked(texts, rows, rules)
    # Such as \N of MySQL, a point of SAS, or a dash: a text for missing numbers.
    if counts["texts"] > 1 and numbers >= _MANY * values:
        nearly = nearly or _count_texts(texts, rules) == 1
    if not (nearly or "," in example or marked >= 0):
        return ""
    first = marked
    if marked < 0:
        first = next(
            number for number, text in enumerate(texts) if format_value(text.as_py()) == example
        )
    example = format_value(texts[first].as_py())
    fitting = {flag: _count_numbers(form, texts, rows, first) for flag, form in _FORMS.items()}
    flag = max(fitting, key=lambda option: fitting[option])
    share = _NEARLY if marked < 0 else _MANY
    fits = fitting[flag] >= share * values
    line = cells.lines[rows == first][0]
    if marked >= 0 and not fits:
        bytes_type = shlex.quote(f"--types={name}:bytes")
        return (
            f"the column {name!r} is text because its cells are numbers with a unit, a currency or "
            f"separators, such as {example} in {key}, line {line}: no option reads them; write "
            f"plain numbers into the file, or set {bytes_type} to keep texts"
        )
    remedy = f"{flag} reads them as numbers"
    if not fits:
        if not nearly:
            return ""
        text = texts[first].as_py().decode("utf-8", "replace")
        remedy = (
            f"--null_values=,{text} makes {example} missing, and --types={name}:float rejects rows "
            "with such cells"
        )
    if counts["texts"] == 1 and line == cells.lines[0] and not fits:
        remedy = (
            f"if the line is a header too, --skip_lines={line - 1} makes it the only one; if it "
            f"has units, --skip_lines={line} --header=none --columns=... leaves it out; or {remedy}"
        )
    return (
        f"the column {name!r} is text because {counts['texts']:,} of {values:,} cells are not "
        f"numbers, first {example} in {key}, line {line}: {remedy}"
    )


def _find_marked(texts: pa.Array, rows: Ints, rules: CellRules) -> int:
    """Return the number of the first text with marks in a column of such numbers, or -1."""
    sampled = texts.slice(0, MOST_TEXTS)
    present = np.flatnonzero(~rules.missing_numbers(sampled))
    some = sampled.take(pa.array(present[:FEW_TEXTS])).to_pylist()
    if not may_be_marked([text.decode("utf-8", "replace") for text in some]):
        return -1
    decoded = [
        text.decode("utf-8", "replace") for text in sampled.take(pa.array(present)).to_pylist()
    ]
    counts = np.bincount(rows, minlength=len(texts))[present]
    place = find_marked(decoded, counts.tolist())
    return int(present[place]) if place >= 0 else -1


def _count_texts(texts: pa.Array, rules: CellRules) -> int:
    """Return how many distinct texts are neither numbers nor missing ones."""
    others = texts.filter(pa.array(~rules.missing_numbers(texts)))
    return int(np.count_nonzero(text_parser.parse_float64(rules.plain(others)).faults))


def _count_numbers(rules: CellRules, texts: pa.Array, rows: Ints, first: int) -> int:
    """Return how many cells are numbers in a form, or 0 if the first that is none is not."""
    if text_parser.parse_float64(rules.plain(texts.slice(first, 1))).faults[0]:
        return 0
    fits = text_parser.parse_float64(rules.plain(texts)).faults == text_parser.CellFault.NONE
    return int(np.count_nonzero(fits[rows]))


def list_findings(
    columns: Sequence[Column], profiles: Mapping[str, ColumnProfile]
) -> Iterator[str]:
    """Yield sentences about the columns of an inferred schema that need a look."""
    texts = [column.name for column in columns if column.kind == "bytes"]
    counts = {name: profiles[name].counts for name in texts}
    yield from (profiles[name].problem for name in texts if profiles[name].problem)
    empty = [name for name in texts if counts[name]["empty"] == counts[name]["cells"]]
    if empty:
        yield (
            f"no cell of {format_names(empty)} has a value: --drop (of a listing, --features) "
            "leaves such columns out"
        )
    others = (name for name in texts if name not in empty and not profiles[name].problem)
    marked = [name for name in others if counts[name]["nulls"] > counts[name]["empty"]]
    if marked:
        cells = sum(counts[name]["nulls"] - counts[name]["empty"] for name in marked)
        markers = sorted(set[str]().union(*(profiles[name].markers for name in marked)))
        flag = shlex.quote(f"--null_values={','.join(['', *markers])}")
        such = " and ".join(markers[:2])
        yield (
            f"{cells:,} cells of {format_names(marked)} are texts such as {such}"
            f", which are missing in columns of numbers only: {flag} makes them missing everywhere"
        )
