"""Statistics in the manifest are exact, and the same however the work is cut."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.transforms.columnar.typed_column import TypedColumn
from shardmill.transforms.rows import transform
from shardmill.transforms.rows.runs import make
from shardmill.transforms.rows.runs.sums import sum_table, unpack_sums
from shardmill.transforms.statistics.exact import UNITS
from shardmill.transforms.statistics.sums import (
    Summary,
    Sums,
    merged,
    publish_summary,
    sums_of_array,
)
from tests.conftest import build_dataset, examples, make_photos, shardmill
from tests.support.rows_tools import (
    JSON_SCHEMA,
    build_rows,
    by_split,
    check_dataset,
    make_table,
    published,
    tf_examples,
)

NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
)  # fmt: skip


def nearest_root(value: Fraction) -> float:
    """Returns the double next to a square root."""
    if not value:
        return 0.0
    bits = value.denominator.bit_length() - value.numerator.bit_length()
    shift = max(0, bits // 2 + 600)
    root = Fraction(math.isqrt((value.numerator << 2 * shift) // value.denominator), 1 << shift)
    return float(root)  # 600 bits more than a double has: none of the roots here is so near a tie


def judged(values: Iterable[float]) -> tuple[float | None, ...]:
    """Returns min, max, mean and std of numbers, by fractions."""
    finite = [Fraction(value) for value in values if math.isfinite(value)]
    if not finite:
        return None, None, None, None
    mean = sum(finite) / len(finite)
    variance = sum((value - mean) ** 2 for value in finite) / len(finite)
    kept = [value for value in values if math.isfinite(value)]
    return min(kept), max(kept), float(mean), nearest_root(variance)


def shown(sums: Sums) -> tuple[float | None, ...]:
    return sums.low, sums.high, sums.mean(), sums.std()


def some_numbers(dtype: str) -> st.SearchStrategy[np.ndarray]:
    shape = arrays.array_shapes(max_dims=2, max_side=9, min_side=0)
    return arrays.arrays(dtype, shape, elements=arrays.from_dtype(np.dtype(dtype)))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_arrays_are_summed_as_fractions_are(dtype) -> None:
    @settings(max_examples=examples(90))
    @given(some_numbers(dtype))
    def check(array: np.ndarray) -> None:
        sums = sums_of_array(array)
        values = array.reshape(-1).tolist()
        assert shown(sums) == judged(values)
        assert (sums.nan, sums.infinite) == (
            sum(map(math.isnan, values)), sum(map(math.isinf, values)),
        )  # fmt: skip
        finite = [Fraction(value) for value in values if math.isfinite(value)]
        assert Fraction(sums.total, 1 << UNITS[sums.kind]) == sum(finite)
        squares = sum(value**2 for value in finite)
        assert Fraction(sums.squares, 1 << 2 * UNITS[sums.kind]) == squares
        assert sums.values == array.size

    check()


@pytest.mark.parametrize(
    "array",
    [
        np.array([-(2**63), 2**63 - 1] * 3),
        np.array([2**64 - 1] * 5, np.uint64),
        np.array([1e308, -1e308, 5e-324, 1.7976931348623157e308]),
        np.array([3.4028235e38, 1e-45, -3.4028235e38, 1e-45], np.float32),
        np.array([-0.0, 0.0], np.float32),
        np.array([0.1] * 3),
        np.array([2**26, -(2**26), 2**52, -(2**52) - 1]),
        np.zeros(0),
    ],
    ids=lambda array: f"{array.dtype}-{array.size}",
)
def test_the_ends_of_the_range(array) -> None:
    assert shown(sums_of_array(array)) == judged(array.tolist())
    assert str(sums_of_array(array).low) != "-0.0"


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "float64"])
def test_long_arrays(dtype) -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=150_000) * 10.0 ** rng.integers(-3, 4, 150_000)
    array = (values * 1_000 if dtype.endswith(("64", "8")) else values).astype("f8")
    array = (array % 251).astype(dtype) if dtype == "uint8" else array.astype(dtype)
    sums = sums_of_array(array)
    if "int" in dtype:
        listed = array.tolist()
        assert (sums.total, sums.squares) == (sum(listed), sum(x * x for x in listed))
    else:
        # fsum is correctly rounded, and the squares of float32 are exact doubles.
        assert sums.mean() == pytest.approx(math.fsum(array.tolist()) / array.size, rel=1e-15)
        assert float(Fraction(sums.total, 1 << UNITS[sums.kind])) == math.fsum(array.tolist())
    if dtype == "float32":
        squares = math.fsum((array.astype("f8") ** 2).tolist())
        assert float(Fraction(sums.squares, 1 << 2 * UNITS[sums.kind])) == squares


@settings(max_examples=examples(150))
@given(st.lists(arrays.arrays("f4", st.integers(0, 9)), max_size=6), st.randoms())
def test_sums_do_not_depend_on_the_cut_or_the_order(pieces, random) -> None:
    whole = sums_of_array(np.concatenate([np.zeros(0, "f4"), *pieces]), len(pieces))
    random.shuffle(pieces)
    parts = [Summary({"x": sums_of_array(piece)}) for piece in pieces]
    middle = len(parts) // 2
    one = merged([merged(parts[:middle]), merged(parts[middle:])])
    # JSON is what parts say of themselves.
    one = Summary.from_json(json.loads(json.dumps(one)))
    assert one.features.get("x", Sums("float32")) == whole


@pytest.mark.parametrize("dtype", ["complex64", "S3", "M8[s]", "O", np.longdouble])
def test_what_has_no_exact_sums(dtype) -> None:
    with pytest.raises(TypeError, match="no exact sums"):
        sums_of_array(np.zeros(2, dtype))


def test_kinds_do_not_mix() -> None:
    with pytest.raises(ValueError, match="holds integer here and float32 there"):
        sums_of_array(np.ones(1, "i4")).plus(sums_of_array(np.ones(1, "f4")))


def test_values_that_are_not_finite_are_counted_apart() -> None:
    sums = sums_of_array(np.array([np.nan, 2, np.inf, 4, -np.inf], "f4"), 5)
    found = publish_summary(Summary({"x": sums}), 6).to_json()["features"]["x"]
    assert found == {
        "count": 5, "missing": 1, "min": 2.0, "max": 4.0, "mean": 3.0, "std": 1.0, "nan": 1,
        "infinite": 2,
    }  # fmt: skip
    nothing = sums_of_array(np.array([np.nan], "f4"))
    found = publish_summary(Summary({"x": nothing}), 1).to_json()["features"]["x"]
    assert {found[name] for name in ("min", "max", "mean", "std")} == {None}
    json.dumps(found, allow_nan=False)


# Segments of made-up columns: plain ones, lists, missing values, nulls.


def _column(kind: str, form: str, cells: Sequence[list]) -> tuple[TypedColumn, list[list]]:
    """Returns a column of some cells, and the values that each row of it has."""
    arrow = {"int64": pa.int64(), "float32": pa.float32(), "bytes": pa.binary()}[kind]
    if form == "lists":
        return TypedColumn(kind, kind, pa.array(cells, pa.list_(arrow)), None), list(cells)
    firsts = [cell[:1] for cell in cells]
    if form == "indices":
        values = pa.array([cell[0] for cell in firsts if cell], arrow)
        ends = np.cumsum([bool(cell) for cell in firsts])
        rows = np.where([bool(cell) for cell in firsts], ends - 1, -1).astype(np.int32)
        return TypedColumn(kind, kind, values, rows), firsts
    if form == "lists by index":
        distinct = [[], *cells]
        rows = np.arange(len(cells), dtype=np.int32) + 1
        rows[::3] = -1
        mine = [[] if row < 0 else cell for row, cell in zip(rows, cells, strict=True)]
        return TypedColumn(kind, kind, pa.array(distinct, pa.list_(arrow)), rows), mine
    values = pa.array([cell[0] if cell else None for cell in firsts], arrow)
    return TypedColumn(kind, kind, values, None), firsts


_ELEMENTS = {
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    "float32": st.floats(width=32),
    "bytes": st.binary(max_size=3),
}


@pytest.mark.parametrize("form", ["indices", "nulls", "lists", "lists by index"])
@pytest.mark.parametrize("kind", ["int64", "float32", "bytes"])
def test_segments_add_up(kind, form) -> None:
    @settings(max_examples=examples(90))
    @given(st.lists(st.lists(_ELEMENTS[kind], max_size=3), min_size=1, max_size=20), st.data())
    def check(cells, data) -> None:
        column, rows = _column(kind, form, cells)
        some = st.lists(st.integers(0, len(rows) - 1), min_size=1, unique=True)
        order = np.array(data.draw(some))
        cuts = data.draw(st.sets(st.integers(1, len(order))))
        starts = np.array(sorted({0, *(cut for cut in cuts if cut < len(order))}))
        sums = sum_table([column], order, starts)
        chosen = data.draw(st.sets(st.integers(0, len(starts) - 1), min_size=1))
        bounds = [*starts.tolist(), len(order)]
        mine = [rows[row] for piece in chosen for row in order[bounds[piece] : bounds[piece + 1]]]
        found = unpack_sums(sums.packed(piece) for piece in chosen)[kind]
        assert found.examples == sum(bool(row) for row in mine)
        values = [value for row in mine for value in row]
        assert found.values == len(values)
        if kind != "bytes":
            assert shown(found) == judged(values)

    check()


# Rows: what tf.data reads is what the manifest says.


def judge_rows(folder: Path, manifest: Manifest, kinds: dict[str, str]) -> None:
    """Checks the statistics of a dataset of rows by fractions over what tf.data reads."""
    body = json.loads((folder / "manifest.json").read_text(), parse_constant=pytest.fail)
    jsonschema.validate(body, JSON_SCHEMA)
    for name, records in by_split(folder, manifest).items():
        features = body["splits"][name]["statistics"]["features"]
        assert set(features) == set(kinds)
        for feature, kind in kinds.items():
            values = [value for record in records for value in record.get(feature, ())]
            said = features[feature]
            assert said["count"] == len(values)
            assert said["missing"] == sum(not record.get(feature) for record in records)
            if kind == "bytes":
                assert set(said) == {"count", "missing"}
                continue
            bounds = tuple(said[each] for each in ("min", "max", "mean", "std"))
            assert bounds == judged(values)
            assert said.get("nan", 0) == sum(map(math.isnan, values))
            assert said.get("infinite", 0) == sum(map(math.isinf, values))
            assert isinstance(said["min"], int if kind == "int64" else float)


KINDS = {
    "id": "int64", "big": "int64", "price": "float32", "odd": "float32", "word": "bytes",
    "class": "bytes",
}  # fmt: skip


def make_rows(path: Path, first: int, count: int) -> Path:
    rng = np.random.default_rng(first)
    rows = [
        (
            first + row,
            rng.integers(-(2**62), 2**62) if row % 3 else "",
            f"{rng.integers(0, 100_000) / 100:.2f}",
            f"{rng.normal() * 10.0 ** rng.integers(-30, 30):.9g}" if row % 5 else "",
            f"w{row % 4}" if row % 7 else "",
            f"c{min(row % 7, 3)}",
        )
        for row in range(count)
    ]
    return make_table(path, tuple(KINDS), rows)


SPLITS = {"splits": "train:0.7,validation:0.2,test:0.1"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for number in range(3):
        make_rows(folder / f"{number}.csv", 1_000 * number, 400)
    return folder


@pytest.fixture(scope="module")
def rows_built(tables, tmp_path_factory) -> tuple[Path, Manifest]:
    out = tmp_path_factory.mktemp("rows") / "ds"
    _, manifest = published(input=tables, output=out, label="class", **SPLITS)
    return out, manifest


def statistics_of(manifest: Manifest) -> dict[str, object]:
    return {name: split.statistics.to_json() for name, split in manifest.splits.items()}


def test_rows_are_what_tf_data_reads(rows_built) -> None:
    out, manifest = rows_built
    judge_rows(out, manifest, KINDS)
    train = manifest.splits["train"].statistics.features
    assert all(train[name].missing for name in ("big", "odd", "word"))
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_rows_are_summed_alike_however_they_are_cut(
    tables, rows_built, tmp_path, monkeypatch
) -> None:
    """Ranges of 4 KiB, many parts, several threads: only the way there differs."""
    out, seen = tmp_path / "ds", tmp_path / "seen"
    seen.mkdir()

    def cut_small(task, spec, plan, *more):
        (seen / f"{Path(task[0][0]).name}-{task[2][0]}-{spec.runs.range_bytes}").touch()
        return real(task, spec, plan, *more)

    real = transform.write_runs
    monkeypatch.setattr(transform, "write_runs", cut_small)
    monkeypatch.setattr("shardmill.pipelines.rows.RunSpec", _small_ranges)
    _, manifest = published(
        input=tables, output=out, label="class", shard_examples=100, threads=3, **SPLITS
    )
    assert len(list(seen.glob("*-4096"))) > 9
    assert len(manifest.files) > 9
    assert statistics_of(manifest) == statistics_of(rows_built[1])


def _small_ranges(*args, **options):
    return dataclasses.replace(make.RunSpec(*args, **options), range_bytes=4_096)


def test_rows_with_keys_count_what_was_written(tmp_path) -> None:
    """Files that repeat rows, and rows that contradict others, with values beyond the rest."""
    folder = tmp_path / "in"
    rows = [(str(row), row, row / 8) for row in range(200)]
    make_table(folder / "a.csv", ("key", "n", "x"), rows)
    make_table(folder / "b.csv", ("key", "n", "x"), rows[50:])
    for number, odd in enumerate((9_999, -9_999, 100)):
        make_table(folder / f"c{number}.csv", ("key", "n", "x"), [(str(7 * number), odd, 0.5)])
    out = tmp_path / "ds"
    _, manifest = published(input=folder, output=out, key="key", max_reject_fraction=0.2, **SPLITS)
    assert manifest.inputs.duplicates == 150
    assert manifest.inputs.rejected_by_reason == {"key_conflict": 3}
    judge_rows(out, manifest, {"key": "int64", "n": "int64", "x": "float32"})
    assert max(split.statistics.features["n"].max for split in manifest.splits.values()) == 199


def test_class_weights_are_those_of_sklearn(rows_built) -> None:
    out, manifest = rows_built
    weigh = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    body = json.loads((out / "manifest.json").read_text())
    for name, records in by_split(out, manifest).items():
        words = [record["class"][0].decode() for record in records]
        classes = np.unique(words)
        wanted = dict(
            zip(classes.tolist(), weigh("balanced", classes=classes, y=words), strict=True)
        )
        assert body["splits"][name]["class_weights"] == wanted
        # By hand: each class weighs as much as another, and all weigh as many as there are.
        counts = Counter(words)
        assert sum(wanted[word] * counts[word] for word in counts) == pytest.approx(len(words))


def test_transformed_rows(tmp_path) -> None:
    """Several values a row, and values that are none, after TensorFlow Transform."""
    pytest.importorskip("tensorflow_transform")
    program = tmp_path / "preprocessing.py"
    program.write_text(
        "import tensorflow as tf\n"
        "import tensorflow_transform as tft\n\n\n"
        "def preprocessing_fn(inputs):\n"
        "    n = tf.cast(inputs['n'], tf.float32)\n"
        "    return {\n"
        "        'z': tft.scale_to_z_score(inputs['n']),\n"
        "        'pair': tf.stack([n, n / 3.0], axis=1),\n"
        "        'text': inputs['text'],\n"
        "        'odd': 1.0 / (n - 3.0),\n"
        "        'lost': tf.math.log(n - 5.0),\n"
        "    }\n"
    )
    rows = [(row, "ab"[: row % 3]) for row in range(60)]
    table = make_table(tmp_path / "in" / "t.csv", ("n", "text"), rows)
    out = tmp_path / "ds"
    outcome, manifest = build_rows(input=table, output=out, preprocessing=program, splits="train:1")
    assert outcome.status == "published", outcome
    kinds = {"z": "float32", "pair": "float32", "text": "bytes", "odd": "float32"}
    judge_rows(out, manifest, {**kinds, "lost": "float32"})
    features = manifest.splits["train"].statistics.features
    assert (features["pair"].count, features["text"].missing) == (120, 20)
    assert (features["odd"].infinite, features["lost"].nan) == (1, 5)
    assert features["lost"].infinite == 1


# Images.


def decoded(folder: Path, manifest: Manifest, split: str) -> np.ndarray:
    """Returns all pixels of a split, which Pillow or NumPy reads from what tf.data reads."""
    pixels = []
    for shard in manifest.splits[split].shards:
        for record in tf_examples(folder / shard.file):
            data = record["image/encoded"][0]
            if record["image/format"][0] == b"raw":
                size = record["image/height"][0] * record["image/width"][0]
                pixels.append(np.frombuffer(data, np.uint8).reshape(size, -1))
            else:
                array = np.asarray(Image.open(io.BytesIO(data)))
                pixels.append(array.reshape(array.shape[0] * array.shape[1], -1))
    return np.concatenate(pixels)


def judged_pixels(counts: Counter[int]) -> tuple[float, float]:
    """Returns mean and std of a channel, by its number of pixels of each value."""
    mean = Fraction(sum(value * n for value, n in counts.items()), counts.total())
    spread = sum((value - mean) ** 2 * n for value, n in counts.items())
    return float(mean), nearest_root(spread / counts.total())


@pytest.fixture(scope="module")
def photo_folder(tmp_path_factory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"), {"cat": 12, "dog": 9, "emu": 4})


@pytest.mark.parametrize(
    ("encoding", "channels", "resize"),
    [("png", 3, "fit"), ("raw", 1, "stretch"), ("png", 4, "pad"), ("raw", 3, "none")],
)
def test_images_are_what_their_records_hold(
    photo_folder, tmp_path, encoding, channels, resize
) -> None:
    out = tmp_path / "ds"
    size = {} if resize == "none" else {"image_size": "40x56"}
    outcome, manifest = build_dataset(
        input=photo_folder, output=out, encoding=encoding, channels=channels, resize=resize,
        **size, **SPLITS,
    )  # fmt: skip
    assert outcome.status == "published", outcome
    body = json.loads((out / "manifest.json").read_text(), parse_constant=pytest.fail)
    jsonschema.validate(body, JSON_SCHEMA)
    for name, split in body["splits"].items():
        pixels = decoded(out, manifest, name)
        said = split["statistics"]["pixels"]
        assert said["count"] == len(pixels)
        wanted = [judged_pixels(Counter(column)) for column in pixels.T.tolist()]
        assert list(zip(said["mean"], said["std"], strict=True)) == wanted
        assert len(wanted) == channels


def test_images_are_summed_alike_however_they_are_cut(photo_folder, tmp_path) -> None:
    found = []
    for number, options in enumerate(({}, {"num_shards": 3, "threads": 3})):
        out = tmp_path / str(number)
        outcome, manifest = build_dataset(
            input=photo_folder, output=out, image_size="48", **options
        )
        assert outcome.status == "published", outcome
        found.append((statistics_of(manifest), manifest.splits["train"].class_weights))
    assert found[0] == found[1]


def test_jpeg_loses_little_of_the_statistics(shared_data, tmp_path) -> None:
    """docs/images.md says how far the decoded records are from what the manifest says."""
    out = tmp_path / "ds"
    folder = shared_data / "photos" / "flower_photos"
    _, manifest = build_dataset(input=folder, output=out, image_size="224", splits="train:1")
    pixels = decoded(out, manifest, "train").astype(np.float64)
    said = manifest.splits["train"].statistics.pixels
    assert said.count == len(pixels)
    apart = np.array(said.mean) - pixels.mean(axis=0), np.array(said.std) - pixels.std(axis=0)
    assert np.abs(apart[0]).max() < 0.25
    assert np.abs(apart[1]).max() < 0.75


# What stands beside.


def test_a_stopped_build_goes_on_to_the_same_statistics(tables, rows_built, tmp_path) -> None:
    """Many bad rows stop a build when all parts are made; the next one finds these."""
    out = tmp_path / "ds"
    options = {"input": tables, "output": out, "label": "class", **SPLITS}
    folder = tmp_path / "in"
    folder.mkdir()
    for path in tables.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "9.csv").write_text(",".join(KINDS) + "\n" + "1,2\n" * 300)
    options["input"] = folder
    stopped, manifest = build_rows(**options, max_reject_fraction=0.01)
    assert (stopped.status, manifest) == ("failed", None)
    resumed, manifest = build_rows(**options, max_reject_fraction=0.5)
    assert (resumed.status, resumed.parts_made) == ("published", 0)
    assert resumed.parts_found
    check_dataset(out, manifest)
    straight, other = build_rows(**(options | {"output": tmp_path / "b"}), max_reject_fraction=0.5)
    assert (straight.status, straight.parts_found) == ("published", 0)
    assert statistics_of(manifest) == statistics_of(other)


def test_an_older_manifest_and_a_count_have_none(rows_built, tmp_path) -> None:
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
