"""Images with boxes and masks, and their annotations in several formats."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.conftest import make_image

NAMES = ("cat", "dög", "owl")
KEYS = [f"JPEGImages/{number:02d}.jpg" for number in range(12)]


def truth(seed=0) -> dict:
    """Upright size, orientation and boxes (class, xmin, ymin, xmax, ymax in pixels) by key."""
    rng = np.random.default_rng(seed)
    found = {}
    for number, key in enumerate(KEYS):
        width, height = 40 + 5 * number, 90 - 3 * number
        boxes = []
        for _ in range(number % 4):
            left, upper = rng.integers(0, (width - 9, height - 9))
            right, lower = rng.integers((left + 4, upper + 4), (width, height))
            boxes.append((NAMES[rng.integers(3)], int(left), int(upper), int(right), int(lower)))
        found[key] = ((width, height), 6 if number % 3 == 2 else 1, boxes)
    return found


def write_images(folder: Path) -> Path:
    """Write the images; return their folder."""
    for seed, (key, ((width, height), orientation, _)) in enumerate(truth().items()):
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        size = (height, width) if orientation == 6 else (width, height)
        exif = Image.Exif()
        exif[274] = orientation
        make_image(seed, *size).save(folder / key, quality=90, exif=exif)
    return folder


def write_voc(folder: Path, facts: dict) -> None:
    """Write a file of PASCAL VOC for each image."""
    (folder / "Annotations").mkdir(exist_ok=True)
    for key, ((width, height), _, boxes) in facts.items():
        objects = "".join(
            f"<object><name>{name}</name><truncated>{left % 2}</truncated><bndbox><xmin>{left}</xmin>"
            f"<ymin>{upper}</ymin><xmax>{right}</xmax><ymax>{lower}</ymax></bndbox></object>"
            for name, left, upper, right, lower in boxes
        )
        (folder / "Annotations" / f"{Path(key).stem}.xml").write_text(
            f"<annotation><size><width>{width}</width><height>{height}</height></size>{objects}"
            "</annotation>"
        )


def write_yolo(folder: Path, facts: dict) -> dict:
    """Write files of YOLO; return the options of a build."""
    (folder / "labels").mkdir(exist_ok=True)
    (folder / "data.yaml").write_text(f"path: .\nnames: {dict(enumerate(NAMES))}\n")
    for key, ((width, height), _, boxes) in facts.items():
        lines = [
            f"{NAMES.index(name)} {(left + right) / 2 / width} {(upper + lower) / 2 / height} "
            f"{(right - left) / width} {(lower - upper) / height}"
            for name, left, upper, right, lower in boxes
        ]
        path = folder / "labels" / f"{Path(key).stem}.txt"
        if lines:
            path.write_text("\n".join(lines))
        else:  # by its convention, no file means no boxes
            path.unlink(missing_ok=True)
    return {"annotations": "yolo", "labels": folder / "data.yaml"}


def write_coco(folder: Path, facts: dict) -> dict:
    """Write a file of COCO; return the options of a build."""
    images, entries, names = [], [], (*NAMES, "ant")
    for number, (key, ((width, height), _, boxes)) in enumerate(facts.items()):
        name = Path(key).name
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        entries += [
            {
                "image_id": number,
                "category_id": 7 + names.index(name),
                "iscrowd": 0,
                "bbox": [left, upper, right - left, lower - upper],
                "area": (right - left) * (lower - upper),
            }
            for name, left, upper, right, lower in boxes
        ]
    categories = [{"id": 7 + number, "name": name} for number, name in enumerate(names)]
    body = {"annotations": entries, "images": images, "categories": categories}
    (folder / "all.json").write_text(json.dumps(body))
    return {"annotations": f"coco:{folder / 'all.json'}"}


def write_annotations(kind: str, folder: Path, facts: dict) -> dict:
    """Write annotations of a kind, and return the options of a build."""
    if kind == "voc":
        write_voc(folder, facts)
        return {"annotations": "voc"}
    return write_yolo(folder, facts) if kind == "yolo" else write_coco(folder, facts)


def write_masks(folder: Path, seed=0) -> None:
    """Palette PNGs of the upright size for some images, of the stored size for others."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    for number, (key, ((width, height), orientation, _)) in enumerate(truth().items()):
        stored = orientation == 6 and number % 2
        shape = (width, height) if stored else (height, width)
        mask = Image.fromarray(rng.integers(0, 4, shape, dtype=np.uint8), "P")
        mask.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0, 0, 0, 200])
        mask.save(folder / f"{Path(key).stem}.png")


def write_listing(folder: Path) -> Path:
    """Write a listing with a number and a text, which some images lack; return its path."""
    texts = ("Ünï, two" * (number % 3) for number in range(len(KEYS)))
    lines = (
        f'{key},{number / 4},"{text}"\n'
        for number, (key, text) in enumerate(zip(KEYS, texts, strict=True))
    )
    (folder / "list.csv").write_text("path,score,caption\n" + "".join(lines))
    return folder / "list.csv"
