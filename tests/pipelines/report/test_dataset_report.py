"""The report of a dataset, read by an HTML parser and compared with pandas, NumPy and Pillow."""

import base64
import contextlib
import io
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shardmill import report as write_report
from shardmill.loaders import open_dataset
from shardmill.loaders.html.render import (
    make_histogram,
    make_thumbnail,
    render_examples,
    render_summary,
)
from shardmill.pipelines.calls import BuildResult
from shardmill.pipelines.report.findings import find_problems
from shardmill.pipelines.report.sample import sample_records
from shardmill.schemas.dataset.read_manifest import load_manifest
from shardmill.schemas.errors import InputError, OutputError, UsageError
from shardmill.schemas.example.serialize import encode_example
from tests.conftest import build_dataset, make_image, make_photos
from tests.support.fault_tools import sentence_here
from tests.support.loader_tools import DATA, ID, PHOTOS, make_dataset, make_shard, write_numbered
from tests.support.page_tools import Page, bars, check_page
from tests.support.publications import damaged
from tests.support.readers import current
from tests.support.rows_tools import run_here

pytest_plugins = ["tests.support.loader_data"]

HOSTILE = (
    '"><script>alert(1)</script><img src=x onerror=alert(2)> {{7*7}} \u202egnp.exe \x1b[2J \x00'
)


def report(dataset: Path | str, folder: Path, **options: object) -> Page:
    """Write a report, check it and return it."""
    return check_page(write_report(dataset, folder / "report.html", **options))


def pixels_of(image: dict) -> np.ndarray:
    """Return the pixels of an <img>."""
    data = base64.b64decode(image["src"].partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(data)))


# Images.


@pytest.mark.parametrize("kind", ["jpeg", "png", "raw", "none", "mixed", "bylabel"])
def test_counts_of_images(kind, images, tmp_path) -> None:
    page = report(images(kind), tmp_path)
    assert page.headings[0] == (1, kind)
    pairs = page.pairs()
    assert (pairs["Examples"], pairs["Classes"], pairs["Rejected inputs"]) == ("90", "3", "0")
    counts = {
        split: Counter(int(row["label"]) for row in open_dataset(images(kind), split))
        for split in ("train", "validation")
    }
    rows = page.table("Label")
    assert [(row[0], row[5]) for row in rows] == [(n, str(c)) for n, c in PHOTOS.items()]
    for number, row in enumerate(rows):
        assert [int(row[1]), int(row[3])] == [counts[split][number] for split in counts]
    assert [(row[0], row[1]) for row in page.table("Split")] == [
        (split, str(found.total())) for split, found in counts.items()
    ]
    histograms = dict(bars(page))
    assert {name: sum(found) for name, found in histograms.items()} == {
        "Width of input": 90,
        "Height of input": 90,
        "Size of input": 90,
        "Size of record": 90,
    }
    assert sorted(filter(None, histograms["Width of input"])) == [7, 83]  # 33 and 40 pixels
    assert "of all 90 records" in re.sub(r"\s+", " ", page.text).lower()


@pytest.mark.parametrize("kind", ["jpeg", "png", "raw", "bylabel"])
def test_thumbnails_are_those_of_the_records(kind, images, tmp_path) -> None:
    found = Counter()
    shards = {}
    for name, split in load_manifest(images(kind)).splits.items():
        start = 0
        for shard in split.shards:
            shards[shard.file] = name, start
            start += shard.records
    for image in report(images(kind), tmp_path).find("img"):
        label, record, file = re.fullmatch(
            r"(\w+) image/encoded, record (\d+) of (.+)", image["alt"]
        ).groups()
        split, start = shards[file]
        records = open_dataset(images(kind), split)
        example = records[start + int(record)]
        assert records.labels[example["label"]] == label
        pixels = pixels_of(image)
        assert max(pixels.shape) <= 96
        expected = example["image"]
        if expected.shape[2] == 4:  # opaque
            assert expected[..., 3].min() == 255
            expected = expected[..., :3]
        expected = expected[..., 0] if expected.shape[2] == 1 else expected
        assert np.abs(expected.astype(float) - pixels).mean() < 12
        assert (image["width"], image["height"]) == ("96", "64")  # of 24 x 16
        found[label, split, image["data-split"]] += 1
    # Of the splits in turn, and marked with the number that the filter of the page has for it.
    numbers = (("train", "0"), ("validation", "1"))
    assert found == {(label, *each): 3 for label in PHOTOS for each in numbers}


def test_the_same_dataset_gives_the_same_page(images, tmp_path) -> None:
    pages = [Path(write_report(images("jpeg"), tmp_path / name)).read_bytes() for name in "ab"]
    assert pages[0] == pages[1]


def test_images_without_labels_have_one_sheet(tmp_path) -> None:
    photos = make_photos(tmp_path / "photos", {"x": 50}, size=(20, 30))
    build_dataset(input=photos, output=tmp_path / "ds", image_size="30x20", label_from="none")
    page = report(tmp_path / "ds", tmp_path)
    assert len(page.find("img")) == 36
    assert (2, "Examples") in page.headings
    assert "Classes" not in page.pairs()


@pytest.mark.heavy
def test_noise_of_300_classes_takes_less_than_2_mb_and_rare_ones_are_shown(tmp_path) -> None:
    """Noise is what JPEG compresses least; the page has the rarest classes and their pictures."""
    counts = {f"class {n:03d}": 1 + (299 - n) // 60 for n in range(300)}
    rng = np.random.default_rng(2)
    for label, count in counts.items():
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(count):
            noise = Image.fromarray(rng.integers(0, 256, (100, 100, 3), np.uint8))
            noise.save(tmp_path / "photos" / label / f"{number}.bmp")
    build_dataset(input=tmp_path / "photos", output=tmp_path / "ds", image_size=100, encoding="png")
    page = report(tmp_path / "ds", tmp_path)
    assert len(page.text.encode()) < 2_000_000
    names = [*counts]
    assert [row[0] for row in page.table("Label")] == [
        *names[:25],
        "250 classes between them",
        *names[-25:],
    ]
    everything = {row[0]: int(row[3]) for row in page.table("Class")}
    assert [everything, *everything] == [
        counts,
        *sorted(counts, key=lambda name: (counts[name], -names.index(name))),
    ]
    shown = Counter(image["alt"].partition(" image/")[0] for image in page.find("img"))
    assert [*shown] == names[:80] + names[-80:]
    assert shown.total() == 240
    # Each choice of the filter is a rule of the style sheet: the page has no script.
    for values in ("by-split", 2), ("by-class", 160):
        rules = re.findall(rf"\.{values[0]} \[value=\"(\d+)\"\]:checked", page.text)
        assert rules == [*map(str, range(values[1]))]
    assert [each["value"] for each in page.find("option") if "value" in each] == [
        *map(str, range(2)),
        *map(str, range(160)),
    ]


def test_pixels_become_thumbnails() -> None:
    half = np.zeros((10, 20, 4), np.uint8)
    half[:, 10:] = (0, 0, 255, 255)
    pixels = pixels_of(make_thumbnail(half))
    np.testing.assert_allclose(pixels[2, 2], 255, atol=8)  # transparent
    np.testing.assert_allclose(pixels[2, 17], (0, 0, 255), atol=8)
    mask = np.zeros((200, 100, 1), np.uint8)
    mask[100:] = 20
    shown = make_thumbnail(mask)
    assert (shown["width"], shown["height"], shown["enlarged"]) == (48, 96, False)
    assert pixels_of(shown)[90, 20] > 200
    assert make_thumbnail(np.zeros((8, 8), np.uint8))["width"] == 96


def test_a_segmentation_is_next_to_its_photo(tmp_path) -> None:
    tags = 'annotation {{ tag: "encoding=png" tag: "dtype=uint8" tag: "channels={}" }}'
    schema = DATA.replace('"x"', '"mask"')[:-1] + tags.format(1) + "}"
    schema += DATA.replace('"x"', '"photo"')[:-1] + tags.format(3) + "}"
    payloads = []
    for number in range(3):
        mask, photo = Image.new("L", (40, 30), number + 1), make_image(number, 40, 30)
        files = {"mask": io.BytesIO(), "photo": io.BytesIO()}
        mask.save(files["mask"], "PNG")
        photo.save(files["photo"], "PNG")
        payloads.append(encode_example({name: file.getvalue() for name, file in files.items()}))
    shard = {"train-0.tfrecord": make_shard([payloads])}
    make_dataset(tmp_path / "ds", shard, {"train-0.tfrecord": 3}, schema)
    found = [
        (image["alt"], image["width"]) for image in report(tmp_path / "ds", tmp_path).find("img")
    ]
    assert found == [
        (f"{name}, record {number} of train-0.tfrecord", "80")
        for number in range(3)
        for name in ("mask", "photo")
    ]


# Tables.


@pytest.fixture(scope="module")
def sales(tmp_path_factory) -> Path:
    """A table with missing cells, and its dataset."""
    folder = tmp_path_factory.mktemp("sales")
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "age": rng.integers(-5, 90, 500).astype(object),
            "price": np.round(rng.gamma(2, 30, 500), 2).astype(object),
            "city": rng.choice(["Bern", "Basel", "Chur"], 500, p=[0.6, 0.3, 0.1]),
            "name": [f"n{number}" for number in range(500)],
        }
    )
    for number, column in enumerate(("age", "price")):
        frame.loc[frame.index % (7 + number) == 0, column] = ""
    frame.to_csv(folder / "sales.csv", index=False)
    build_dataset(
        "rows",
        input=folder / "sales.csv",
        output=folder / "ds",
        num_shards=3,
        label="city",
        splits="train:0.8,test:0.2",
        split_by="",
        seed=2,
    )
    return folder


def test_statistics_of_a_table_are_those_of_pandas(sales, tmp_path) -> None:
    page = report(sales / "ds", tmp_path)
    frame = pd.read_csv(sales / "sales.csv")
    # Names are unique, so they say which rows a split has.
    train = {row["name"].decode() for row in open_dataset(sales / "ds", fill={"age": -1})}
    frame = frame.assign(train=frame["name"].isin(train))
    rows = {row[0]: row for row in page.table("Feature")}
    assert [*rows] == ["age int64", "price float32", "city bytes", "name bytes"]  # as in the file
    rows = {name.split()[0]: row[2:7] for name, row in rows.items()}
    tables = {}
    for header, *others in page.tables:
        if header[:2] == ["Feature", "Missing"]:
            tables[len(tables)] = {row[0]: row[1:] for row in others}
    assert [*tables[0]] == ["age", "price", "city", "name"]
    # The first table is of the records of the histograms: here of all of both splits.
    judged = ((rows, frame), (tables[0], frame[frame.train]), (tables[1], frame[~frame.train]))
    for name in ("age", "price"):
        for table, part in judged:
            missing, *numbers = table[name]
            assert int(missing) == part[name].isna().sum()
            column = part[name]
            expected = [column.min(), column.max(), column.mean(), column.std(ddof=0)]
            found = [float(text.replace(",", "")) for text in numbers]
            np.testing.assert_allclose(found, expected, rtol=5e-4)
            assert all(len(text.strip("-0.").replace(".", "")) <= 4 for text in numbers)
    rows = {row[0].split()[0]: row for row in page.table("Feature")}
    counts = dict(bars(page))
    assert sum(counts["age"]) == frame["age"].notna().sum()  # of all splits
    share = 100 * frame["city"].value_counts(normalize=True)
    assert f"Bern {share['Bern']:.1f} %" in rows["city"][1]
    assert "500 distinct values" in rows["name"][1]
    labels = {row[0]: int(row[5]) for row in page.table("Label")}
    assert labels == frame["city"].value_counts().to_dict()


def test_a_histogram_counts_all_numbers() -> None:
    rng = np.random.default_rng(0)
    for numbers in (
        rng.normal(size=1000),
        rng.integers(-3, 9, 1000),
        [5.0],
        [2.5] * 4,
        [1, 1e30],
        [2**60] * 3,
        [1e17, 1e17 + 16],
        [0, 1e-300],
        [3e38] * 2,
    ):
        found = make_histogram(numbers)
        assert sum(count for _, _, count in found["bars"]) == len(numbers)
        assert (found["min"], found["max"]) == (np.min(numbers), np.max(numbers))
        assert found["median"] == np.median(numbers)
        np.testing.assert_allclose(
            [found["mean"], found["std"]], [np.mean(numbers), np.std(numbers)]
        )
        assert all(low <= high for low, high, _ in found["bars"])
    whole = make_histogram([1, 2, 2, 5])
    assert whole["bars"] == [(1, 1, 1), (2, 2, 2), (3, 3, 0), (4, 4, 0), (5, 5, 1)]
    long = make_histogram([*range(1000), 10**9])
    assert long["tail"]
    assert long["bars"][-1][2] > 10
    assert long["max"] == 10**9
    for nothing in ([], [np.nan, np.inf], [-1.7e308, 1.7e308]):
        assert make_histogram(nothing) == {}


def test_a_page_says_where_a_histogram_is_cut(tmp_path) -> None:
    numbers = [*range(200), 10**6]
    (tmp_path / "in.csv").write_text("n\n" + "\n".join(map(str, numbers)))
    build_dataset("rows", input=tmp_path / "in.csv", output=tmp_path / "ds")
    page = report(tmp_path / "ds", tmp_path)
    cut = np.quantile(numbers, 0.99)
    assert page.table("Feature")[0][1] == f"0 {cut:g}+, max 1,000,000"


# Arrays.


def test_arrays_have_statistics_and_pictures(tmp_path) -> None:
    rng = np.random.default_rng(3)
    arrays = {
        "x": rng.integers(0, 256, (40, 12, 10), dtype=np.uint8),
        "vector": rng.normal(size=(40, 5)).astype(np.float32),
        "wave": rng.normal(size=(40, 2)) + 1j,
        "y": np.arange(40) % 4,
    }
    np.savez(tmp_path / "in.npz", **arrays)
    build_dataset("arrays", input=tmp_path / "in.npz", output=tmp_path / "ds", splits="train:1")
    page = report(tmp_path / "ds", tmp_path)
    types = dict(row[0].split(maxsplit=1) for row in page.table("Feature"))
    assert types == {
        "x": "uint8 12 \N{MULTIPLICATION SIGN} 10",
        "vector": "float32 5",
        "wave": "complex128 2",
        "y": "int64",
    }
    rows = {row[0].split()[0]: row for row in page.table("Feature")}
    assert rows["wave"][1:] == ["", "0", "", "", "", ""]
    for name in ("x", "vector"):
        found = [float(text) for text in rows[name][3:7]]
        array = arrays[name].astype(float)
        expected = [array.min(), array.max(), array.mean(), array.std()]
        np.testing.assert_allclose(found, expected, rtol=5e-4)
        assert sum(dict(bars(page))[name]) == array.size
    assert [row[0] for row in page.table("Label")] == ["0", "1", "2", "3"]
    images = page.find("img")
    assert len(images) == 24
    for image in images:
        label = int(image["alt"].partition(" x,")[0])
        means = arrays["x"][arrays["y"] == label].mean((1, 2))
        assert np.abs(means - pixels_of(image).mean()).min() < 3


# Counts, empty and damaged datasets.


def test_the_manifest_of_a_count(images, tmp_path) -> None:
    from shardmill.pipelines.cli import main

    data = tmp_path / "data"
    shutil.copytree(current(images("jpeg")), data, ignore=shutil.ignore_patterns("[!tv]*"))
    (data / "test-00000-of-00001.tfrecord").write_bytes(b"\x00" * 40)
    manifest = tmp_path / "counted.json"
    assert main(["count", f"--input={data}", f"--manifest={manifest}"]) == 1
    shutil.rmtree(data)  # no record is read
    page = report(manifest, tmp_path)
    assert page.headings[0] == (1, "counted")
    assert page.pairs()["Records"] == "90"
    assert page.pairs()["Damaged files"] == "1"
    assert sum(int(row[1]) for row in page.table("Split")) == 90
    assert "test-00000-of-00001.tfrecord" in page.text
    assert page.find("img") == []


@pytest.mark.parametrize("splits", [{}, {"train-0.tfrecord": b""}])
def test_an_empty_dataset(splits, tmp_path) -> None:
    make_dataset(tmp_path / "ds", splits, dict.fromkeys(splits, 0), ID)
    page = report(tmp_path / "ds", tmp_path)
    assert page.pairs()["Examples"] == "0"
    assert [row[:2] for row in page.table("Feature")] == [["id", "int64"]]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 4 : 3 * len(data) // 4] = bytes(3 * len(data) // 4 - len(data) // 4)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [Path.unlink, _cut, _flip], ids=["missing", "cut", "changed"])
@pytest.mark.parametrize(
    ("pattern", "pictures"),
    [("train-*", False), ("schema.pbtxt", False), ("catalog/train-*", True), ("*", False)],
)
def test_damage_is_a_note(pattern, pictures, damage, images, tmp_path) -> None:
    shutil.copytree(images("raw"), tmp_path / "ds", symlinks=True)
    for path in (tmp_path / "ds" / "current").resolve().glob(pattern):
        if path.is_file():
            damage(path)
    page = report(tmp_path / "ds", tmp_path)
    assert "Not everything could be read" in page.text
    assert [(row[0], row[5]) for row in page.table("Label")] == [
        (n, str(c)) for n, c in PHOTOS.items()
    ]
    if pictures:
        assert len(page.find("img")) == 18


def test_a_record_that_is_no_image(tmp_path) -> None:
    schema = f'{DATA[:-1]} annotation {{ tag: "encoding=jpeg" }} }}'
    payload = encode_example({"x": b"no image"})
    make_dataset(
        tmp_path / "ds",
        {"train-0.tfrecord": make_shard([[payload]])},
        {"train-0.tfrecord": 1},
        schema,
    )
    page = report(tmp_path / "ds", tmp_path)
    assert "is not an image" in page.text


@pytest.mark.nightly
def test_survives_damage_to_any_manifest_field(images, tmp_path) -> None:
    shutil.copytree(images("raw"), tmp_path / "ds", symlinks=True)
    path = tmp_path / "ds" / "manifest.json"
    own = (tmp_path / "ds" / "current").resolve() / "manifest.json"
    values = (None, HOSTILE, -1, 1.5, [], {"a": 1})
    written = 0
    for where, body in damaged(json.loads(path.read_text()), values):
        if where[-1] in ("crc32c", "bytes") or "config" in where[:-1]:
            continue  # they are like others
        path.write_text(json.dumps(body))
        own.write_text(json.dumps(body))
        with contextlib.suppress(InputError):
            report(tmp_path / "ds", tmp_path)
            written += 1
    assert written > 100


# Rejects.


def test_rejected_images_are_drawn_as_far_as_they_decode(tmp_path) -> None:
    """Pillow's pixels of the whole file judge; what is outside the root is never read."""
    photos = make_photos(tmp_path / "photos", {"cat": 5}, size=(90, 60))
    whole = np.asarray(Image.open(photos / "cat" / "000.jpg").convert("RGB")).astype(int)
    Image.fromarray(np.uint8(whole)).save(tmp_path / "whole.bmp")
    data = (tmp_path / "whole.bmp").read_bytes()
    for kind in ("png", "jpg"):
        Image.fromarray(np.uint8(whole)).save(tmp_path / f"whole.{kind}", quality=95)
        cut = (tmp_path / f"whole.{kind}").read_bytes()
        (photos / f"cat/cut.{kind}").write_bytes(cut[: len(cut) * 2 // 3])
    (photos / "cat/none.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"?" * 99)
    (tmp_path / "secret.bmp").write_bytes(data)
    build_dataset(input=photos, output=tmp_path / "ds", image_size=16, max_reject_fraction=0.5)
    path = (current(tmp_path / "ds")) / "rejects.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(each["key"] for each in lines) == ["cat/cut.jpg", "cat/cut.png", "cat/none.png"]
    (photos / "link.bmp").symlink_to(tmp_path / "secret.bmp")
    Image.linear_gradient("L").resize((6000, 6000)).save(photos / "huge.png")
    outside = (
        "../secret.bmp",
        str(tmp_path / "secret.bmp"),
        "link.bmp",
        "huge.png",
        "a\0b",
        "cat",
        "x" * 999,
    )
    lines += [{**lines[0], "key": key, "error": "a"} for key in outside]
    path.write_text("\n".join(map(json.dumps, lines)))
    manifest = json.loads((tmp_path / "ds" / "manifest.json").read_text())
    manifest["inputs"]["rejected_by_reason"]["a"] = len(outside)
    (tmp_path / "ds" / "manifest.json").write_text(json.dumps(manifest))
    page = report(tmp_path / "ds", tmp_path)  # its manifest may name any folder as the root
    assert not [each for each in page.find("img") if each["alt"][:3] == "Rej"]
    page = report(tmp_path / "ds", tmp_path, inputs=photos)
    drawn = [each for each in page.find("img") if each["alt"][:3] == "Rej"]
    with pytest.raises(UsageError, match="--inputs=nowhere is not a folder of this machine"):
        write_report(tmp_path / "ds", tmp_path / "report.html", inputs="nowhere")
    assert {each["alt"] for each in drawn} == {"Rejected: cat/cut.jpg", "Rejected: cat/cut.png"}
    for each in drawn:
        pixels = pixels_of(each).astype(int)
        assert np.abs(pixels - whole)[:20].mean() < 12 < np.abs(pixels - whole)[-8:].mean()


# Hostile data.


def test_data_cannot_become_html(tmp_path) -> None:
    """Every text of a dataset is hostile, and the page has no other tags and shows the text."""
    name = HOSTILE.replace("\x00", "").replace("\x1b", "")
    quoted = (
        json.dumps(HOSTILE, ensure_ascii=True)
        .replace("\\u0000", "\\000")
        .replace("\\u001b", "\\033")
    )
    schema = f"feature {{ name: {quoted.replace(chr(92) + 'u202e', chr(0x202E))} type: BYTES presence {{ min_fraction: 1 }} shape {{ dim {{ size: 1 }} }} }}"
    payloads = [encode_example({HOSTILE: name.encode()}) for _ in range(3)]
    folder = make_dataset(
        tmp_path / f"{name.replace('/', '')[:40]}",
        {"train-<b>.tfrecord": make_shard([payloads])},
        {"train-<b>.tfrecord": 3},
        schema,
        label_counts={HOSTILE: 2, f"{HOSTILE} 2": 1},
        labels=[HOSTILE],
        features=[{"name": HOSTILE, "type": "bytes", "source": HOSTILE}],
        warnings=[HOSTILE],
        config={HOSTILE: HOSTILE, "list": [HOSTILE]},
        inputs={
            "root": HOSTILE,
            "matched": 4,
            "accepted": 3,
            "rejected": 1,
            "skipped": 0,
            "duplicates": 0,
            "rejected_by_reason": {HOSTILE: 1},
        },
    )
    body = json.loads((folder / "manifest.json").read_text())
    body["build"] |= {
        "command": ["shardmill", HOSTILE],
        "versions": {HOSTILE: HOSTILE},
        "runner": HOSTILE,
        "finished": HOSTILE,
    }
    statistics = {"features": {HOSTILE: {"count": 3, "missing": 0}}}
    body["splits"][f"split {HOSTILE}"] = {
        **body["splits"]["train"],
        "num_examples": 0,
        "shards": [],
        "statistics": statistics,
    }
    body["splits"]["train"]["statistics"] = statistics
    (folder / "manifest.json").write_text(json.dumps(body))
    reject = {
        "key": HOSTILE,
        "uri": "u",
        "stage": "read",
        "error": HOSTILE,
        "message": HOSTILE,
        "column": HOSTILE,
    }
    (folder / "rejects.jsonl").write_text(json.dumps(reject) + "\n")
    page = report(folder, tmp_path)
    assert page.find("script") == []
    assert "<script" not in page.text
    assert "\u202e" not in page.text
    assert page.text.count("{{7*7}}") >= 15
    assert page.text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 15
    assert page.text.count("\\u202egnp.exe") >= 15
    assert page.find("img") == []


def test_labels_of_hostile_folders(tmp_path) -> None:
    labels = ["<script>alert(1)", '" onmouseover="alert(1)', "{% raw %}", "a&amp;b", "\u202egnp"]
    photos = make_photos(tmp_path / "photos", dict.fromkeys(labels, 2), size=(9, 9))
    build_dataset(input=photos, output=tmp_path / "ds", image_size=9)
    page = report(tmp_path / "ds", tmp_path)
    shown = {row[0] for row in page.table("Label")}
    assert shown == {label.replace("\u202e", "\\u202e") for label in labels}
    assert {
        image["alt"].partition(" image/encoded, record")[0] for image in page.find("img")
    } == shown


# The file.


def test_does_not_write_into_a_dataset(images, tmp_path, monkeypatch) -> None:
    shutil.copytree(images("jpeg"), tmp_path / "ds", symlinks=True)
    (tmp_path / "link").symlink_to("ds")
    before = sorted(tmp_path.rglob("*"))
    for dataset in ("ds", "ds/current", "ds/manifest.json", "link", "ds/."):
        for output in ("ds/x.html", "ds/current/x.html", "link/deep/x.html"):
            with pytest.raises(UsageError, match="would be inside the dataset"):
                write_report(tmp_path / dataset, tmp_path / output)
    monkeypatch.chdir(tmp_path / "ds")
    with pytest.raises(UsageError, match="would be inside the dataset"):
        write_report(".")
    with pytest.raises(OutputError, match="exists and is not a report"):
        write_report(".", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_replaces_reports_only(images, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_report(images("jpeg")) == "jpeg-report.html"
    assert write_report(images("jpeg") / "current") == "jpeg-report.html"
    assert write_report(str(images("jpeg")) + "/", "new/folder/x.html") == "new/folder/x.html"
    Path("jpeg-report.html").write_text("<!doctype html><p>mine")
    with pytest.raises(OutputError, match="exists and is not a report: delete it"):
        write_report(images("jpeg"))
    assert Path("jpeg-report.html").read_text() == "<!doctype html><p>mine"


def test_samples_large_datasets(tmp_path, monkeypatch) -> None:
    from shardmill.pipelines.report import sample

    monkeypatch.setattr(sample, "_MAX_RECORDS", 100)
    monkeypatch.setattr(sample, "MAX_FILES", 4)
    ds = write_numbered(tmp_path / "ds", [50] * 10, 10)
    page = report(ds, tmp_path)
    assert "of 100 of the 500 records, from 4 shards" in re.sub(r"\s+", " ", page.text).lower()
    ((name, counts),) = [pair for pair in bars(page) if pair[0] == "id"]
    assert (name, sum(counts)) == ("id", 100)


# Notebooks.


def test_head_and_the_table_of_a_notebook(images, table) -> None:
    records = open_dataset(images("jpeg"))
    assert [row["image/key"] for row in records.head(3)] == [
        records[n]["image/key"] for n in range(3)
    ]
    assert len(records.head()) == 5
    assert len(records[:2].head()) == 2
    page = Page(records._repr_html_())
    ((header, *rows),) = page.tables
    assert header == ["#", *records[0]]
    assert len(rows) == 8
    assert len(page.find("img")) == 8
    assert all(image["src"].startswith("data:") and image["alt"] for image in page.find("img"))
    number = header.index("image/key")
    assert [row[number] for row in rows] == [records[n]["image/key"].decode() for n in range(8)]
    pairs = open_dataset(images("jpeg"), as_supervised=True)
    assert len(Page(pairs._repr_html_()).find("img")) == 8
    rows = open_dataset(table, fill={"count": -1})
    assert rows[0]["name"].decode() in rows._repr_html_()
    mapped = open_dataset(images("jpeg"), transform=lambda row: int(row["label"]))
    assert Page(mapped._repr_html_()).tables[0][1][1] == str(mapped[0])


def test_a_damaged_dataset_in_a_notebook(images, tmp_path) -> None:
    shutil.copytree(images("raw"), tmp_path / "ds", symlinks=True)
    records = open_dataset(tmp_path / "ds")
    for path in (tmp_path / "ds" / "current").resolve().glob("train-*"):
        _flip(path)
    html = records._repr_html_()
    assert "run `shardmill verify" in html
    assert Page(html).tables == []


def test_texts_of_examples_are_escaped() -> None:
    html = render_examples(
        HOSTILE, [{HOSTILE: HOSTILE, "b": HOSTILE.encode(), "c": np.array([HOSTILE])}]
    )
    page = Page(html)
    assert {tag for tag, _ in page.tags} == {
        "div",
        "p",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert "\u202e" not in html
    assert "\x00" not in html


def test_the_summary_of_a_manifest(images) -> None:
    html = render_summary(load_manifest(images("jpeg")), "some/ds")
    page = Page(html)
    assert "<strong>some/ds</strong>: 90 examples, 3 shards" in html.replace("6 shards", "3 shards")
    assert [row[0] for row in page.tables[0]] == ["Split", "train", "validation"]
    assert page.tables[0][1][1] == str(len(open_dataset(images("jpeg"), "train")))


def test_many_labels_with_separate_shards(tmp_path) -> None:
    """Few of the shards are read, and there are pictures of all labels that they have."""
    photos = make_photos(tmp_path / "photos", {f"{n:02d}": 2 for n in range(50)}, size=(9, 9))
    build_dataset(
        input=photos, output=tmp_path / "ds", image_size=9, shard_by="label", splits="train:1"
    )
    page = report(tmp_path / "ds", tmp_path)
    assert len({image["alt"].partition(",")[0] for image in page.find("img")}) == 32
    assert "of 64 of the 100 records, from 32 shards" in re.sub(r"\s+", " ", page.text).lower()


# Findings.


def images_with_faults(folder: Path) -> Path:
    """Build a dataset with small, flat, copied, rejected and few images."""
    photos = make_photos(folder / "photos", {"cat": 40, "dog": 3}, size=(40, 30))
    for number in range(9):
        Image.new("RGB", (40, 30), (number * 25, 9, 9)).save(photos / f"cat/flat{number}.png")
        make_image(number, 8, 8).save(photos / f"cat/small{number}.png")
        (photos / f"cat/bad{number}.jpg").write_bytes(b"\xff\xd8\xff broken")
        shutil.copy(photos / "cat/000.jpg", photos / f"cat/copy{number}.jpg")
    shutil.copy(photos / "cat/000.jpg", photos / "dog/copy.jpg")
    build_dataset(
        input=photos,
        output=folder / "ds",
        image_size=16,
        max_reject_fraction=0.5,
        splits="train:0.5,validation:0.5",
    )
    return folder / "ds"


def test_findings_of_images_have_the_numbers_of_the_files(tmp_path) -> None:
    """Pillow and the manifest's JSON judge; the worst is first, on the page and in ``check``."""
    ds = images_with_faults(tmp_path)
    notes: list[str] = []
    manifest = load_manifest(ds)
    samples = sample_records(str(current(ds)), manifest, notes)[1]
    found = {each.name: each for each in find_problems(manifest, samples)}
    written = pd.concat(map(pd.read_parquet, (current(ds) / "catalog").iterdir()))
    pixels = [np.asarray(Image.open(path).convert("RGB")) for path in written.source]
    flat = sum(each.std(axis=(0, 1)).max() < 2 for each in pixels)
    small = sum(each.shape[0] * each.shape[1] < 16 * 16 for each in pixels)
    assert (flat, small, notes) == (9, 9, [])
    assert [*found] == [
        "copies_across_splits",
        "copies_with_other_labels",
        "few_in_split",
        "few_in_train",
        "rejected",
        "constant_images",
        "enlarged",
        "imbalance",
    ]
    assert (
        f"9 of the {len(pixels)} images that were examined were enlarged, from as little as 8x8"
        in found["enlarged"].line
    )
    assert found["constant_images"].value == flat / len(pixels)
    assert found["rejected"].value == 9 / (len(pixels) + 9)
    validation = written_labels(ds, "validation")
    assert f"dog {validation['dog']}" in found["few_in_split"].line
    page = report(ds, tmp_path)
    notebook = BuildResult("published", str(ds))._repr_html_()
    assert re.findall(r"<code>(\w+)</code>", notebook) == [*found]
    lines = re.search(r'<ol class="findings">(.*?)</ol>', page.text, re.DOTALL)[1]
    assert re.findall(r"<code>(\w+)</code>", lines) == [*found]
    shown = {
        name: [re.findall(r"<code>([^<]+\.\w+)</code>", pair) for pair in item.split('"pair"')[1:]]
        for name, item in zip(found, lines.split("<li>")[1:], strict=True)
    }
    rows = written.set_index("key")
    places = {
        row.key: file.name.partition("-")[0]
        for file in (current(ds) / "catalog").iterdir()
        for row in pd.read_parquet(file).itertuples()
    }
    read = {key: Path(rows.source[key]).read_bytes() for key in rows.index}
    for name, differs in (
        ("copies_across_splits", places),
        ("copies_with_other_labels", rows.label),
    ):
        ((one, other),) = shown.pop(name)
        assert read[one] == read[other]
        assert differs[one] != differs[other]
    for name, prefix in (("constant_images", "cat/flat"), ("enlarged", "cat/small")):
        keys = [key for (key,) in shown.pop(name)]
        assert len({*keys}) == 8
        assert all(key.startswith(prefix) for key in keys)
    assert not any(shown.values())


def written_labels(ds: Path, split: str) -> Counter:
    files = (current(ds) / "catalog").glob(f"{split}-*")
    return Counter(label for path in files for label in pd.read_parquet(path).label)


def test_findings_of_columns_are_those_of_the_table(tmp_path) -> None:
    generator = np.random.default_rng(3)
    size = 400
    label = generator.choice(["low", "high"], size)
    table = pd.DataFrame(
        {
            "key": [f"r{n}" for n in range(size)],
            "label": label,
            "again": [f"r{n}" for n in range(size)],
            "leak": np.where(label == "low", "a", "b"),
            "constant": "x",
            "empty": np.nan,
            "nearly": [*map(str, range(size - 9)), *["?!"] * 9],
            "good": generator.normal(size=size),
            "shifted": generator.normal(size=size),
            "split": ["train"] * 300 + ["validation"] * 100,
        }
    )
    table.loc[300:, "shifted"] += 1
    table.loc[300:, "label"] = table.label[300:].where(np.arange(100) < 30, "high")
    table["leak"] = np.where(table.label == "low", "a", "b")
    table.to_csv(tmp_path / "t.csv", index=False)
    build_dataset(
        "rows",
        input=tmp_path / "t.csv",
        output=tmp_path / "ds",
        label="label",
        key="key",
        split_by="split",
        types="empty:float32,nearly:bytes",
    )
    manifest = load_manifest(tmp_path / "ds")
    samples = sample_records(str(current(tmp_path / "ds")), manifest, [])[1]
    found = {each.name: each for each in find_problems(manifest, samples)}
    train, other = table[:300], table[300:]
    shift = abs(train.shifted.mean() - other.shifted.mean()) / train.shifted.std(ddof=0)
    shares = [part.label.value_counts(normalize=True) for part in (train, other)]
    distance = (shares[0] - shares[1].reindex(shares[0].index, fill_value=0)).abs().sum() / 2
    assert {name: each.value for name, each in found.items()} == {
        "equals_label": 1,
        "skew": pytest.approx(shift, rel=1e-5),
        "label_skew": pytest.approx(distance),
        "empty_columns": 1,
        "constant_columns": 1,
        "equals_key": 1,
        "numeric_text": 1,
    }
    named = {
        name: found[name].line.rpartition(": ")[2] for name in found if "column" in found[name].line
    }
    assert named == {
        "equals_label": "leak",
        "empty_columns": "empty",
        "constant_columns": "constant",
        "equals_key": "again",
        "numeric_text": "nearly",
    }


def test_check_fails_on_findings_above_given_limits(tmp_path, capsys) -> None:
    ds, limits = images_with_faults(tmp_path), tmp_path / "limits.toml"
    code, out, err = run_here(capsys, "check", ds)
    assert (code, err) == (0, "")
    assert "  warn   enlarged: 9 of the " in out
    for text, wanted in (("enlarged = 1.0", 0), ("enlarged = 0.05", 1), ("imbalance = 1", 1)):
        limits.write_text(text)
        code, out, err = run_here(capsys, "check", ds, f"--limits={limits}", "--json")
        name = text.partition(" ")[0]
        body = json.loads(out)
        assert (code, body["status"]) == (wanted, "failed" if wanted else "ok")
        assert [each["name"] for each in body["findings"] if each["fails"]] == [name] * wanted
        assert (f": {name}: " in err) == bool(wanted)
    for text in ("enlarged = true", "enlarged = 'x'", "big = 1", "enlarged ="):
        limits.write_text(text)
        assert f"--limits={limits}" in sentence_here(capsys, "check", ds, f"--limits={limits}")
    assert "does not exist" in sentence_here(capsys, "check", ds, f"--limits={limits}x")
    for catalog in (current(ds) / "catalog").iterdir():
        catalog.write_bytes(b"PAR1")
    limits.write_text("enlarged = 1.0")
    assert "the sample is not complete" in sentence_here(
        capsys, "check", ds, f"--limits={limits}", "--quiet", code=1
    )
