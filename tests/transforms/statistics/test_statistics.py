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
from PIL import Image

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.transforms.rows import transform
from shardmill.transforms.rows.runs import run_writer
from tests.conftest import build_dataset, make_photos, shardmill
from tests.support.rows_tools import (
    JSON_SCHEMA,
    build_rows,
    by_split,
    check_dataset,
    make_table,
    published,
    tf_examples,
)
from tests.support.statistics_tools import compare, nearest_root

SPLITS = {"splits": "train:0.7,validation:0.2,test:0.1"}
KINDS = {
    "id": "int64", "big": "int64", "price": "float32", "odd": "float32", "word": "bytes",
    "class": "bytes",
}  # fmt: skip


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
def tables(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for number in range(3):
        make_rows(folder / f"{number}.csv", 1_000 * number, 400)
    return folder


MANY_PARTS = {"label": "class", "shard_examples": 100, **SPLITS}


@pytest.fixture(scope="module")
def rows_built(tables, tmp_path_factory) -> tuple[Path, Manifest]:
    out = tmp_path_factory.mktemp("rows") / "ds"
    _, manifest = published(input=tables, output=out, threads=1, **MANY_PARTS)
    assert len(manifest.files) > 9
    return out, manifest


def test_statistics_of_rows_are_those_of_the_records(rows_built) -> None:
    out, manifest = rows_built
    check_rows(out, manifest, KINDS)
    train = manifest.splits["train"].statistics.features
    assert all(train[name].missing for name in ("big", "odd", "word"))
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_ranges_and_threads_do_not_change_statistics(
    tables, rows_built, tmp_path, monkeypatch
) -> None:
    ranges = tmp_path / "ranges"  # the function is pickled, so it cannot fill a set
    ranges.mkdir()

    def write_runs(task, spec, plan, *more):
        (ranges / f"{Path(task[0][0]).name}-{task[2][0]}").touch()
        return transform_write_runs(task, spec, plan, *more)

    transform_write_runs = transform.write_runs
    monkeypatch.setattr(transform, "write_runs", write_runs)
    monkeypatch.setattr(
        "shardmill.pipelines.rows.RunSpec",
        lambda *args, **options: run_writer.RunSpec(*args, **options, range_bytes=4_096),
    )
    _, manifest = published(input=tables, output=tmp_path / "ds", threads=3, **MANY_PARTS)
    assert len(list(ranges.iterdir())) > 9
    assert statistics_of(manifest) == statistics_of(rows_built[1])


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
        wanted = dict(
            zip(classes.tolist(), weigh("balanced", classes=classes, y=words), strict=True)
        )
        assert body["splits"][name]["class_weights"] == wanted
        # The weights of all records sum to their number.
        counts = Counter(words)
        assert sum(wanted[word] * counts[word] for word in counts) == pytest.approx(len(words))


@pytest.mark.heavy
@pytest.mark.xdist_group("transform")
def test_transformed_rows_may_have_lists_and_nan(tmp_path) -> None:
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
    check_rows(out, manifest, {**kinds, "lost": "float32"})
    features = manifest.splits["train"].statistics.features
    assert (features["pair"].count, features["text"].missing) == (120, 20)
    assert (features["odd"].infinite, features["lost"].nan) == (1, 5)
    assert features["lost"].infinite == 1


def decoded(folder: Path, manifest: Manifest, split: str) -> np.ndarray:
    """Return all pixels of a split, read by tf.data and decoded by Pillow or NumPy."""
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


def mean_and_std(counts: Counter[int]) -> tuple[float, float]:
    """Return mean and standard deviation of a channel from its number of pixels of each value."""
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
def test_statistics_of_images_are_those_of_the_records(
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
        actual = split["statistics"]["pixels"]
        assert actual["count"] == len(pixels)
        wanted = [mean_and_std(Counter(column)) for column in pixels.T.tolist()]
        assert list(zip(actual["mean"], actual["std"], strict=True)) == wanted
        assert len(wanted) == channels


def test_shards_and_threads_do_not_change_statistics_of_images(photo_folder, tmp_path) -> None:
    found = []
    for number, options in enumerate(({}, {"num_shards": 3, "threads": 3})):
        out = tmp_path / str(number)
        outcome, manifest = build_dataset(
            input=photo_folder, output=out, image_size="48", **options
        )
        assert outcome.status == "published", outcome
        found.append((statistics_of(manifest), manifest.splits["train"].class_weights))
    assert found[0] == found[1]


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


def test_resumed_build_has_the_same_statistics(tables, tmp_path) -> None:
    """Too many rejects stop a build after all parts are written; the next build reuses them."""
    folder = tmp_path / "in"
    folder.mkdir()
    for path in tables.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "9.csv").write_text(",".join(KINDS) + "\n" + "1,2\n" * 300)
    options = {"input": folder, "output": tmp_path / "ds", "label": "class", **SPLITS}
    stopped, manifest = build_rows(**options, max_reject_fraction=0.01)
    assert (stopped.status, manifest) == ("failed", None)
    resumed, manifest = build_rows(**options, max_reject_fraction=0.5)
    assert (resumed.status, resumed.parts_made) == ("published", 0)
    assert resumed.parts_reused
    check_rows(tmp_path / "ds", manifest, KINDS)
    check_dataset(tmp_path / "ds", manifest)


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
