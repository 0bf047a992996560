"""Folders as Roboflow, CVAT and LabelMe export them: right boxes, or a sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

from shardmill.loaders import open_dataset
from tests.conftest import build_dataset, make_image

WIDTH, HEIGHT = 100, 80
NAMES = ("cat", "dog")
ROBOFLOW_YAML = """train: ../train/images
val: ../valid/images
test: ../test/images

nc: 2
names: ['cat', 'dog']

roboflow:
  workspace: animals
  version: 1
  license: CC BY 4.0
"""
CVAT_YAML = """kpt_shape:
- 2
- 3
names:
  0: cat
  1: dog
path: .
train: train.txt
"""
VOC = """<annotation><folder></folder><filename>{name}</filename><source><database>Unknown</database>
<annotation>Unknown</annotation><image>Unknown</image></source><size><width>100</width>
<height>80</height><depth></depth></size><segmented>0</segmented>{objects}</annotation>"""
OBJECT = """<object><name>{name}</name><pose>Unspecified</pose><truncated>0</truncated>
<occluded>0</occluded><difficult>0</difficult><bndbox><xmin>{0}</xmin><xmax>{2}</xmax>
<ymin>{1}</ymin><ymax>{3}</ymax></bndbox><attributes><attribute><name>rotation</name>
<value>0.0</value></attribute></attributes></object>"""


def truth(seed: int) -> list:
    """Boxes of an image: class, and xmin, ymin, xmax, ymax in pixels."""
    rng = np.random.default_rng(seed)
    boxes = []
    for _ in range(seed % 3):
        left, upper = rng.integers(0, (60, 40))
        right, lower = left + rng.integers(5, 40), upper + rng.integers(5, 40)
        boxes.append((int(rng.integers(2)), *map(int, (left, upper, right, lower))))
    return boxes


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def yolo_lines(boxes, more="") -> str:
    return "".join(
        f"{number} {(left + right) / 2 / WIDTH} {(upper + lower) / 2 / HEIGHT} "
        f"{(right - left) / WIDTH} {(lower - upper) / HEIGHT}{more}\n"
        for number, left, upper, right, lower in boxes
    )


def voc_file(name, boxes) -> str:
    objects = (OBJECT.format(*sides, name=NAMES[number]) for number, *sides in boxes)
    return VOC.format(name=name, objects="".join(objects))


def coco_file(images, first, attributes) -> str:
    """A file of images by name; the ids of images and categories begin at ``first``."""
    described = [
        {"id": first + number, "file_name": name, "width": WIDTH, "height": HEIGHT, "license": 0}
        for number, name in enumerate(images)
    ]
    entries = [
        {
            "image_id": first + number,
            "category_id": 1 + box[0],
            "iscrowd": 0,
            "segmentation": [],
            "bbox": [*map(float, box[1:3]), float(box[3] - box[1]), float(box[4] - box[2])],
            "area": float((box[3] - box[1]) * (box[4] - box[2])),
            **attributes,
        }
        for number, boxes in enumerate(images.values())
        for box in boxes
    ]
    categories = [{"id": 1 + number, "name": name} for number, name in enumerate(NAMES)]
    if not first:
        categories.insert(0, {"id": 0, "name": "animals", "supercategory": "none"})
    return json.dumps({"images": described, "annotations": entries, "categories": categories})


def roboflow(folder, kind) -> dict:
    """Write an export of Roboflow; return the options of a build."""
    files = []
    for number, split in enumerate(("train", "valid", "test")):
        images = {
            f"{split}{seed}_jpg.rf.{seed}abc.jpg": truth(seed)
            for seed in range(3 * number, 3 * number + 3)
        }
        place = folder / split / ("images" if kind == "yolo" else "")
        for name, boxes in images.items():
            place.mkdir(parents=True, exist_ok=True)
            make_image(len(files), WIDTH, HEIGHT).save(place / name)
            stem = name.removesuffix(".jpg")
            if kind == "yolo":
                write(folder / split / "labels" / f"{stem}.txt", yolo_lines(boxes))
            elif kind == "voc":
                write(place / f"{stem}.xml", voc_file(name, boxes))
        if kind == "coco":
            files.append(place / "_annotations.coco.json")
            write(files[-1], coco_file(images, 0, {}))
    write(folder / "README.dataset.txt", "# animals > v1\nhttps://universe.roboflow.com/")
    write(folder / "data.yaml", ROBOFLOW_YAML)
    options = {
        "yolo": {"annotations": "yolo", "labels": folder / "data.yaml"},
        "voc": {"annotations": "voc"},
        "coco": {"annotations": ",".join(f"coco:{file}" for file in files)},
    }
    return options[kind]


def cvat(folder, kind) -> dict:
    """Write an export of CVAT; return the options of a build."""
    places = {
        "yolo": "obj_train_data",
        "pose": "images/train",
        "coco": "images/default",
        "voc": "JPEGImages",
    }
    images = {f"frame_{seed:06}.jpg": truth(seed) for seed in range(9)}
    place = folder / places[kind]
    place.mkdir(parents=True)
    for name, boxes in images.items():
        make_image(0, WIDTH, HEIGHT).save(place / name)
        stem = name.removesuffix(".jpg")
        if kind == "yolo":
            write(place / f"{stem}.txt", yolo_lines(boxes))
        elif kind == "pose":
            lines = yolo_lines(boxes, " 0.4 0.4 2 0.0 0.0 0")
            write(folder / "labels" / "train" / f"{stem}.txt", lines)
        elif kind == "voc":
            write(folder / "Annotations" / f"{stem}.xml", voc_file(name, boxes))
    listed = "".join(f"data/{places[kind]}/{name}\n" for name in images)
    attributes = {"attributes": {"occluded": False, "rotation": 0.0}}
    others = {
        "yolo": {"obj.data": "classes = 2\n", "obj.names": "cat\ndog\n", "train.txt": listed},
        "pose": {"data.yaml": CVAT_YAML, "train.txt": listed},
        "coco": {"annotations/instances_default.json": coco_file(images, 1, attributes)},
        "voc": {"labelmap.txt": "# label:color_rgb\n", "ImageSets/Main/default.txt": listed},
    }
    for name, text in others[kind].items():
        write(folder / name, text)
    options = {
        "yolo": {"annotations": "yolo", "labels": folder / "obj.names"},
        "pose": {"annotations": "yolo", "labels": folder / "data.yaml"},
        "coco": {"annotations": f"coco:{folder / 'annotations/instances_default.json'}"},
        "voc": {"annotations": "voc"},
    }
    return options[kind]


EXPORTS = [(roboflow, kind) for kind in ("yolo", "voc", "coco")]
EXPORTS += [(cvat, kind) for kind in ("yolo", "pose", "coco", "voc")]


@pytest.mark.heavy
@pytest.mark.parametrize(("tool", "kind"), EXPORTS)
def test_exports_of_tools_have_the_right_boxes(tmp_path, tool, kind):
    options = tool(tmp_path / "in", kind)
    _, manifest = build_dataset(
        input=tmp_path / "in", output=tmp_path / "ds", image_size=(HEIGHT, WIDTH), **options
    )
    assert (manifest.inputs.accepted, manifest.inputs.rejected) == (9, 0)
    if tool is roboflow:
        assert {name: split.num_examples for name, split in manifest.splits.items()} == {
            "train": 3,
            "validation": 3,
            "test": 3,
        }
    keys = set()
    for split in manifest.splits:
        names = ["image/key", "boxes/xyxy", "image/object/class/text"]
        for example in open_dataset(tmp_path / "ds", split, features=names):
            key = Path(example["image/key"].decode()).name
            seed = int("".join(filter(str.isdecimal, key.partition("_jpg")[0])))
            keys.add(seed)
            boxes = truth(seed)
            sides = np.reshape([box[1:] for box in boxes], (-1, 4))
            assert np.allclose(example["boxes"], sides, atol=1e-3), key
            texts = [text.decode() for text in example["image/object/class/text"]]
            assert texts == [NAMES[box[0]] for box in boxes]
    assert keys == set(range(9))
