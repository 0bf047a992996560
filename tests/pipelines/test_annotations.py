"""Datasets of images with boxes and masks, from annotations that the tests write."""

import contextlib
import io
import json
import os
import shutil
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from shardmill.loaders import feature_spec, keras_dataset, open_dataset, torch_dataset
from shardmill.loaders.boxes import FORMATS
from shardmill.pipelines.report.compare import compare_datasets
from shardmill.schemas.errors import InputError, ShardmillError, UsageError
from shardmill.transforms.images import encoder
from shardmill.transforms.match.read_input import read_inputs
from tests.conftest import build_dataset, examples, make_image, shardmill
from tests.support.annotation_tools import (
    KEYS,
    NAMES,
    truth,
    write_annotations,
    write_images,
    write_masks,
    write_voc,
)
from tests.support.readers import tf_records
from tests.support.yolo_lines import outline, pose

ONE = {"splits": "train:1", "image_size": (48, 64)}


def read(output: Path, manifest) -> dict:
    """The records by key, by TensorFlow with the features of its Object Detection API."""
    import tensorflow as tf

    output /= manifest.generation
    boxes = {
        name: tf.io.VarLenFeature(tf.float32)
        for name in (
            "image/object/bbox/xmin",
            "image/object/bbox/xmax",
            "image/object/bbox/ymin",
            "image/object/bbox/ymax",
            "image/object/area",
        )
    }
    others = {
        name: tf.io.VarLenFeature(tf.int64)
        for name in (
            "image/object/class/label",
            "image/object/difficult",
            "image/object/truncated",
            "image/object/is_crowd",
        )
    }
    wanted = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string),
        "image/key": tf.io.FixedLenFeature((), tf.string),
        "image/object/class/text": tf.io.VarLenFeature(tf.string),
        **boxes,
        **others,
    }
    found = {}
    for split in manifest.splits.values():
        for shard in split.shards:
            for payload in tf_records(output / shard.file):
                parsed = tf.io.parse_single_example(payload, wanted)
                values = {
                    name: tf.sparse.to_dense(each).numpy()
                    if name not in ("image/encoded", "image/key")
                    else each.numpy()
                    for name, each in parsed.items()
                }
                found[values["image/key"].decode()] = values
    return found


def shards_and_catalogs(output: Path, manifest) -> list:
    """All bytes of the records, and the catalogs without times."""
    output /= manifest.generation
    names = [shard.file for split in manifest.splits.values() for shard in split.shards]
    tables = [
        pq.read_table(output / shard.catalog.file).drop_columns("input_ctime")
        for split in manifest.splits.values()
        for shard in split.shards
    ]
    return [(output / name).read_bytes() for name in names] + tables


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["voc", "yolo", "coco"])
def test_boxes_of_each_format_are_in_the_records(tmp_path, kind):
    """TensorFlow reads the same boxes, which are those that the test wrote."""
    folder, facts = write_images(tmp_path / "in"), truth()
    options = write_annotations(kind, folder, facts)
    outcome, manifest = build_dataset(input=folder, output=tmp_path / "ds", **options, **ONE)
    assert outcome.status == "published"
    assert manifest.inputs.counts["boxes"] == sum(len(boxes) for *_, boxes in facts.values())
    assert not any(value for name, value in manifest.inputs.counts.items() if name != "boxes")
    records = read(tmp_path / "ds", manifest)
    assert records.keys() == facts.keys()
    used = sorted({box[0] for *_, boxes in facts.values() for box in boxes}, key=str.encode)
    assert list(manifest.labels) == (list(NAMES) if kind == "yolo" else used)
    for key, ((width, height), _, boxes) in facts.items():
        values = {name.rpartition("/")[2]: each for name, each in records[key].items()}
        texts = [text.decode() for text in records[key]["image/object/class/text"]]
        assert texts == [name for name, *_ in boxes]
        assert list(records[key]["image/object/class/label"]) == [
            manifest.labels.index(t) for t in texts
        ]
        sides = np.stack([values[side] for side in ("xmin", "ymin", "xmax", "ymax")], -1)
        wanted = np.reshape([box[1:] for box in boxes], (-1, 4)) / (width, height, width, height)
        assert np.allclose(sides, wanted, atol=1e-5), key
        truncated = [box[1] % 2 if kind == "voc" else 0 for box in boxes]
        assert list(values["truncated"]) == truncated
        scale = 1 if kind != "yolo" else width * height  # YOLO knows no pixels
        areas = [(box[3] - box[1]) * (box[4] - box[2]) for box in boxes]
        assert np.allclose(values["area"] * scale, areas, rtol=1e-4)
    assert shardmill("verify", tmp_path / "ds").returncode == 0
    assert not {"image/class/label", "image/class/text"} & {f["name"] for f in manifest.features}
    counts = manifest.splits["train"].label_counts
    assert sum(counts.values()) == sum(
        len({box[0] for box in boxes}) for *_, boxes in facts.values()
    )


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize(
    "kind",
    ["voc", *(pytest.param(each, marks=pytest.mark.heavy) for each in ("yolo", "coco"))],
)
def test_update_of_annotations_reuses_all_pixels(tmp_path, kind):
    """Its shards are those of a build from scratch, also where labels got other numbers."""
    folder, facts = write_images(tmp_path / "in"), truth()
    options = write_annotations(kind, folder, facts) | ONE
    crop = {"resize": "crop"}
    build_dataset(input=folder, output=tmp_path / "ds", **options, **crop)
    facts = truth(seed=1)
    if kind != "yolo":
        facts[KEYS[5]][2].append(("ant", 1, 2, 30, 40))
    write_annotations(kind, folder, facts)
    failed, _ = build_dataset(input=folder, output=tmp_path / "ds", **options, **crop)
    assert failed.status == "failed", "changed annotations are not up to date"
    outcome, manifest = build_dataset(
        input=folder, output=tmp_path / "ds", update=True, **options, **crop
    )
    assert (outcome.status, outcome.reused) == ("published", len(KEYS))
    known = str(tmp_path / "ds" / manifest.previous[0])
    changed = compare_datasets(known, str(tmp_path / "ds"), 0)["records"]["changed"]
    edited = sum(truth()[key][2] != boxes for key, (*_, boxes) in facts.items())
    assert (changed["all"], changed["values"]) == (edited, edited)
    _, fresh = build_dataset(input=folder, output=tmp_path / "fresh", **options, **crop)
    assert shards_and_catalogs(tmp_path / "ds", manifest) == shards_and_catalogs(
        tmp_path / "fresh", fresh
    )
    assert manifest.inputs.counts == fresh.inputs.counts
    again, _ = build_dataset(input=folder, output=tmp_path / "ds", update=True, **options, **crop)
    assert again.status == "up_to_date"


def test_what_has_no_partner_is_reported(tmp_path):
    """Images without annotation and damaged annotations are rejects; others are counted."""
    folder = write_images(tmp_path / "in")
    write_voc(folder, truth())
    notes = folder / "Annotations"
    (notes / "00.xml").unlink()
    (notes / "01.xml").write_text("<annotation>")
    (notes / "02.xml").write_text('<!DOCTYPE a SYSTEM "x"><annotation/>')
    (notes / "stray.xml").write_text("<annotation/>")
    (notes / ".hidden.xml").write_text("<annotation/>")
    options = {"annotations": "voc", "max_reject_fraction": 0.5, **ONE}
    _, manifest = build_dataset(input=folder, output=tmp_path / "ds", **options)
    assert manifest.inputs.rejected_by_reason == {"annotation": 2, "no_annotation": 1}
    assert (manifest.inputs.accepted, manifest.inputs.skipped) == (9, 2)
    assert "1 hidden" in " ".join(manifest.warnings)
    assert "1 .xml without an image (Annotations/stray.xml)" in " ".join(manifest.warnings)
    # In another folder, given by name; other files of the images' folder are still reported.
    shutil.move(notes, tmp_path / "xml")
    (folder / "JPEGImages" / "note.xml").write_text("<annotation/>")
    options["annotations"] = f"voc:{tmp_path / 'xml'}"
    _, manifest = build_dataset(input=folder, output=tmp_path / "ds2", **options)
    assert (manifest.inputs.accepted, manifest.inputs.skipped) == (9, 2)


def test_folders_with_a_coco_file_each(tmp_path):
    """Their images have the same names, and ids; neither file counts as skipped."""
    files = []
    for seed, split in enumerate(("train", "valid")):
        folder = tmp_path / "in" / split
        folder.mkdir(parents=True)
        make_image(seed, 40, 30).save(folder / "1.jpg")
        files.append(folder / "all.json")
        body = {
            "images": [{"id": 1, "file_name": "1.jpg"}],
            "categories": [{"id": 1, "name": split}],
            "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9]}],
        }
        files[-1].write_text(json.dumps(body))
    named = ",".join(f"coco:{file}" for file in [*files, files[0]])  # one twice
    _, manifest = build_dataset(
        input=tmp_path / "in", output=tmp_path / "ds", annotations=named, **ONE
    )
    texts = {
        key: [*each["image/object/class/text"]]
        for key, each in read(tmp_path / "ds", manifest).items()
    }
    assert texts == {"train/1.jpg": [b"train"], "valid/1.jpg": [b"valid"]}
    assert (manifest.inputs.matched, manifest.inputs.skipped, manifest.warnings) == (2, 0, ())


def test_categories_of_one_name_are_a_warning(tmp_path):
    """Also written in another form of Unicode; ids of one category are one."""
    folder = tmp_path / "in"
    folder.mkdir()
    make_image(1, 40, 30).save(folder / "1.jpg")
    names = {
        0: "cat",
        1: "dog",
        "2": "cat",
        3.0: "caf\u00e9",
        4: "cafe\u0301",
        5: "cat",
        "05": "cat",
    }
    boxes = [
        {"image_id": 1, "category_id": number, "bbox": [n, 0, 9, 9]}
        for n, number in enumerate(names)
    ]
    body = {
        "images": [{"id": 1, "file_name": "1.jpg"}],
        "categories": [{"id": number, "name": name} for number, name in names.items()],
        "annotations": boxes,
    }
    file = tmp_path / "all.json"
    file.write_text(json.dumps(body))
    options = {"input": folder, "annotations": f"coco:{file}", **ONE}
    _, manifest = build_dataset(output=tmp_path / "ds", **options)
    assert manifest.labels == ("caf\u00e9", "cat", "dog")
    assert manifest.warnings == (
        (
            "the categories 0, 2 and 5 of all.json have one name, 'cat', and are one class: if they "
            "are several classes, give each a different name in the file"
        ),
        (
            "the categories 3 and 4 of all.json have one name, 'caf\u00e9', and are one class: if "
            "they are several classes, give each a different name in the file"
        ),
    )
    for category in body["categories"]:
        category["name"] = f"name {int(float(category['id']))}"
    file.write_text(json.dumps(body))
    _, manifest = build_dataset(output=tmp_path / "renamed", **options)
    assert (len(manifest.labels), manifest.warnings) == (6, ())


def coco_with_ids(folder: Path) -> dict:
    """Annotations with an id as text, a box outside of its image and an empty one."""
    options = write_annotations("coco", folder, truth())
    path = folder / "all.json"
    whole = json.loads(path.read_text())
    for image in whole["images"]:
        image["id"] = 10**12 - image["id"]
    for entry in whole["annotations"]:
        entry["image_id"] = str(10**12 - entry["image_id"])
    for sides in ([900, 900, 5, 5], [3, 3, 0, 4]):
        image_id = whole["annotations"][2]["image_id"]
        dropped = {"image_id": image_id, "category_id": 10, "bbox": sides}
        whole["annotations"].insert(0, dropped)
    path.write_text(json.dumps(whole))
    return options


@pytest.mark.heavy
def test_coco_ids_are_features_on_request(tmp_path):
    """By them, COCO's own evaluation finds each box where it is in the annotations."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    folder = write_images(tmp_path / "in")
    options = {"input": folder, "output": tmp_path / "ds", **coco_with_ids(folder), **ONE}
    _, plain = build_dataset(**options)
    _, manifest = build_dataset(**options, coco_ids=True, overwrite=True)
    assert manifest.build.config_id != plain.build.config_id
    verified = shardmill("verify", tmp_path / "ds", "--deep")
    assert verified.returncode == 0, verified
    assert manifest.inputs.counts["boxes_outside"] == manifest.inputs.counts["boxes_empty"] == 1
    assert "boxes_swapped" not in manifest.inputs.counts  # as in datasets of 0.2.0
    names = ["image_id", "category_ids", "boxes/rel_xywh", "classes", "image/key"]
    data, results = open_dataset(tmp_path / "ds", "train", features=names), []
    sizes = {Path(key).name: size for key, (size, *_) in truth().items()}
    for example in data:
        width, height = sizes[Path(example["image/key"].decode()).name]
        boxes = example["boxes"] * [width, height, width, height]
        results += [
            {
                "image_id": int(example["image_id"]),
                "category_id": int(number),
                "score": 1.0,
                "bbox": box,
            }
            for number, box in zip(example["category_ids"], boxes.tolist(), strict=True)
        ]
    whole = json.loads((folder / "all.json").read_text())
    whole["annotations"] = whole["annotations"][2:]
    for number, entry in enumerate(whole["annotations"], 1):
        entry.update(id=number, image_id=int(entry["image_id"]))
    (tmp_path / "judge.json").write_text(json.dumps(whole))
    with contextlib.redirect_stdout(io.StringIO()):
        judge = COCO(tmp_path / "judge.json")
        scores = COCOeval(judge, judge.loadRes(results), "bbox")
        for step in (scores.evaluate, scores.accumulate, scores.summarize):
            step()
    assert len(results) == len(whole["annotations"]) > 10
    assert scores.stats[0] == pytest.approx(1)
    named = {"image/source/id": "int64", "image/object/category_id": "int64"}
    features = {each["name"]: each["type"] for each in manifest.features}
    assert named.items() <= features.items()
    assert not named.keys() & {each["name"] for each in plain.features}


def test_ids_that_are_no_numbers_are_rejects_where_they_are_features(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "ab":
        make_image(0, 40, 30).save(folder / f"{name}.jpg")
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": "x", "file_name": "b.jpg"}]
    (folder / "all.json").write_text(
        json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "c"}]})
    )
    options = {"input": folder, "output": tmp_path / "ds", "max_reject_fraction": 0.5, **ONE}
    options["annotations"] = f"coco:{folder / 'all.json'}"
    assert build_dataset(**options)[1].inputs.accepted == 2
    _, manifest = build_dataset(**options, coco_ids=True, overwrite=True)
    assert manifest.inputs.rejected_by_reason == {"annotation": 1}


def write_lines(folder: Path, make, count: int) -> dict:
    """Write images with a line of YOLO each; return the sides of the boxes by key."""
    rng, sides = np.random.default_rng(3), {}
    folder.mkdir()
    for number in range(count):
        numbers, sides[f"{number}.jpg"] = make(rng)
        make_image(0, 50, 40).save(folder / f"{number}.jpg")
        (folder / f"{number}.txt").write_text(" ".join(map(str, [0, *numbers])))
    (folder / "data.yaml").write_text("names: [tiger]")
    return sides


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("count", [3, 5, 8])
def test_files_that_are_clearly_of_outlines_decide_about_the_others(tmp_path, count):
    """About those that could be poses; with a declaration the records are the same."""
    folder = tmp_path / "in"
    sides = write_lines(folder, partial(outline, count=count), 40)
    options = {"annotations": "yolo", "labels": folder / "data.yaml", **ONE}
    _, manifest = build_dataset(input=folder, output=tmp_path / "ds", **options)
    assert manifest.inputs.rejected == 0
    assert manifest.inputs.counts["outlines"] == 40
    for key, record in read(tmp_path / "ds", manifest).items():
        names = ("xmin", "ymin", "xmax", "ymax")
        box = [record[f"image/object/bbox/{name}"][0] for name in names]
        assert np.allclose(box, sides[key], atol=1e-5)
    (folder / "data.yaml").write_text("names: [tiger]\ntask: segment")
    outcome, _ = build_dataset(input=folder, output=tmp_path / "ds", **options)
    assert outcome.status == "up_to_date"


def test_poses_without_kpt_shape_fail_the_build(tmp_path):
    """With a sentence that names what to declare; then the boxes are right."""
    folder = tmp_path / "in"
    sides = write_lines(folder, partial(pose, count=2, dimensions=2), 20)
    options = {"annotations": "yolo", "labels": folder / "data.yaml", **ONE}
    outcome, manifest = build_dataset(input=folder, output=tmp_path / "ds", **options)
    assert (outcome.status, manifest) == ("failed", None)
    assert "declare key points by kpt_shape" in outcome.message
    (folder / "data.yaml").write_text("names: [tiger]\nkpt_shape: [2, 2]")
    build_dataset(input=folder, output=tmp_path / "ds", **options)
    data = open_dataset(tmp_path / "ds", "train", features=["image/key", "boxes"])
    for example in data:
        assert np.allclose(example["boxes"], [sides[example["image/key"].decode()]], atol=1e-5)
    assert len(data) == 20


def masks_of(output: Path, manifest) -> dict[str, np.ndarray]:
    """The masks by key, decoded by TensorFlow."""
    import tensorflow as tf

    output /= manifest.generation
    features = {
        name: tf.io.FixedLenFeature((), tf.string)
        for name in ("image/key", "image/segmentation/class/encoded")
    }
    found = {}
    for shard in manifest.splits["train"].shards:
        for payload in tf_records(output / shard.file):
            parsed = tf.io.parse_single_example(payload, features)
            mask = tf.io.decode_png(parsed["image/segmentation/class/encoded"])
            found[parsed["image/key"].numpy().decode()] = mask.numpy()[..., 0]
    return found


def test_masks_keep_their_classes(tmp_path):
    """The indices of palettes, upright, as another library reads them; not mixed by resizing."""
    folder = write_images(tmp_path / "in")
    write_masks(tmp_path / "masks")
    options = {"masks": tmp_path / "masks", "splits": "train:1", "resize": "none"}
    _, manifest = build_dataset(input=folder, output=tmp_path / "ds", **options)
    found = masks_of(tmp_path / "ds", manifest)
    for number, (key, ((width, height), orientation, _)) in enumerate(truth().items()):
        wanted = np.array(Image.open(tmp_path / "masks" / f"{Path(key).stem}.png"))
        wanted = np.rot90(wanted, -1) if orientation == 6 and number % 2 else wanted
        assert found[key].shape == (height, width)
        assert np.array_equal(found[key], wanted), key
    assert manifest.labels == ()
    _, manifest = build_dataset(
        input=folder, output=tmp_path / "small", **{**options, **ONE, "resize": "pad"}
    )
    for mask in masks_of(tmp_path / "small", manifest).values():
        assert mask.shape == (48, 64)
        assert set(np.unique(mask)) <= {0, 1, 2, 3}


@pytest.mark.sweep
@pytest.mark.parametrize("what", ["masks", "boxes"])
def test_records_that_are_not_taken_are_decoded_in_parallel(tmp_path, monkeypatch, what):
    """Also where all are known: each mask changed, or no record has what placing boxes needs."""
    folder = write_images(tmp_path / "in")
    write_masks(tmp_path / "masks")
    write_voc(folder, truth())
    kinds = {
        "masks": {"masks": tmp_path / "masks"},
        "boxes": {"annotations": "voc", "features": "image/encoded,image/object/bbox/xmin"},
    }
    options = {"input": folder, **kinds[what], **ONE}
    build_dataset(output=tmp_path / "ds", **options)
    write_masks(tmp_path / "masks", seed=1)
    threads: list[str] = []
    plain = encoder._decode

    def decode(pool, task, items, results):
        threads.extend([threading.current_thread().name] * bool(items))
        plain(pool, task, items, results)

    monkeypatch.setattr(encoder, "_decode", decode)
    outcome, _ = build_dataset(output=tmp_path / "ds", update=True, **options, seed=1)
    assert (outcome.status, outcome.reused) == ("published", 0)
    assert threads
    assert all(name.startswith("ordered") for name in threads)


@pytest.mark.sweep
@pytest.mark.parametrize("link", ["", "masks", "input"])
def test_masks_that_do_not_fit_are_rejects(tmp_path, link):
    folder = write_images(tmp_path / "in")
    masks = folder / "SegmentationClass"  # inside of the input: not images themselves
    write_masks(masks)
    Image.new("L", (40, 91)).save(masks / "00.png")
    Image.new("RGB", (45, 87)).save(masks / "01.png")
    (masks / "02.png").write_bytes(b"no image")
    Image.fromarray(np.full((81, 55), 256, np.uint16)).save(masks / "03.png")
    (masks / "04.png").unlink()
    Image.new("L", (65, 75)).save(masks / "05.png", "jpeg")  # would mix classes
    Image.new("L", (9, 9)).save(masks / "stray.png")
    for name, path in (("masks", masks), ("input", folder)):
        (tmp_path / name).symlink_to(path)
    given = {"masks": masks, "input": folder} | ({link: tmp_path / link} if link else {})
    options = {**given, "max_reject_fraction": 0.5, **ONE}
    _, manifest = build_dataset(output=tmp_path / "ds", **options)
    reasons = {"mask": 4, "no_annotation": 1, "not_an_image": 1}
    assert manifest.inputs.rejected_by_reason == reasons
    assert (manifest.inputs.accepted, manifest.inputs.skipped) == (6, 1)


def test_masks_next_to_their_images(tmp_path):
    """Are not images; a mask follows --boxes_frame also in an update."""
    folder, exif = tmp_path / "in", Image.Exif()
    folder.mkdir()
    exif[274] = 3  # rotates by 180 degrees and keeps the size
    make_image(0, 40, 30).save(folder / "a.jpg", exif=exif)
    Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) // 5).save(folder / "a.png")
    options = {"input": folder, "masks": folder, "splits": "train:1", "resize": "none"}
    found = []
    for frame in ("upright", "stored"):
        options |= {"boxes_frame": frame, "update": True, "output": tmp_path / "ds"}
        found.append(masks_of(tmp_path / "ds", build_dataset(**options)[1]))
    assert [*found[0]] == ["a.jpg"]
    assert np.array_equal(found[0]["a.jpg"][::-1, ::-1], found[1]["a.jpg"])


def test_image_sets_are_the_splits(tmp_path):
    """Those of PASCAL VOC; images in none are skipped, and names without an image reported."""
    folder = write_images(tmp_path / "in" / "VOC2012")
    write_voc(folder, truth())
    sets = folder / "ImageSets" / "Main"
    sets.mkdir(parents=True)
    (sets / "train.txt").write_text("00\n01\n02\n02\u2028(1)\n06\n", encoding="utf-8")
    (sets / "val.txt").write_text("03\n04\n06\n99\n")
    for file in ("JPEGImages/02.jpg", "Annotations/02.xml"):
        name, suffix = file.split(".")
        shutil.copy(folder / file, folder / f"{name}\u2028(1).{suffix}")
    (sets / "trainval.txt").write_text("00\n01\n02\n03\n04\n")
    (sets / "cat_train.txt").write_text("05  1\n06 -1\n")
    options = {"annotations": "voc", "splits": "imagesets", "image_size": 32}
    _, manifest = build_dataset(input=tmp_path / "in", output=tmp_path / "ds", **options)
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {
        "train": 4,
        "validation": 2,
    }
    warnings = " ".join(manifest.warnings)
    assert "7 in no image set or in several (VOC2012/JPEGImages/05.jpg)" in warnings
    assert "3 of an image set without an image (VOC2012/JPEGImages/06.jpg)" in warnings
    assert manifest.inputs.rejected == 0


def write_sets(folder: Path, **lists: str) -> Path:
    """Write lists of images of PASCAL VOC by their splits; return their folder."""
    sets = folder / "ImageSets" / "Main"
    sets.mkdir(parents=True)
    for split, text in lists.items():
        (sets / f"{split}.txt").write_text(text, encoding="utf-8")
    return sets


@pytest.mark.sweep
@pytest.mark.parametrize("names", ["97\n98\n", "03.jpg\n", "03 1\n04 -1\n"])
def test_an_image_set_without_an_image_is_an_error(tmp_path, names):
    folder = write_images(tmp_path / "in")
    sets = write_sets(folder, train="00\n01\n", val=names)
    options = {"input": folder, "output": tmp_path / "ds", "splits": "imagesets", "image_size": 32}
    options |= {"label_from": "none"}
    outcome, _ = build_dataset(**options)
    assert outcome.status == "failed"
    assert f"no name in {sets / 'val.txt'} is that of an image" in outcome.message
    first, image = names.split("\n")[0], "JPEGImages/00.jpg"
    assert f"such as {first!r}; the images are named as {image!r}" in outcome.message
    (sets / "val.txt").unlink()
    _, manifest = build_dataset(**options)
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {"train": 2}


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
def test_an_empty_image_set_is_an_error(tmp_path, text):
    """Not a split that is left out."""
    folder = write_images(tmp_path / "in")
    write_sets(folder, train="00\n01\n", test=text)
    options = {"splits": "imagesets", "image_size": 32, "label_from": "none"}
    with pytest.raises(InputError, match=r"test\.txt names no image, so that split 'test'"):
        build_dataset(input=folder, output=tmp_path / "ds", **options)


@pytest.mark.heavy
def test_features_can_be_chosen(tmp_path):
    """Without the orientation, an update decodes again; the result is the same."""
    folder = write_images(tmp_path / "in")
    write_voc(folder, truth())
    sides = ",".join(f"{s}=image/object/bbox/{s}" for s in ("xmin", "ymin", "xmax", "ymax"))
    features = f"image=image/encoded,image/key,{sides},id=image/object/class/label"
    features += ",image/object/class/label=image/object/area"  # a name of another feature
    options = {"input": folder, "annotations": "voc", "features": features, **ONE}
    build_dataset(output=tmp_path / "ds", **options)
    write_voc(folder, truth(seed=1))
    outcome, manifest = build_dataset(output=tmp_path / "ds", update=True, **options)
    _, fresh = build_dataset(output=tmp_path / "fresh", **options)
    assert outcome.reused == 0
    images, target = next(iter(keras_dataset(tmp_path / "ds", label="boxes", batch_size=12)))
    assert images.shape[:3] == (12, 48, 64)
    assert target["boxes"].shape[:2] == target["labels"].shape
    assert target["labels"].dtype == "int64"
    assert shards_and_catalogs(tmp_path / "ds", manifest) == shards_and_catalogs(
        tmp_path / "fresh", fresh
    )


@pytest.mark.heavy
def test_boxes_without_a_usable_class_are_rejects(tmp_path):
    """An image is not published with some of its boxes; the others are not lost."""
    folder, facts = write_images(tmp_path / "in"), truth()
    for number, name in enumerate(("", "two\nlines", "moose")):
        facts[KEYS[number]] = (*facts[KEYS[number]][:2], [("cat", 1, 2, 9, 9), (name, 1, 2, 9, 9)])
    write_voc(folder, facts)
    (tmp_path / "labels.txt").write_text("\n".join(NAMES))
    options = {"annotations": "voc", "max_reject_fraction": 0.5, **ONE}
    _, manifest = build_dataset(
        input=folder, output=tmp_path / "ds", labels=tmp_path / "labels.txt", **options
    )
    assert manifest.inputs.rejected_by_reason == {"label_text": 2, "unknown_label": 1}
    assert manifest.labels == NAMES
    many = "0 .5 .5 .1 .1\n" * 40_000  # more than shuffles should carry
    yolo = write_annotations("yolo", folder, facts := truth())
    (folder / "labels" / "05.txt").write_text(many)
    _, manifest = build_dataset(input=folder, output=tmp_path / "ds2", **{**options, **yolo})
    assert manifest.inputs.rejected_by_reason == {"annotation": 1}
    assert manifest.inputs.accepted == len(facts) - 1


def test_a_mask_that_changes_before_it_is_read_is_no_record(tmp_path, monkeypatch):
    """Its boxes and its hash are those of before; the next run looks at the image again."""
    folder, masks = write_images(tmp_path / "in"), tmp_path / "masks"
    masks.mkdir()
    for number, (key, ((width, height), *_)) in enumerate(truth().items()):
        Image.new("L", (width, height), number).save(masks / f"{Path(key).stem}.bmp")
    options = {"input": folder, "masks": masks, "max_reject_fraction": 0.5, **ONE}

    mask, later = masks / "03.bmp", tmp_path / "later.bmp"
    Image.new("L", truth()[KEYS[3]][0], 7).save(later)
    status = mask.stat()
    os.utime(later, ns=(status.st_atime_ns, status.st_mtime_ns))

    def read_late(refs):
        if refs and refs[0].uri.startswith(str(masks)):
            with contextlib.suppress(FileNotFoundError):  # once, at a moment
                later.replace(mask)
        return read_inputs(refs)

    monkeypatch.setattr(encoder, "read_inputs", read_late)
    _, manifest = build_dataset(output=tmp_path / "ds", **options)
    assert manifest.inputs.rejected_by_reason == {"changed": 1}
    monkeypatch.undo()
    outcome, manifest = build_dataset(output=tmp_path / "ds", update=True, **options)
    assert (outcome.reused, manifest.inputs.rejected_by_reason) == (11, {})
    assert 7 in masks_of(tmp_path / "ds", manifest)[KEYS[3]]


def test_copies_with_other_boxes_are_counted(tmp_path):
    """As copies with other labels are; those with equal boxes are not among them."""
    folder, facts = write_images(tmp_path / "in"), truth()
    for key, boxes in ((KEYS[5], facts[KEYS[5]][2]), (KEYS[7], [])):
        copy = key.replace(".jpg", "b.jpg")
        shutil.copy(folder / key, folder / copy)
        facts[copy] = (*facts[key][:2], boxes)
    write_voc(folder, facts)
    _, manifest = build_dataset(input=folder, output=tmp_path / "ds", annotations="voc", **ONE)
    assert (manifest.inputs.copies, manifest.inputs.copies_with_other_labels) == (2, 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict]:
    """A dataset with boxes and masks; sides in pixels and class ids by key."""
    base = tmp_path_factory.mktemp("trained")
    folder, facts = write_images(base / "in"), truth()
    write_voc(folder, facts)
    write_masks(base / "masks")
    options = {"annotations": "voc", "masks": base / "masks", **ONE}
    _, manifest = build_dataset(input=folder, output=base / "ds", **options)
    wanted = {}
    for key, ((width, height), _, boxes) in facts.items():
        sides = np.reshape([box[1:] for box in boxes], (-1, 4)) / (width, height, width, height)
        ids = [manifest.labels.index(box[0]) for box in boxes]
        wanted[key.encode()] = sides.astype(np.float32) * (64, 48, 64, 48), ids
    return base / "ds", wanted


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted({*FORMATS} - {"rel_xywh"}))  # which Keras lacks
def test_loaders_give_boxes_in_named_formats(trained, name):
    """As Keras converts them; padded for training, else ragged."""
    import keras

    output, wanted = trained

    def check(key, found) -> None:
        sides = wanted[key][0].astype(np.float32)
        judged = keras.utils.bounding_boxes.convert_format(sides[None], "xyxy", name, 48, 64)[0]
        assert np.allclose(found, judged, atol=1e-3)

    records = open_dataset(output, features=["image/key", f"boxes/{name}", "classes"])
    for each in records:
        check(each["image/key"], each["boxes"])
        assert each["classes"].tolist() == wanted[each["image/key"]][1]
    seen = set()
    batches = keras_dataset(output, batch_size=5, label=[f"boxes/{name}", "mask", "image/key"])
    for images, labels in batches.as_numpy_iterator():
        assert images.shape[1:] == (48, 64, 3)
        assert labels["mask"].shape[1:] == (48, 64, 1)
        for boxes, ids, key in zip(
            labels["boxes"], labels["labels"], labels["image/key"], strict=True
        ):
            count = len(wanted[key][1])
            check(key, boxes[:count])
            assert (boxes[count:] == -1).all()
            assert ids.tolist() == wanted[key][1] + [-1] * (len(ids) - count)
            seen.add(key)
    assert seen == wanted.keys()


@pytest.mark.heavy
def test_boxes_and_masks_of_single_examples_and_workers(trained):
    """Also flipped by Keras, whose layers take the names and formats of the targets."""
    import keras
    import tensorflow as tf
    import torch

    output, wanted = trained
    single = keras_dataset(output, batch_size=None, label="boxes")
    with pytest.raises(UsageError, match=r"name it in features, as in features=\['image', 'boxes'"):
        open_dataset(output, as_supervised=True, label="boxes")
    options = {"as_supervised": True, "label": "boxes", "features": ["image", "boxes"]}
    pairs = open_dataset(output, **options)
    for (_, labels), (image, boxes) in zip(single, pairs, strict=True):
        assert image.shape == (48, 64, 3)
        assert np.allclose(labels["boxes"], boxes)
    flip = keras.layers.RandomFlip("horizontal", bounding_box_format="xyxy", seed=0)
    pairs = keras_dataset(output, batch_size=12, label="boxes/xyxy")
    flipped = pairs.map(lambda images, target: flip({"images": images, "bounding_boxes": target}))
    for (images, target), after in zip(pairs, flipped, strict=True):
        count = target["labels"].numpy() >= 0
        before, moved = target["boxes"].numpy(), after["bounding_boxes"]["boxes"].numpy()
        is_flipped = (after["images"].numpy() != images.numpy()).any(axis=(1, 2, 3))
        assert 0 < is_flipped.sum() < 12
        mirrored = np.stack(
            [64 - before[..., 2], before[..., 1], 64 - before[..., 0], before[..., 3]], -1
        )
        expected = np.where(is_flipped[:, None, None], mirrored, before)
        assert np.allclose(moved[count], expected[count], atol=1e-3)
    images, masks = next(iter(keras_dataset(output, batch_size=3, label="mask")))
    assert (images.shape, masks.shape, masks.dtype) == ((3, 48, 64, 3), (3, 48, 64, 1), tf.uint8)
    ragged = next(iter(keras_dataset(output, features=["image", "boxes"], label=None)))
    assert isinstance(ragged["boxes"], tf.RaggedTensor)
    features = ["image/key", "boxes/xyxy", "classes", "mask"]
    loader = torch.utils.data.DataLoader(
        torch_dataset(output, features=features), batch_size=4, num_workers=2, collate_fn=list
    )
    examples = [each for batch in loader for each in batch]
    assert {each["image/key"] for each in examples} == wanted.keys()
    for each in examples:
        assert np.allclose(each["boxes"], wanted[each["image/key"]][0], atol=1e-3)
        assert each["mask"].shape == (48, 64, 1)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"label": "boxes/abc"}, "is not a format of boxes"),
        ({}, "the records have no label: give"),
        ({"label": ["mask", "nose"]}, "is unknown: use"),
    ],
)
def test_wrong_targets_are_one_sentence(trained, options, part):
    with pytest.raises(ShardmillError) as caught:
        keras_dataset(trained[0], **options)
    assert part in str(caught.value)
    with pytest.raises(ShardmillError, match="parse_example reads singly"):
        feature_spec(trained[0], features=["boxes"])


def test_pairs_of_open_dataset_are_those_of_keras(trained):
    """A mask that is the label is not an input too; several labels are one sentence."""
    image, mask = open_dataset(trained[0], as_supervised=True, label="mask")[0]
    images, masks = next(iter(keras_dataset(trained[0], label="mask", batch_size=1)))
    assert np.array_equal(image, images[0])
    assert np.array_equal(mask, masks[0])
    with pytest.raises(ShardmillError, match=r"label=\['boxes', 'mask'\] is unknown"):
        open_dataset(trained[0], as_supervised=True, label=["boxes", "mask"])


def edit(rng: np.random.Generator, folder: Path, masks: Path, facts: dict) -> None:
    """Change images, annotations or masks in a random way."""
    keys = [key for key in facts if (folder / key).exists()]
    key = keys[rng.integers(len(keys))]
    mask = masks / f"{Path(key).stem}.png"
    match rng.integers(7):
        case 0:  # other boxes
            facts[key] = truth(int(rng.integers(1 << 30)))[key]
        case 1:  # no boxes
            facts[key] = (*facts[key][:2], [])
        case 2 if len(keys) > 6:  # a removed image, perhaps with its annotations
            (folder / key).unlink()
            if rng.integers(2):
                mask.unlink()
                (folder / "Annotations" / f"{Path(key).stem}.xml").unlink(missing_ok=True)
                del facts[key]
        case 3:  # another class
            size, orientation, boxes = facts[key]
            facts[key] = size, orientation, [("ant", *box[1:]) for box in boxes]
        case 4:  # another mask of equal size and time
            pixels, status = np.array(Image.open(mask)), mask.stat()
            Image.fromarray(3 - pixels).save(mask)
            os.utime(mask, ns=(status.st_atime_ns, status.st_mtime_ns))
        case 5:  # the pixels of another image
            (width, height), orientation, _ = facts[key]
            size = (height, width) if orientation == 6 else (width, height)
            make_image(int(rng.integers(1 << 30)), *size).save(folder / key, quality=90)
            facts[key] = (width, height) if orientation == 1 else (height, width), 1, facts[key][2]
            Image.new("L", facts[key][0], 1).save(mask)
        case _:  # a touched image
            os.utime(folder / key)


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(examples(12)))
def test_any_edits_give_the_records_of_a_build_from_scratch(tmp_path, seed):
    """Boxes, masks, classes and pixels of a chain of updates are those of a new build."""
    rng, facts = np.random.default_rng(seed), truth()
    folder, masks = write_images(tmp_path / "in"), tmp_path / "masks"
    write_masks(masks)
    options = {
        "input": folder,
        "masks": masks,
        "max_reject_fraction": 0.9,
        **ONE,
        "resize": ["stretch", "crop", "pad"][seed % 3],
    }
    for step in range(5):
        options |= write_annotations("voc" if seed % 2 else "coco", folder, facts)
        _, manifest = build_dataset(output=tmp_path / "ds", update=True, **options)
        _, fresh = build_dataset(output=tmp_path / f"fresh{step}", **options)
        found = shards_and_catalogs(tmp_path / "ds", manifest)
        assert found == shards_and_catalogs(tmp_path / f"fresh{step}", fresh), step
        assert manifest.inputs.counts == fresh.inputs.counts
        assert manifest.warnings == fresh.warnings
        for _ in range(rng.integers(1, 4)):
            edit(rng, folder, masks, facts)
