"""Labels: a regular expression over the key, with named presets."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, get_args

from shardmill.schemas import option_types as of
from shardmill.schemas.dataset.splits import SPLIT_FOLDER
from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import useless_option
from shardmill.schemas.refs import InputRef, RejectedError
from shardmill.transforms.match.walk import glob_regex, make_key

LabelFrom = Literal["directory", "filename", "listing", "none"]
LabelOrder = Literal["text", "number"]
_LABEL_FROM = of.choice(get_args(LabelFrom), "directory")
_PRESETS = {
    "directory": r"(?:.*/)?(?P<label>[^/]+)/[^/]+",
    "filename": r"(?P<label>[^.]+)\..*",
}
# The folder below that of the split; a file in the folder of a split has no label.
BELOW_SPLIT = rf"(?:[^/]+/(?=[^/]+/)|(?!(?i:{SPLIT_FOLDER})/))(?P<label>[^/]+)/.*"
_MISSING = ("nan", "null", "<na>", "n/a")  # in lower case
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_TEXT_AND_DIGITS = re.compile(r"([^0-9]*)([0-9]*)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


@dataclass(kw_only=True)
class LabelOptions(of.Options):
    """Where the labels of images come from, and their order.

    Attributes:
        label_from: ``WHERE``: directory, filename, listing, none
        label_pattern: ``REGEX``: has a group (?P<label>...)
        labels: ``FILE``: one label per line, the first is class 0; or a .yaml file with names
        label_order: ``HOW``: class ids sort labels as text (default; 10 before 2) or by number

    Raises:
        UsageError: A value breaks its rule, or two values conflict.
    """

    label_from: of.Choice[LabelFrom] = _LABEL_FROM
    label_pattern: of.Text = of.text()
    labels: of.File = of.file(decides=False)
    label_order: of.Choice[LabelOrder] = of.choice(get_args(LabelOrder), "text", decides=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_label_pattern(self.label_from, self.label_pattern)
        if self.label_order != "text" and self.labels:
            why = "with --labels, whose lines number the labels"
            raise useless_option(flag="label_order", value=self.label_order, why=why)


def check_label_pattern(label_from: LabelFrom, pattern: str) -> None:
    """Check the value of ``--label_pattern``.

    Raises:
        UsageError: It is not a regular expression, has no group ``label``, or is not used.
    """
    if not pattern:
        return
    if label_from not in _PRESETS:
        raise UsageError(
            f"--label_pattern has no use with --label_from={label_from}: use "
            "--label_from=directory or filename."
        )
    try:
        groups = re.compile(pattern, re.DOTALL).groupindex
    except re.error as error:
        raise UsageError(
            f"--label_pattern={pattern} is not a regular expression: {error}."
        ) from error
    if "label" not in groups:
        raise UsageError(
            f"--label_pattern={pattern} has no group called label: mark the label as in "
            "'(?P<label>[^.]+)\\..*'."
        )


@dataclass(frozen=True)
class LabelSpec:
    """Where labels come from.

    Attributes:
        label_from: ``directory`` (the file's folder), ``filename`` (the text
            before the first dot), ``listing`` (its column), or ``none``.
        pattern: A regular expression with a group ``label``, instead of the preset. It must match
            the whole key, or with ``filename`` the whole file name.
        fixed: The labels of a ``--labels`` file in order, or None to collect them.
        is_unlabeled: Returns whether an input has no label in any case.
        several: Whether an input may have several labels, or none.
        option: The option that names the pattern, for messages.
        of_archives: Whether the labels that archives hold come before those of paths.

    Raises:
        UsageError: The pattern is not a regular expression or has no group ``label``.
    """

    label_from: of.Choice[LabelFrom] = _LABEL_FROM
    pattern: str = ""
    fixed: tuple[str, ...] | None = None
    is_unlabeled: Callable[[InputRef], bool] | None = None
    several: bool = False
    option: str = ""
    of_archives: bool = True

    def __post_init__(self) -> None:
        check_label_pattern(self.label_from, self.pattern)

    @property
    def reads_archives(self) -> bool:
        """Whether labels that archives hold are used."""
        return self.label_from == "directory" and self.of_archives

    @cached_property
    def _regex(self) -> re.Pattern[str] | None:
        if self.label_from not in _PRESETS:
            return None
        pattern = self.pattern or _PRESETS[self.label_from]
        if self.label_from == "filename":
            pattern = f"(?:.*/)?(?:{pattern})"
        return re.compile(pattern, re.DOTALL)

    @cached_property
    def allowed(self) -> frozenset[str] | None:
        """The labels of the file as a set."""
        if self.fixed is None:
            return None
        return frozenset(self.fixed)

    def with_label(self, ref: InputRef, in_archives: bool = False) -> InputRef:
        """Return a reference with its label, or rejected if it has none or an unknown one.

        Args:
            ref: The reference.
            in_archives: Whether archives hold labels: then those of members are not their folders.
        """
        if ref.error:
            return ref
        problem = ref.message
        ref = ref._replace(message="")
        unlabeled = self.is_unlabeled is not None and self.is_unlabeled(ref)
        if self.label_from == "none" or unlabeled:
            return ref._replace(label=None, classes=())
        by_member = bool(self.reads_archives and ref.member)
        by_member = by_member and (in_archives or ref.label is not None)
        if by_member:
            ref = ref._replace(label=self._named(ref.label or ""))
        elif self._regex is not None:
            match = self._regex.fullmatch(ref.key)
            label = match.group("label") if match else None
            ref = ref._replace(label=label)
        if not ref.label and not self.several:
            option = self.option or f"--label_from={self.label_from}"
            why = f"no label is found in {ref.key!r} by {option}"
            if by_member:
                why = problem or (
                    f"the archive has no label of {ref.key!r}, in a .cls member or under the name "
                    "that --label_column gives"
                )
            return ref._replace(label=None).rejected("no_label", why)
        try:
            for label in ref.labels:
                check_label(label, self.allowed)
        except RejectedError as error:
            return ref.rejected(error.error, error.message)
        return ref

    def _named(self, label: str) -> str:
        """Return the label of a ``.cls`` file, which may be the number of a line of --labels."""
        fixed = self.fixed or ()
        is_number = label.isdecimal() and label not in fixed and int(label) < len(fixed)
        if is_number:
            return fixed[int(label)]
        return label


def check_label(label: str, allowed: Collection[str] | None) -> None:
    """Check a label.

    Args:
        label: Its text.
        allowed: The labels that it must be one of; None for any.

    Raises:
        RejectedError: It is empty, has a control character, or is unknown.
    """
    if not label or has_control(label):
        problem = "has a control character" if label else "has no characters"
        raise RejectedError("match", "label_text", f"the label {label!r} {problem}")
    if allowed is not None and label not in allowed:
        raise RejectedError("match", "unknown_label", f"the label {label!r} is not in --labels")


class LabelError(Exception):
    """A value that is not a label; the text says why, after the name of its place."""


def read_label(value: Any, classes: Sequence[str] = ()) -> str:
    """Return the label that a value of a column, a feature or a JSON object is.

    Args:
        value: A text or its bytes, a number, a truth value, None, or a list of these.
        classes: Names of classes by number, where numbers are such.

    Raises:
        LabelError: It is none, or several.
    """
    if isinstance(value, list):
        if len(value) > 1:
            raise LabelError(f"has {len(value)} values, not one label")
        value = value[0] if value else None
    if value is None or value in ("", b"") or value != value:  # noqa: PLR0124 - NaN
        raise LabelError("has no value")
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, int | float | Decimal):
        return _read_number(value, classes)
    try:
        text = value.decode() if isinstance(value, bytes) else value
        text.encode()
    except UnicodeError as error:
        raise LabelError(f"is {value!r:.80}, not a text in UTF-8") from error
    except AttributeError as error:
        raise LabelError(f"is {value!r:.80}, not a text or a whole number") from error
    return make_key(text)


def _read_number(value: float | Decimal, classes: Sequence[str]) -> str:
    is_whole = isinstance(value, int) or (math.isfinite(value) and value == int(value))
    if not is_whole:
        raise LabelError(f"is {value}, not a text or a whole number")
    number = int(value)
    if not classes:
        return str(number)
    if number == -1:
        raise LabelError("is -1, which stands for no label")
    if not 0 <= number < len(classes):
        raise LabelError(f"is {number}, and the classes of the file are 0 to {len(classes) - 1}")
    return make_key(classes[number])


def below_places(places: Iterable[str]) -> str:
    """Return a pattern of the label of a file: its folder, unless that is one of some places."""
    names = "|".join(glob_regex(place.rstrip("/")).pattern for place in places)
    below = rf"(?!(?:{names})/[^/]+\Z)" if names else ""
    return below + _PRESETS["directory"]


def has_control(text: str) -> bool:
    """Return whether a text has a line break or another control character."""
    return _CONTROL.search(text) is not None


def sort_labels(labels: Iterable[str], order: LabelOrder = "text") -> tuple[str, ...]:
    """Return labels in the order of their class ids.

    Args:
        labels: The labels.
        order: ``text``: by their UTF-8 bytes; ``number``: numbers by their value, then other
            labels, in which digits are compared by value too, as in class_2 and class_10.
    """
    by_text = sorted(labels, key=str.encode)
    if order == "number":
        return tuple(sorted(by_text, key=_numeric_key))
    return tuple(by_text)


def _numeric_key(label: str) -> tuple[bool, Decimal, list[tuple[bytes, Decimal]]]:
    """Return the sort key of a label; labels that differ only in leading zeros have the same."""
    if _NUMBER.fullmatch(label):
        return False, Decimal(label), []
    parts = [
        (text.encode(), Decimal(digits or -1)) for text, digits in _TEXT_AND_DIGITS.findall(label)
    ]
    return True, Decimal(0), parts


def warn_of_order(labels: Iterable[str]) -> Iterator[str]:
    """Yield a warning if class ids by text are not in the order of labels that are numbers."""
    by_text = sort_labels(labels)
    numbers = [label for label in by_text if _NUMBER.fullmatch(label)]
    by_number = sort_labels(numbers, "number")
    pairs = zip(numbers, by_number, strict=True)
    moved = next((label for label, expected in pairs if label != expected), None)
    if moved is not None:
        which = "the labels are"
        if len(numbers) < len(by_text):
            which = f"{len(numbers)} of {len(by_text)} labels are"
        yield (
            f"{which} numbers, but class ids sort them as texts: the label {moved!r} has "
            f"the class id {by_text.index(moved)}; --label_order=number sorts them by value"
        )


def warn_of_spellings(labels: Iterable[str]) -> Iterator[str]:
    """Yield a warning for numbers in several spellings, and one for texts of missing values.

    Programs write integers of a column with gaps as ``1.0``, and the gaps as ``nan``.
    """
    by_text = sort_labels(labels)
    others = [label for label in by_text if not _NUMBER.fullmatch(label)]
    spellings: dict[Decimal, list[str]] = {}
    for label in by_text:
        if _NUMBER.fullmatch(label):
            spellings.setdefault(Decimal(label), []).append(label)
    several = next((texts for texts in spellings.values() if len(texts) > 1), None)
    if several:
        listed = " and ".join(map(repr, several[:2]))
        yield f"the labels {listed} are separate classes of one number: spell them alike"
    missing = [label for label in others if label.lower() in _MISSING]
    if spellings and len(others) == 1:  # else it may be a country or a group
        missing = [label for label in others if label.lower() in (*_MISSING, "na", "none")]
    if missing and len(by_text) > len(missing):
        yield (
            f"the label {missing[0]!r} is a class, and may stand for a missing label: leave the "
            "label empty where there is none"
        )


def _read_names(text: str, source: str) -> list[str]:
    """Return the names of classes in a YAML file, a list or a mapping of class ids.

    Raises:
        UsageError: It has none, or some that are not single lines.
    """
    import yaml  # slow to import

    try:
        content = yaml.safe_load(text)["names"]
        names = dict(enumerate(content)) if isinstance(content, list) else {**content}
        listed = [names[number] for number in range(len(names))]
    except (yaml.YAMLError, LookupError, RecursionError, TypeError) as error:
        raise _labels_not_yaml(source) from error
    # A name that YAML reads as a boolean, a date or a number was written otherwise: yes, 1.0.
    if not all(isinstance(name, str) and len(name.splitlines()) == 1 for name in listed):
        raise _labels_not_yaml(source)
    return listed


def _labels_not_yaml(source: object) -> UsageError:
    return UsageError(
        f"--labels={source} has no list 'names' of texts, or one by numbers from 0: write such "
        "names in quotes, or give a text file with one label a line."
    )


def parse_labels(text: str, source: str) -> tuple[str, ...]:
    """Return the labels of a labels file, in the order of class ids.

    It has one per line, or is a YAML file with ``names`` of classes, as data sets for YOLO have it:
    https://docs.ultralytics.com/datasets/detect/

    Raises:
        UsageError: The file is empty, or a label is empty or listed twice.
    """
    # As in keys: macOS may write the folder of a label in NFD.
    text = unicodedata.normalize("NFC", text)
    is_yaml = source.lower().endswith((".yaml", ".yml"))
    lines = _read_names(text, source) if is_yaml else text.splitlines()
    if not lines:
        raise UsageError(f"--labels={source} is empty: write one label a line.")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise UsageError(f"--labels={source} has an empty line {number}: remove it.")
    if len(set(lines)) != len(lines):
        twice = next(line for line in lines if lines.count(line) > 1)
        raise UsageError(f"--labels={source} lists {twice!r} twice: each label has one class id.")
    return tuple(lines)
