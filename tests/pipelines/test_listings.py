"""Listings: columns become features, of several labels vectors; pandas and TensorFlow are judges."""

import io
import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from shardmill.loaders import (
    class_weights,
    feature_spec,
    keras_dataset,
    open_dataset,
    torch_dataset,
)
from shardmill.pipelines.report.compare import compare_datasets
from shardmill.pipelines.report.dataset_report import gather
from shardmill.schemas.dataset.catalog import read_table
from shardmill.schemas.dataset.read_manifest import open_manifest
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.refs import InputRef
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.match.inputs import find_input, read_listing
from shardmill.transforms.sink.spec import Outcome
from shardmill.transforms.sources import listings
from shardmill.transforms.sources.jsonl.jsonl_source import JsonLinesSource, sample_jsonl
from shardmill.transforms.sources.listings import ListingOptions, open_listings
from shardmill.transforms.verify.verify import find_dataset, verify_dataset
from tests.conftest import build_dataset, examples, make_photos
from tests.support.annotation_tools import (
    KEYS,
    truth,
    write_annotations,
    write_images,
    write_masks,
)
from tests.support.readers import tf_examples, tf_records

CELLS = {
    "ints": st.integers(-(2**53), 2**53),  # pandas makes others with gaps floats
    "floats": st.floats(width=32, allow_nan=False, allow_infinity=False).filter(
        lambda number: not number.is_integer()  # 1.0 is an integer in CSV
    ),
    "texts": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")).map(
        "t{}".format
    ),
}
KINDS = {"ints": "int64", "floats": "float32", "texts": "bytes"}
FORMATS = ("csv", "jsonl", "parquet")


def write_listing(path: Path, frame: pd.DataFrame) -> Path:
    """Write a table as its name says; missing cells are empty, left out, or null."""
    if path.suffix == ".csv":
        frame.to_csv(path, index=len(frame) % 2 == 0)
    elif path.suffix == ".parquet":
        frame.set_index(frame.index[::-1]).to_parquet(path, index=len(frame) % 2 == 0)
    else:
        rows = (
            {k: v for k, v in row.items() if not pd.isna(v)} for row in frame.to_dict("records")
        )
        path.write_text("".join(f"{json.dumps(row, ensure_ascii=len(row) % 2)}\n" for row in rows))
    return path


def read_frame(path: Path) -> pd.DataFrame:
    """Read a listing with pandas, without its guesses about texts."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path).reset_index(drop=True)
    if path.suffix == ".jsonl":
        return pd.read_json(path, lines=True, dtype=False, precise_float=True)
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    return frame.drop(columns="Unnamed: 0", errors="ignore")


@st.composite
def frames(draw) -> pd.DataFrame:
    size = draw(st.integers(1, 9))
    kinds = draw(st.lists(st.sampled_from([*CELLS]), min_size=1, max_size=4))
    columns = {"path": [f"a/{n}.jpg" for n in range(size)]}
    for number, kind in enumerate(kinds):
        cells = draw(st.lists(st.none() | CELLS[kind], min_size=size, max_size=size))
        columns[f"{kind} {number}"] = pd.Series(cells, dtype="Int64" if kind == "ints" else object)
        if kind == "floats":
            columns[f"{kind} {number}"] = pd.Series(cells, dtype="float64")
    return pd.DataFrame(columns)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", FORMATS)
@given(frame=frames())
@limits(max_examples=examples(60))
def test_columns_are_those_of_pandas(tmp_path_factory, kind, frame) -> None:
    """Types, missing cells, quotes and Unicode of each format are as pandas reads them."""
    path = write_listing(tmp_path_factory.mktemp("l") / f"list.{kind}", frame)
    match, columns, _ = open_listings(find_input(str(path), listing=True), ListingOptions())
    refs, judge = list(read_listing(match)), read_frame(path)
    assert [ref.key for ref in refs] == list(judge["path"])
    for column in columns:
        given = frame[column.name]
        if given.notna().any():
            assert column.kind == KINDS[column.name.split()[0]]
        assert column.required == given.notna().all()
        of_pandas = judge.get(column.name, pd.Series([None] * len(judge)))
        for ref, written, read in zip(refs, given, of_pandas, strict=True):
            found = parse_example(ref.attached) if ref.attached else {}
            feature = found.get(f"listing/{column.name}")
            assert (feature is None) == pd.isna(written) == pd.isna(read)
            if feature is not None:
                make = {"bytes": str.encode, "int64": int, "float32": np.float32}[column.kind]
                assert [*feature.values] == [make(written)] == [make(read)]


@pytest.mark.parametrize(("kind", "expected"), [("csv", []), ("jsonl", [b""]), ("parquet", [b""])])
def test_empty_texts(tmp_path, kind, expected) -> None:
    """An empty text is a value in the formats that have null, as in tables."""
    named = {"csv": "path", "jsonl": "file_name", "parquet": "uri"}[kind]
    path = write_listing(tmp_path / f"list.{kind}", pd.DataFrame({named: ["a"], "c": [""]}))
    match = open_listings(find_input(str(path), listing=True), ListingOptions())[0]
    (ref,) = read_listing(match)
    found = parse_example(ref.attached) if ref.attached else {}
    assert [each.values for each in found.values()] == ([expected] if expected else [])
    assert ref.key == "a"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_late_cells_decide_types_too(tmp_path, kind) -> None:
    """All cells decide, not those of the first block: the last one is not an integer."""
    cells = {"path": "a.jpg", "late": [*range(20_000), 0.5], "new": [*[None] * 20_000, "x"]}
    path = write_listing(tmp_path / f"list.{kind}", pd.DataFrame(cells))
    _, columns, _ = open_listings(find_input(str(path)), ListingOptions())
    assert [(each.name, each.kind) for each in columns] == [("late", "float32"), ("new", "bytes")]


@pytest.mark.parametrize("features", ["", "image/a"])
def test_late_keys_of_json_lines(tmp_path, monkeypatch, features) -> None:
    """A key after the rows that decide columns is an error, unless columns are chosen; a group is used."""
    kinds = listings._KINDS | {"jsonl": (partial(sample_jsonl, most=1 << 12), JsonLinesSource)}
    monkeypatch.setattr(listings, "_KINDS", kinds)
    rows = [{"path": f"{n}.jpg", "a": n} for n in range(1_000)]
    rows += [{"path": "y.jpg", "a": 0.5, "group": "g"}, {"path": "z.jpg", "late": 1}]
    path = write_listing(tmp_path / "list.jsonl", pd.DataFrame(rows[:-1]).astype({"a": object}))
    types = {"a": Column("a", "float32")}
    options = ListingOptions(features=features, types=types)

    def read() -> list[InputRef]:
        return [*read_listing(open_listings(find_input(str(path)), options)[0])]

    assert [each.group for each in read()] == [*[""] * 1_000, "g"]
    write_listing(path, pd.DataFrame(rows).astype({"a": object}))
    if features:
        assert len(read()) == 1_002
    else:
        with pytest.raises(InputError, match="line 1002: it has the key 'late', which the first"):
            read()


def random_frame(count: int, **columns) -> pd.DataFrame:
    rng = random.Random(5)
    captions = ['say "hi", you', "Zürich\nline two", "100 %", "naïve; café"]
    return pd.DataFrame(
        {
            "path": [f"x/{n:03d}.jpg" for n in range(count)],
            "caption": [rng.choice([*captions, None]) for _ in range(count)],
            "score": np.array([rng.random() for _ in range(count)], np.float32).astype(float),
            "views": [rng.randrange(10**12) for _ in range(count)],
            **columns,
        }
    )


def test_records_are_what_tensorflow_reads(tmp_path) -> None:
    """All formats give the same shards, which ``tf.io.parse_example`` reads as pandas the listing."""
    import tensorflow as tf

    photos, shards = make_photos(tmp_path / "in", {"x": 12}), []
    frame = random_frame(12, label=[f"l{n % 3}" for n in range(12)])
    for kind in FORMATS:
        path = write_listing(photos / f"list.{kind}", frame)
        outcome, manifest = build_dataset(
            input=path,
            output=tmp_path / kind,
            label_from="listing",
            image_size=8,
            splits="train:1",
            features="image=image/encoded,key=image/key,text=image/caption,image/score,n=image/views,"
            "image/class/label",
        )
        assert outcome.status == "published"
        assert [*verify_dataset(find_dataset(str(tmp_path / kind)))] == []
        shards.append(
            [(tmp_path / kind / "current" / name).read_bytes() for name in manifest.files]
        )
    assert shards[0] == shards[1] == shards[2]
    spec = feature_spec(tmp_path / "csv")
    assert isinstance(spec["text"], tf.io.VarLenFeature)
    judge = read_frame(photos / "list.csv").set_index("path")
    payloads = [
        each for name in manifest.files for each in tf_records(tmp_path / "csv/current" / name)
    ]
    assert len(payloads) == 12
    for payload in payloads:
        found = tf.io.parse_single_example(payload, spec)
        row = judge.loc[found["key"].numpy().item().decode()]
        assert (found["image/score"].numpy(), found["n"].numpy()) == (row["score"], row["views"])
        texts = tf.sparse.to_dense(found["text"]).numpy().tolist()
        assert texts == ([] if pd.isna(row["caption"]) else [row["caption"].encode()])


LABELS = ["sky|tree", "tree", "", " tree | sky ", "sea", "sea|sky|tree"]


@pytest.fixture(scope="module")
def tagged(tmp_path_factory) -> tuple[Path, Path]:
    """A dataset with several labels of an image, and its listing."""
    folder = tmp_path_factory.mktemp("tagged")
    photos = make_photos(folder / "in", {"x": 6})
    frame = random_frame(6, label=LABELS)
    path = write_listing(photos / "list.csv", frame)
    (folder / "labels").write_text("tree\nsky\nsea\nrain\n")
    build_dataset(
        input=path,
        output=folder / "ds",
        label_from="listing",
        label_separator="|",
        image_size=8,
        labels=folder / "labels",
        splits="train:1",
    )
    return folder / "ds", path


def sets_of(path: Path) -> dict[str, set[str]]:
    frame = pd.read_csv(path, keep_default_na=False)
    cells = frame.set_index("path")["label"].str.split("|")
    return {key: {each.strip() for each in cell} - {""} for key, cell in cells.items()}


def test_several_labels_are_lists(tagged, tmp_path) -> None:
    """Counts are of records per label; the catalog has the joined text; all commands take it."""
    dataset, path = tagged
    judge = sets_of(path)
    records = open_dataset(dataset)
    manifest = records.manifest
    assert manifest.labels == ("tree", "sky", "sea", "rain")
    counts = pd.Series([each for labels in judge.values() for each in labels]).value_counts()
    assert manifest.splits["train"].label_counts == counts.to_dict()
    for name in manifest.files:
        for example in tf_examples(dataset / "current" / name):
            found = [each.decode() for each in example.get("image/class/text", [])]
            assert set(found) == judge[example["image/key"][0].decode()]
            assert example.get("image/class/label", []) == [*map(manifest.labels.index, found)]
    table = read_table(
        (dataset / "current" / manifest.catalogs[0].file).read_bytes(), ("key", "label")
    )
    of_catalog = {row["key"]: row["label"] for row in table.to_pylist()}
    assert of_catalog == {key: "|".join(sorted(each)) or None for key, each in judge.items()}
    assert [*verify_dataset(find_dataset(str(dataset)))] == []
    weights = {manifest.labels.index(k): counts.sum() / (3 * n) for k, n in counts.items()}
    assert class_weights(dataset) == pytest.approx(weights)
    assert class_weights(dataset, "train[:100%]") == pytest.approx(weights)
    page = gather(open_manifest(dataset), None)
    assert {each["label"]: len(each["pictures"]) for each in page["sheets"]} == counts.to_dict()


def test_labels_of_sets_are_checked_one_by_one(tagged, tmp_path) -> None:
    """Unknown and empty labels are rejects; unlabelled splits have none of several labels."""
    photos = tagged[1].parent
    sky = "sky\N{COMBINING ACUTE ACCENT}"  # as macOS writes it
    cells = [f"{sky}|tree", "tree", f"rock|{sky}", f"{sky}||tree", sky, "tree"]
    write_listing(photos / "more.csv", random_frame(6, label=cells))
    (tmp_path / "labels").write_text("tree\nsk\N{LATIN SMALL LETTER Y WITH ACUTE}\n")
    _, manifest = build_dataset(
        input=photos / "more.csv",
        output=tmp_path / "ds",
        label_from="listing",
        image_size=8,
        label_separator="|",
        labels=tmp_path / "labels",
        max_reject_fraction=0.5,
        splits="train:1,test=x/000.jpg",
        unlabeled_splits="test",
    )
    assert manifest.inputs.rejected_by_reason == {"label_text": 1, "unknown_label": 1}
    (unlabelled,) = tf_examples(tmp_path / "ds/current" / manifest.splits["test"].shards[0].file)
    assert not [name for name in unlabelled if "class" in name]
    assert manifest.splits["test"].label_counts == {}
    assert [*verify_dataset(find_dataset(str(tmp_path / "ds")))] == []


def test_loaders_give_vectors(tagged) -> None:
    """``one_hot`` has a 1 for each label in Keras, torch and NumPy; a column is a target."""
    import torch

    dataset, path = tagged
    judge, scores = sets_of(path), pd.read_csv(path).set_index("path")["score"]
    keys = [each["image/key"].decode() for each in open_dataset(dataset)]
    names = ["tree", "sky", "sea", "rain"]
    vectors = np.array([[float(name in judge[key]) for name in names] for key in keys], np.float32)
    for size in (4, None):
        batches = keras_dataset(dataset, batch_size=size, label="one_hot")
        found = np.concatenate([np.reshape(labels, (-1, 4)) for _, labels in batches])
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, vectors)
    (texts,) = [labels for _, labels in keras_dataset(dataset, batch_size=6, label="text")]
    assert [set(each) for each in texts.to_list()] == [{x.encode() for x in judge[k]} for k in keys]
    wanted = np.array([scores[key] for key in keys], np.float32)
    (targets,) = [labels for _, labels in keras_dataset(dataset, batch_size=6, label="image/score")]
    np.testing.assert_array_equal(targets, wanted)
    stream = torch_dataset(dataset, label="one_hot", as_supervised=True)
    (batch,) = torch.utils.data.DataLoader(stream, batch_size=6)
    np.testing.assert_array_equal(batch[1].numpy(), vectors)
    pairs = open_dataset(dataset, label="image/score", as_supervised=True)
    assert [target for _, target in pairs] == wanted.tolist()
    assert pairs[0][0].shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (keras_dataset, "use label='one_hot', whose vectors have a 1 for each"),
        (lambda ds: open_dataset(ds, as_supervised=True), "use label='one_hot'"),
        (lambda ds: keras_dataset(ds, label=None, balance="label"), "balance needs one label of"),
        (lambda ds: torch_dataset(ds, where={"label": "sky"}), "label='sky' cannot select records"),
    ],
)
def test_calls_that_need_one_label(tagged, call, message) -> None:
    with pytest.raises(UsageError, match=message):
        call(tagged[0])


@pytest.mark.heavy
def test_update_takes_records_of_changed_cells(tmp_path) -> None:
    """A changed cell or label changes the record without decoding; an added column decodes."""
    photos = make_photos(tmp_path / "in", {"x": 8})
    frame = random_frame(8, label=["a|b", "b"] * 4)
    options = {
        "input": photos / "list.csv",
        "output": tmp_path / "ds",
        "label_from": "listing",
        "label_separator": "|",
        "image_size": 8,
        "splits": "train:1",
        "update": True,
    }

    def build() -> tuple[str, int]:
        write_listing(photos / "list.csv", frame)
        outcome, _ = build_dataset(**options)
        return outcome.status, outcome.reused

    def compare() -> None:
        fresh = options | {"output": tmp_path / "new", "overwrite": True, "update": False}
        _, manifest = build_dataset(**fresh)
        for name in manifest.files:
            now, then = (tmp_path / each / "current" / name for each in ("ds", "new"))
            assert now.read_bytes() == then.read_bytes()

    assert build() == ("published", 0)
    assert build() == ("up_to_date", 0)
    frame.loc[3, "score"] = 0.25
    frame.loc[4, "label"] = "b|c"  # and other class ids
    assert build() == ("published", 8)
    compare()
    frame.loc[5, "views"] = None  # the column becomes optional
    frame["views"] = frame["views"].astype("Int64")
    assert build() == ("published", 8)
    compare()
    frame["more"] = None  # also a column without a value
    assert build() == ("published", 0)


@pytest.mark.heavy
def test_lists_and_other_forms_of_listings(tmp_path) -> None:
    """Cells with separators and lists become lists; semicolons, UTF-16 and gzip are read."""
    photos = make_photos(tmp_path / "in", {"x": 2})
    text = "path;tags;n\nx/000.jpg;a|b;1|2\nx/001.jpg;;3\n"
    lists = [
        {"path": "x/000.jpg", "tags": ["a", "b"], "n": [1, 2]},
        {"path": "x/001.jpg", "n": [3]},
    ]
    gz = io.BytesIO()
    pd.DataFrame(lists).to_json(gz, orient="records", lines=True, compression="gzip")
    found = []
    for name, data, options in (
        ("a.csv", text.encode(), {"types": "tags:text:|,n:int:|"}),
        ("b.csv", text.encode("utf-16"), {"types": "tags:text:|,n:int:|"}),
        ("c.jsonl", "".join(f"{json.dumps(row)}\n" for row in lists).encode(), {}),
        ("d.jsonl", gz.getvalue(), {}),
    ):
        (photos / name).write_bytes(data)
        _, manifest = build_dataset(
            input=photos / name,
            output=tmp_path / name,
            label_from="none",
            splits="train:1",
            image_size=8,
            **options,
        )
        rows = [
            e for file in manifest.files for e in tf_examples(tmp_path / name / "current" / file)
        ]
        found.append({e["image/key"][0]: (e.get("image/tags"), e["image/n"]) for e in rows})
    assert found[0] == {b"x/000.jpg": ([b"a", b"b"], [1, 2]), b"x/001.jpg": (None, [3])}
    assert found[1:] == found[:1] * 3


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize(
    "kind", ["voc", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("yolo", "coco"))]
)
def test_columns_and_boxes_are_in_one_record(tmp_path, kind) -> None:
    """An update says that a changed cell or box changed a record, and takes its pixels."""
    folder, facts = write_images(tmp_path / "in"), truth()
    mask_options = {"masks": tmp_path / "masks"}
    write_masks(tmp_path / "masks")

    def build(scores) -> tuple[Outcome, dict]:
        options = write_annotations(kind, folder, facts) | mask_options
        lines = (f"{key},{score}\n" for key, score in zip(facts, scores, strict=True))
        (folder / "list.csv").write_text("path,score\n" + "".join(lines))
        outcome, manifest = build_dataset(
            input=folder / "list.csv",
            output=tmp_path / "ds",
            image_size=8,
            splits="train:1",
            update=True,
            **options,
        )
        examples = tf_examples(tmp_path / "ds/current" / manifest.files[0])
        return outcome, {each["image/key"][0].decode(): each for each in examples}

    _, found = build(range(12))
    for (key, (*_, boxes)), score in zip(facts.items(), range(12), strict=True):
        texts = [text.decode() for text in found[key].get("image/object/class/text", [])]
        assert texts == [box[0] for box in boxes]
        assert found[key]["image/score"] == [score]
        assert found[key]["image/segmentation/class/encoded"]
    facts[KEYS[3]] = (*facts[KEYS[3]][:2], [])
    outcome, found = build([*range(11), 99])
    assert outcome.reused == 12
    assert found[KEYS[11]]["image/score"] == [99]
    assert not found[KEYS[3]]["image/object/class/text"]
    assert outcome.changes == (f"2 changed: {KEYS[3]}, {KEYS[11]}",)
    compared = compare_datasets(*map(str, sorted((tmp_path / "ds").glob("gen-*"))), 0)
    assert compared["records"]["changed"] == {
        "all": 2,
        "image": 0,
        "input": 0,
        "label": 0,
        "values": 2,
        "split": 0,
    }


@pytest.mark.sweep
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_advice_for_rounded_values_of_listings_works(suffix, tmp_path) -> None:
    """Integers beyond 2**53 among decimals: of JSON Lines there are no texts to keep."""
    photos = make_photos(tmp_path / "in", {"x": 3})
    values = {f"x/{n:03}.jpg": text for n, text in enumerate(("9007199254740993", "0.5", "1.5"))}
    listing = photos / f"list.{suffix}"

    def write(template: str) -> None:
        lines = [template % pair for pair in values.items()]
        listing.write_text("\n".join(["path,n", *lines] if suffix == "csv" else lines))

    write("%s,%s" if suffix == "csv" else '{"path": "%s", "n": %s}')
    options = {"input": listing, "label_from": "none", "splits": "train:1"}
    _, manifest = build_dataset("images", output=tmp_path / "ds", **options)
    (warning,) = (text for text in manifest.warnings if "float32 rounds" in text)
    if suffix == "csv":
        assert warning.endswith("; --types=n:text keeps their texts")
        options["types"] = "n:text"
    else:
        assert warning.endswith("; write such values as texts in the file to keep all digits")
        write('{"path": "%s", "n": "%s"}')
    build_dataset("images", output=tmp_path / "two", **options)
    (shard,) = (tmp_path / "two/current").glob("*.tfrecord*")
    texts = {example["image/n"][0].decode() for example in tf_examples(shard)}
    assert texts == {*values.values()}
