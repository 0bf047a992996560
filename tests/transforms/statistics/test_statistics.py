"""Statistics in the manifest equal those of the records, on any number of parts and threads."""

import io
import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from shardmill.schemas import Manifest
from shardmill.transforms.statistics.sums import (
    Summary,
    Sums,
    compute_statistics,
    merge_summaries,
    sum_values,
)
from tests.conftest import build_dataset, examples, make_photos, shardmill
from tests.support.readers import current
from tests.support.rows_tools import JSON_SCHEMA, by_split, make_table, published, tf_examples
from tests.support.statistics_tools import assert_close, compare, nearest_root

SPLITS = {"splits": "train:0.7,validation:0.2,test:0.1"}
KINDS = {
    "id": "int64",
    "big": "int64",
    "price": "float32",
    "odd": "float32",
    "word": "bytes",
    "class": "bytes",
}


def check_rows(folder: Path, manifest: Manifest, kinds: dict[str, str]) -> None:
    """Check the statistics of a dataset of rows against the records that tf.data reads."""
    body = json.loads((folder / "manifest.json").read_text(), parse_constant=pytest.fail)
    jsonschema.validate(body, JSON_SCHEMA)
    for name, records in by_split(folder, manifest).items():
        features = body["splits"][name]["statistics"]["features"]
        assert set(features) == set(kinds)
        for feature, kind in kinds.items():
            values = [value for record in records for value in record.get(feature, ())]
            actual = features[feature]
            assert actual["count"] == len(values)
            assert actual["missing"] == sum(not record.get(feature) for record in records)
            if kind == "bytes":
                assert set(actual) == {"count", "missing"}
                continue
            compare(tuple(actual[each] for each in ("min", "max", "mean", "std")), values, kind)
            assert actual.get("nan", 0) == sum(map(math.isnan, values))
            assert actual.get("infinite", 0) == sum(map(math.isinf, values))
            assert isinstance(actual["min"], int if kind == "int64" else float)


def statistics_of(manifest: Manifest) -> dict[str, object]:
    return {name: split.statistics.to_json() for name, split in manifest.splits.items()}


def make_rows(path: Path, first: int, count: int) -> Path:
    rng = np.random.default_rng(first)
    rows = [
        (
            first + row,
            rng.integers(-(2**62), 2**62) if row % 3 else "",
            f"{rng.integers(0, 100_000) / 100:.2f}",
            f"{rng.normal() * 10.0 ** rng.integers(-6, 6):.9g}" if row % 5 else "",
            f"w{row % 4}" if row % 7 else "",
            f"c{min(row % 7, 3)}",
        )
        for row in range(count)
    ]
    return make_table(path, tuple(KINDS), rows)


@pytest.fixture(scope="module")
def rows_built(tmp_path_factory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("rows")
    for number in range(3):
        make_rows(folder / "in" / f"{number}.csv", 1_000 * number, 400)
    options = {"label": "class", "shard_examples": 100, **SPLITS}
    _, manifest = published(input=folder / "in", output=folder / "ds", threads=1, **options)
    assert len(manifest.files) > 9
    return folder / "ds", manifest


@pytest.mark.heavy
def test_statistics_of_rows_are_those_of_the_records(rows_built) -> None:
    out, manifest = rows_built
    check_rows(out, manifest, KINDS)
    train = manifest.splits["train"].statistics.features
    assert all(train[name].missing for name in ("big", "odd", "word"))
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.heavy
def test_statistics_leave_out_duplicates_and_conflicts(tmp_path) -> None:
    """Some files repeat rows; others have conflicting rows with values outside the range."""
    folder = tmp_path / "in"
    rows = [(str(row), row, f"{row / 7:.6g}") for row in range(200)]
    make_table(folder / "a.csv", ("key", "n", "x"), rows)
    options = {"key": "key", "max_reject_fraction": 0.2, **SPLITS}
    _, once = published(input=folder, output=tmp_path / "once", **options)
    make_table(folder / "b.csv", ("key", "n", "x"), rows[50:])
    for number, odd in enumerate((9_999, -9_999, 100)):
        make_table(folder / f"c{number}.csv", ("key", "n", "x"), [(str(7 * number), odd, 0.5)])
    _, manifest = published(input=folder, output=tmp_path / "ds", **options)
    assert manifest.inputs.duplicates == 150
    assert manifest.inputs.rejected_by_reason == {"key_conflict": 3}
    check_rows(tmp_path / "ds", manifest, {"key": "int64", "n": "int64", "x": "float32"})
    assert statistics_of(manifest) == statistics_of(once)


def test_class_weights_equal_those_of_sklearn(rows_built) -> None:
    out, manifest = rows_built
    weigh = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    body = json.loads((out / "manifest.json").read_text())
    for name, records in by_split(out, manifest).items():
        words = [record["class"][0].decode() for record in records]
        classes = np.unique(words)
        weights = weigh("balanced", classes=classes, y=words)
        wanted = dict(zip(classes.tolist(), weights, strict=True))
        assert body["splits"][name]["class_weights"] == wanted
        # The weights of all records sum to their number.
        counts = Counter(words)
        assert sum(wanted[word] * counts[word] for word in counts) == pytest.approx(len(words))


def decoded(folder: Path, manifest: Manifest, split: str) -> np.ndarray:
    """Return all pixels of a split, read by tf.data and decoded by Pillow or NumPy."""
    pixels = []
    for shard in manifest.splits[split].shards:
        for record in tf_examples(current(folder) / shard.file):
            data = record["image/encoded"][0]
            raw = record["image/format"][0] == b"raw"
            array = np.frombuffer(data, np.uint8) if raw else Image.open(io.BytesIO(data))
            size = record["image/height"][0] * record["image/width"][0]
            pixels.append(np.asarray(array).reshape(size, -1))
    return np.concatenate(pixels)


def mean_and_std(counts: Counter[int]) -> tuple[float, float]:
    """Return mean and standard deviation of a channel from its number of pixels of each value."""
    mean = Fraction(sum(value * n for value, n in counts.items()), counts.total())
    spread = sum((value - mean) ** 2 * n for value, n in counts.items())
    return float(mean), nearest_root(spread / counts.total())


@pytest.fixture(scope="module")
def photo_folder(tmp_path_factory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"), {"cat": 12, "dog": 9, "emu": 4})


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("encoding", "channels", "resize"),
    [("png", 3, "fit"), ("raw", 1, "stretch"), ("png", 4, "pad"), ("raw", 3, "none")],
)
def test_statistics_of_images_are_those_of_the_records(
    photo_folder, tmp_path, encoding, channels, resize
) -> None:
    out = tmp_path / "ds"
    size = {} if resize == "none" else {"image_size": "40x56"}
    outcome, manifest = build_dataset(
        input=photo_folder,
        output=out,
        encoding=encoding,
        channels=channels,
        resize=resize,
        **size,
        **SPLITS,
    )
    assert outcome.status == "published", outcome
    body = json.loads((out / "manifest.json").read_text(), parse_constant=pytest.fail)
    jsonschema.validate(body, JSON_SCHEMA)
    for name, split in body["splits"].items():
        pixels = decoded(out, manifest, name)
        actual = split["statistics"]["pixels"]
        assert actual["count"] == len(pixels)
        wanted = [mean_and_std(Counter(column)) for column in pixels.T.tolist()]
        assert list(zip(actual["mean"], actual["std"], strict=True)) == wanted
        assert len(wanted) == channels


def test_statistics_are_close_to_those_of_decoded_jpegs(shared_data, tmp_path) -> None:
    """The bounds are stated in docs/images.md."""
    out = tmp_path / "ds"
    folder = shared_data / "photos" / "flower_photos"
    _, manifest = build_dataset(input=folder, output=out, image_size="224", splits="train:1")
    pixels = decoded(out, manifest, "train").astype(np.float64)
    actual = manifest.splits["train"].statistics.pixels
    assert actual.count == len(pixels)
    assert np.abs(np.array(actual.mean) - pixels.mean(axis=0)).max() < 0.25
    assert np.abs(np.array(actual.std) - pixels.std(axis=0)).max() < 0.75


def test_older_manifests_and_counts_have_no_statistics(rows_built, tmp_path) -> None:
    out, manifest = rows_built
    body = json.loads(manifest.to_json())
    for split in body["splits"].values():
        del split["statistics"], split["class_weights"]
    jsonschema.validate(body, JSON_SCHEMA)
    old = Manifest.from_json(json.dumps(body))
    assert all(split.statistics is None for split in old.splits.values())
    assert old.splits["train"].class_weights == manifest.splits["train"].class_weights
    counted = tmp_path / "counted.json"
    assert shardmill("count", f"--input={out}", f"--manifest={counted}").returncode == 0
    for split in json.loads(counted.read_text())["splits"].values():
        assert not {"statistics", "class_weights"} & set(split)


def arrays_of(dtype: str) -> st.SearchStrategy[np.ndarray]:
    shape = arrays.array_shapes(max_dims=1, max_side=81, min_side=0)
    return arrays.arrays(dtype, shape, elements=arrays.from_dtype(np.dtype(dtype)))


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_sums_equal_those_of_fractions(dtype) -> None:
    @settings(max_examples=examples(90))
    @given(arrays_of(dtype))
    def check(array: np.ndarray) -> None:
        sums = sum_values(array)
        values = array.reshape(-1).tolist()
        assert_close(sums, values)
        assert sums.values == array.size
        assert sums.nan == sum(map(math.isnan, values))
        assert sums.infinite == sum(map(math.isinf, values))

    check()


rng = np.random.default_rng(5)
EDGES = {
    "int64 limits": np.array([-(2**63), 2**63 - 1] * 3),
    "around 32 bits": np.array([2**31, -(2**31), 2**32, -(2**52) - 1]),
    "many large integers": rng.integers(-(2**62), 2**62, 30_000),
    "many bytes": rng.integers(0, 256, 30_000),
    "float32 limits": np.array([3.4028235e38, 1e-45, -3.4028235e38, 1e-45], np.float32),
    "sum above the float32 limit": np.full(1_000, 1e38, np.float32),
    "subnormal": np.array([1e-45, 3e-45, 1e-45], np.float32),
    "negative zero first": np.array([-0.0, 0.0], np.float32),
    "negative zero last": np.array([0.0, -0.0], np.float32),
    "large offset, small variance": (1e15 + rng.normal(size=30_000) * 1e9).astype(np.float32),
    "one of many differs": np.append(np.full(100_000, 16_777_215), 16_777_214).astype(np.float32),
    "many scales": (rng.normal(size=30_000) * 10.0 ** rng.integers(-30, 30, 30_000)).astype("f4"),
    "not contiguous": rng.normal(size=2_100).astype(np.float32)[::2],
    "empty": np.zeros(0, np.float32),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_of_the_range(name) -> None:
    sums = sum_values(EDGES[name])
    assert_close(sums, EDGES[name].reshape(-1).tolist())
    assert math.copysign(1, sums.minimum or 0) == 1 or sums.minimum < 0


@pytest.mark.parametrize("value", [0.1, 1e38, 1e-45, 1e15, -3.3])
def test_std_of_a_constant_is_zero(value) -> None:
    parts = [sum_values(np.full(count, value, np.float32)) for count in (1, 7, 997, 65_537)]
    merged = merge_summaries(Summary({"x": part}) for part in parts).features["x"]
    assert (merged.mean(), merged.std()) == (float(np.float32(value)), 0.0)


@settings(max_examples=examples(150))
@given(st.lists(arrays.arrays("f4", st.integers(0, 9)), min_size=1, max_size=6), st.randoms())
def test_merging_does_not_depend_on_the_order(pieces, random) -> None:
    # Sidecars store summaries as JSON.
    parts = [
        Summary.from_json(json.loads(json.dumps(Summary({"x": sum_values(piece)}))))
        for piece in pieces
    ]
    merged = merge_summaries(parts)
    random.shuffle(parts)
    middle = len(parts) // 2
    assert merged == merge_summaries(map(merge_summaries, (parts[:middle], parts[middle:])))
    assert merged.features["x"].examples == len(pieces)
    assert_close(merged.features["x"], np.concatenate(pieces).tolist())


def test_nan_and_infinite_values_are_counted_separately() -> None:
    sums = sum_values(np.array([np.nan, 2, np.inf, 4, -np.inf], "f4"), 5)
    feature = compute_statistics(Summary({"x": sums}), 6).to_json()["features"]["x"]
    assert feature == {
        "count": 5,
        "missing": 1,
        "min": 2.0,
        "max": 4.0,
        "mean": 3.0,
        "std": 1.0,
        "nan": 1,
        "infinite": 2,
    }
    only_nan = sum_values(np.array([np.nan], "f4"))
    feature = compute_statistics(Summary({"x": only_nan}), 1).to_json()["features"]["x"]
    assert {feature[name] for name in ("min", "max", "mean", "std")} == {None}
    json.dumps(feature, allow_nan=False)


def test_records_without_values_are_missing() -> None:
    statistics = compute_statistics(Summary({"x": Sums("bytes", examples=3, values=9)}), 5)
    assert statistics.to_json()["features"]["x"] == {"count": 9, "missing": 2}
