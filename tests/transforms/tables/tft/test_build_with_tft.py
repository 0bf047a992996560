"""Rows through TensorFlow Transform, from the command's options to the published graph."""

import os
import random
from pathlib import Path

import apache_beam as beam
import pytest

from shardmill.pipelines import RowsConfig
from shardmill.pipelines.rows import build_rows as build
from shardmill.schemas.errors import StorageError, UsageError
from shardmill.schemas.storage import open_storage
from shardmill.transforms.publish.publish import Publisher
from shardmill.transforms.tables.tft.transformer import copy_folder
from tests.support.rows_tools import build_rows, by_split, check_dataset, frozen, make_table
from tests.transforms.statistics.test_statistics import check_rows

pytest_plugins = ["tests.support.gcs_server", "tests.support.s3_server"]
pytestmark = pytest.mark.heavy

PREPROCESSING = """
import tensorflow as tf
import tensorflow_transform as tft


def preprocessing_fn(inputs):
    age = tf.cast(inputs["age"], tf.float32)
    return {
        "pair": tf.stack([age, age / 3.0], axis=1),
        "odd": 1.0 / (age - 3.0),
        "lost": tf.math.log(age - 5.0),
        "mass": tft.scale_to_z_score(inputs["mass"]),
        "island": tft.compute_and_apply_vocabulary(inputs["island"], vocab_filename="island"),
        "label": inputs["species"],
    }
"""
FEATURES = dict.fromkeys(("mass", "pair", "odd", "lost"), "float32")
FEATURES |= {"island": "int64", "label": "bytes"}
GRAPH = "current/transform_fn/transform_fn/saved_model.pb"


def penguins(path: Path) -> Path:
    rng = random.Random(6)
    rows = [
        [
            rng.choice(["Adelie", "Gentoo"]),
            rng.choice(["Dream", "Biscoe", "Biscoe"]),
            f"{rng.gauss(4_200, 800):.1f}",
            age % 60,
        ]
        for age in range(300)
    ]
    return make_table(path, ["species", "island", "mass", "age"], rows)


def kill_build_of_other_rows(options: dict) -> None:
    """Leave an analysis of what the input held before it was edited, with its size and times."""
    path = options["input"]
    rows, times = path.read_bytes(), path.stat()
    path.write_bytes(rows.replace(b"Biscoe", b"Other."))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.MonkeyPatch.context() as killed:
        error = StorageError("the disk is full.")
        killed.setattr(Publisher, "publish", lambda *_: (_ for _ in ()).throw(error))
        assert build_rows(**options)[0].status == "failed"
    path.write_bytes(rows)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.xdist_group("transform")
def test_a_transformed_dataset(tmp_path) -> None:
    """Records are what the published graph, and sums by hand, make of the rows."""
    import numpy as np
    import tensorflow as tf
    import tensorflow_transform as tft

    (tmp_path / "pp.py").write_text(PREPROCESSING)
    raw = {"input": penguins(tmp_path / "in.csv"), "splits": "train:0.7,validation:0.3"}
    options = {**raw, "output": tmp_path / "ds", "preprocessing": tmp_path / "pp.py"}
    _, plain = build_rows(**raw, output=tmp_path / "plain")
    kill_build_of_other_rows(options)
    outcome, manifest = build_rows(**options)
    assert outcome.status == "published", outcome
    check_dataset(tmp_path / "ds", manifest, others={"transform_fn"})
    assert (tmp_path / "ds" / GRAPH).exists()
    output = tft.TFTransformOutput(str(tmp_path / "ds/current/transform_fn"))
    rows = by_split(tmp_path / "plain", plain)
    made = by_split(tmp_path / "ds", manifest)
    train = np.array([row["mass"][0] for row in rows["train"]], np.float64)
    islands = output.vocabulary_by_name("island")
    assert islands == [b"Biscoe", b"Dream"]
    for split in ("train", "validation"):  # the same rows in the same order
        assert len(made[split]) == len(rows[split]) > 50
        kinds = {"species": "string", "island": "string", "mass": "float32", "age": "int64"}
        batch = {
            name: tf.constant([row[name] for row in rows[split]], kind)
            for name, kind in kinds.items()
        }
        by_graph = output.transform_raw_features(batch)
        for number, (row, example) in enumerate(zip(rows[split], made[split], strict=True)):
            assert set(example) == set(FEATURES)
            assert example["label"] == row["species"]
            assert example["island"] == [islands.index(row["island"][0])]
            by_hand = (row["mass"][0] - train.mean()) / train.std()
            assert example["mass"] == pytest.approx([by_hand], abs=1e-4)
            assert example["mass"] == by_graph["mass"][number].numpy().tolist()
    spec = output.transformed_feature_spec()
    files = [str(tmp_path / "ds/current" / name) for name in manifest.files]
    payloads = tf.data.TFRecordDataset(files, "GZIP").batch(1_000).get_single_element()
    parsed = tf.io.parse_example(payloads, spec)
    assert {name: tensor.shape[0] for name, tensor in parsed.items()} == dict.fromkeys(spec, 300)
    assert set(spec) == set(FEATURES) == {f["name"] for f in manifest.features}
    check_rows(tmp_path / "ds", manifest, FEATURES)
    statistics = [split.statistics.features for split in manifest.splits.values()]
    counts = [sum(each[name].infinite for each in statistics) for name in ("odd", "lost")]
    assert counts == [5, 5]
    assert sum(each["lost"].nan for each in statistics) == 25

    assert build_rows(**options)[0].status == "up_to_date"
    (tmp_path / "pp.py").write_text(PREPROCESSING + "\n# another\n")
    assert "add --update" in build_rows(**options)[0].message
    assert not list((tmp_path / "ds").glob(".*"))
    outcome, manifest = build_rows(**raw, output=tmp_path / "ds", update=True)
    assert outcome.status == "published"
    examples = check_dataset(tmp_path / "ds", manifest)
    assert not (tmp_path / "ds" / GRAPH).exists()
    assert set(map(frozen, examples)) == {frozen(row) for split in rows.values() for row in split}


@pytest.mark.sweep
@pytest.mark.xdist_group("transform")
@pytest.mark.parametrize("service", ["strict_bucket", "s3_bucket"])
def test_the_output_may_be_in_a_bucket(service, request, tmp_path) -> None:
    """TensorFlow has no credentials for it: the analysis is on the disk, the graph is copied."""
    import tensorflow_transform as tft

    bucket = request.getfixturevalue(service)
    (tmp_path / "pp.py").write_text(PREPROCESSING)
    options = {"input": penguins(tmp_path / "in.csv"), "preprocessing": tmp_path / "pp.py"}
    build_rows(**options, output=tmp_path / "here")
    outcome, manifest = build_rows(**options, output=f"{bucket}/o ut")
    assert outcome.status == "published", outcome
    storage = open_storage(bucket)
    names = [entry.path.removeprefix(f"{bucket}/o ut/") for entry in storage.walk(bucket)]
    assert {name.partition("/")[0] for name in names} == {manifest.generation, "manifest.json"}
    copy = copy_folder(f"{bucket}/o ut", str(tmp_path / "there"))
    shards = [(tmp_path / "here/current" / name).read_bytes() for name in manifest.files]
    there = Path(copy) / manifest.generation
    assert [(there / name).read_bytes() for name in manifest.files] == shards
    output = tft.TFTransformOutput(str(there / "transform_fn"))
    assert output.vocabulary_by_name("island") == [b"Biscoe", b"Dream"]
    assert build_rows(**options, output=f"{bucket}/o ut")[0].status == "up_to_date"


def test_workers_on_other_machines_need_a_storage_of_tensorflow(s3_bucket, tmp_path) -> None:
    (tmp_path / "pp.py").write_text(PREPROCESSING)
    config = RowsConfig(
        input=penguins(tmp_path / "in.csv"),
        preprocessing=str(tmp_path / "pp.py"),
        output=f"{s3_bucket}/ds",
    )
    with pytest.raises(UsageError, match="its output on s3:// with workers on other machines"):
        build(beam.Pipeline(runner="PrismRunner"), config)


SHAPES = """
import tensorflow as tf
import tensorflow_transform as tft


def preprocessing_fn(inputs):
    age = inputs["age"][:, 0]
    rows = tf.range(tf.size(age, out_type=tf.int64))
    count = tf.size(age, out_type=tf.int64)
    at = tf.stack([rows, age % 5, age % 2], axis=1)
    sparse = tf.SparseTensor(at, tf.cast(age, tf.float32), tf.stack([count, 5, 2]))
    tft.experimental.annotate_sparse_output_shape(sparse, [5, 2])
    species = tft.compute_and_apply_vocabulary(inputs["species"])[:, 0]
    return {
        "sparse": sparse,
        "words": tf.strings.bytes_split(inputs["island"][:, 0]),
        "hot": tf.one_hot(species, 2),
        "species": tf.strings.lower(inputs["species"]),
    }
"""


@pytest.mark.xdist_group("transform")
def test_shapes_and_labels_come_back_as_the_function_returns_them(tmp_path) -> None:
    """Sparse, ragged and vector features, and labels of text, as TensorFlow parses them by the
    feature spec of TensorFlow Transform, and as the rows say."""
    import numpy as np
    import tensorflow as tf
    import tensorflow_transform as tft

    import shardmill

    (tmp_path / "pp.py").write_text(SHAPES)
    options = {"input": penguins(tmp_path / "in.csv"), "splits": "train:1", "label": "species"}
    _, plain = build_rows(**options, output=tmp_path / "plain")
    ds = tmp_path / "ds"
    _, manifest = build_rows(**options, output=ds, preprocessing=tmp_path / "pp.py")
    check_dataset(ds, manifest, "species", others={"transform_fn"})
    assert manifest.labels == ("adelie", "gentoo")  # of the records, not of the table
    (rows,) = by_split(tmp_path / "plain", plain).values()
    spec = tft.TFTransformOutput(str(ds / "current/transform_fn")).transformed_feature_spec()
    assert shardmill.feature_spec(ds) == spec
    files = [str(ds / "current" / name) for name in manifest.files]
    payloads = tf.data.TFRecordDataset(files, "GZIP").batch(1_000).get_single_element()
    parsed = tf.io.parse_example(payloads, spec)
    ((inputs, ids),) = shardmill.keras_dataset(ds, batch_size=300)
    assert isinstance(inputs["sparse"], tf.SparseTensor)
    assert set(inputs) == {"sparse", "words", "hot"}
    dense = tf.sparse.to_dense(inputs["sparse"]).numpy()
    assert np.array_equal(dense, tf.sparse.to_dense(parsed["sparse"]).numpy())
    assert inputs["words"].to_list() == parsed["words"].to_list()
    for number, (row, each) in enumerate(zip(rows, shardmill.open_dataset(ds), strict=True)):
        age = row["age"][0]
        assert dense[number, age % 5, age % 2] == age
        assert np.count_nonzero(dense[number]) == (age > 0)
        assert np.array_equal(each["sparse"], dense[number])
        letters = [bytes([letter]) for letter in row["island"][0]]
        assert each["words"].tolist() == inputs["words"][number].numpy().tolist() == letters
        assert ids[number] == [b"Adelie", b"Gentoo"].index(row["species"][0])
    texts = [row["species"][0] for row in rows]
    counts = [texts.count(b"Adelie"), texts.count(b"Gentoo")]
    weights = shardmill.class_weights(ds)
    assert weights == pytest.approx({n: 150 / count for n, count in enumerate(counts)})
    ((_, hot),) = shardmill.keras_dataset(ds, batch_size=300, label="hot")
    assert hot.shape == (300, 2)
    assert np.array_equal(hot, parsed["hot"])
    single = shardmill.keras_dataset(ds, batch_size=None, label="hot")
    assert next(iter(single))[1].shape == (2,)
