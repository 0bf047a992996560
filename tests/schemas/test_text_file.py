"""Small text files of any producer are read right or rejected in one sentence.

Each kind of file is written in each encoding and with each line break. The judge is the text from
which it was made, by Python's codecs: what our readers give must be the same, or an error.
"""

import io
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from shardmill.pipelines.option_file import read_option_file
from shardmill.schemas import InputRef
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.text_file import TextError, decode_text, decode_xml, find_utf_16
from shardmill.transforms import find_input
from shardmill.transforms.match.annotations.annotation_spec import (
    AnnotationError,
    parse_voc,
    parse_yolo,
)
from shardmill.transforms.match.annotations.coco import read_categories
from shardmill.transforms.match.annotations.transform import _read_set
from shardmill.transforms.match.containers.expand import MemberOptions, expand
from shardmill.transforms.match.inputs import find_single, read_listing
from shardmill.transforms.match.labels import parse_labels
from tests.conftest import build_dataset, examples, make_photos
from tests.support.csv_tools import read_csv

NAMES = ["cat", "dog", "café", "Größe", "naïve ñ", "x-1", "tree", "Ünï", "house"]
CHINESE = ["cat", "猫", "狗", "house", "一二三"]
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-be-sig", "utf-16-le", "utf-16-be", "utf-32")
CODE_PAGES = ("cp1252", "latin-1", "gb18030", "shift_jis", "big5", "euc_kr")
ROUNDS = examples(15)
BREAKS = ("\n", "\r\n", "\r")
ERRORS = (TextError, AnnotationError, InputError, UsageError)


def encode(text: str, encoding: str) -> bytes:
    """Encode a text as programs do: ``-sig`` is with a byte order mark."""
    if encoding == "utf-16-be-sig":
        return ("\ufeff" + text).encode("utf-16-be")
    return text.encode(encoding)


class Format(NamedTuple):
    """A format of files: how names are written, and how our reader gives them back."""

    write: Callable[[list[str]], str]
    read: Callable[[Path], list[str]]


def write_archive(path: Path, label: bytes, suffix: str) -> Path:
    """Write an image that has no pixels, and its label."""
    with tarfile.open(path, "w") as archive:
        for name, data in (("a.jpg", b"\xff\xd8\xff"), (f"a{suffix}", label)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


class Labels:
    """Names the column of labels, as the spooler of archives does."""

    members = MemberOptions("label")

    def __call__(self, *_: object):
        return iter(())


def read_label(path: Path, suffix: str) -> list[str]:
    archive = write_archive(path.with_suffix(".tar"), path.read_bytes(), suffix)
    spool = Labels() if suffix == ".json" else None
    refs = [
        ref
        for ref in expand(InputRef("a.tar", str(archive)), spool)
        if isinstance(ref, InputRef) and ref.key.endswith(".jpg")
    ]
    label = refs[0].label or ""
    if not label:  # such an image is rejected: it has no label
        raise InputError(f"{path}: no label")
    return label.split("|")


def read_list(path: Path) -> list[str]:
    spec = find_input(str(path.rename(path.with_suffix(".txt"))), wanted="rows")
    return [ref.key.removesuffix(".csv") for ref in read_listing(spec)]


def read_table(path: Path) -> list[str]:
    path = path.rename(path.with_suffix(".txt"))
    assert find_input(str(path), wanted="rows").kind == "file"
    reading = read_csv(path)
    if reading.rejects or reading.columns != ("name", "size"):
        raise InputError(f"{path}: rejects")
    return [row[0] for row in reading.rows]


def read_set(path: Path) -> list[str]:
    ref = find_single(find_input(str(path.rename(path.with_suffix(".csv")))))._replace(
        key="ImageSets/Main/train.txt"
    )
    keys = [each.key for each in _read_set(ref)]
    return [key.removeprefix("JPEGImages/").removesuffix(".jpg") for key in keys]


def read_yolo(path: Path) -> list[str]:
    found = parse_yolo(path.read_bytes(), NAMES).boxes
    return [NAMES[round(box.xmin * 100)] for box in found]


FORMATS = {
    "list": Format(lambda names: "\n".join(f"{name}.csv" for name in names) + "\n", read_list),
    "imageset": Format(lambda names: "\n".join(names) + "\n", read_set),
    "table": Format(
        lambda names: "name,size\n" + "".join(f'"{name}",1\n' for name in names), read_table
    ),
    "cls": Format(lambda names: "|".join(names) + "\n", lambda path: read_label(path, ".cls")),
    "json": Format(
        lambda names: json.dumps({"label": "|".join(names)}, ensure_ascii=False, indent=1),
        lambda path: read_label(path, ".json"),
    ),
    "labels": Format(
        "\n".join,
        lambda path: list(parse_labels(read_option_file("labels", str(path), "x"), "a.txt")),
    ),
    "yaml": Format(
        lambda names: "path: data\nnames:\n" + "".join(f"  - '{name}'\n" for name in names),
        lambda path: list(parse_labels(read_option_file("labels", str(path), "x"), "data.yaml")),
    ),
    "yolo": Format(
        lambda names: "".join(f"0 {NAMES.index(name) / 100} 0.5 0 0\n" for name in names), read_yolo
    ),
    "voc": Format(
        lambda names: (
            "<annotation>\n"
            + "".join(
                f"<object><name>{name}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax>"
                "<ymax>2</ymax></bndbox></object>\n"
                for name in names
            )
            + "</annotation>"
        ),
        lambda path: [box.text for box in parse_voc(path.read_bytes()).boxes],
    ),
    "coco": Format(
        lambda names: json.dumps(
            {"categories": [{"id": n, "name": name} for n, name in enumerate(names)]},
            ensure_ascii=False,
            indent=2,
        ),
        lambda path: list(read_categories(str(path)).values()),
    ),
}


def outcome(form: Format, path: Path, data: bytes) -> list[str] | str:
    """Return the names that our reader gives, or the sentence of its error."""
    path.write_bytes(data)
    try:
        return form.read(path)
    except ERRORS as error:
        found = str(error)
    assert "\n" not in found
    assert "b'" not in found
    return found


@pytest.mark.parametrize("kind", FORMATS)
def test_every_encoding_is_right_or_a_sentence(tmp_path: Path, kind: str) -> None:
    form, chooser, right = FORMATS[kind], random.Random(kind), 0
    for number in range(ROUNDS):
        pool = NAMES if kind == "yolo" or number % 2 else NAMES + CHINESE[1:3]
        names = chooser.sample(pool, chooser.randint(1, len(pool)))
        for line_break in BREAKS:
            text = form.write(names).replace("\n", line_break)
            for encoding in ENCODINGS:
                data = encode(text, encoding)
                found = outcome(form, tmp_path / "a", data)
                # Without a mark, many characters beyond Latin-1 hide UTF-16.
                hidden = encoding in ("utf-16-le", "utf-16-be") and not find_utf_16(data)
                assert found == names or (hidden and isinstance(found, str)), (encoding, found)
                right += found == names
    assert right > ROUNDS * len(BREAKS) * (len(ENCODINGS) - 1)


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in ("yolo", "table")])
def test_code_pages_and_nul_are_a_sentence(tmp_path: Path, kind: str) -> None:
    """Such text is not UTF-8; with NUL characters it would be cut or end in a traceback."""
    form = FORMATS[kind]
    for names, pages in (
        (["cat", "Größe"], CODE_PAGES[:2]),
        (["cat", "人大", "日"], CODE_PAGES[2:]),
    ):
        for line_break in BREAKS:
            text = form.write(names).replace("\n", line_break)
            for encoding in pages:
                assert isinstance(outcome(form, tmp_path / "a", text.encode(encoding)), str)
            for at in (text.index("cat"), text.index("cat") + 2, len(text)):
                for data in (text[:at] + "\0" + text[at:], text[:at] + "\0\0" + text[at:]):
                    found = outcome(form, tmp_path / "a", data.encode())
                    # What follows the last brace of COCO is not read.
                    assert isinstance(found, str) or (found == names and at == len(text))


DECLARED = {
    "utf8": NAMES,
    "UTF-8": NAMES,
    "utf-16": NAMES,
    "ISO-8859-1": NAMES,
    "Windows-1252": NAMES,
    "us-ascii": ["cat"],
    "cp1250": ["Größe"],
    "koi8-r": ["кот"],
    "windows-1251": ["кот", "cat"],
    "gb2312": ["猫", "狗", "cat"],
    "GBK": ["猫", "鎔"],
    "gb18030": ["猫", "鎔", "ä"],
    "Big5": ["貓"],
    "Shift_JIS": ["ネコ", "表示"],
    "EUC-JP": ["ネコ"],
    "euc-kr": ["고양이"],
    "ISO-2022-JP": ["ネコ"],
}


@pytest.mark.parametrize("declared", DECLARED)
def test_declared_encodings_of_xml(tmp_path: Path, declared: str) -> None:
    form, names = FORMATS["voc"], DECLARED[declared]
    for line_break in BREAKS:
        for quote in ("'", '"'):
            head = f"<?xml version={quote}1.0{quote} encoding={quote}{declared}{quote}?>\n"
            text = (head + form.write(names)).replace("\n", line_break)
            assert outcome(form, tmp_path / "a", text.encode(declared)) == names
            assert outcome(form, tmp_path / "a", text.encode("utf-8-sig")) == names
            assert outcome(form, tmp_path / "a", text.encode("utf-16")) == names


def test_wrong_declarations_of_xml() -> None:
    """Programs declare GB 2312 and write GBK, or UTF-16 and write UTF-8."""
    for declared, written, text in (
        ("gb2312", "gbk", "鎔"),
        ("Shift_JIS", "cp932", "①"),
        ("utf-16", "utf-8", "é猫"),
        ("utf-32", "utf-8", "é"),
        ("ascii", "utf-8", "é猫"),
        ("cp037", "utf-8", "é"),
    ):
        document = f"<?xml version='1.0' encoding='{declared}'?><a>{text}</a>"
        assert decode_xml(document.encode(written)) == document
    for declared in ("x-none", "rot13", "idna", "base64"):
        with pytest.raises(TextError, match=declared):
            decode_xml(f"<?xml version='1.0' encoding='{declared}'?><a>a</a>".encode())


def test_marks_within_a_file_are_not_part_of_names() -> None:
    """Files that were joined have marks at the start of lines."""
    assert decode_text("\ufeff\ufeffcat\n\ufeffdog\r\n".encode()) == "cat\ndog\r\n"
    assert decode_text("\ufeffcat\n\ufeffdog".encode("utf-16")) == "cat\ndog"


@pytest.mark.parametrize(
    "data", [b"cat\0", b"dog\0\0", b"a\0b\ncd\n", b"caf\xe9\0", b"\xff\xfea", b"\0"]
)
def test_what_is_not_utf_16_is_not_guessed(data: bytes) -> None:
    with pytest.raises(TextError, match=r"not (text|UTF-).*save it as UTF-8"):
        decode_text(data)


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_builds_from_lists_and_tables_in_each_encoding(tmp_path: Path, encoding: str) -> None:
    """The doors themselves: a list of tables, a table named .txt, and labels of archives."""
    (tmp_path / "café.csv").write_text("id,name\n1,a\n2,b\n", encoding="utf-8")
    (tmp_path / "list.txt").write_bytes(encode("café.csv\r\n", encoding))
    (tmp_path / "table.txt").write_bytes(encode("id,name\r\n1,Größe\r\n2,b\r\n", encoding))
    for number, name in enumerate(("list.txt", "table.txt")):
        _, manifest = build_dataset(
            "rows", input=tmp_path / name, output=tmp_path / f"ds{number}", splits="train:1"
        )
        assert manifest is not None
        assert manifest.splits["train"].num_examples == 2
    photos = make_photos(tmp_path / "photos", {"cat": 3})
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for path in sorted(photos.rglob("*.jpg")):
            archive.add(path, path.name)
            member = tarfile.TarInfo(f"{path.stem}.cls")
            label = encode("Größe\r\n", encoding if path.stem == "001" else "utf-8")
            member.size = len(label)
            archive.addfile(member, io.BytesIO(label))
    _, manifest = build_dataset(
        input=tmp_path / "a.tar", output=tmp_path / "images", splits="train:1", image_size="9"
    )
    assert manifest is not None
    assert (list(manifest.labels), manifest.splits["train"].num_examples) == (["Größe"], 3)
