"""Exact copies are counted, and dropped or kept in one split; judged by hand and by the BLAKE3 library."""

import itertools
import json
import random
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardmill.pipelines import ImagesConfig
from shardmill.schemas.dataset.manifest import CatalogFile, Shard
from shardmill.schemas.errors import StaleBuildError
from shardmill.transforms.publish.publish import FinalFile
from shardmill.transforms.sink.duplicates import (
    Content,
    Copies,
    count_copies,
    keep_few,
    keep_smallest,
    list_contents,
)
from shardmill.transforms.sink.parts import BuiltShard
from shardmill.transforms.sink.placement import Series
from shardmill.transforms.sink.plan import Plan
from tests.conftest import build_dataset, make_photos, shardmill

HALVES = {"image_size": "8", "splits": "train:0.5,validation:0.5", "max_reject_fraction": 0.5}
# Contents with copies: 2 copies of bee/000, 1 of bee/001 in another class, 1 of cat/000.
COPIES = {
    "bee/x.jpg": "bee/000.jpg",
    "bee/y.jpg": "bee/000.jpg",
    "cat/z.jpg": "bee/001.jpg",
    "cat/zz.jpg": "cat/000.jpg",
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = make_photos(
        tmp_path_factory.mktemp("copies") / "in", {"bee": 8, "cat": 8}, size=(16, 12)
    )
    for copy, original in COPIES.items():
        shutil.copy(folder / original, folder / copy)
    (folder / "bee" / "bad.jpg").write_text("no image")
    shutil.copy(folder / "bee" / "bad.jpg", folder / "cat" / "bad.jpg")
    return folder


def splits_of(output: Path) -> dict[str, set[str]]:
    """Return the splits of each content, by the catalogs."""
    found: dict[str, set[str]] = {}
    for path in (output / "current" / "catalog").iterdir():
        for digest in pd.read_parquet(path).content_hash:
            found.setdefault(digest, set()).add(path.name.split("-")[0])
    return found


def test_counts_copies_and_warns_if_they_are_apart(photos, tmp_path):
    _, manifest = build_dataset(input=photos, output=tmp_path / "ds", **HALVES)
    apart = sum(len(splits) > 1 for splits in splits_of(tmp_path / "ds").values())
    inputs = manifest.inputs
    assert (inputs.copies, inputs.copies_with_other_labels) == (4, 1)
    assert inputs.copies_across_splits == apart > 0
    (warning,) = (text for text in manifest.warnings if "exact copies" in text)
    assert f"{apart} of them in several splits" in warning
    differing = "1 of them with different labels, boxes or masks, such as"
    assert f"{differing} 'bee/001.jpg' and 'cat/z.jpg'" in warning


@pytest.mark.parametrize("case", ["column", "unlabeled", "label"])
def test_copies_of_one_class_have_one_label(photos, tmp_path, case):
    """Neither another column of a listing nor a split without labels is another label."""
    options = {"image_size": "8", "label_from": "listing", "splits": "listing"}
    if case == "unlabeled":
        options["unlabeled_splits"] = "test"
    rows = ["path,label,split,score\n", "bee/000.jpg,bee,train,1\n", "cat/000.jpg,cat,test,1\n"]
    split = "test" if case == "unlabeled" else "train"
    label = "wasp" if case == "label" else "bee"
    rows.append(f"bee/x.jpg,{label},{split},2\n")
    listing = tmp_path / "list.csv"
    listing.write_text("".join(rows))
    _, manifest = build_dataset(input=listing, output=tmp_path / "ds", root=photos, **options)
    assert manifest.inputs.copies == 1
    assert manifest.inputs.copies_with_other_labels == (case == "label")
    assert ("different labels" in " ".join(manifest.warnings)) == (case == "label")
    assert shardmill("verify", tmp_path / "ds", "--deep").returncode == 0


def write_annotations(kind: str, folder: Path, facts: dict[str, tuple]) -> dict:
    """Write the labels, boxes or masks of images by key; return the options of the build."""
    if kind == "labels":
        lines = [f"{key},{label or ''}" for key, (label, _) in facts.items()]
        (folder / "list.csv").write_text("\n".join(["path,label", *lines]))
        return {"input": folder / "list.csv", "label_from": "listing", "label_separator": ";"}
    if kind == "boxes":
        coco = {
            "images": [{"id": n, "file_name": key} for n, key in enumerate(facts)],
            "annotations": [
                {"image_id": n, "category_id": ord(label), "bbox": [1, 1, 2 + value, 3]}
                for n, (label, value) in enumerate(facts.values())
                if label
            ],
            "categories": [{"id": ord(label), "name": label} for label in "ab"],
        }
        (folder / "coco.json").write_text(json.dumps(coco))
        return {"input": folder / "in", "annotations": f"coco:{folder / 'coco.json'}"}
    for key, (_, value) in facts.items():
        mask = folder / "masks" / f"{Path(key).stem}.png"
        mask.parent.mkdir(exist_ok=True)
        Image.new("L", (16, 12), value).save(mask)
    return {"input": folder / "in", "label_from": "none", "masks": folder / "masks"}


def test_ids_of_coco_do_not_make_copies_differ(tmp_path):
    """Each image has its own id, and that is not a label; with --coco_ids only labels are compared."""
    original = make_photos(tmp_path / "in", {"x": 1}, size=(16, 12)) / "x" / "000.jpg"
    facts = {}
    for number in range(4):
        shutil.copy(original, tmp_path / "in" / f"{number}.jpg")
        facts[f"{number}.jpg"] = "a", 0
    shutil.rmtree(tmp_path / "in" / "x")
    options = write_annotations("boxes", tmp_path, facts)
    for coco_ids in (False, True):
        _, manifest = build_dataset(
            output=tmp_path / f"{coco_ids}", splits="train:1", coco_ids=coco_ids, **options
        )
        inputs = manifest.inputs
        assert (inputs.copies, inputs.copies_with_other_labels) == (3, 0)
        assert shardmill("verify", tmp_path / f"{coco_ids}", "--deep").returncode == 0


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["labels", "boxes", "masks"])
def test_pairs_that_are_named_differ(tmp_path, kind, seed):
    """In what they are said to differ: in the warning of the build, and in a finding of check."""
    rng = random.Random(f"{kind}{seed}")
    make_photos(tmp_path / "in", {"in": 6}, size=(16, 12))
    contents, facts = {}, {}
    for number in rng.sample(range(24), 24):
        key, content = f"{number:02d}.jpg", rng.randrange(5)
        original = tmp_path / "in" / "in" / f"{content:03d}.jpg"
        shutil.copy(original, tmp_path / "in" / key)
        # The first contents have one annotation, others a few, also none.
        choice = 0 if content < 2 else rng.randrange(4)
        label = ["a", "b", "a", ""][choice]
        contents[key] = content
        facts[key] = label, 0 if content < 2 else rng.randrange(2)
    shutil.rmtree(tmp_path / "in" / "in")
    options = write_annotations(kind, tmp_path, facts)
    if kind == "labels":
        options["root"] = tmp_path / "in"
    if kind == "boxes":
        annotations = {key: fact if fact[0] else "empty" for key, fact in facts.items()}
    else:
        field = ("labels", "masks").index(kind)
        annotations = {key: str(fact[field]) for key, fact in facts.items()}
    _, manifest = build_dataset(
        output=tmp_path / "ds", image_size="8", splits="train:0.5,validation:0.5", **options
    )
    places = {
        key: path.name.split("-")[0]
        for path in (tmp_path / "ds" / "current" / "catalog").iterdir()
        for key in pd.read_parquet(path).key
    }
    differing: dict[str, list[tuple[str, str]]] = {"places": [], "annotations": []}
    for one, other in itertools.combinations(sorted(contents), 2):
        if contents[one] != contents[other]:
            continue
        if places[one] != places[other]:
            differing["places"].append((one, other))
        if annotations[one] != annotations[other] and annotations[one] and annotations[other]:
            differing["annotations"].append((one, other))
    inputs = manifest.inputs
    counts = inputs.copies_across_splits, inputs.copies_with_other_labels
    assert counts == tuple(len({contents[one] for one, _ in pairs}) for pairs in differing.values())
    assert min(counts) > 0
    (warning,) = (text for text in manifest.warnings if "exact copies" in text)
    pairs = re.findall(r"such as '(\S+)' and '(\S+)'", warning)
    assert pairs == [min(differing["places"]), min(differing["annotations"])]
    assert "different labels, boxes or masks" in warning
    checked = " ".join(shardmill("check", tmp_path / "ds").stdout.split())
    pairs = re.findall(r"copies_[^=]* such as (\S+) [^=]*= (\S+\.jpg)", checked)
    assert pairs == [min(differing["places"]), min(differing["annotations"])]


def test_drops_all_but_the_smallest_key(photos, tmp_path):
    outcome, manifest = build_dataset(
        input=photos, output=tmp_path / "ds", duplicates="drop", **HALVES
    )
    inputs = manifest.inputs
    # The two damaged files are copies too: one is a reject, the other a duplicate.
    assert (inputs.accepted, inputs.rejected, inputs.duplicates) == (16, 1, 5)
    assert (outcome.matched, inputs.copies) == (22, 0)
    keys = pd.read_parquet(tmp_path / "ds" / "current" / "catalog").key
    assert not set(keys) & set(COPIES)
    assert "exact copies" not in " ".join(manifest.warnings)


def test_copies_share_a_split_that_depends_on_the_content(photos, tmp_path):
    options = {**HALVES, "duplicates": "same_split"}
    build_dataset(input=photos, output=tmp_path / "ds", **options)
    found = splits_of(tmp_path / "ds")
    assert len(found) == 16
    assert all(len(splits) == 1 for splits in found.values())
    renamed = shutil.copytree(photos, tmp_path / "in")
    for path in [*renamed.glob("*/0*.jpg")]:
        path.rename(path.with_name(f"new-{path.name}"))
    build_dataset(input=renamed, output=tmp_path / "other", **options)
    assert splits_of(tmp_path / "other") == found
    digest = blake3((photos / "bee" / "000.jpg").read_bytes()).hexdigest()
    assert digest in found


@pytest.mark.heavy
def test_update_changes_the_mode(photos, tmp_path):
    """Records are taken from the published shards; the result equals a new build."""
    for mode in ("keep", "drop", "same_split"):
        options = {**HALVES, "duplicates": mode}
        outcome, ours = build_dataset(input=photos, output=tmp_path / "ds", update=True, **options)
        _, theirs = build_dataset(input=photos, output=tmp_path / mode, **options)
        assert ours.splits == theirs.splits
        assert ours.inputs == theirs.inputs
        assert outcome.reused == {"keep": 0, "drop": 16, "same_split": 16}[mode]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "options",
    [
        ["--splits=train:0.5,validation:0.5"],
        ["--splits=directory", "--label_from=none"],
        ["--splits=train=train/,test=test/", "--label_from=none"],
        ["--splits=train:0.5,validation:0.5", "--group_pattern=^(.)"],
        ["--splits=train:0.5,validation:0.5", "--label_from=listing"],
    ],
    ids=lambda options: options[-1],
)
def test_advice_about_copies_can_be_followed(photos, tmp_path, options):
    """Each --duplicates that a message names builds the dataset; else it says why none does."""
    source = tmp_path / "in"
    for name, split in (("bee", "train"), ("cat", "test")):
        shutil.copytree(photos / name, source / split)
    if "--label_from=listing" in options:
        paths = sorted(source.glob("*/*.jpg"))
        rows = [f"{path.relative_to(source)},{path.parent.name}\n" for path in paths]
        source /= "list.csv"
        source.write_text("path,label\n" + "".join(rows))
    more = ["--image_size=8", "--max_reject_fraction=0.5", "--overwrite", *options]
    built = shardmill("images", source, tmp_path / "ds", *more)
    manifest = json.loads((tmp_path / "ds" / "manifest.json").read_text())
    (warning,) = (text for text in manifest["warnings"] if "exact copies" in text)
    checks = shardmill("check", tmp_path / "ds", "--max_duplicates=0").stdout.split("\n")
    messages = [warning, *(" ".join(checks).split(" fix: "))]
    text = " ".join(" ".join([built.stdout, *messages]).split())
    modes = {*re.findall(r"--duplicates=(\w+)", text)}
    for mode in ("drop", "same_split"):
        done = shardmill("images", source, tmp_path / mode, *more, f"--duplicates={mode}")
        assert (mode in modes) == (done.returncode == 0), (text, done.stderr)
    if not modes:
        assert "remove copies from the input, since --duplicates cannot be combined with" in text


def test_a_listing_is_rejected(photos, tmp_path):
    listing = tmp_path / "list.csv"
    listing.write_text("path\n" + "".join(f"{path}\n" for path in photos.glob("*/*.jpg")))
    done = shardmill(
        "images",
        f"--input={listing}",
        f"--input={listing}",
        f"--output={tmp_path / 'ds'}",
        "--duplicates=drop",
    )
    assert (done.returncode, "a listing cannot be combined" in done.stderr) == (2, True)
    assert not (tmp_path / "ds").exists()


def test_a_catalog_that_another_command_deleted_is_stale(tmp_path):
    series = Series("train", "")
    listed = Shard("a", 1, 1, "", catalog=CatalogFile("a.parquet", 9, ""))
    shard = BuiltShard(series, 0, listed, (FinalFile("gone.parquet", "a.parquet", 9),))
    spec = ImagesConfig(input="in", output=str(tmp_path)).sink_spec("0" * 16, "/")
    with pytest.raises(StaleBuildError, match="another command published or cleaned"):
        list(list_contents(shard, Plan("build"), spec))


RECORDS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from(["x", "y", "z", ""])),
    max_size=60,
)


@given(RECORDS)
def test_few_records_of_a_content_count_as_all(records):
    """Content, split and label of each record; some contents have many copies in a split.

    The examples are the smallest pairs that differ, of all pairs.
    """
    shards: dict[str, dict[bytes, list[Content]]] = {}
    contents: dict[int, list[tuple[str, str, str]]] = {}
    for number, (content, split, label) in enumerate(records):
        key, digest = f"{number * 7 % 61:02d}", bytes([content])
        found = shards.setdefault(split, {}).setdefault(digest, [])
        found.append((digest, key, label, 0))
        contents.setdefault(content, []).append((key, split, label))
    whole, all_across, all_differ = Copies(), [], []
    for copies in contents.values():
        pairs = [*itertools.combinations(sorted(copies), 2)]
        across = [(a[0], b[0]) for a, b in pairs if a[1] != b[1]]
        differ = [(a[0], b[0]) for a, b in pairs if a[2] and b[2] and a[2] != b[2]]
        whole.records += len(copies) - 1
        whole.across_splits += bool(across)
        whole.labels_differ += bool(differ)
        all_across += across
        all_differ += differ
    whole.across_example = min(all_across, default=())
    whole.differ_example = min(all_differ, default=())
    for few in (keep_few, list):
        lists = [
            (split, [each for copies in found.values() for each in few(copies)])
            for split, found in shards.items()
        ]
        assert count_copies(lists) == whole
    assert all(len(keep_few(copies)) <= 3 for found in shards.values() for copies in found.values())


@given(st.permutations([(f"{n % 4}", f"uri{n}") for n in range(8)]), st.integers(1, 8))
def test_the_smallest_copy_stays_in_any_order_of_merging(copies, first):
    values = [((*each, 5), 0) for each in copies]
    merged = [keep_smallest(some) for some in (values[:first], values[first:]) if some]
    assert keep_smallest(merged) == (("0", "uri0", 5), 7)
