"""PASCAL VOC's XML of any structure gives the boxes that xml.etree finds in it, or a reason."""

from collections import Counter
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from shardmill.transforms.match.annotations.annotation_spec import AnnotationError, parse_voc

SIDES = ("xmin", "ymin", "xmax", "ymax")
FLAGS = {
    "0": False,
    "1": True,
    "true": True,
    "True": True,
    " TRUE ": True,
    "yes": True,
    "1.0": True,
    "false": False,
    "False": False,
    "no": False,
    "Unspecified": False,
    "": False,
}
NS = 'xmlns="http://example.org/voc"'
X = 'xmlns:x="http://example.org/x"'
ROOTS = {  # the start tag, the end tag, and whether its objects are understood
    "plain": ("<annotation>", "</annotation>", True),
    "verified": ('<annotation verified="yes">', "</annotation>", True),
    "default namespace": (f"<annotation {NS}>", "</annotation>", True),
    "unused prefix": (f"<annotation {X}>", "</annotation>", True),
    "prefix": ("<y:annotation xmlns:y='y'>", "</y:annotation>", True),
    "capital": ("<Annotation>", "</Annotation>", False),
    "several": ("<annotations><annotation>", "</annotation></annotations>", False),
    "nested": ("<annotation><annotation>", "</annotation></annotation>", False),
    "list": ("<annotation><objects>", "</objects></annotation>", False),
}
OBJECTS = {  # with the elements of a box, a name and flags
    "plain": ("<object>{name}{flags}{box}</object>", True),
    "box first": ("<object>{box}<pose>Unspecified</pose>{flags}{name}</object>", True),
    "part": ("<object>{name}{flags}{box}<part><name>head</name>{box}</part></object>", True),
    "attributes": (
        '<object id="1">{name}{flags}{box}<attributes><name>a</name></attributes></object>',
        True,
    ),
    "capital": ("<Object>{name}{flags}{box}</Object>", False),
    "item": ("<item>{name}{flags}{box}</item>", False),
    "prefix": (f"<x:object {X}>{{name}}{{flags}}{{box}}</x:object>", False),
    "prefixes": (f"<x:object {X}><x:name>a</x:name>{{flags}}{{box}}</x:object>", False),
    "prefix of the box": (f"<object {X}>{{name}}<x:bndbox>{{sides}}</x:bndbox></object>", False),
    "prefix of a flag": (
        f"<object {X}>{{name}}<x:difficult>1</x:difficult>{{box}}</object>",
        False,
    ),
    "two boxes": ("<object>{name}{flags}{box}{box}</object>", False),
    "two names": ("<object>{name}{name}{flags}{box}</object>", False),
    "two sides": ("<object>{name}<bndbox>{sides}<xmin>0</xmin></bndbox></object>", False),
    "no box": ("<object>{name}{flags}</object>", False),
    "polygon": ("<object>{name}<polygon><pt><x>1</x><y>2</y></pt></polygon></object>", False),
    "rotated": ("<object>{name}<robndbox><cx>1</cx><cy>2</cy></robndbox></object>", False),
    "object in object": ("<object>{name}{box}<object>{name}{box}</object></object>", False),
    "box alone": ("{box}", False),
}
OTHERS = [
    "",
    "<folder>a</folder><filename>b.jpg</filename><path>/c</path>",
    "<segmented>0</segmented>",
    "<source><database>Unknown</database><annotation>x</annotation><image>y</image></source>",
    "<owner><flickrid>1</flickrid><name>z</name></owner>",
    "<weather><rain>1</rain></weather>",
    "<!-- <object/> -->",
]


def random_file(rng, root, kinds):
    """An XML file with objects of some kinds, and what each says."""
    start, end, _ = ROOTS[root]
    parts, truth = [], []
    for kind in kinds:
        sides = [round(float(side), 2) for side in rng.uniform(0, 400, 4)]
        difficult, truncated = (list(FLAGS)[rng.integers(len(FLAGS))] for _ in range(2))
        elements = "".join(f"<{n}>{v}</{n}>" for n, v in zip(SIDES, sides, strict=True))
        parts.append(
            OBJECTS[kind][0].format(
                name="<name> café </name>",
                flags=f"<difficult>{difficult}</difficult><truncated>{truncated}</truncated>",
                sides=elements,
                box=f"<bndbox>{elements}</bndbox>",
            )
        )
        truth.append(("café", *sides, FLAGS[difficult], FLAGS[truncated]))
    others = [OTHERS[rng.integers(len(OTHERS))] for _ in range(3)]
    size = "<size><width>500</width><height>400</height><depth>3</depth></size>"
    order = rng.permutation(len(parts))
    truth = [truth[n] for n in order]
    body = [others[0], *(parts[n] for n in order), others[1], size, others[2]]
    return f"{start}{''.join(body)}{end}", truth


def judged(text):
    """Boxes by xml.etree, wherever they are: those of parts of objects are none."""
    root = ET.fromstring(text)
    parts = {box for part in root.findall(".//{*}part") for box in part.iter()}
    return sum(element not in parts for element in root.findall(".//{*}bndbox"))


@pytest.mark.parametrize("root", ROOTS)
def test_files_of_any_structure_are_right_or_rejected(root):
    """All objects of a file, or a reason if one of them is not understood."""
    rng, kinds = np.random.default_rng(len(root)), Counter()
    for kind in OBJECTS:
        for number in range(6):
            others = ["plain"] * (number % 3)
            text, truth = random_file(rng, root, [kind, *others])
            if ROOTS[root][2] and OBJECTS[kind][1]:
                found = parse_voc(text.encode())
                boxes = [(*box[:5], box.difficult, box.truncated) for box in found.boxes]
                assert boxes == truth, text
                assert (found.width, found.height) == (500, 400)
                assert judged(text) == len(boxes)
                kinds["read"] += 1
            else:
                with pytest.raises(AnnotationError):
                    parse_voc(text.encode())
                kinds["rejected"] += 1
    assert kinds["rejected"] > 50


def test_files_without_objects_have_no_boxes():
    """As LabelImg writes them for images without objects; also where a prefix is not declared."""
    for other in OTHERS:
        assert parse_voc(f"<annotation>{other}</annotation>".encode()).boxes == []
    with pytest.raises(AnnotationError, match="unbound prefix"):
        parse_voc(b"<annotation><x:object/></annotation>")
