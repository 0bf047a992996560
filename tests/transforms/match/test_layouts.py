"""Annotations that no option names are warned of, by the layout that a test writes; decoys are not."""

import itertools
import json
import re

import pandas as pd
import pytest

from tests.conftest import build_dataset, make_image, resolve_job

# Folder of the images, and that of what describes them.
PLACES = [
    ("", ""),
    ("", "{}"),
    ("images", "{}"),
    ("JPEGImages", "{}"),
    ("train/images", "train/{}"),
    ("images/train", "{}/train"),
    ("set/imgs", "set/{}"),
    ("images_train", "{}_train"),
    ("images/cat", "{}/cat"),
]
NAMES = {
    "voc": "Annotations",
    "yolo": "labels",
    "coco": "annotations",
    "masks": "masks",
    "renamed": "mask",
    "csv": "meta",
    "jsonl": "meta",
    "parquet": "meta",
}
KINDS = [*NAMES]
DECOYS = ["captions", "config", "table", "html", "classes", "none"]
OPTIONS = {
    "voc": "--annotations=voc ",
    "yolo": "--annotations=yolo ",
    "coco": "--annotations=coco:",
    "masks": "--masks=",
    "renamed": "--masks=",
    "csv": "--label_from=listing",
    "jsonl": "--label_from=listing",
    "parquet": "--input=",
}
COCO = {"info": {"year": 2017}, "images": [{"id": 1, "file_name": "0.jpg"}], "annotations": []}
# For each of two images: the suffix and the texts.
TEXTS = {
    "voc": ("xml", ["<?xml version='1.0'?>\n<annotation/>"] * 2),
    "yolo": ("txt", ["", "\n0 0.5 0.5 1e-1 .2\n"]),
    "captions": ("txt", ["2 dogs on 1 sofa", "1 cat"]),
    "html": ("xml", ["<html/>"] * 2),
}
# For all images.
FILES = {
    "coco": {
        "instances_val.json": json.dumps(COCO, indent=1),
        "captions_val.json": json.dumps(COCO),
    },
    "csv": {"metadata.csv": "file_name,label\n0.jpg,x\n1.jpg,x\n"},
    "jsonl": {"metadata.jsonl": '{"file_name": "0.jpg", "label": "x"}\n'},
    "config": {
        "config.json": '{"images": 3, "annotations": "none"}',
        "list.json": '[{"annotations": [1]}]',
    },
    "table": {"weather.csv": "day,rain\n1,2\n", "readme.txt": "1 2 3 4 5"},
}
# Names and texts of files that programs write for the images 0.jpg and 1.jpg.
SIDES = "filename,width,height,class,xmin,ymin,xmax,ymax\n0.jpg,8,8,cat,1,1,2,2\n"
VIA = {"0.jpg99": {"filename": "0.jpg", "regions": [{"shape_attributes": {"name": "rect"}}]}}
STUDIO = [{"data": {"image": "/data/0.jpg"}, "annotations": [{"result": [{"from_name": "b"}]}]}]
VOTT = {"asset": {"name": "0.jpg"}, "regions": [{"boundingBox": {"height": 1}}]}
CREATEML = [{"image": "0.jpg", "annotations": [{"label": "a", "coordinates": {"x": 1}}]}]
FOREIGN = {
    "CVAT": {
        "annotations.xml": "<?xml version='1.0'?>\n<annotations><image name='0.jpg'/></annotations>"
    },
    "LabelMe": {"0.json": '{"version": "5.0", "flags": {}, "shapes": [], "imagePath": "0.jpg"}'},
    "Label Studio": {"project-1.json": json.dumps(STUDIO)},
    "VGG Image Annotator": {"via_region_data.json": json.dumps(VIA)},
    "CreateML": {"_annotations.createml.json": json.dumps(CREATEML)},
    "Supervisely": {"0.jpg.json": '{"size": {}, "objects": [{"classTitle": "cat"}]}'},
    "VoTT": {"3f-asset.json": json.dumps(VOTT)},
    "KITTI": {
        "0.txt": "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
    },
    "DOTA": {"0.txt": "27.0 24.0 28.0 23.0 28.0 24.0 27.0 24.0 large-vehicle 0\n"},
    "table of boxes": {"labels.csv": SIDES},
    "boxes": {"_annotations.csv": "image,x1,y1,x2,y2,label\n0.jpg,1,1,2,2,cat\n"},
    "a table": {
        "via.csv": 'filename,file_size,region_count,region_shape_attributes\n0.jpg,9,1,"{}"\n'
    },
}
CASES = [
    (kind, place)
    for kind, place in itertools.product(KINDS, PLACES)
    if kind not in ("masks", "renamed") or place[1]
]


def write_layout(folder, kind: str, images: str, others: str) -> None:
    """Write three images, and what describes two of them."""
    (folder / images).mkdir(parents=True, exist_ok=True)
    for number in range(3):
        make_image(number, 8, 8).save(folder / images / f"{number}.jpg")
    place = folder / others
    place.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        if kind in TEXTS:
            suffix, texts = TEXTS[kind]
            (place / f"{number}.{suffix}").write_text(texts[number])
        elif kind in ("masks", "renamed"):
            suffix = "_mask" if kind == "renamed" else ""
            make_image(number, 8, 8).convert("L").save(place / f"{number}{suffix}.png")
    for name, text in FILES.get(kind, {}).items():
        (place / name).write_text(text)
    if kind == "parquet":
        rows = [{"file_name": f"{number}.jpg", "label": "x"} for number in range(2)]
        pd.DataFrame(rows).to_parquet(place / "metadata.parquet")
    for label in ("mask", "no_mask", "label maker") * (kind == "classes"):
        (folder / "classes" / label).mkdir(parents=True)
        for number in range(3):  # the same names, as a camera gives them
            make_image(number, 8, 8).save(folder / "classes" / label / f"{number}.jpg")


def find_warnings(folder, **options) -> list[str]:
    job = resolve_job("images", input=folder, output=folder.parent / "ds", **options)
    return [text for text in job.sink.warnings if "--splits=" not in text]


@pytest.mark.parametrize("glob", [False, True], ids=["folder", "glob"])
@pytest.mark.parametrize(("kind", "place"), CASES)
def test_names_the_option_of_each_kind_in_each_layout(tmp_path, kind, place, glob) -> None:
    images, others = place[0], place[1].format(NAMES[kind])
    write_layout(tmp_path / "in", kind, images, others)
    options = {"input": tmp_path / "in" / "**"} if glob else {}
    folder = tmp_path / "in"
    job = resolve_job("images", **({"input": folder, "output": tmp_path / "ds"} | options))
    (warning,) = [text for text in job.sink.warnings if "--splits=" not in text]
    assert OPTIONS[kind] in warning
    assert ("give masks the names" in warning) == (kind == "renamed")
    for name in re.findall(r"'([^']+)'", warning)[:2]:
        assert (folder / name).is_file(), name
    for path in re.findall(r"(?:coco:|--masks=|--input=)(\S+)", warning):
        assert (tmp_path / path).exists(), path
    assert "captions" not in warning


@pytest.mark.parametrize(("kind", "place"), [case for case in CASES if case[0] in OPTIONS])
def test_nothing_is_said_if_the_option_is_given(tmp_path, kind, place) -> None:
    """The options are those that the warning names; of a listing the listing is the input."""
    folder = tmp_path / "in"
    images, others = place[0], place[1].format(NAMES[kind])
    write_layout(folder, kind, images, others)
    (tmp_path / "names.txt").write_text("a\n")
    coco = folder / others / "instances_val.json"
    options = {
        "voc": {"annotations": "voc"},
        "coco": {"annotations": f"coco:{coco}"},
        "yolo": {"annotations": "yolo", "labels": tmp_path / "names.txt"},
        "masks": {"masks": folder / others},
        "renamed": {"masks": folder / others},
    }.get(kind)
    if options is None:
        suffix = {"csv": "csv", "jsonl": "jsonl", "parquet": "parquet"}[kind]
        folder = folder / others / f"metadata.{suffix}"
        options = {"label_from": "listing"}
    assert find_warnings(folder, **options) == []


@pytest.mark.parametrize(("kind", "place"), [*itertools.product(DECOYS, PLACES)])
def test_other_files_are_not_taken_for_annotations(tmp_path, kind, place) -> None:
    images, others = place[0], place[1].format("labels")
    write_layout(tmp_path / "in", kind, images, others)
    assert find_warnings(tmp_path / "in") == []


def test_masks_in_the_input_are_named_where_boxes_are_read(tmp_path) -> None:
    """COCO's and YOLO's; the masks of PASCAL VOC are skipped there."""
    folder = tmp_path / "in"
    write_layout(folder, "masks", "images", "masks")
    write_layout(folder, "coco", "images", "annotations")
    file = folder / "annotations" / "instances_val.json"
    (warning,) = find_warnings(folder, annotations=f"coco:{file}")
    assert "--masks=" in warning
    assert len(find_warnings(folder)) == 2
    (folder / "masks").rename(folder / "SegmentationClass")
    assert find_warnings(folder, annotations="voc") == []


def test_a_build_says_it_and_an_error_too(tmp_path) -> None:
    """Labels of folders that are none; or, in one folder, no labels, and all images rejected."""
    write_layout(tmp_path / "in", "masks", "images", "masks")
    _, manifest = build_dataset(input=tmp_path / "in", output=tmp_path / "ds", image_size=8)
    assert manifest.labels == ("images", "masks")
    assert f"--masks={tmp_path / 'in' / 'masks'}" in " ".join(manifest.warnings)
    write_layout(tmp_path / "flat", "voc", "", "")
    outcome, _ = build_dataset(input=tmp_path / "flat", output=tmp_path / "ds2", image_size=8)
    assert "3 of 3 inputs were rejected" in outcome.message
    assert "--annotations=voc attaches its boxes" in outcome.message


def test_many_classes_do_not_hide_the_layout(tmp_path) -> None:
    """Only some folders are listed, those of a layout first."""
    for number in range(30):
        (tmp_path / "in" / f"class{number}").mkdir(parents=True)
        make_image(number, 8, 8).save(tmp_path / "in" / f"class{number}" / "a.jpg")
    write_layout(tmp_path / "in", "yolo", "images", "labels")
    (tmp_path / "in" / "data.yaml").write_text("names: [a]")
    (warning,) = find_warnings(tmp_path / "in")
    assert f"--labels={tmp_path / 'in' / 'data.yaml'}" in warning


@pytest.mark.parametrize(
    ("program", "place", "encoding"),
    [
        *((program, place, "utf-8") for program in FOREIGN for place in PLACES[:6]),
        *((program, PLACES[6], "utf-16") for program in [*FOREIGN][:7]),
    ],
)
def test_annotations_that_are_not_read_are_named(program, place, encoding, tmp_path) -> None:
    """The sentence says which formats are read; with an option for others nothing is said."""
    folder = tmp_path / "in"
    images, others = place[0], place[1].format("annotations")
    write_layout(folder, "none", images, others)
    for name, text in FOREIGN[program].items():
        (folder / others / name).write_text(text, encoding=encoding)
    (warning,) = find_warnings(folder)
    assert f"{program}, and is not read" in warning or f"{program} of boxes" in warning
    assert "reads PASCAL VOC, YOLO and COCO" in warning
    (file,) = re.findall(r"'([^']+)'", warning)
    assert (folder / file).is_file()
    assert find_warnings(folder, annotations="voc") == []


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("file", "images", "start", "root"),
    [
        ("labels.csv", "images", "", "images"),
        ("labels.csv", "images/cat", "cat/", "images"),
        ("labels.csv", "images/cat", "cat\\", "images"),
        ("labels.csv", "images", "images/", None),
        ("labels.csv", "images", "./images/", None),
        ("meta/labels.jsonl", "images", "images/", ""),
        ("labels.csv", "", "", None),
    ],
)
def test_the_command_for_a_listing_finds_its_images(tmp_path, file, images, start, root) -> None:
    folder = tmp_path / "in"
    write_layout(folder, "none", images, images)
    listing = folder / file
    listing.parent.mkdir(exist_ok=True)
    rows = [{"path": f"{start}{number}.jpg", "label": "xyz"[number]} for number in range(3)]
    if file.endswith("csv"):
        listing.write_text("path,label\n" + "".join(f"{r['path']},{r['label']}\n" for r in rows))
    else:
        listing.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (warning,) = find_warnings(folder)
    options = dict(re.findall(r"--(\w+)=(\S+)", warning))
    assert options.get("root") == (None if root is None else str(folder / root))
    _, manifest = build_dataset(**options, output=tmp_path / "ds", image_size=8)
    assert (manifest.inputs.accepted, manifest.labels) == (3, ("x", "y", "z"))


def test_a_listing_of_several_labels_next_to_its_images_needs_no_folder_as_label(tmp_path) -> None:
    """As Roboflow writes it; the command in the warning builds."""
    folder = tmp_path / "in"
    write_layout(folder, "none", "train", "train")
    listing = folder / "train" / "_classes.csv"
    listing.write_text("filename, cat, dog\n0.jpg, 1, 0\n1.jpg, 1, 1\n2.jpg, 0, 1\n")
    (warning,) = find_warnings(folder)
    assert "rename its column 'filename' to path" in warning
    assert f"--input={listing} --label_from=none reads its columns" in warning
    listing.write_text(listing.read_text().replace("filename", "path"))
    job = resolve_job("images", input=listing, output=tmp_path / "ds", label_from="none")
    assert [(column.name, column.kind) for column in job.config.listed] == [
        ("cat", "int64"),
        ("dog", "int64"),
    ]
