"""Annotations of COCO: one JSON file for many images, read in sequence."""

from __future__ import annotations

import io
import itertools
import math
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from shardmill.schemas.errors import InputError
from shardmill.schemas.refs import InputRef, MatchCounts
from shardmill.schemas.storage import ReaderStream, open_storage
from shardmill.schemas.text_file import TextError, Utf8Stream, unreadable_text
from shardmill.transforms.match.annotations.annotation_spec import (
    Annotation,
    AnnotationError,
    Box,
    attach,
)
from shardmill.transforms.match.walk import make_key

Row = tuple[Any, ...]
Section = tuple[str, str]  # a path, and ``images`` or ``annotations``
SECTIONS = ("images", "annotations")
_BUFFER_BYTES = 1 << 20
_WAITING = 1 << 17  # entries that wait to be grouped
_MAX_PROBLEM = 100  # characters
_MAX_DEPTH = 100  # COCO's files need 6
_QUOTE = 2
_SET = frozenset({"1", "1.0", "true"})  # values of a flag
_NUMBER = re.compile(r"(-?)0*([0-9]+)(?:\.0*)?")
_INT64 = range(-1 << 63, 1 << 63)
# Of numbers, NaN and Infinity.
_WORD_LETTERS = frozenset(bytes([letter]) for letter in b"+-.0123456789eEInfityNa")
_LONGEST_WORD = 400  # letters; 2**1024 has 309 digits
# Words that no parser of JSON has to read; the parser stops at numbers that do not fit 64 bits, and
# rounds floats beyond 2**53, such as ids that pandas wrote.
_LONG_WORD = rb"-?[1-9](?:[0-9]{18,}|[0-9]{15,}\.0+)"
_ODD_WORD = re.compile(rb"(-?Infinity|NaN|(?<![-+.0-9eE])%s(?![.0-9eE]))" % _LONG_WORD)
_LONG_TEXT = re.compile(_LONG_WORD.decode())
_SAME_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBERS = b"0" * 19, b"0" * 16 + b".0"  # shorter ones fit
_MAX_SIDE, _MAX_AREA = 1 << 48, 1 << 96
_STEPS = np.zeros(256, np.int8)  # by the code of a character: how it changes the depth
_STEPS[[ord(code) for code in "[{"]] = 1
_STEPS[[ord(code) for code in "]}"]] = -1
_STEPS[ord('"')] = _QUOTE


def read_categories(path: str) -> dict[tuple[str, str], str]:
    """Map path and id of each category to its name, or to an empty text.

    Raises:
        InputError: The file is not JSON of COCO, or two categories have one id.
    """
    categories: dict[tuple[str, str], str] = {}
    for item in _items(path, "categories"):
        number, name = _id(item.get("id")), item.get("name")
        text = str(name) if type(name) in (str, int, float) else ""
        first = categories.setdefault((path, number), text)
        if first != text:
            raise InputError(
                f"{path} has two categories with the id {number}, {first!r:.80} and {text!r:.80}: "
                "give them different ids."
            )
    if not categories:
        raise InputError(
            f"{path} has no categories: give COCO's instances, which have boxes with categories, "
            "and convert other JSON, such as LabelMe's, to them."
        )
    return categories


def warn_of_names(categories: Mapping[tuple[str, str], str]) -> Iterator[MatchCounts]:
    """Yield a warning for each name that several categories of a file have.

    A class is a name: their boxes get one class. Files of Roboflow have a category 0 with the name
    of the project, which may be that of a class and has no boxes.
    """
    ids = defaultdict[tuple[str, str], list[str]](list)
    for (path, number), name in categories.items():
        ids[path, make_key(name)].append(number)
    for (path, name), numbers in ids.items():
        if name and len(numbers) > 1:
            several = f"{', '.join(numbers[:-1])} and {numbers[-1]}"
            file = posixpath.basename(path)
            warning = (
                f"the categories {several} of {file} have one name, {name!r:.80}, and are one "
                "class: if they are several classes, give each a different name in the file"
            )
            yield MatchCounts(warnings=(warning,))


def list_categories(path: str) -> Iterator[tuple[tuple[str, str], str] | MatchCounts]:
    """Yield what ``read_categories`` returns, and warnings.

    Raises:
        InputError: As ``read_categories``.
    """
    categories = read_categories(path)
    yield from categories.items()
    yield from warn_of_names(categories)


def read_section(section: Section) -> Iterator[tuple[str, list[Row]]]:
    """Yield some entries of images or annotations by path and id of their image.

    Raises:
        InputError: The file is not JSON of COCO.
    """
    path, name = section
    groups = defaultdict[str, list[Row]](list)  # a runner spends more on a value than on its bytes
    for position, item in enumerate(_items(path, name)):
        if name == "images":
            number = item.get("id")
            row: Row = (str(item.get("file_name") or ""), item.get("width"), item.get("height"))
        else:
            number, category = item.get("image_id"), _id(item.get("category_id"))
            flags = item.get("iscrowd"), bool(item.get("segmentation"))
            row = (position, item.get("bbox"), category, flags, item.get("area"))
        groups[f"{path}\0{_id(number)}"].append(row)
        if position % _WAITING == _WAITING - 1:
            yield from groups.items()
            groups.clear()
    yield from groups.items()


def _id(value: Any) -> str:
    """Return an id as text: programs write 1 also as 1.0, as pandas does, "1", "01" or "1.0"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str):
        return repr(value)
    number = _NUMBER.fullmatch(value)
    if number is None:
        return ascii(value)[1:-1]
    sign, digits = number.groups()
    if digits == "0":
        return digits
    return sign + digits


def _items(path: str, name: str) -> Iterator[dict[str, Any]]:
    import ijson

    with open_storage(path).open_at(path) as reader:
        file = io.BufferedReader(ReaderStream(reader), _BUFFER_BYTES)
        stream = _Shallow(Utf8Stream(file))
        try:
            for item in ijson.items(stream, f"{name}.item", use_float=True):
                if not isinstance(item, dict):
                    raise InputError(
                        f"{path} is not COCO's: an entry of {name} is {item!r:.80} instead of an "
                        "object."
                    )
                yield item
        except TextError as error:
            raise unreadable_text(source=path, problem=error) from error
        except (ijson.JSONError, ValueError) as error:
            why, *_ = str(error).splitlines() or [""]  # the others repeat some of the file
            why = why[:_MAX_PROBLEM].rstrip(".")
            raise InputError(f"{path} is not whole JSON: {why}.") from error


class _Shallow:
    """Reads JSON that is not nested deeply: the parser keeps the path of each level in memory.

    NaN and infinities, which Python's json writes and no parser of JSON has to read, become null;
    whole numbers beyond 64 bits, and such floats of 16 digits, become texts, as ids are compared.

    Args:
        file: The JSON.
    """

    def __init__(self, file: Utf8Stream) -> None:
        self._file = file
        self._escape, self._in_string, self._depth = b"", False, 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes.

        Raises:
            ValueError: They are nested more than ``_MAX_DEPTH`` deep.
        """
        data = self._without_odd_words(self._file.read(size))
        # Without escaped characters, each quote begins or ends a string.
        text = (self._escape + data).replace(b"\\\\", b"")
        self._escape = b"\\" if text.endswith(b"\\") else b""
        steps = _STEPS[np.frombuffer(text.replace(b'\\"', b""), np.uint8)]
        steps = steps[steps != 0]
        if len(steps):
            is_quote = steps == _QUOTE
            in_string = np.logical_xor.accumulate(is_quote) ^ self._in_string
            depths = np.cumsum(np.where(is_quote | in_string, 0, steps)) + self._depth
            if depths.max() > _MAX_DEPTH:
                raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
            self._in_string, self._depth = bool(in_string[-1]), int(depths[-1])
        return data

    def _without_odd_words(self, data: bytes) -> bytes:
        """Return the next bytes with nulls and texts instead of odd words outside of strings."""
        rest, last = bytearray(), data[-1:]
        while last in _WORD_LETTERS and len(rest) < _LONGEST_WORD:  # the block may cut a word
            last = self._file.read(1)
            rest += last
        data += rest
        digits = data.translate(_SAME_DIGITS)
        has_long_number = any(number in digits for number in _LONG_NUMBERS)
        if not has_long_number and b"NaN" not in data and b"Infinity" not in data:
            return data
        pieces = _ODD_WORD.split(data)
        escape, in_string = self._escape, self._in_string
        for number, piece in enumerate(pieces):
            is_word = number % 2 == 1
            if is_word and not in_string:
                pieces[number] = b'"%s"' % piece if piece[-1:].isdigit() else b"null"
            text = (escape + piece).replace(b"\\\\", b"")
            escape = b"\\" if text.endswith(b"\\") else b""
            in_string ^= text.replace(b'\\"', b"").count(b'"') % 2 == 1
        return b"".join(pieces)


def make_references(
    group: tuple[str, Iterable[list[Row]]],
    categories: Mapping[tuple[str, str], str],
    labels: frozenset[str] | None,
    *,
    with_ids: bool = False,
) -> Iterator[InputRef]:
    """Yield a reference with the boxes of each image of one id; its key is the name of the file.

    Annotations whose id is that of no image give one whose key is empty.

    Args:
        group: Path and id of an image, and its entries.
        categories: See ``read_categories``.
        labels: The labels that boxes may have; None for any.
        with_ids: Whether ids become features.
    """
    path, _, image_id = group[0].partition("\0")
    rows = [*itertools.chain(*group[1])]
    images = [row for row in rows if len(row) == len(("file_name", "width", "height"))]
    # In the order of the file: that of a group differs from run to run.
    entries = sorted((row for row in rows if row not in images), key=itemgetter(0))
    try:
        if len({name for name, _, _ in images}) > 1:
            raise AnnotationError("several images of its file have the same id")
        boxes = [_box(path, entry, categories) for entry in entries]
        ids = _ids(image_id, entries) if with_ids else {}
        problem = ""
    except AnnotationError as error:
        problem = str(error)
    for name, width, height in images or [("", 0, 0)]:
        key = posixpath.normpath(name.replace("\\", "/")) if name else ""
        reference = InputRef(make_key(key), path)
        if problem:
            yield reference.rejected("annotation", problem)
            continue
        has_size = (width, height) != (1, 1) and all(
            type(side) is int and 0 < side < 1 << 31 for side in (width, height)
        )
        frame = Annotation(width, height) if has_size else Annotation()
        outlines = sum(outlined for _, _, _, (_, outlined), _ in entries)
        annotation = frame._replace(boxes=boxes, outlines=outlines, **ids)
        yield attach(reference, annotation, labels)


def _box(path: str, entry: Row, categories: Mapping[tuple[str, str], str]) -> Box:
    """Return the box of an entry of annotations.

    Raises:
        AnnotationError: It has none, or no category with a name.
    """
    _, sides, category, (is_crowd, _), area = entry
    text = categories.get((path, category))
    if text is None:
        raise AnnotationError(f"the category {category} is not in its categories")
    if not text:
        raise AnnotationError(f"the category {category} has no name")
    is_box = isinstance(sides, list) and len(sides) == 4 and all(map(_is_number, sides))
    if not is_box:
        raise AnnotationError(f"a bbox is {sides!r:.80} instead of four numbers below 2**48")
    if isinstance(area, str) and _LONG_TEXT.fullmatch(area):
        area = float(area)
    if not (area is None or _is_number(area, _MAX_AREA)):
        raise AnnotationError(f"an area is {area!r:.80} instead of a number below 2**96")
    x, y, width, height = sides
    is_set = str(is_crowd).lower() in _SET
    return Box(text, x, y, x + width, y + height, is_crowd=is_set, area=area)


def _ids(image_id: str, entries: Iterable[Row]) -> dict[str, Any]:
    """Return the ids of an image and of the categories of its entries, as fields of Annotation.

    Raises:
        AnnotationError: One is not a whole number.
    """
    category_ids = [category for _, _, category, _, _ in entries]
    for number in (image_id, *category_ids):
        if not _is_whole(number):
            raise AnnotationError(
                f"the id {number:.80} is not a whole number of 64 bits, which --coco_ids needs: "
                "leave --coco_ids out, or change the id in the file"
            )
    return {"image_id": int(image_id), "category_ids": [*map(int, category_ids)]}


def _is_whole(number: str) -> bool:
    """Return whether an id is a whole number of 64 bits."""
    return bool(re.fullmatch("-?[0-9]{1,19}", number)) and int(number) in _INT64


def _is_number(value: Any, limit: int = _MAX_SIDE) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < limit
