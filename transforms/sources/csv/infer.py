"""Infer column types from a sample of cells.

A column is numeric only if every sampled cell parses and the number preserves the meaning of the
text: leading zeros, phone numbers, integers beyond int64 and dates stay text. Profiles of parts of
the sample can be merged in any order. Findings say what keeps a column from being numeric, and
which flag helps.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

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
_KINDS: tuple[CellKind, ...] = (  # of distinct texts; each is of one kind
    "nulls",
    "integers",
    "decimals",
    "coded",
    "wide",
    "booleans",
    "texts",
)
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
    names, profiles = [*columns], dict[str, ColumnProfile]()
    rows = len(columns[names[0]]) if names else 0
    step = text_parser.columns_at_once(rows)
    for start in range(0, len(names), step):
        batch = names[start : start + step]
        texts = _classify([columns[name] for name in batch], rules)
        profiles |= zip(batch, map(_profile_column, texts), strict=True)
    return profiles


class _Texts(NamedTuple):
    """The distinct texts of a column, or of columns one after another.

    Attributes:
        texts: The texts.
        counts: Number of cells with each text.
        kinds: Index into ``_KINDS`` of each text.
        empty: Which of them are missing if the column is text.
        numbers: Value of each text that is a number.
        rounded: Which of them are integers that float32 rounds.
    """

    texts: pa.Array
    counts: Ints
    kinds: npt.NDArray[np.int8]
    empty: text_parser.Mask
    numbers: npt.NDArray[np.float64]
    rounded: text_parser.Mask

    def of_kind(self, kind: CellKind) -> text_parser.Mask:
        """Return which texts are of a kind."""
        chosen: text_parser.Mask = self.kinds == _KINDS.index(kind)
        return chosen

    def listed(self, chosen: text_parser.Mask) -> list[bytes]:
        """Return the chosen texts."""
        return [self.texts[number].as_py() for number in np.flatnonzero(chosen).tolist()]


def _classify(cells: Sequence[pa.DictionaryArray], rules: CellRules) -> Iterator[_Texts]:
    """Yield the texts of each column; those of all columns are parsed together."""
    uses = [np.bincount(column.indices, minlength=len(column.dictionary)) for column in cells]
    counts = np.concatenate(uses)
    used = counts > 0
    texts = pa.concat_arrays([column.dictionary for column in cells]).filter(pa.array(used))
    missing = rules.missing_numbers(texts)
    kinds = np.zeros(len(texts), np.int8)
    numbers = np.zeros(len(texts))
    rounded = np.zeros(len(texts), np.bool_)
    present = ~missing
    plain = rules.plain(texts.filter(pa.array(present)))
    integer = text_parser.parse_int64(plain, allow_padding=False)
    decimal = text_parser.parse_float64(plain)
    kinds[present] = _find_kinds(plain, integer.faults, decimal.faults)
    numbers[present] = decimal.values
    rounded[present] = text_parser.is_rounded(integer)
    whole = _Texts(texts, counts[used], kinds, rules.missing_texts(texts), numbers, rounded)
    start = 0
    for use in uses:
        end = start + np.count_nonzero(use)
        yield _Texts._make(values[start:end] for values in whole)
        start = end


def _find_kinds(
    texts: pa.Array, whole: text_parser.FaultCodes, real: text_parser.FaultCodes
) -> npt.NDArray[np.int8]:
    """Return the index into ``_KINDS`` of texts that are not missing.

    Args:
        texts: The texts, with numbers as in program text.
        whole: Faults of the texts as int64.
        real: Faults of the texts as float32.
    """
    trimmed = text_parser.trim(texts)
    number = (whole != _CAST) | (real != _CAST)
    coded = number & (text_parser.matches(trimmed, _ZEROS) | text_parser.matches(trimmed, _PHONE))
    words = pc.ascii_lower(text_parser.as_strings(trimmed))
    kinds: dict[CellKind, text_parser.Mask] = {
        "coded": coded,
        "integers": whole == _NONE,
        "decimals": (whole == _CAST) & (real == _NONE),
        "wide": number,
        "booleans": text_parser.to_mask(pc.is_in(words, value_set=pa.array(_WORDS))),
    }
    # The first kind that fits counts.
    numbers = [_KINDS.index(kind) for kind in kinds]
    selected: npt.NDArray[np.int8] = np.select([*kinds.values()], numbers, _KINDS.index("texts"))
    return selected


def _profile_column(texts: _Texts) -> ColumnProfile:
    """Return the profile of a column, given its texts."""
    cells = np.bincount(texts.kinds, texts.counts, len(_KINDS)).astype(int).tolist()
    counts: Counter[CellKind] = Counter(dict(zip(_KINDS, cells, strict=True)))
    counts["cells"] = int(texts.counts.sum())
    counts["empty"] = int(texts.counts[texts.empty].sum())
    real = texts.numbers[texts.of_kind("integers") | texts.of_kind("decimals")]
    # The first text that is not a number, or else the first one.
    decisive = next((kind for kind in _NOT_NUMBERS if counts[kind]), None)
    chosen = texts.of_kind(decisive) if decisive else ~texts.of_kind("nulls")
    example = ""
    if chosen.any():
        example = format_value(texts.texts[int(chosen.argmax())].as_py())
    markers = texts.listed(texts.of_kind("nulls") & ~texts.empty)
    return ColumnProfile(
        +counts,
        frozenset(word.strip().decode() for word in texts.listed(texts.of_kind("booleans"))),
        _describe_rounded(texts) or _describe_merged(texts),
        example,
        len(texts.texts),
        float(real.min(initial=math.inf)),
        float(real.max(initial=-math.inf)),
        markers=frozenset(text.decode("utf-8", "replace") for text in markers),
    )


def _describe_rounded(texts: _Texts) -> str:
    """Describe the first integer that float32 rounds; see ``ColumnProfile``."""
    if not texts.rounded.any():
        return ""
    first = int(texts.rounded.argmax())
    becomes = int(np.float32(texts.numbers[first]))
    return f"{format_value(texts.texts[first].as_py())} becomes {becomes}"


def _describe_merged(texts: _Texts) -> str:
    """Describe the two least numbers that become equal as float32; see ``ColumnProfile``."""
    decimals = np.flatnonzero(texts.of_kind("decimals") & np.isfinite(texts.numbers))
    if not len(decimals):
        return ""
    order = decimals[np.argsort(texts.numbers[decimals], kind="stable")]
    values = texts.numbers[order]
    merged = (np.diff(values) != 0) & (np.diff(values.astype(np.float32)) == 0)
    if not merged.any():
        return ""
    first = int(merged.argmax())
    pair = texts.texts.take(pa.array(order[first : first + 2])).to_pylist()
    return f"{' and '.join(map(format_value, pair))} become equal"


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
    if other.istitle():
        return word.title()
    return word


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
        remedy = f"{shlex.quote(f'--types={name}:float')} rejects rows with such cells"
        text = texts[first].as_py().decode("utf-8", "replace")
        if "," not in text:
            missing = sorted({"", text, *_missing_texts(texts, rules)})
            flag = shlex.quote(f"--null_values={','.join(missing)}")
            remedy = f"{flag} makes {example} missing, and {remedy}"
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
    if place >= 0:
        return int(present[place])
    return -1


def _missing_texts(texts: pa.Array, rules: CellRules) -> set[str]:
    """Return the texts of missing numbers in a column, which a list of others would replace."""
    missing = texts.filter(pa.array(rules.missing_numbers(texts)))
    return {text.decode("utf-8", "replace").strip() for text in missing.to_pylist()}


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
