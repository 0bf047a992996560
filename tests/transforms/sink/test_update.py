"""--update takes unchanged records from the published shards; the result equals a new build."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from shardmill.pipelines.cli import main
from shardmill.schemas import InputRef
from shardmill.schemas.dataset.shard_names import catalog_name
from shardmill.schemas.schema_pbtxt.image_features import IMAGE_FEATURES, Feature
from shardmill.transforms.images import decoder_pool, encoder
from shardmill.transforms.match.walk import _LocalWalk, make_key
from shardmill.transforms.sink.compare import compare_key, hash_candidates
from shardmill.transforms.sink.reuse import PublishedRow, path_of
from shardmill.transforms.verify.verify import find_dataset, verify_dataset
from tests.conftest import (
    ROOT,
    SOAK,
    build_dataset,
    examples,
    make_image,
    make_photos,
    shardmill,
)
from tests.support.fault_tools import PROGRESS, check_published, flip
from tests.support.readers import dataset_files
from tests.support.rows_tools import make_table

pytest_plugins = ["tests.support.loop_disk"]

OPTIONS = {
    "image_size": "8",
    "splits": "train:0.6,validation:0.4",
    "shard_examples": 6,
    "max_reject_fraction": 0.5,
}
CLASSES = {"bee": 7, "cat": 6, "dog": 6}
SCHEMA = json.loads((ROOT / "schemas" / "dataset" / "manifest.schema.json").read_text())


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """Three classes, one of them with a file that is rejected, and their dataset."""
    folder = tmp_path_factory.mktemp("update")
    photos = make_photos(folder / "photos", CLASSES, size=(24, 16))
    (photos / "cat" / "text.jpg").write_text("not an image")
    build_dataset(input=photos, output=folder / "out", **OPTIONS)
    return folder


@pytest.fixture
def work(pristine, tmp_path) -> Path:
    """A copy of the photos and their dataset, to change."""
    shutil.copytree(pristine, tmp_path / "work", symlinks=True)
    return tmp_path / "work"


def files_of(output: Path) -> tuple[dict[str, bytes], dict, dict[str, pd.DataFrame]]:
    """Return everything reproducible: files, manifest without times, and catalogs by rows."""
    files = dataset_files(output)
    manifest = json.loads((output / "current" / "manifest.json").read_text())
    if manifest["compression"] == "gzip":
        check_published(output)
    jsonschema.validate(manifest, SCHEMA)
    del manifest["build"]["finished"], manifest["build"]["command"]
    catalogs = {}
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            if shard.pop("catalog", None):
                path = output / "current" / catalog_name(shard["file"])
                catalogs[shard["file"]] = pd.read_parquet(path)
    return files, manifest, catalogs


def update(work: Path, **options) -> int:
    """Update the dataset, compare it with a new build, and return the number of records reused."""
    options = {**OPTIONS, **options}
    options = {name: value for name, value in options.items() if value is not None}
    outcome, manifest = build_dataset(
        input=work / "photos", output=work / "out", update=True, **options
    )
    if outcome.status == "up_to_date":
        return manifest.written
    shutil.rmtree(work / "scratch", ignore_errors=True)
    build_dataset(input=work / "photos", output=work / "scratch", **options)
    ours, theirs = files_of(work / "out"), files_of(work / "scratch")
    assert ours[:2] == theirs[:2]
    assert ours[2].keys() == theirs[2].keys()
    for name, rows in ours[2].items():
        pd.testing.assert_frame_equal(rows, theirs[2][name])
    assert outcome.status == "published", outcome.message
    return outcome.reused


def add(photos: Path, name: str, seed: int = 900) -> None:
    (photos / name).parent.mkdir(exist_ok=True)
    make_image(seed, 24, 16).save(photos / name)


def edit_files(photos: Path) -> None:
    """Add, change and rename a file, and repair a reject."""
    add(photos, "bee/new.jpg")
    add(photos, "bee/001.jpg")
    (photos / "bee" / "000.jpg").rename(photos / "bee" / "other.jpg")
    shutil.copy(photos / "bee" / "002.jpg", photos / "cat" / "text.jpg")


def edit_labels(photos: Path) -> None:
    """Add a label before the others, and remove one."""
    add(photos, "ant/0.jpg")
    shutil.rmtree(photos / "bee")


EDITS: dict[str, tuple[Callable[[Path], object], dict, int]] = {
    "files": (edit_files, {}, 18),
    "labels": (edit_labels, {}, 12),
    "a shard per label": (lambda _: None, {"shard_by": "label"}, 19),
    "the size of images": (lambda _: None, {"image_size": "9"}, 0),
    "the features": (lambda _: None, {"features": "image/encoded,image/class/label"}, 0),
}


# `test_any_sequence_of_edits_equals_a_new_build` makes others.
@pytest.mark.sweep
@pytest.mark.parametrize("edit", EDITS)
def test_only_new_and_changed_inputs_are_decoded(work, edit):
    change, options, expected = EDITS[edit]
    change(work / "photos")
    assert update(work, **options) == expected


STEPS = (
    st.tuples(
        st.sampled_from(["add", "remove", "touch", "rename", "relabel", "change"]),
        st.integers(0, 2**16),
    ),
    st.tuples(
        st.sampled_from(["seed", "splits", "shards", "by_label", "encoding"]), st.integers(0, 2)
    ),
)
CHOICES = {
    "seed": [{"seed": seed} for seed in range(3)],
    "splits": [{"splits": f"train:0.{n},validation:0.{10 - n}"} for n in (4, 6, 9)],
    "shards": [
        {"num_shards": None, "shard_bytes": None, "shard_examples": None, **choice}
        for choice in ({"shard_examples": 6}, {"num_shards": 2}, {"shard_bytes": "2KiB"})
    ],
    "by_label": [{"shard_by": "label"}, {}, {}],
    "encoding": [{"encoding": "keep", "resize": "none"}, {"encoding": "raw"}, {}],
}


def apply_edit(photos: Path, kind: str, number: int) -> None:
    files = sorted(photos.glob("*/*.jpg"))
    path = files[number % len(files)]
    label = ("ant", "bee", "cat", "dog")[number % 4]
    if kind == "add":
        add(photos, f"{label}/{number}.jpg", number)
    elif kind == "change":
        add(photos, str(path.relative_to(photos)), number)
    elif kind == "touch":
        os.utime(path, ns=(number, number))
    elif kind == "rename":
        path.rename(path.with_name(f"r{number}.jpg"))
    elif kind == "relabel":
        (photos / label).mkdir(exist_ok=True)
        path.rename(photos / label / f"l{number}.jpg")
    elif len(files) > 12:
        path.unlink()


@pytest.mark.nightly
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(st.lists(st.one_of(*STEPS), min_size=1, max_size=4), max_size=3))
def test_any_sequence_of_edits_equals_a_new_build(pristine, tmp_path, sequence):
    work = tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(pristine, work, symlinks=True)
    options: dict[str, object] = {}
    for steps in sequence:
        for kind, number in steps:
            if kind in CHOICES:
                options |= CHOICES[kind][number]
            else:
                apply_edit(work / "photos", kind, number)
        update(work, **options)


DAMAGE: dict[str, tuple[str, Callable[[Path], object], range]] = {
    "a record": ("train-00000*.tfrecord*", flip, range(10, 15)),
    "a catalog": ("catalog/train-00000*", flip, range(10, 15)),
    "a shard is gone": ("train-00000*.tfrecord*", Path.unlink, range(10, 15)),
    "a catalog is gone": ("catalog/train-00000*", Path.unlink, range(10, 15)),
    "a shard was cut": (
        "train-00000*.tfrecord*",
        lambda path: path.write_bytes(path.read_bytes()[:700]),
        range(10, 15),
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("what", "encoding"),
    [
        pytest.param(
            what, encoding, marks=[pytest.mark.heavy] * (what not in {"a record", "a catalog"})
        )
        for what, encoding in (*((what, "jpeg") for what in DAMAGE), ("a record", "raw"))
    ],
)
def test_inputs_of_damaged_records_are_decoded(work, what, encoding):
    pattern, spoil, reused = DAMAGE[what]
    if encoding != OPTIONS.get("encoding", "jpeg"):
        update(work, encoding=encoding)
    (path,) = (work / "out" / "current").glob(pattern)
    spoil(path)
    assert update(work, encoding=encoding, seed=3) in reused


# Which file a record was made of.

NFC, NFD = "bee/caf\u00e9.bmp", "bee/cafe\u0301.bmp"


def reference(name: str, size: int, version: str, label: str) -> InputRef:
    return InputRef(make_key(name), f"/in/{name}", size, version, label)


FILES = st.fixed_dictionaries(
    {},
    optional={
        name: st.tuples(st.integers(0, 1), st.sampled_from("ab"), st.sampled_from("xy"))
        for name in (NFC, NFD)
    },
)


@given(FILES, FILES, st.sampled_from(["/in", "/old"]), st.booleans())
def test_a_row_counts_for_one_exact_path_size_and_version(before, after, root, is_last):
    """Judged by a dictionary of exact paths; each file that differs is a change."""
    rows = [PublishedRow()] * max(0, len(before) - 1)
    winner = min(before, default="")
    if winner:
        path = path_of(f"{root}/{winner}", make_key(winner), root)
        rows.insert(len(rows) * is_last, PublishedRow(*before[winner], path, 0, b"record"))
    refs = [tuple(reference(name, *values)) for name, values in after.items()]
    found = list(compare_key(make_key(NFC), refs, map(tuple, rows), "/in"))
    refs = [each for each in found if isinstance(each, InputRef)]
    same = [name for name in after if name == winner and after[name][:2] == before[name][:2]]
    assert [ref.uri for ref in refs] == [f"/in/{name}" for name in same]
    assert all(ref.published == b"record" for ref in refs)
    tags = [each.tag for each in found if not isinstance(each, InputRef)]
    assert tags.count("new") == len(after) - len(same)
    assert tags.count("gone") == (bool(winner) and not same)
    kinds = [
        each.value[0] for each in found if not isinstance(each, InputRef) and each.tag == "changes"
    ]
    assert kinds.count("removed") == max(0, len(before) - len(after))
    assert not kinds or before != after


@pytest.mark.heavy
def test_shards_that_were_swapped_are_not_taken(work):
    """Each record is whole and the sizes are equal: only the checksum of the shard differs."""
    options = {
        "encoding": "raw",
        "compression": "none",
        "num_shards": 6,
        "shard_examples": None,
        "splits": "train:1",
        "features": "image/encoded,image/class/label",
    }
    update(work, **options)
    sizes: dict[int, list[Path]] = {}
    for path in sorted((work / "out" / "current").glob("train-*")):
        sizes.setdefault(path.stat().st_size, []).append(path)
    first, second = next(paths for paths in sizes.values() if len(paths) > 1)[:2]
    first.rename(work / "swapped")
    second.rename(first)
    (work / "swapped").rename(second)
    assert 10 < update(work, **options, seed=3) < 16
    assert not verify_dataset(find_dataset(str(work / "out")))


# Inputs that have the size and the modification time of others.


def write_bmp(photos: Path, name: str, seed: int) -> Path:
    make_image(seed, 24, 16).save(photos / name)
    os.utime(photos / name, ns=(1, 1))
    return photos / name


def exchange(photos: Path) -> None:
    (photos / "bee/x.bmp").rename(photos / "z")
    (photos / "bee/y.bmp").rename(photos / "bee/x.bmp")
    (photos / "z").rename(photos / "bee/y.bmp")


def link_again(photos: Path) -> None:
    for path in [*photos.rglob("*.*")]:
        os.link(path, photos / "z")
        path.unlink()
        (photos / "z").rename(path)


def restore(photos: Path) -> None:
    shutil.copytree(photos, photos.with_name("backup"))
    shutil.rmtree(photos)
    photos.with_name("backup").rename(photos)


CHANGED: dict[str, tuple[Callable[[Path], object], int]] = {
    "exchanged": (exchange, 2),
    "rewritten and restored": (lambda p: (write_bmp(p, "bee/x.bmp", 7), restore(p)), 1),
    "rewritten": (lambda p: write_bmp(p, "bee/x.bmp", 7), 1),
    "replaced": (lambda p: write_bmp(p, "z.bmp", 7).replace(p / "bee/x.bmp"), 1),
}
UNCHANGED: list[Callable[[Path], object]] = [
    lambda p: write_bmp(p, "bee/x.bmp", 5),
    lambda p: [path.chmod(0o600) for path in p.rglob("*.*")],
    link_again,
    restore,
]


def write_two(work: Path) -> dict:
    """Publish with two more files; return the options of the build."""
    for name, seed in (("x", 5), ("y", 6)):
        write_bmp(work / "photos", f"bee/{name}.bmp", seed)
    update(work)
    return {"input": work / "photos", "output": work / "out", **OPTIONS}


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(each, marks=pytest.mark.heavy) if number else each
        for number, each in enumerate(CHANGED if SOAK else [*CHANGED][:2])
    ],
)
def test_an_input_of_which_the_ctime_alone_differs_is_read(work, edit):
    options, (change, changed) = write_two(work), CHANGED[edit]
    change(work / "photos")
    for dry_run in (True, False):
        outcome, _ = build_dataset(**options, dry_run=dry_run)
        assert outcome.status == "failed"
        assert f"({changed} changed): run again with --update" in outcome.message
    assert build_dataset(**options, update=True, dry_run=True)[0].status == "dry_run"
    assert update(work) == 21 - changed
    assert build_dataset(**options)[0].status == "up_to_date"


@pytest.mark.nightly
def test_inputs_whose_content_is_as_before_are_up_to_date(work):
    options = write_two(work)
    for number, change in enumerate(UNCHANGED):
        change(work / "photos")
        assert build_dataset(**options, update=number % 2 > 0)[0].status == "up_to_date"
    exchange(work / "photos")
    assert update(work, seed=9) == 19


@pytest.mark.heavy
def test_an_update_of_the_content_reads_all_inputs(work, monkeypatch):
    """Size and modification time are equal, and the file system keeps no ctime."""
    found, photos = _LocalWalk._ref, work / "photos"
    monkeypatch.setattr(_LocalWalk, "_ref", lambda *args: found(*args)._replace(ctime=1))
    options = {"input": photos, "output": work / "out", **OPTIONS}
    write_bmp(photos, "bee/x.bmp", 5)
    update(work)
    assert build_dataset(**options, update="content")[0].status == "up_to_date"
    write_bmp(photos, "bee/x.bmp", 7)
    assert build_dataset(**options, update=True)[0].status == "up_to_date"
    outcome, _ = build_dataset(**options, update="content")
    assert (outcome.status, outcome.reused) == ("published", 19)
    assert outcome.changes == ("1 changed: bee/x.bmp",)
    build_dataset(**{**options, "output": work / "again"})
    assert files_of(work / "out")[0] == files_of(work / "again")[0]
    assert build_dataset(**options, update="content")[0].status == "up_to_date"


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize(
    "update", [True, *(pytest.param(each, marks=pytest.mark.heavy) for each in (False, "content"))]
)
def test_a_resumed_part_is_of_what_its_inputs_hold(work, monkeypatch, update):
    """An input was changed, under an equal size and time, after its part was written."""
    photos, options = work / "photos", {**OPTIONS, "max_reject_fraction": 0}
    if update == "content":  # on a file system that keeps no ctime
        found = _LocalWalk._ref
        monkeypatch.setattr(_LocalWalk, "_ref", lambda *args: found(*args)._replace(ctime=1))
    write_bmp(photos, "bee/x.bmp", 5)
    (photos / "cat" / "other.jpg").write_text("not an image")
    shutil.rmtree(work / "out")
    options |= {"input": photos, "output": work / "out"}
    made = build_dataset(**options)[0]
    assert made.status == "failed"
    restore(photos)
    again = build_dataset(**options)[0]
    assert (again.parts_made, again.parts_reused) == (0, made.parts_made)
    write_bmp(photos, "bee/x.bmp", 7)
    options["max_reject_fraction"] = 0.5
    resumed, _ = build_dataset(**options, update=update)
    assert (resumed.status, resumed.parts_made) == ("published", 1)
    build_dataset(**{**options, "output": work / "again"})
    assert files_of(work / "out")[0] == files_of(work / "again")[0]
    assert build_dataset(**options)[0].status == "up_to_date"


# Inputs that were moved.


def test_a_resumed_build_of_moved_inputs_names_their_new_paths(work):
    """In catalogs and rejects of finished parts, too; sidecars do not depend on the path."""
    photos = work / "photos"
    (photos / "cat" / "bad\udcff%.jpg").write_bytes(b"no")
    shutil.rmtree(work / "out")
    options = {"output": work / "out", **OPTIONS}
    failed, _ = build_dataset(**{**options, "max_reject_fraction": 0}, input=photos)
    assert failed.status == "failed"
    sidecars = [*(work / "out").glob(".build-*/parts/*.json")]
    assert sidecars
    assert not any(str(photos) in path.read_text() for path in sidecars)
    moved = photos.rename(work / "mo%ved")
    assert build_dataset(**options, input=moved)[0].parts_reused
    build_dataset(**{**options, "output": work / "scratch"}, input=moved)
    assert dataset_files(work / "out") == dataset_files(work / "scratch")
    for path in (work / "out" / "current" / "catalog").glob("*"):
        assert {Path(name).parents[1] for name in pd.read_parquet(path)["source"]} == {moved}


@pytest.mark.heavy
def test_an_update_of_moved_inputs_publishes_their_new_paths(work):
    photos = (work / "photos").rename(work / "moved")
    options = {"input": photos, "output": work / "out", **OPTIONS}
    assert build_dataset(**options)[0].status == "up_to_date"
    outcome, manifest = build_dataset(**options, update=True)
    assert (outcome.status, outcome.reused, outcome.changes) == ("published", 19, ())
    assert manifest.inputs.root == str(photos)
    sources = {source for table in files_of(work / "out")[2].values() for source in table["source"]}
    assert sources == {str(path) for path in photos.glob("*/0*.jpg")}
    assert build_dataset(**options, update=True)[0].status == "up_to_date"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("options", "decoded", "same"),
    [
        ({"seed": 3}, 0, "same"),
        ({"labels": "a"}, 0, "same"),
        ({"features": "image/encoded,image/class/label"}, 6, "same but for --features"),
        ({"max_pixels": 1_000_000}, 6, "same"),
        ({"quality": 9}, 6, ""),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_the_summary_says_what_was_decoded(options, decoded, same, tmp_path, capsys):
    """Records that are made again are not called the same without a word."""
    photos, output = make_photos(tmp_path / "in", {"cat": 3, "dog": 3}), tmp_path / "ds"
    if "labels" in options:
        (tmp_path / "labels.txt").write_text("cat\ndog\nemu\n")
        options = {"labels": tmp_path / "labels.txt"}
    plain = [f"--input={photos}", f"--output={output}", "--image_size=8", "--splits=train:1"]
    assert main(["images", *plain]) == 0
    given = [f"--{name}={value}" for name, value in options.items()]
    capsys.readouterr()
    assert main(["images", *plain, *given, "--update"]) == 0
    printed = capsys.readouterr().out
    assert f"{6 - decoded} records of unchanged inputs" in printed
    assert ("inputs, 6 decoded" in printed) == (decoded == 6)
    assert (f" 6 {same}," in printed) == bool(same)


def test_a_feature_is_one_entry(work, monkeypatch):
    """Schema, manifest, records and the catalog have it, also of records that are taken."""
    from shardmill.loaders import open_dataset

    entry = Feature("image/orientation", "int64", "orientation", column="turn")
    monkeypatch.setitem(IMAGE_FEATURES, entry.name, entry)
    exif = Image.Exif()
    exif[274] = 6
    make_image(7, 30, 20).save(work / "photos/bee/rotated.jpg", exif=exif)
    features = "turned=image/orientation,image/key"
    build = {**OPTIONS, "input": work / "photos", "output": work / "new"}
    build_dataset(**build, features=features)
    outcome, _ = build_dataset(**{**build, "seed": 5}, features=features, update=True)
    assert outcome.reused == 20
    manifest = json.loads((work / "new/manifest.json").read_text())
    wanted = {"name": "turned", "type": "int64", "source": "image/orientation"}
    assert wanted in manifest["features"]
    assert 'name: "turned"' in (work / "new/current/schema.pbtxt").read_text()
    records = [*open_dataset(work / "new", "train"), *open_dataset(work / "new", "validation")]
    found = {record["image/key"].decode(): record["turned"] for record in records}
    assert found == {key: 6 if key == "bee/rotated.jpg" else 1 for key in found}
    table = pd.read_parquet(work / "new/current/catalog")
    assert dict(zip(table.key, table.turn, strict=True)) == found
    assert table.image_hash.isna().all()  # these records have no image


def test_catalog_describes_each_record(work):
    """Judged by pandas, the BLAKE3 library, Pillow and the records themselves."""
    from shardmill.loaders import open_dataset

    photos, output = work / "photos", work / "out"
    image = make_image(7, 30, 20)
    exif = Image.Exif()
    exif[274] = 6  # rotated by 90 degrees
    image.save(photos / "bee" / "rotated.jpg", exif=exif)
    update(work)
    for name in ("train", "validation"):
        files = sorted((output / "current" / "catalog").glob(f"{name}-*"))
        table = pd.concat(map(pd.read_parquet, files), ignore_index=True)
        records = open_dataset(output, name, decode=False)
        assert len(table) == len(records)
        for row, record in zip(table.itertuples(), records, strict=True):
            data = (photos / row.key).read_bytes()
            assert record["image/key"].decode() == row.key
            assert row.source == str(photos / row.key)
            assert row.content_hash == blake3(data).hexdigest()
            assert row.image_hash == blake3(record["image/encoded"]).hexdigest()
            assert (row.input_bytes, row.label) == (len(data), row.key.split("/")[0])
            rotated = row.key == "bee/rotated.jpg"
            assert (row.width, row.height) == ((20, 30) if rotated else (24, 16))


@pytest.mark.heavy
def test_kept_files_are_counted_and_stay_kept(work):
    photos, options = work / "photos", {"encoding": "keep", "image_size": "16x24"}
    exif = Image.Exif()
    exif.get_ifd(0x8825)[2] = (47.0, 22.0, 0.0)
    make_image(1, 24, 16).save(photos / "bee" / "located.jpg", exif=exif)
    make_image(2, 24, 16, "L").save(photos / "bee" / "grey.png")
    make_image(3, 24, 16, "P").save(photos / "cat" / "palette.png")
    make_image(4, 12, 16).save(photos / "dog" / "narrow.jpg")
    assert update(work, **options) == 0
    add(photos, "bee/new.jpg")
    assert update(work, **options) == 23
    manifest = json.loads((work / "out" / "manifest.json").read_text())
    assert manifest["inputs"]["counts"] == {"kept": 22, "kept_with_position": 1, "converted": 2}
    assert manifest["warnings"] == [
        "kept files with a GPS position, which --strip_metadata removes: 1"
    ]
    catalog = pd.read_parquet(work / "out" / "current" / "catalog").set_index("key")
    assert {*catalog.index[catalog.converted == 1]} == {"cat/palette.png", "dog/narrow.jpg"}
    assert update(work, **options, strip_metadata=True) == 0  # other records


@pytest.mark.heavy
def test_counts_of_files_that_are_no_inputs_are_current(work):
    """Also after "up to date", when the manifest has those of the build."""
    photos, options = work / "photos", {"input": work / "photos", "output": work / "out", **OPTIONS}
    assert build_dataset(**options)[0].skipped == 0
    (photos / "README.md").write_text("not an image")
    (photos / "bee" / "again.jpg").symlink_to(photos / "bee" / "000.jpg")
    for options["seed"] in (0, 7):
        outcome, manifest = build_dataset(**options, update=True)
        assert (outcome.matched, outcome.skipped, outcome.duplicates) == (22, 1, 1)
        assert (manifest.inputs.skipped, manifest.inputs.duplicates) == ((0, 0), (1, 1))[
            outcome.status == "published"
        ]


KINDS = {
    "images": lambda folder: make_photos(folder / "images", {"bee": 3}, size=(24, 16)),
    "rows": lambda folder: make_table(folder / "rows.csv", ["a", "b"], [[1, 2], [3, 4]]),
    "arrays": lambda folder: save_array(folder / "arrays.npy"),
}


def save_array(path: Path) -> Path:
    np.save(path, np.arange(12).reshape(4, 3))
    return path


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind", ["images", "rows", pytest.param("arrays", marks=pytest.mark.heavy)]
)
def test_a_dataset_on_a_read_only_disk_is_up_to_date(disk, tmp_path, kind):
    """Permissions do not restrict root, a file system that is mounted read-only does."""
    with disk.mounted():
        command = [kind, f"--input={KINDS[kind](disk.folder)}", f"--output={disk.folder / 'ds'}"]
        assert shardmill(*command).returncode == 0
        subprocess.run(["mount", "-o", "remount,ro", disk.folder], check=True)
        ended = shardmill(*command, "--update")
        assert (ended.returncode, PROGRESS.sub("", ended.stderr)) == (0, "")
        assert "ds is up to date" in ended.stdout
        ended = shardmill(*command, "--seed=5", "--update")
        assert ended.returncode == 1
        assert "Read-only file system; choose an output on a writable file sys" in ended.stderr


@pytest.mark.sweep
@pytest.mark.parametrize(("added", "most"), [(6, 1), (0, 0)])
def test_few_new_images_among_known_ones_start_one_decoder(tmp_path, monkeypatch, added, most):
    photos = make_photos(tmp_path / "photos", {"a": 40, "b": 40})
    options = {"input": photos, "image_size": "8", "num_shards": 1, "workers": 2}
    build_dataset(output=tmp_path / "ds", **options)
    for number in range(added):
        make_image(number, 40, 30).save(photos / "ab"[number % 2] / f"{number}5.png")
    decoder_pool.close_all()
    started: list[decoder_pool.Decoder] = []
    new_decoder = decoder_pool.Decoder

    def start() -> decoder_pool.Decoder:
        started.append(new_decoder())
        return started[-1]

    monkeypatch.setattr(decoder_pool, "Decoder", start)
    outcome, _ = build_dataset(output=tmp_path / "ds", update=True, **options, seed=1)
    assert outcome.reused == 80
    assert len(started) == most
    build_dataset(output=tmp_path / "new", **options, seed=1)
    assert dataset_files(tmp_path / "ds") == dataset_files(tmp_path / "new")


@pytest.mark.heavy
def test_large_known_records_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    photos = make_photos(tmp_path / "photos", {"a": 12}, size=(24, 16))
    options = {"input": photos, "image_size": "800", "encoding": "raw", "num_shards": 1}
    build_dataset(output=tmp_path / "ds", **options)
    read: list[int] = []
    plain = encoder.take_records

    def take(refs):
        read.append(len(refs))
        return plain(refs)

    monkeypatch.setattr(encoder, "take_records", take)
    outcome, _ = build_dataset(output=tmp_path / "ds", update=True, **options, seed=1)
    assert outcome.reused == sum(read) == 12
    assert max(read) == 2  # records of 1.9 MB, and batches of 4 MiB


def test_inputs_without_a_hash_share_no_key(tmp_path):
    """All inputs of a storage that fails would be values of one key."""
    refs = [InputRef(f"{n}.jpg", str(tmp_path / f"{n}.jpg"), 5, "1") for n in range(9)]
    assert list(hash_candidates(refs, {5})) == refs
