"""TensorFlow Transform on rows; a pipeline of tft_beam alone is the judge."""

import math
import os
import pickle
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from shardmill.pipelines import RowsConfig
from shardmill.schemas.errors import InputError, StorageError, UsageError
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.transforms.tables.table_source import TypedColumn
from shardmill.transforms.tables.tft.build_graph import AnalyzeRows, analysis_error, filler_batch
from shardmill.transforms.tables.tft.preprocessing import Preprocessing
from shardmill.transforms.tables.tft.transformer import (
    Transformer,
    adapter_config,
    to_record_batch,
)
from tests.support.readers import current, tf_examples, tf_records
from tests.support.rows_tools import build_rows

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("transform")]  # TensorFlow starts once

ROWS, TRAIN = 900, 600
ALL = np.arange(ROWS)
COLUMNS = (
    Column("mass", "float32"),
    Column("age", "int64"),
    Column("island", "bytes"),
    Column("text", "bytes"),
    Column("flipper", "float32", required=False),
    Column("tags", "bytes", separator="|"),
)
SOURCE = """
import tensorflow as tf
import tensorflow_transform as tft


def filled(sparse, default):
    shape = [sparse.dense_shape[0], 1]
    return tf.sparse.to_dense(tf.sparse.SparseTensor(sparse.indices, sparse.values, shape), default)


def preprocessing_fn(inputs):
    words = tf.strings.split(tf.squeeze(inputs["text"], 1))
    grams = tft.ngrams(words.to_sparse(), (1, 2), " ")
    index, weight = tft.tfidf(tft.compute_and_apply_vocabulary(words.to_sparse()), 50)
    counts = tf.sparse.from_dense(tf.concat([inputs["age"] % 2, inputs["age"] % 3], 1))
    tft.experimental.annotate_sparse_output_shape(counts, [2])
    return {
        "mass_z": tft.scale_to_z_score(inputs["mass"]),
        "age_bucket": tft.bucketize(inputs["age"], 5),
        "island_id": tft.compute_and_apply_vocabulary(
            inputs["island"], vocab_filename="islands", top_k=2, num_oov_buckets=1
        ),
        "island_hash": tft.hash_strings(inputs["island"], 7),
        "gram_id": tft.compute_and_apply_vocabulary(grams, vocab_filename="grams"),
        "tfidf": weight,
        "flipper_01": tft.scale_to_0_1(filled(inputs["flipper"], -1.0)),
        "flipper_is": tf.cast(filled(inputs["flipper"], -1.0) >= 0, tf.int64),
        "tags": inputs["tags"],
        "one_hot": tf.one_hot(tf.squeeze(inputs["age"], 1) % 3, 3),
        "island": inputs["island"],
        "words": words,
        "counts": counts,
    }
"""


def table() -> list[TypedColumn]:
    """Return columns with missing values, empty texts and several values per cell."""
    rng = np.random.default_rng(7)

    def some(name, kind, values, low=0):
        values = pa.array(values, pa.binary()) if kind == "bytes" else pa.array(values)
        return TypedColumn(name, kind, choose(values, low))

    def choose(values, low):
        indices = rng.integers(low, len(values), ROWS)
        return values.take(pa.array(indices, mask=indices < 0))

    mass = pa.array(rng.normal(4000, 800, ROWS).astype(np.float32))
    tags = pa.array([[b"x", b"y"], [], [b"z"]], pa.list_(pa.binary()))
    return [
        TypedColumn("mass", "float32", mass),
        some("age", "int64", np.arange(90)),
        some("island", "bytes", [b"Biscoe", b"Dream", b"Torgersen", b"", b"\xff\x00"]),
        some("text", "bytes", [b"a b c", b"a b", b"", b"hello world a", b"b a b a"]),
        some("flipper", "float32", np.arange(20, dtype=np.float32), low=-1),
        TypedColumn("tags", "bytes", choose(tags, -1)),
    ]


def batches(start: int, stop: int, size: int = 150) -> list[pa.RecordBatch]:
    return [to_record_batch(table(), np.arange(s, s + size)) for s in range(start, stop, size)]


def transform_directly(
    source: str, spec: dict, rows: list[dict], folder: Path, train: int | None = None
) -> list[Path]:
    """Analyze the first rows, and transform all, with tft_beam alone; return files of Examples."""
    import apache_beam as beam
    import tensorflow_transform as tft
    import tensorflow_transform.beam as tft_beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    names = {}
    exec(compile(source, "direct.py", "exec"), names)
    metadata = tft.DatasetMetadata.from_feature_spec(spec)
    with (
        beam.Pipeline(runner=FnApiRunner()) as root,
        # The same batch size: sums of float32 depend on it.
        tft_beam.Context(temp_dir=f"{folder}/temp", desired_batch_size=150),
    ):
        analyzed = root | "Train" >> beam.Create(rows[:train], reshuffle=False)
        everything = root | "All" >> beam.Create(rows, reshuffle=False)
        graph_folder = (analyzed, metadata) | tft_beam.AnalyzeDataset(names["preprocessing_fn"])
        data = ((everything, metadata), graph_folder) | tft_beam.TransformDataset()
        _ = data | tft_beam.EncodeTransformedDataset() | beam.io.WriteToTFRecord(f"{folder}/direct")
    return sorted(folder.glob("direct*"))


def by_hand(folder: Path) -> list:
    """Return the Examples that tft_beam alone makes of the table."""
    import tensorflow as tf

    kinds = {"float32": tf.float32, "int64": tf.int64, "bytes": tf.string}
    spec = {
        c.name: tf.io.VarLenFeature(kinds[c.kind])
        if c.separator or not c.required
        else tf.io.FixedLenFeature([1], kinds[c.kind])
        for c in COLUMNS
    }
    rows = [row for batch in batches(0, ROWS) for row in batch.to_pylist()]
    found = transform_directly(SOURCE, spec, rows, folder, TRAIN)
    return [tf.train.Example.FromString(each) for path in found for each in tf_records(path, "")]


def analyze(folder, preprocessing, made=None, columns=COLUMNS) -> str:
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    made = batches(0, TRAIN) if made is None else made
    found = f"{folder}/found"
    with beam.Pipeline(runner=FnApiRunner()) as root:
        rows = root | beam.Create(made, reshuffle=False).with_output_types(pa.RecordBatch)
        graph_folder = rows | AnalyzeRows(columns, preprocessing, f"{folder}/scratch")
        _ = graph_folder | beam.io.WriteToText(found, shard_name_template="")
    with open(found) as lines:
        (only,) = lines.read().split()
    return only


def test_a_folder_that_tensorflow_cannot_write_is_one_sentence(tmp_path, preprocessing):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is not a directory; let TensorFlow write there"):
        analyze(tmp_path / "file", preprocessing)


def load(path: Path) -> Preprocessing:
    found = RowsConfig("in.csv", "ds", preprocessing=str(path)).read_preprocessing()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def preprocessing(tmp_path_factory) -> Preprocessing:
    path = tmp_path_factory.mktemp("user") / "pre.py"
    path.write_text(SOURCE)
    return load(path)


@pytest.fixture(scope="module")
def graph_folder(tmp_path_factory, preprocessing) -> str:
    return analyze(tmp_path_factory.mktemp("graph_folder"), preprocessing)


def rows_of(columns: list[TypedColumn]) -> list[dict[str, list]]:
    lists = {c.name: c.values.to_pylist() for c in columns}
    return [
        {name: v if isinstance(v, list) else [v] for name, v in zip(lists, row, strict=True)}
        for row in zip(*lists.values(), strict=True)
    ]


def values_of(example) -> dict[str, list]:
    return {
        name: list(getattr(f, f.WhichOneof("kind")).value) if f.WhichOneof("kind") else []
        for name, f in example.features.feature.items()
    }


@pytest.mark.nightly
def test_transformed_rows_equal_tft(graph_folder, tmp_path) -> None:
    theirs = [values_of(example) for example in by_hand(tmp_path)]
    copy = shutil.copytree(graph_folder, tmp_path / "copy")
    transformer = Transformer(str(copy))
    shutil.rmtree(copy)  # it does not need the files after loading
    ours = []
    for start, stop in ((0, 7), (7, 700), (700, ROWS)):
        ours += rows_of(transformer.apply(table(), np.arange(start, stop)))
    assert len(theirs) == ROWS
    assert len({str(row) for row in theirs}) > ROWS // 2
    assert any(row["gram_id"] for row in theirs)
    assert {row["island_id"][0] for row in theirs} == {0, 1, 2}
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other


def test_analysis_runs_on_the_filler_row(tmp_path) -> None:
    # Both analyzers fail without any row.
    source = (
        "import tensorflow as tf\nimport tensorflow_transform as tft\n"
        "def preprocessing_fn(inputs):\n"
        "    mass, island = (tf.squeeze(inputs[name], 1) for name in ('mass', 'island'))\n"
        "    ids = tft.compute_and_apply_vocabulary(tf.sparse.from_dense(inputs['island']))\n"
        "    return {'z': tft.scale_to_z_score_per_key(mass, island), 't': tft.tfidf(ids, 9)[1]}\n"
    )
    assert analyze(tmp_path, Preprocessing("pre.py", source), [filler_batch(COLUMNS)])


BAD_FILES = {
    "syntax": ("def preprocessing_fn(inputs:\n  pass", ["line 1", "not valid Python"]),
    "nul": ("x = 1\0", ["line 1 has a NUL character"]),
    "nothing": ("x = 1\n", ["has no function preprocessing_fn"]),
    "not_callable": ("preprocessing_fn = 3\n", ["has no function preprocessing_fn"]),
    "import": ("import re\nimport no_such_thing.at_all\n", ["line 2", "'no_such_thing'"]),
    "raises": ("x = 1\n\ny = x / 0\n", ["line 3", "ZeroDivisionError: division by zero"]),
    "exits": ("import sys\nsys.exit('bye')\n", ["line 2", "SystemExit: bye"]),
}


def check_rejection(call, *pieces: str) -> None:
    """Check that a call fails with one sentence that contains some pieces."""
    with pytest.raises(UsageError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for piece in pieces:
        assert piece in message


@pytest.mark.parametrize("case", BAD_FILES)
def test_rejects_a_bad_file_in_one_sentence(case, tmp_path) -> None:
    source, pieces = BAD_FILES[case]
    path = tmp_path / "pre.py"
    path.write_text(source)
    check_rejection(lambda: load(path), str(path), *pieces)


def test_rejects_a_file_that_does_not_exist_or_is_not_text(tmp_path) -> None:
    (tmp_path / "latin.py").write_bytes("# café\n".encode("latin-1"))
    (tmp_path / "data.py").touch()
    os.truncate(tmp_path / "data.py", (256 << 20) + 1)
    for path, problem in (
        (tmp_path / "none.py", "does not exist"),
        (tmp_path, "is a folder"),
        (tmp_path / "latin.py", "it is not UTF-8 (line 1 has the byte 0xe9); save it"),
        (tmp_path / "data.py", "has 268,435,457 bytes: give a Python file"),
    ):
        check_rejection(lambda path=path: load(path), problem)


def test_pickles_the_source_text(tmp_path) -> None:
    path = tmp_path / "pre.py"
    path.write_text(
        "def one():\n    return two()\n\ndef two():\n    return 2\n\npreprocessing_fn = one\n",
        encoding="utf-8-sig",
    )
    loaded = load(path)
    travelled = pickle.dumps(loaded)
    assert b"def two" in travelled
    path.unlink()
    assert pickle.loads(travelled).function() == 2
    assert loaded.digest == Preprocessing("elsewhere.py", loaded.source).digest
    assert loaded.digest != Preprocessing(loaded.path, loaded.source + "\n").digest


BAD_FUNCTIONS = {
    "column": ("return {'x': inputs['agee']}", ["line 4", "'agee'", "'mass', 'age'"]),
    "raises": ("return {'x': inputs['mass'] + inputs['text']}", ["line 4", "fails with"]),
    "none": ("pass", ["a NoneType", "a dict with a tensor for each feature"]),
    "empty": ("return {}", ["an empty dict"]),
    "float64": ("return {'x': tf.cast(inputs['mass'], tf.float64)}", ["'x'", "float64", "tf.cast"]),
    "int32": ("return {'x': tf.cast(inputs['age'], tf.int32)}", ["'x'", "tf.cast(…, tf.int64)"]),
    "bool": ("return {'x': inputs['age'] > 3}", ["'x'", "bool", "tf.int64"]),
    "list": ("return {'x': [1, 2]}", ["'x'", "a list"]),
    "scalar": ("return {'x': tft.mean(inputs['mass'])}", ["'x'", "a scalar"]),
    "ragged": (
        "return {'x': tf.strings.bytes_split(tf.strings.split(tf.squeeze(inputs['text'], 1)))}",
        ["'x'", "nested lists"],
    ),
}


@pytest.mark.parametrize("case", BAD_FUNCTIONS)
def test_rejects_a_bad_function_in_one_sentence(case, tmp_path) -> None:
    body, pieces = BAD_FUNCTIONS[case]
    source = (
        "import tensorflow as tf\nimport tensorflow_transform as tft\n"
        f"def preprocessing_fn(inputs):\n    {body}\n"
    )
    check_rejection(lambda: analyze(tmp_path, Preprocessing("pre.py", source)), "pre.py", *pieces)


def test_explains_errors_on_rows_in_one_sentence(tmp_path) -> None:
    source = textwrap.dedent("""
        import tensorflow as tf
        import tensorflow_transform as tft
        def preprocessing_fn(inputs):
            with tf.control_dependencies([tf.debugging.assert_less(inputs["age"], BOUND, "too old")]):
                age = tf.identity(inputs["age"])
            first = tf.cond(tf.reduce_max(age) > 80, lambda: age[:1], lambda: age)
            return {"age": tft.scale_to_z_score(age), "first": tf.reshape(first, [-1, 1])}
    """)
    bad = Preprocessing("pre.py", source.replace("BOUND", "tf.constant(5, tf.int64)"))
    with pytest.raises(Exception, match="too old") as caught:
        analyze(tmp_path, bad)
    explained = analysis_error(caught.value)
    assert isinstance(explained, InputError)
    assert "too old" in str(explained)
    assert "\n" not in str(explained)
    assert analysis_error(ValueError("something else")) is None
    good = Preprocessing("pre.py", source.replace("BOUND", "tf.constant(90, tf.int64)"))
    transformer = Transformer(analyze(tmp_path, good))
    with pytest.raises(InputError, match="1 entries of the feature 'first' for 900 rows"):
        transformer.apply(table(), ALL)
    ages = pa.array(np.arange(ROWS) % 90 + 50)
    old = [c._replace(values=ages) if c.name == "age" else c for c in table()]
    with pytest.raises(InputError, match="too old"):
        transformer.apply(old, ALL)


def test_rejects_sparse_features_with_gaps(tmp_path) -> None:
    source = (
        "import tensorflow as tf\n"
        "def preprocessing_fn(inputs):\n"
        "    return {'x': tf.sparse.from_dense(tf.one_hot(tf.squeeze(inputs['age'], 1) % 3, 3))}\n"
    )
    transformer = Transformer(analyze(tmp_path, Preprocessing("pre.py", source)))
    with pytest.raises(InputError, match="'x' with gaps"):
        transformer.apply(table(), ALL)


def test_adapter_config_accepts_all_column_options() -> None:
    odd = (
        Column("yes", "int64", booleans=("Y", "N")),
        Column("d", "float32", default="0.5", low=0),
    )
    odd += (Column("s", "bytes", values=("a", "b")), Column("z", "int64", zero_padded=True, high=9))
    config = adapter_config(format_schema(odd))
    assert [field.name for field in config.arrow_schema] == ["yes", "d", "s", "z"]
    assert set(config.tensor_representations) == {"yes", "d", "s", "z"}


# The function of tensorflow_transform/examples/census_example_common.py. Missing cells are texts.
CENSUS = """
import tensorflow as tf
import tensorflow_transform as tft

NUMBERS = ["age", "capital-gain", "capital-loss", "hours-per-week", "education-num"]
TEXTS = ["workclass", "education", "marital-status", "occupation", "relationship", "race", "sex",
         "native-country"]

def preprocessing_fn(inputs):
    outputs = inputs.copy()
    for key in NUMBERS:
        outputs[key] = tft.scale_to_0_1(inputs[key])
    for key in TEXTS:
        outputs[key] = tft.compute_and_apply_vocabulary(
            tf.strings.strip(inputs[key]), num_oov_buckets=1, vocab_filename=key)
    keys = [">50K", "<=50K"]
    with tf.init_scope():
        initializer = tf.lookup.KeyValueTensorInitializer(
            keys=keys, values=tf.cast(tf.range(len(keys)), tf.int64), key_dtype=tf.string,
            value_dtype=tf.int64)
        table = tf.lookup.StaticHashTable(initializer, default_value=-1)
    label = tf.strings.regex_replace(inputs["label"], r"\\\\.$", "")
    one_hot = tf.one_hot(table.lookup(label), len(keys), on_value=1.0, off_value=0.0)
    outputs["label"] = tf.reshape(one_hot, [-1, len(keys)])
    return outputs
"""
# The function of tfx/examples/chicago_taxi_pipeline/taxi_utils.py; some cells are missing.
TAXI = """
import tensorflow as tf
import tensorflow_transform as tft

def fill(x):
    if not isinstance(x, tf.sparse.SparseTensor):
        return tf.squeeze(x, axis=1)
    default = "" if x.dtype == tf.string else 0
    dense = tf.SparseTensor(x.indices, x.values, [x.dense_shape[0], 1])
    return tf.squeeze(tf.sparse.to_dense(dense, default), axis=1)

def preprocessing_fn(inputs):
    outputs = {"row": inputs["row"]}
    for key in ("trip_miles", "fare", "trip_seconds"):
        number = tf.cast(fill(inputs[key]), tf.float32)
        outputs[key + "_xf"] = tft.scale_to_z_score(number)
    for key in ("payment_type", "company"):
        outputs[key + "_xf"] = tft.compute_and_apply_vocabulary(
            fill(inputs[key]), top_k=1000, num_oov_buckets=10)
    for key in ("pickup_latitude", "pickup_longitude", "dropoff_latitude", "dropoff_longitude"):
        outputs[key + "_xf"] = tft.bucketize(fill(inputs[key]), 10)
    for key in ("trip_start_hour", "trip_start_day", "trip_start_month", "pickup_community_area"):
        outputs[key + "_xf"] = fill(inputs[key])
    fare = fill(inputs["fare"])
    tips = tf.greater(fill(inputs["tips"]), fare * tf.constant(0.2))
    outputs["tips_xf"] = tf.where(
        tf.math.is_nan(fare), tf.zeros_like(fare, tf.int64), tf.cast(tips, tf.int64))
    return outputs
"""
CENSUS_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country label"
)


def read_census(folder) -> pd.DataFrame:
    options = {"names": CENSUS_COLUMNS.split(), "skipinitialspace": True, "keep_default_na": False}
    return pd.read_csv(folder / "adult_test_noheader.csv", **options)[:2_000]


def read_taxi(folder) -> pd.DataFrame:
    return pd.read_csv(folder / "chicago_taxi_5000.csv").dropna(axis=1, how="all")[:2_000]


def transform_frame(frame: pd.DataFrame, source: str, folder: Path) -> list[dict[str, list]]:
    """Return what tft_beam alone makes of the rows of a frame."""
    import tensorflow as tf

    kinds = {"i": tf.int64, "f": tf.float32}
    gaps = frame.isna().any()
    spec = {
        name: (
            tf.io.VarLenFeature if gaps[name] else lambda kind: tf.io.FixedLenFeature([1], kind)
        )(kinds.get(frame[name].dtype.kind, tf.string))
        for name in frame
    }
    rows = [
        {name: [] if pd.isna(cell) else [cell] for name, cell in row.items()}
        for row in frame.to_dict("records")
    ]
    found = transform_directly(source, spec, rows, folder)
    return [each for path in found for each in tf_examples(path, "")]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("read", "source"), [(read_census, CENSUS), (read_taxi, TAXI)], ids=["census", "taxi"]
)
def test_each_cell_equals_that_of_tft_beam(read, source, kind, shared_data, tmp_path) -> None:
    frame = read(shared_data / "csv" / "tables")
    frame["row"] = range(len(frame))
    theirs = {row["row"][0]: row for row in transform_frame(frame, source, tmp_path)}
    path, code = tmp_path / f"table.{kind}", tmp_path / "pre.py"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    code.write_text(source)
    outcome, manifest = build_rows(
        input=path, output=tmp_path / "ds", preprocessing=code, splits="train:1"
    )
    assert outcome.status == "published", outcome
    shards = manifest.splits["train"].shards
    ours = [row for shard in shards for row in tf_examples(current(tmp_path / "ds") / shard.file)]
    assert len(ours) == len(theirs) == len(frame) == 2_000
    for mine in ours:
        other = theirs[mine["row"][0]]
        assert mine.keys() == other.keys()
        for name, cell in mine.items():
            floats = cell and isinstance(cell[0], float)
            same = map(
                lambda a, b: math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6), cell, other[name]
            )
            assert len(cell) == len(other[name])
            assert all(same) if floats else cell == other[name], (name, cell, other[name])
