"""Annotations of PASCAL VOC, YOLO and COCO are read as independent programs read them."""

import codecs
import contextlib
import io
import itertools
import json
import math
import random
import struct
import unicodedata
from collections import Counter
from decimal import Context, Decimal
from xml.dom import minidom

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardmill.schemas import InputRef
from shardmill.schemas.errors import InputError
from shardmill.transforms import ResizeSpec
from shardmill.transforms.images.fields import input_fields, place_boxes
from shardmill.transforms.images.resize import Size
from shardmill.transforms.match.annotations import coco
from shardmill.transforms.match.annotations.annotation_spec import (
    AnnotationError,
    attach,
    parse_voc,
    parse_yolo,
)
from shardmill.transforms.match.annotations.coco import (
    SECTIONS,
    make_references,
    read_categories,
    read_section,
)
from shardmill.transforms.match.annotations.transform import pair
from shardmill.transforms.match.next_steps import remedy_of
from tests.conftest import examples

GEOMETRY = ResizeSpec(image_size=Size(50, 100), resize="stretch").geometry(Size(100, 50), 1)
SIDES = ("xmin", "ymin", "xmax", "ymax")
VOC = """<?xml version="1.0"?><annotation><size><width>{width}</width><height>{height}</height>
<depth>3</depth></size>{objects}</annotation>"""
OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>
<bndbox><ymin>{ymin}</ymin><xmin>{xmin}</xmin><xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>"""


def text_of(node, *names):
    """The text of an element by minidom, among its direct children."""
    for name in names:
        node = next(child for child in node.childNodes if child.nodeName == name)
    return node.firstChild.data.strip()


def test_voc_sets_equal_another_parser(shared_data):
    """All real annotations, by an XML library that shares no code with ours."""
    paths = sorted((shared_data / "photos").glob("voc_*/**/*.xml"))
    assert len(paths) == 167
    for path in paths:
        root = minidom.parseString(path.read_bytes()).documentElement
        wanted = [
            (text_of(each, "name"), *(float(text_of(each, "bndbox", side)) for side in SIDES))
            for each in root.getElementsByTagName("object")
        ]
        found = parse_voc(path.read_bytes())
        assert [tuple(box[:5]) for box in found.boxes] == wanted, path
        assert (found.width, found.height) == tuple(
            int(text_of(root, "size", side)) for side in ("width", "height")
        )


def test_parts_of_voc_objects_are_not_boxes():
    objects = OBJECT.format(name=" Ünï \n", difficult=1, xmin=3.5, ymin=4, xmax=9, ymax=1e1)
    found = parse_voc(VOC.format(width=0, height=-1, objects=objects).encode())
    assert [tuple(box) for box in found.boxes] == [("Ünï", 3.5, 4, 9, 10, True, False, False, None)]


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_damaged_annotations_are_rejected_or_read(data):
    """Random edits of files give boxes or a reason, never another exception."""
    objects = OBJECT.format(name="a", difficult=0, xmin=1, ymin=2, xmax=3, ymax=4)
    whole = [
        VOC.format(width=5, height=6, objects=objects).encode(),
        b"0 .5 .5 .1 .1\n1 0 0 1 1 0 1\n",
    ]
    number = data.draw(st.integers(0, 1))
    text = bytearray(whole[number])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
        text = text or bytearray(b" ")
    with contextlib.suppress(AnnotationError):
        parse_voc(bytes(text)) if number == 0 else parse_yolo(bytes(text), ["a", "b"])


def test_yolo_boxes_and_outlines():
    text = "\ufeff1 0.5 0.5 0.2 0.4\r\n\n0 0.1 0.2 0.9 0.3 0.5 0.8\n"
    found = parse_yolo(text.encode(), ["cat", "dog"])
    assert (found.width, found.height) == (1, 1)
    assert [box.text for box in found.boxes] == ["dog", "cat"]
    assert found.outlines == 1
    sides = [[*map(float, box[1:5])] for box in found.boxes]
    assert np.allclose(sides, [[0.4, 0.3, 0.6, 0.7], [0.1, 0.2, 0.9, 0.8]])


def read_coco(path, labels=None, **options):
    """References by file name, as the pipeline groups them."""
    groups = {}
    for name in SECTIONS:
        for key, rows in read_section((str(path), name)):
            groups.setdefault(key, []).append(rows)
    for rows in groups.values():
        random.Random(0).shuffle(rows)  # runners group in any order
    categories = read_categories(str(path))
    made = (make_references(each, categories, labels, **options) for each in groups.items())
    return {ref.key: ref for refs in made for ref in refs}


def boxes_of(ref):
    """The boxes of a reference as pycocotools gives them: category, and x, y, width, height."""
    fields = input_fields(ref, dict.fromkeys(ref.classes, 0))
    x, y, right, lower = np.reshape(fields["box/sides"], (-1, 4)).astype(np.float32).T
    texts = [text.decode() for text in fields["box/text"]]
    return (
        texts,
        np.stack([x, y, right - x, lower - y], -1).reshape(-1, 4),
        fields["box/flags"][2::3],
    )


def check_coco(path):
    """Compare all images with pycocotools."""
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        judge = COCO(path)
    found = read_coco(path)
    for number, image in judge.imgs.items():
        ref = found.pop(image["file_name"])
        wanted = judge.imgToAnns[number]
        texts, boxes, crowds = boxes_of(ref)
        assert texts == [judge.cats[each["category_id"]]["name"] for each in wanted]
        assert np.allclose(boxes, np.reshape([each["bbox"] for each in wanted], (-1, 4)), atol=1e-3)
        fields = input_fields(ref, dict.fromkeys(ref.classes, 0))
        assert fields["box/outlines"] == [sum(bool(each.get("segmentation")) for each in wanted)]
        assert crowds == [each.get("iscrowd", 0) for each in wanted]
        fields = input_fields(ref, dict.fromkeys(ref.classes, 0))
        assert fields["box/size"] == [image["width"], image["height"]]
        assert np.allclose(fields["box/area"], [each["area"] for each in wanted])
    return found


def test_coco_set_equals_pycocotools(shared_data):
    assert not check_coco(shared_data / "photos" / "coco_dali" / "instances.json")


@pytest.mark.parametrize(
    "order", ["images annotations categories", "categories annotations images"]
)
def test_coco_of_any_order_equals_pycocotools(tmp_path, order):
    """Sections in any order, ids as pandas writes them; other keys are left out."""
    rng = np.random.default_rng(1)
    whole = {
        "images": [
            {"id": n, "file_name": f"d/{n}.jpg", "width": 90, "height": 80} for n in range(9)
        ],
        "categories": [{"id": n, "name": name} for n, name in ((3, "cat"), (1, "dog é"))],
        "annotations": [
            {
                "id": n,
                "image_id": [int, float][n % 2](rng.integers(8)),
                "category_id": [1, 3.0][n % 2],
                "area": 5.5,
                "bbox": (rng.random(4) * 40).tolist(),
                "iscrowd": (n % 3 == 0 and 1) or 0,
                "segmentation": [[1, 2, 3]],
            }
            for n in range(50)
        ],
    }
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps({"info": {"categories": []}, **{k: whole[k] for k in order.split()}})
    )
    assert not check_coco(path)
    found = read_coco(path)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_coco(path) == found
    whole["annotations"].append({"image_id": 77, "category_id": 1, "bbox": [1, 2, 3, 4]})
    path.write_text(json.dumps(whole))
    assert list(read_coco(path)) == [*(f"d/{n}.jpg" for n in range(9)), ""]
    for change in (
        {"category_id": 9},
        {"bbox": None},
        {"bbox": [1, 2, 3]},
        {"bbox": [1, 2, "3", 4]},
    ):
        whole["annotations"][-1] = {"image_id": 8, "category_id": 1, "bbox": [1, 2, 3, 4]} | change
        path.write_text(json.dumps(whole))
        assert read_coco(path)["d/8.jpg"].error == "annotation", change
    whole["images"].append({"id": 7, "file_name": "other.jpg"})  # as of two files joined
    path.write_text(json.dumps(whole))
    assert read_coco(path)["other.jpg"].error == read_coco(path)["d/7.jpg"].error == "annotation"


ENTRY = {
    "images": {"id": 1, "file_name": "a.jpg", "width": 10, "height": 10},
    "annotations": {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 3, "iscrowd": 0},
    "categories": {"id": 1, "name": "c"},
}
ODD = (None, True, -1, 0, 1.5, 1e300, 10**30, "", "x", "\ud800", "é\n", [], [[1]], {}, {"a": 1})


@pytest.mark.parametrize("section", ENTRY)
def test_values_of_any_type_are_rejects_or_one_sentence(tmp_path, section):
    """Each field of an entry, each entry and each section, of each type of JSON."""
    whole, path = {name: [each] for name, each in ENTRY.items()}, tmp_path / "a.json"
    entries = [{**ENTRY[section], field: odd} for field in ENTRY[section] for odd in ODD]
    for value in [*([each] for each in (*entries, *ODD)), *ODD]:
        path.write_text(json.dumps({**whole, section: value}))
        with contextlib.suppress(InputError):
            for ref in read_coco(path).values():
                assert ref.error in ("", "annotation", "label_text")


def coco_boxes(sides, tmp_path):
    """The annotation of an image with boxes in COCO's JSON."""
    entries = [
        {"image_id": "1" * 30, "category_id": "2" * 30, "bbox": [x, y, right - x, lower - y]}
        for x, y, right, lower in sides
    ]
    path = tmp_path / "a.json"
    image = {"id": "1" * 30, "file_name": "a.jpg", "width": 100, "height": 50}
    categories = [{"id": "2" * 30, "name": "cat"}]
    path.write_text(
        json.dumps({"images": [image], "annotations": entries, "categories": categories})
    )
    names = read_categories(str(path))
    rows = [row for name in SECTIONS for row in read_section((str(path), name))]
    groups = {key for key, _ in rows}
    (reference,) = make_references((groups.pop(), [row for _, row in rows]), names, None)
    assert not groups
    return reference


def voc_boxes(sides, _):
    objects = [
        OBJECT.format(name="cat", difficult=0, **dict(zip(SIDES, box, strict=True)))
        for box in sides
    ]
    data = VOC.format(width=100, height=50, objects="".join(objects)).encode()
    return attach(InputRef("a.jpg", "a.jpg"), parse_voc(data))


def yolo_boxes(sides, _):
    lines = [
        f"0 {(x + right) / 200} {(y + lower) / 100} {(right - x) / 100} {(lower - y) / 50}"
        for x, y, right, lower in sides
    ]
    return attach(InputRef("a.jpg", "a.jpg"), parse_yolo("\n".join(lines).encode(), ["cat"]))


@pytest.mark.parametrize("make", [coco_boxes, voc_boxes, yolo_boxes])
def test_boxes_with_swapped_sides_are_not_empty_ones(make, tmp_path):
    """Also where only one pair of sides is swapped; ids of any length may be texts."""
    corners = [
        (x, y, right, lower)
        for x in (10, 30)
        for y in (8, 24)
        for right in (10, 30)
        for lower in (8, 24)
    ]
    reference = make(corners, tmp_path)
    assert not reference.error
    placed = place_boxes(input_fields(reference, {"cat": 0}), GEOMETRY)
    swapped = [box for box in corners if box[2] < box[0] or box[3] < box[1]]
    whole = [box for box in corners if box[2] > box[0] and box[3] > box[1]]
    counts = len(whole), len(swapped), len(corners) - len(whole) - len(swapped)
    assert (placed["boxes"], placed["boxes_swapped"], placed["boxes_empty"]) == counts
    assert min(counts) > 0


NUMBERS = (1, 1.0, "1", "001", "1.0")
OTHERS = {  # of fields, and what json.load reads in the place of the last
    "area": [5.5, None, float("nan"), float("inf"), -float("inf")],
    "score": [float("nan"), {"a": [float("inf"), "NaN, Infinity", 10**25]}],
    "id": [7, -(1 << 63), 1 << 63, 10**20, -(10**30), 10**300, 1e300],
    "note": [
        "1" * 30,
        f'"{10**20}, ',
        'a "NaN" \\',
        "NaN",
        "\\\\",
        '"',
        "-Infinity: [NaN]",
        "Infin",
    ],
    "iscrowd": [0, 1, None, float("nan"), True, "1", "0", False],
    "bbox": [
        [1, 2, 3, 4],
        [0.5, 1e1, 2, 3],
        [1, float("nan"), 3, 4],
        [1, 2, float("inf"), 4],
        None,
    ],
    "segmentation": [None, float("nan"), [[1, 2, 3]], []],
    "image_id": [*NUMBERS],
    "category_id": [*NUMBERS, 2, "2", 3, "3"],
}
NAMES = ["cat", "dog", "Ünï", "a", "b", 7, None, ""]


def random_coco(rng):
    """A file as programs write them, with values of other types."""

    def choose(values):
        return values[rng.integers(len(values))]

    entries = [
        {
            field: choose(values)
            for field, values in OTHERS.items()
            if rng.uniform() < 0.9 or field.endswith("id")
        }
        for _ in range(rng.integers(1, 4))
    ]
    size = {side: choose([90, 90.0, None, float("nan")]) for side in ("width", "height")}
    numbers = [1, "2", 3.0] if rng.uniform() < 0.8 else rng.choice([1, 2, 3], 3).tolist()
    categories = [{"id": number, "name": choose(NAMES)} for number in numbers]
    image = {"id": choose(NUMBERS), "file_name": "a.jpg", **size}
    return {"images": [image], "annotations": entries, "categories": categories}


def judge_coco(text):
    """What plain json says: None for an error of the file, else the boxes of the image, or None."""
    whole = json.loads(text)
    names = {}
    for category in whole["categories"]:
        name = "" if category["name"] is None else str(category["name"])
        if names.setdefault(int(float(category["id"])), name) != name:
            return None
    boxes = []
    for entry in whole["annotations"]:
        name, sides = names.get(int(float(entry["category_id"]))), entry.get("bbox") or [math.nan]
        if not name or not all(map(math.isfinite, sides)):
            return [None]
        area = entry.get("area")
        area = area if area is not None and math.isfinite(area) else sides[2] * sides[3]
        boxes.append((name, *sides, area, entry.get("iscrowd") in (1, "1")))
    return boxes


@pytest.mark.sweep
@pytest.mark.parametrize("size", [3, 1 << 16])
def test_coco_of_any_program_is_read_as_plain_json_does(tmp_path, monkeypatch, size):
    """Ids as numbers and texts, shared ids, NaN and long numbers in each field; or a sentence."""
    rng, path = np.random.default_rng(size), tmp_path / "a.json"
    if size < 1 << 16:  # a parser that asks for few bytes at a time
        plain = coco._Shallow.read
        monkeypatch.setattr(coco._Shallow, "read", lambda file, n: plain(file, min(n, size)))
    kinds = Counter()
    for _ in range(examples(450)):
        text = json.dumps(random_coco(rng), ensure_ascii=False)
        path.write_text(text, encoding="utf-8")
        wanted = judge_coco(text)
        if wanted is None:
            kinds["error"] += 1
            with pytest.raises(InputError, match="two categories with the id"):
                read_coco(path)
            continue
        ref = read_coco(path)["a.jpg"]
        if wanted == [None]:
            kinds["reject"] += 1
            assert ref.error == "annotation", text
            continue
        kinds["boxes"] += 1
        names, boxes, crowds = boxes_of(ref)
        areas = input_fields(ref, dict.fromkeys(ref.classes, 0))["box/area"]
        rows = zip(names, boxes.tolist(), areas, crowds, strict=True)
        found = [(name, *box, area, bool(crowd)) for name, box, area, crowd in rows]
        assert [row[0] for row in found] == [row[0] for row in wanted]
        assert np.allclose([row[1:] for row in found], [row[1:] for row in wanted]), text
    assert min(kinds[kind] for kind in ("error", "reject", "boxes")) > 5


texts = st.text('[]{}"\\\\ab', max_size=6)
documents = st.recursive(
    texts, lambda each: st.lists(each, max_size=3) | st.dictionaries(texts, each, max_size=3)
)


def depth_of(value):
    if isinstance(value, str):
        return 0
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, parts), default=0)


@settings(max_examples=examples(150), deadline=None)
@given(documents, st.integers(1, 9))
def test_depth_of_json_is_measured_outside_of_strings(document, size):
    """At any size of a read, with any strings."""
    deepest = depth_of(document)
    text = json.dumps(document).encode()

    def read(limit):
        file = coco._Shallow(io.BytesIO(text))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(coco, "_MAX_DEPTH", limit)
            return b"".join(iter(lambda: file.read(size), b""))

    assert read(deepest) == text
    if deepest:
        with pytest.raises(ValueError, match="nested"):
            read(deepest - 1)


words = st.one_of(
    st.integers(-(1 << 64), 1 << 64),
    st.sampled_from([near + step for near in (-(1 << 63), 1 << 63) for step in (-1, 0, 1)]),
    st.integers(18, 60).map(lambda digits: 10**digits),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.1234567890123456, 1e20, -1.5e-30, None]),
    st.text('1234567890"\\NaInfity-,', max_size=30),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(words | st.lists(words), min_size=1), st.integers(1, 40), st.booleans())
@example(document=[0.1234567890123456, -(10**20), math.inf], size=3, are_dense=True)
def test_json_is_what_python_reads_with_texts_for_long_numbers(document, size, are_dense):
    """And with nulls for NaN and infinities, at any size of a read."""
    text = json.dumps(document, separators=(",", ":") if are_dense else None)
    # As C++ writes floats: digits that are not of a whole number.
    text = text.replace("0.1234567890123456", "0.12345678901234560000000000")
    file = coco._Shallow(io.BytesIO(text.encode()))

    def expected(value):
        if isinstance(value, list):
            return [*map(expected, value)]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        is_long = isinstance(value, int) and len(str(abs(value))) > 18
        return str(value) if is_long else value

    result = b"".join(iter(lambda: file.read(size), b""))
    assert json.loads(result) == expected(document)


LIMITS = [sign * ((1 << 63) + step) for sign in (1, -1) for step in (-1, 0, 1)]
LONG_IDS = [*LIMITS, 0, -1, 10**18, 10**19, 10**20, -(10**40)]


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("field", ["image", "category", "annotation"])
def test_ids_of_any_length_are_ids(tmp_path, field, with_ids):
    """As numbers and texts; as features, those of images and categories need to fit int64."""
    path = tmp_path / "a.json"
    for number, spell, refer in itertools.product(LONG_IDS, (int, str), (int, str)):
        ids = {"image": (1, 1), "category": (1, 1), "annotation": (1, 1)}
        ids[field] = spell(number), refer(number)
        entry = {**ENTRY["annotations"], "id": ids["annotation"][0]}
        entry |= {"image_id": ids["image"][1], "category_id": ids["category"][1]}
        whole = {
            "images": [{**ENTRY["images"], "id": ids["image"][0]}],
            "annotations": [entry],
            "categories": [{**ENTRY["categories"], "id": ids["category"][0]}],
        }
        path.write_text(json.dumps(whole))
        (ref,) = read_coco(path, with_ids=with_ids).values()
        if with_ids and field != "annotation" and not fits_int64(number):
            assert ref.error == "annotation"
            assert f"the id {number} is not a whole number of 64 bits" in ref.message
            assert "leave --coco_ids out" in ref.message
            continue
        assert boxes_of(ref)[0] == ["c"]
        fields = input_fields(ref, {"c": 0})
        found = [fields.get(name) for name in ("coco_image_id", "box/category_id")]
        image_id, category_id = (int(ids[name][0]) for name in ("image", "category"))
        assert found == ([[image_id], [category_id]] if with_ids else [None, None])


def fits_int64(number):
    try:
        struct.pack("<q", number)
    except struct.error:
        return False
    return True


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_classes_of_boxes_are_nfc(form):
    """As labels of folders: editors and macOS write one class in both forms."""
    name = unicodedata.normalize(form, "caf\u00e9")
    box = OBJECT.format(name=name, difficult=0, **dict.fromkeys(SIDES, 1))
    annotation = parse_voc(VOC.format(width=9, height=9, objects=box).encode())
    made = attach(InputRef("a.jpg", "/a.jpg"), annotation, frozenset({"caf\u00e9"}))
    assert (made.error, made.classes) == ("", ("caf\u00e9",))
    assert input_fields(made, {"caf\u00e9": 0})["box/text"] == ["caf\u00e9".encode()]


@pytest.mark.parametrize("spelling", ["{}", "./{}", ".\\{}", "x/../{}", "./x/.././{}"])
@pytest.mark.parametrize("separator", ["/", "\\", "//", "/./"])
def test_names_of_images_in_coco_are_compared_as_paths(spelling, separator, tmp_path):
    keys = ["train/1.jpg", "val/1.jpg", "val/caf\u00e9/1.jpg"]
    images = []
    for number, key in enumerate(keys):
        name = unicodedata.normalize("NFD", key).replace("/", separator)
        images.append({"id": number, "file_name": spelling.format(name), "width": 9, "height": 9})
    content = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    path = tmp_path / "coco.json"
    path.write_text(json.dumps(content))
    entries = read_coco(str(path))
    refs = [InputRef(key, f"/in/{key}") for key in keys]
    assert [(image.key, other.key) for image, other in pair(refs, entries.values())] == [
        (key, key) for key in sorted(keys)
    ]


def coco_file(path, image_id, entry):
    """Write COCO's JSON of an image with an entry; values are as written, such as 1.0."""
    entry = {"category_id": "1", "bbox": "[1, 2, 3, 4]", **entry}
    fields = ", ".join(f'"{name}": {value}' for name, value in entry.items())
    path.write_text(
        f'{{"images": [{{"id": {image_id}, "file_name": "a.jpg"}}], "annotations": [{{{fields}}}], '
        '"categories": [{"id": 1, "name": "c"}]}'
    )
    return path


@pytest.mark.parametrize(
    ("image_id", "spelling"),
    [
        ("9007199254740993", "9007199254740993.0"),
        ("9007199254740993.00", '"9007199254740993"'),
        ("-9007199254740993.0", "-9007199254740993"),
        ("123", '"000000000000000000123"'),
        ('"-0"', "0"),
        ("1" * 30, f'"{"1" * 30}.0"'),
        ("1" * 30 + ".0", "1" * 30),
    ],
)
def test_coco_ids_of_any_size_are_compared_by_their_value(tmp_path, image_id, spelling):
    """Decimal is the judge: it also says that the next id is another one."""
    values = [Decimal(text.strip('"')) for text in (image_id, spelling)]
    assert values[0] == values[1]
    found = read_coco(coco_file(tmp_path / "a.json", image_id, {"image_id": spelling}))
    assert list(found) == ["a.jpg"]
    assert len(boxes_of(found["a.jpg"])[0]) == 1
    other = f"{Context(prec=99).add(values[0], 1):f}"
    found = read_coco(coco_file(tmp_path / "a.json", image_id, {"image_id": other}))
    assert sorted(found) == ["", "a.jpg"]


@pytest.mark.parametrize("area", ["1234567890123456789012", "1234567890123456.0", "1e20", "12.5"])
def test_coco_areas_of_many_digits_are_numbers(tmp_path, area):
    found = read_coco(coco_file(tmp_path / "a.json", "1", {"image_id": "1", "area": area}))
    fields = input_fields(found["a.jpg"], {"c": 0})
    assert np.allclose(fields["box/area"], [float(area)], rtol=1e-6)


@pytest.mark.parametrize(
    ("entry", "rule"),
    [
        ({"area": '"12"'}, "an area is '12' instead of a number below 2**96"),
        ({"area": "9" * 99}, "999 instead of a number below 2**96"),
        ({"bbox": "[1, 2, 3, 1e30]"}, "instead of four numbers below 2**48"),
    ],
)
def test_coco_numbers_that_no_image_has_are_rejects_with_the_rule(tmp_path, entry, rule):
    found = read_coco(coco_file(tmp_path / "a.json", "1", {"image_id": "1", **entry}))
    assert found["a.jpg"].error == "annotation"
    message = found["a.jpg"].message
    assert rule.partition(" instead")[2] in message


@pytest.mark.parametrize(
    ("kind", "word"), [("coco", "file"), ("voc", "XML"), ("yolo", "kpt_shape")]
)
def test_advice_for_rejected_annotations_is_that_of_their_kind(kind, word):
    advice = remedy_of("annotation", ["a.jpg"], kind)
    assert word in advice
    assert ("kpt_shape" in advice) == (kind == "yolo")
