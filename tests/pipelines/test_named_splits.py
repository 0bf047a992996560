"""Splits that name files and folders, splits without labels, and several inputs."""

import itertools
import os
import unicodedata
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardmill import loaders
from shardmill.pipelines import split_places
from shardmill.pipelines.rows_config import RowsConfig
from shardmill.pipelines.split_places import relative_places, why_unused
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.refs import InputRef
from shardmill.transforms.match.inputs import MatchSpec, find_inputs, match_now
from shardmill.transforms.sink.placement import PlaceSpec
from shardmill.transforms.verify.verify import find_dataset, verify_dataset
from tests.conftest import build_dataset, make_photos, shardmill
from tests.support.rows_tools import by_split, check_dataset, make_table, published, rejects_of

HEADER = ["id", "a", "y"]
ROWS = [[str(n), f"{n}.5", "cat" if n % 3 else "dog"] for n in range(120)]
KAGGLE = "train:0.75,validation:0.25,test=test.csv"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    make_table(tmp_path / "in" / "train.csv", HEADER, ROWS[:80])
    make_table(tmp_path / "in" / "test.csv", HEADER[:2], [row[:2] for row in ROWS[80:]])
    return tmp_path


def build(folder: Path, **options):
    output = folder / options.pop("to", "ds")
    options = {"input": str(folder / "in"), "label": "y", "output": str(output), **options}
    return published(**options)[1], output


def ids(examples) -> set[int]:
    return {example["id"][0] for example in examples}


def test_shares_divide_the_files_that_are_not_named(folder) -> None:
    manifest, output = build(folder, splits=KAGGLE, unlabeled_splits="test")
    splits = by_split(output, manifest)
    assert [*splits] == ["train", "validation", "test"]
    assert ids(splits["test"]) == {*range(80, 120)}
    assert ids(splits["train"]) | ids(splits["validation"]) == {*range(80)}
    assert {*splits["test"][0]} == {"id", "a"}
    assert manifest.splits["test"].label_counts == {}
    assert [split.labeled for split in manifest.splits.values()] == [True, True, False]
    assert manifest.labels == ("cat", "dog")
    assert verify_dataset(find_dataset(str(output))) == []
    # The named file changes nothing for the others.
    os.unlink(folder / "in" / "test.csv")
    alone, other = build(folder, splits="train:0.75,validation:0.25", to="alone")
    alone_splits = by_split(other, alone)
    for name in ("train", "validation"):
        assert alone_splits[name] == splits[name]
        assert alone.splits[name].shards[0].crc32c == manifest.splits[name].shards[0].crc32c


def test_loaders_have_no_label_of_unlabelled_splits(folder) -> None:
    _, output = build(folder, splits=KAGGLE, unlabeled_splits=["test"])
    for split, labels in (("train", ("cat", "dog")), ("test", ()), ("train+test", ())):
        records = loaders.open_dataset(output, split)
        assert (records.labels, "y" in records[0]) == (labels, bool(labels))
    with pytest.raises(UsageError, match="test has no labels, because"):
        loaders.open_dataset(output, "test", as_supervised=True)
    with pytest.raises(UsageError, match="test has no labels, because"):
        loaders.keras_dataset(output, "test", batch_size=8)
    (batch, *_) = loaders.keras_dataset(output, "test", batch_size=40, label=None)
    assert batch["a"].shape == (40, 1)
    run = shardmill("steps", output / "manifest.json", "--split=test", "--batch_size=8")
    assert run.stdout.strip() == "5"


@pytest.mark.heavy
def test_labels_of_labelled_splits_are_required(folder) -> None:
    rows = [*ROWS[:80], ["200", "1.5", ""]]
    make_table(folder / "in" / "train.csv", HEADER, rows)
    make_table(folder / "in" / "test.csv", HEADER, [[*row[:2], ""] for row in ROWS[80:]])
    named = "train=train.csv,test=test.csv"
    manifest, output = build(folder, splits=named, unlabeled_splits="test")
    assert manifest.inputs.rejected_by_reason == {"missing": 1}
    (reject,) = rejects_of(output)
    assert "the label is missing: name the split in --unlabeled_splits" in reject["message"]
    assert manifest.splits["test"].num_examples == 40
    # Also if the schema says that it is optional, and in splits of a column.
    schema = folder / "schema.pbtxt"
    schema.write_text('feature { name: "id" type: INT } feature { name: "y" type: BYTES }')
    manifest, output = build(
        folder, splits=named, schema=str(schema), unlabeled_splits="test", to="schema"
    )
    assert manifest.inputs.rejected_by_reason == {"missing": 1}
    assert manifest.splits["test"].num_examples == 40
    (folder / "in" / "test.csv").unlink()
    with_part = [[*row, "test" if row[2] == "" else "train"] for row in rows]
    make_table(folder / "in" / "train.csv", [*HEADER, "part"], with_part)
    manifest, _ = build(folder, split_by="part", unlabeled_splits="test", to="part")
    assert manifest.splits["test"].num_examples == 1
    manifest, output = build(folder, schema=str(schema), to="all")
    assert manifest.inputs.rejected_by_reason == {"missing": 1}
    check_dataset(output, manifest, "y")


def test_a_label_in_an_unlabelled_split_is_left_out(folder) -> None:
    make_table(folder / "in" / "test.csv", HEADER, ROWS[80:])
    manifest, output = build(folder, splits="train=train.csv,test=t*.csv", unlabeled_splits="test")
    assert all("y" not in each for each in by_split(output, manifest)["test"])
    assert manifest.splits["test"].num_examples == 40


def test_a_file_without_a_label_needs_the_flag(folder) -> None:
    with pytest.raises(InputError, match=r"test\.csv, it has no column 'y'"):
        build(folder, splits=KAGGLE)


@pytest.mark.nightly
def test_folders_of_images_are_named(tmp_path) -> None:
    make_photos(tmp_path / "in", {"train/cat": 3, "train/dog": 2, "test": 4}, size=(8, 8))
    common = {"image_size": 8, "input": tmp_path / "in", "unlabeled_splits": "test"}
    for number, splits in enumerate(("train=train/,test=test/", "train:1,test=test", "directory")):
        outcome, manifest = build_dataset(output=tmp_path / f"ds{number}", splits=splits, **common)
        assert outcome.status == "published", outcome
        assert manifest.splits["train"].label_counts == {"cat": 3, "dog": 2}
        assert (manifest.splits["test"].num_examples, manifest.splits["test"].labeled) == (4, False)
        assert verify_dataset(find_dataset(str(tmp_path / f"ds{number}"))) == []
    records = loaders.open_dataset(tmp_path / "ds0", "test")
    assert {"image", "label"} & {*records[0]} == {"image"}
    # Masks are not labels.
    make_photos(tmp_path / "masks", {"train/cat": 3, "train/dog": 2, "test": 4}, size=(8, 8))
    for path in (tmp_path / "masks").rglob("*.jpg"):
        Image.open(path).convert("L").save(path.with_suffix(".png"))
        path.unlink()
    _, manifest = build_dataset(
        output=tmp_path / "masked",
        splits="train:1,test=test",
        masks=str(tmp_path / "masks"),
        label_from="filename",
        label_pattern="train/(?P<label>[a-z]+)/.*",
        **common,
    )
    assert manifest.splits["train"].label_counts == {"cat": 3, "dog": 2}
    records = loaders.open_dataset(tmp_path / "masked", "test")
    assert {"image", "label", "mask"} & {*records[0]} == {"image", "mask"}
    # A file in a named folder has no label, and the folder is none.
    common["unlabeled_splits"] = ""
    _, manifest = build_dataset(
        output=tmp_path / "no", splits="train=train/,test=test/", max_reject_fraction=0.5, **common
    )
    assert manifest.inputs.rejected_by_reason == {"no_label": 4}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["rows", "images"])
def test_several_inputs_equal_their_folder(kind, tmp_path) -> None:
    options = {"label": "y"} if kind == "rows" else {"image_size": 8}
    source = tmp_path / "in"
    if kind == "rows":
        (source / "a").mkdir(parents=True)
        (source / "b").mkdir()
        make_table(source / "a" / "1.csv", HEADER, ROWS[:40])
        make_table(source / "b" / "2.csv", HEADER, ROWS[40:])
    else:
        make_photos(source, {"a": 3, "b": 4}, size=(8, 8))
    _, whole = build_dataset(kind, input=source, output=tmp_path / "whole", **options)
    inputs = [source / "a", source / "b", f"{source}/b/*"]
    outcome, several = build_dataset(kind, input=inputs, output=tmp_path / "several", **options)
    assert outcome.status == "published"
    for name, split in whole.splits.items():
        assert [shard.crc32c for shard in several.splits[name].shards] == [
            shard.crc32c for shard in split.shards
        ]
    assert several.inputs.duplicates == (1 if kind == "rows" else 4)
    assert several.build.command[2:5] == tuple(f"--input={path}" for path in inputs)


def test_a_text_file_may_be_a_table(tmp_path) -> None:
    table = tmp_path / "table.txt"
    table.write_text("a,b\n1,2\n3,4\n")
    listing = tmp_path / "list.txt"
    listing.write_text("# tables, as of today\ntable.txt\n")
    for path in (table, listing):
        examples, _ = published(input=str(path), output=str(tmp_path / path.stem))
        assert sorted(each["a"] for each in examples) == [[1], [3]]


NAMES = st.sampled_from(["train", "validation", "test", "day_1"])
PLACES = st.sampled_from(["a.csv", "b/", "c-*.csv", "d/**/e.csv"])


@given(st.lists(st.tuples(NAMES, PLACES), min_size=1), st.booleans())
def test_splits_are_read_back_from_their_text(named, shares) -> None:
    given_shares = (("train", Fraction(2, 3)), ("rest", Fraction(1, 3))) if shares else ()
    splits = Splits("fractions" if shares else "named", given_shares, tuple(named))
    assert Splits.parse(str(splits)) == splits
    assert {*splits.required} == {*dict(given_shares), *dict(named)}


@pytest.mark.parametrize(
    ("key", "split"),
    [
        ("test.csv", "test"),
        ("test.csv.gz", ""),
        ("a/test.csv", ""),
        ("day/1/x.csv", "day"),
        ("days", ""),
        ("log-1.csv", "log"),
        ("b/log-1.csv", ""),
        ("x/y/z.csv", "deep"),
        ("x/z.csv", "deep"),
    ],
)
def test_a_place_is_a_file_a_folder_or_a_glob(key, split) -> None:
    place = PlaceSpec(Splits.parse("test=test.csv,day=day/,log=log-*.csv,deep=x/**/z.csv"))
    ref = place.of_table(InputRef(key, key))
    assert (ref.split, ref.error) == (split, "" if split else "no_split")


def test_a_mapping_has_shares_and_places() -> None:
    given_splits = {"train": 0.5, "rest": "1/2", "test": Path("t/x.csv"), "more": "m.csv"}
    config = RowsConfig("a", "b", splits=given_splits)
    assert str(config.splits) == "train:0.5,rest:0.5,test=t/x.csv,more=m.csv"


CAFE = "caf\u00e9"  # also written with a combining accent
TREE = ("cat/1.jpg", "test/2.jpg", f"{CAFE}/3.jpg", "test/deep/4.jpg", "a[1]/5.jpg", "a1/6.jpg")
TREE = (*TREE, "back\\slash/7.jpg", "top.jpg")
SPELLINGS = (
    "{0}",
    "./{0}",
    "././{0}",
    "{0}/",
    "{0}/.",
    "./{0}/./",
    ".//{0}//",
    "cat/../{0}",
    "{root}/{0}",
    "{root}/./{0}/",
    "{root}/cat/../{0}",
    "{link}/{0}/",
    "{link}/./{0}",
)
FORMS = ("NFC", "NFD")


@pytest.mark.parametrize("on_disk", FORMS)
@pytest.mark.parametrize("inside", [False, True])
def test_each_spelling_of_a_place_is_the_same_place(inside, on_disk, tmp_path, monkeypatch) -> None:
    """The judge is the file system: a file is in a place if its folder is that or below it."""
    root = tmp_path / "in"
    for name in TREE:
        path = root / unicodedata.normalize(on_disk, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    link = tmp_path / "link"
    link.symlink_to(root)
    monkeypatch.chdir(root if inside else tmp_path)
    match = find_inputs([str(root)])
    refs, _ = match_now(match)
    assert len(refs) == len(TREE)
    folders = ["cat", "test", CAFE, "test/deep", "a[1]", "a1", "back\\slash"]
    for folder, spelling, form in itertools.product(folders, SPELLINGS, FORMS):
        spelt = spelling.format(folder, root=root, link=link)
        spelt = unicodedata.normalize(form, spelt)
        splits = relative_places(Splits.parse(f"train:1,test={spelt}"), match, [])
        place = PlaceSpec(splits)
        target = os.path.realpath(root / unicodedata.normalize(on_disk, folder))
        inputs = {ref.key for ref in refs if os.path.realpath(ref.uri).startswith(f"{target}/")}
        assert {ref.key for ref in refs if place.with_split(ref).split == "test"} == inputs, spelt
        used = {name for ref in refs for name in place.places_of(ref.key)}
        assert why_unused(splits, used, match, [str(root)]) == ""
    # The other separator, where no file has such a name; and all files.
    for spelt, number in (("test\\deep", 1), (".\\test\\", 2), ("back\\slash", 1), (str(root), 8)):
        place = PlaceSpec(relative_places(Splits.parse(f"train:1,test={spelt}"), match, []))
        assert sum(place.with_split(ref).split == "test" for ref in refs) == number, spelt


@pytest.mark.parametrize(
    "spelling",
    ["test/", "./test/", "gs://b/in/test/", "gs://b/in/./cat/../test/", "test\\", "te?t/"],
)
def test_places_in_buckets(spelling, monkeypatch) -> None:
    class Bucket:
        def stat(self, path: str) -> object:
            return path if path in ("gs://b/in/test", "gs://b/in/cat") else None

    monkeypatch.setattr(split_places, "open_storage", lambda _: Bucket())
    splits = Splits.parse(f"train:1,test={spelling}")
    match = MatchSpec("directory", "gs://b/in", "gs://b/in")
    place = PlaceSpec(relative_places(splits, match, []))
    assert place.named_split("test/1.jpg") == "test"
    assert place.named_split("cat/1.jpg") == ""


def test_a_place_that_is_no_input_is_an_error_with_the_command(folder) -> None:
    source = folder / "in"
    options = [f"--splits={KAGGLE}", "--label=y", "--unlabeled_splits=test"]
    run = shardmill("rows", source / "train.csv", folder / "ds", *options)
    assert (run.returncode, (folder / "ds").exists()) == (2, False)
    flags = f"--input={source}/train.csv --input={source}/test.csv"
    assert f"'test.csv' exists but is not an input: give it, too, as in {flags}." in run.stderr
    shardmill("rows", source / "train.csv", source / "test.csv", folder / "ds", *options)
    assert len(loaders.open_dataset(folder / "ds", "test")) == 40


@pytest.mark.heavy
def test_a_folder_without_images_is_no_place(tmp_path) -> None:
    make_photos(tmp_path / "in", {"cat": 10, "test": 10}, size=(8, 8))
    (tmp_path / "in" / "none").mkdir()
    options = {"input": tmp_path / "in", "image_size": 8, "label_from": "none"}
    _, made = build_dataset(output=tmp_path / "ds", splits="train:1,test=./test/", **options)
    assert [split.num_examples for split in made.splits.values()] == [10, 10]
    outcome, _ = build_dataset(output=tmp_path / "none", splits="train:1,test=none/", **options)
    assert (outcome.status, "no input in" in outcome.message) == ("failed", True)
    # A sample may leave out a place.
    outcome, _ = build_dataset(
        output=tmp_path / "few", splits="train:1,test=test/", limit=1, **options
    )
    assert outcome.status == "published"
