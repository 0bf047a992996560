"""Datasets of arrays, compared with NumPy, tf.data and an independent hash."""

import functools
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from tests.conftest import SOAK
from tests.support.array_tools import (
    DTYPES,
    check_records,
    expected_rows,
    published,
    records_of,
    run_spec,
    spec_of,
)
from tests.support.fault_tools import zygote
from tests.support.readers import dataset_files
from tests.support.rows_tools import run_here

ROWS, HEAVY = 40, pytest.mark.heavy
SHAPES = [(ROWS,), (ROWS, 3), (ROWS, 2, 3, 2), (ROWS, 1), (ROWS, 0, 4)]


def make_array(dtype: str, shape: tuple[int, ...], order: str = "C", sign: str = "<") -> np.ndarray:
    """Return an array of random bytes (of random values for bool)."""
    kind = np.dtype(dtype).newbyteorder(sign)
    rng = np.random.default_rng([*dtype.encode(), *shape])
    if kind.kind == "b":
        return np.asarray(rng.integers(0, 2, shape).astype(bool), order=order)
    raw = rng.bytes(int(np.prod(shape)) * kind.itemsize)
    return np.asarray(np.frombuffer(raw, kind).reshape(shape), order=order)


@functools.cache
def matrix() -> dict[str, np.ndarray]:
    """Return arrays of all dtypes, byte orders, memory orders and shapes, ROWS rows each."""
    return {
        f"{dtype}{sign}{order}{number}": make_array(dtype, shape, order, sign)
        for dtype in DTYPES
        for sign in "<>"
        for order in "CF"
        for number, shape in enumerate(SHAPES)
    }


@pytest.fixture(scope="module")
def built_matrix(tmp_path_factory) -> tuple[Path, Path]:
    """The matrix as a stored .npz, a deflated .npz and a folder, and an empty output folder."""
    folder = tmp_path_factory.mktemp("matrix")
    np.savez(folder / "stored.npz", **matrix())
    np.savez_compressed(folder / "deflated.npz", **matrix())
    (folder / "files").mkdir()
    for name, array in matrix().items():
        np.save(folder / "files" / f"{name}.npy", array)
    return folder, tmp_path_factory.mktemp("datasets")


@pytest.mark.parametrize(
    "source",
    ["deflated.npz", *(pytest.param(name, marks=HEAVY) for name in ("stored.npz", "files"))],
)
def test_preserves_every_dtype_order_and_shape(built_matrix, source) -> None:
    folder, output = built_matrix
    assert len(matrix()) == 280
    assert sum(a.flags.fnc for a in matrix().values()) > 40
    manifest = published(input=folder / source, output=output / source)
    check_records(output / source, manifest, matrix(), source)
    assert [feature["name"] for feature in manifest.features] == sorted(matrix())
    assert {feature["source"] for feature in manifest.features} == {"array"}
    text = (output / source / "current/schema.pbtxt").read_text()
    for feature in text_format.Parse(text, schema_pb2.Schema()).feature:
        array = matrix()[feature.name]
        shape = ",".join(map(str, array.shape[1:]))
        tags = {"encoding=raw", f"dtype={array.dtype.name}", f"shape={shape}"}
        assert set(feature.annotation.tag) == tags


def save_labelled(folder: Path, labels: np.ndarray, rows: int = 300) -> np.ndarray:
    """Write X.npy and y.npy; return X, whose first column is the row number."""
    x = np.random.default_rng(5).integers(0, 99, (rows, 6), dtype=np.int32)
    x[:, 0] = np.arange(rows)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "X.npy", x)
    np.save(folder / "y.npy", labels)
    return x


@pytest.mark.sweep
@pytest.mark.parametrize(
    "labels",
    [
        np.arange(300) % 7 - 3,
        pytest.param((np.arange(300) % 7).astype(">u2"), marks=HEAVY),
        np.arange(300) % 2 == 0,
        np.where(np.arange(300) % 2, np.iinfo(np.int64).min, np.iinfo(np.int64).max),
        np.asarray(np.arange(300).reshape(300, 1) % 5, order="F"),
    ],
    ids=["negative", "big-endian", "bool", "extreme", "column"],
)
def test_keeps_and_counts_integer_labels(tmp_path, labels) -> None:
    x = save_labelled(tmp_path, labels)
    manifest = published(
        input=tmp_path / "X.npy", labels=tmp_path / "y.npy", output=tmp_path / "ds", seed=9
    )
    check_records(tmp_path / "ds", manifest, {"x": x}, "X.npy", seed=9)
    flat = labels.reshape(-1).tolist()
    rows = expected_rows("X.npy", 300, seed=9)
    for name, mine in records_of(tmp_path / "ds", manifest).items():
        assert [example["label"] for example in mine] == [[int(flat[row])] for row in rows[name]]
        counts = Counter(str(int(flat[row])) for row in rows[name])
        assert manifest.splits[name].label_counts == counts
    assert manifest.labels == ()
    assert not (tmp_path / "ds/current/labels.txt").exists()
    assert list(manifest.features) == [
        {"name": "label", "type": "int64", "source": "label"},
        {"name": "x", "type": "bytes", "source": "array"},
    ]


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("U", "npz"), pytest.param("S", "npy", marks=HEAVY), pytest.param(">U9", "npy", marks=HEAVY)],
)
def test_text_labels_get_class_ids_in_byte_order(tmp_path, dtype, kind, capsys) -> None:
    names = ["zebra", "Ähre", "cat", "日本"]
    texts = np.array([names[row % 4] for row in range(300)])
    labels = np.char.encode(texts, "utf-8") if dtype == "S" else texts.astype(dtype)
    x = save_labelled(tmp_path, labels)
    options, label = {"labels": tmp_path / "y.npy"}, "label"
    if kind == "npz":
        np.savez_compressed(tmp_path / "X.npz", x=x, y=labels)
        options, label = {}, "y"
    manifest = published(input=tmp_path / f"X.{kind}", output=tmp_path / "ds", **options)
    check_records(tmp_path / "ds", manifest, {"x": x}, f"X.{kind}")
    all_rows = expected_rows(f"X.{kind}", 300)
    ids = sorted(names, key=str.encode)
    assert list(manifest.labels) == ids == (tmp_path / "ds/current/labels.txt").read_text().split()
    for name, mine in records_of(tmp_path / "ds", manifest).items():
        rows = all_rows[name]
        texts = [e[f"{label}/text"][0].decode() for e in mine]
        assert texts == [names[row % 4] for row in rows]
        assert [e[label][0] for e in mine] == [ids.index(names[row % 4]) for row in rows]
        assert sum(manifest.splits[name].label_counts.values()) == len(rows)
        assert manifest.splits[name].label_counts["cat"] == sum(row % 4 == 2 for row in rows)
    assert {f["name"]: f["source"] for f in manifest.features} == {
        label: "label",
        f"{label}/text": "label/text",
        "x": "array",
    }
    code, out, err = run_here(capsys, "verify", tmp_path / "ds")
    assert (code, err) == (0, ""), out
    code, out, _ = run_here(capsys, "steps", tmp_path / "ds", "--split=train", "--batch_size=32")
    assert (code, int(out)) == (0, -(-len(all_rows["train"]) // 32))


@pytest.mark.heavy
def test_does_not_count_too_many_distinct_labels(tmp_path) -> None:
    save_labelled(tmp_path, np.arange(1500), 1500)
    for shards in (1, 2):  # too many in one part, and in all together
        options = {"input": tmp_path / "X.npy", "labels": tmp_path / "y.npy", "num_shards": shards}
        manifest = published(output=tmp_path / str(shards), **options)
        assert {tuple(split.label_counts) for split in manifest.splits.values()} == {()}
        assert "too many distinct values" in manifest.warnings[0]
        splits = records_of(tmp_path / str(shards), manifest).values()
        assert sorted(e["label"][0] for mine in splits for e in mine) == list(range(1500))


def test_finds_the_label_array(tmp_path) -> None:
    x, y = np.arange(60).reshape(30, 2), np.arange(30) % 3
    cases = {
        "y": ({"x": x, "y": y}, {}, "y"),
        "column": ({"x": x, "label": y.reshape(-1, 1)}, {}, "label"),
        "float target": ({"x": x, "y": y / 2}, {}, None),
        "two": ({"x": x, "y": y, "labels": y}, {}, None),
        "named": ({"x": x, "y": y, "kind": y}, {"label": "kind"}, "kind"),
        "none": ({"x": x, "y": y}, {"label": ""}, None),
        "chosen": ({"x": x, "y": y, "z": y}, {"arrays": "x, y"}, "y"),
        "unused objects": (
            {"x": x, "z": np.array([None] * 30)},
            {"arrays": "x", "label": None},
            None,
        ),
    }
    for name, (members, options, label) in cases.items():
        np.savez(tmp_path / f"{name}.npz", **members)
        spec = spec_of(input=tmp_path / f"{name}.npz", output=tmp_path / "ds", **options)
        found = spec.source.input
        assert (found.label.name if found.label else None) == label, name
        wanted = set(options.get("arrays", ",".join(members)).replace(" ", "").split(","))
        assert {array.name for array in found.arrays} == wanted - {label}, name
    np.save(tmp_path / "X.npy", x)
    (tmp_path / "X.npy").rename(tmp_path / "data.bin")  # content decides, not the suffix
    (array,) = spec_of(input=tmp_path / "data.bin", output=tmp_path / "ds").source.input.arrays
    assert (array.name, array.shape) == ("x", (30, 2))
    for root, key in ((None, "data.bin"), (tmp_path.parent, f"{tmp_path.name}/data.bin")):
        options = {} if root is None else {"root": root}
        found = spec_of(input=tmp_path / "data.bin", output=tmp_path / "ds", **options).source.input
        assert [ref.key for ref in found.files] == [key]


@pytest.mark.heavy
def test_threads_do_not_change_bytes_and_rerun_writes_nothing(tmp_path) -> None:
    save_labelled(tmp_path, np.arange(300) % 4)
    options = {"input": tmp_path / "X.npy", "labels": tmp_path / "y.npy", "num_shards": 3}
    published(output=tmp_path / "one", threads=1, **options)
    published(output=tmp_path / "many", threads=5, **options)
    assert dataset_files(tmp_path / "one") == dataset_files(tmp_path / "many")
    assert len(dataset_files(tmp_path / "one")) == 3 * 2 + 2
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "one").iterdir()}
    assert run_spec(spec_of(output=tmp_path / "one", **options)).status == "up_to_date"
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "one").iterdir()} == before
    np.save(tmp_path / "y.npy", np.arange(300) % 4)  # the same bytes, with a new modification time
    outcome = run_spec(spec_of(output=tmp_path / "one", **options))
    assert outcome.status == "failed"
    assert "--update" in outcome.message
    outcome = run_spec(spec_of(output=tmp_path / "one", dry_run=True, overwrite=True, **options))
    assert (outcome.status, [series[0] for series in outcome.series]) == (
        "dry_run",
        ["train", "validation"],
    )
    published(output=tmp_path / "one", overwrite=True, **options)
    assert dataset_files(tmp_path / "one") == dataset_files(tmp_path / "many")


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["npy", "deflated", "fortran"] if SOAK else ["npy"])
def test_memory_does_not_grow_with_the_array(tmp_path, kind) -> None:
    peaks = []
    for rows in (2_000, 20_000 if SOAK or kind == "npy" else 8_000):  # 60 to 600 MB
        path = tmp_path / f"{rows}.npy"
        np.lib.format.open_memmap(
            path, "w+", np.float32, (rows, 7_500), fortran_order=kind == "fortran"
        ).flush()  # a sparse file of zeros
        if kind == "deflated":
            npz = tmp_path / f"{rows}.npz"
            with zipfile.ZipFile(npz, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                archive.write(path, "x.npy")
            path = npz
        ended = zygote().run("arrays", f"--input={path}", f"--output={tmp_path}/{rows}")
        assert ended.code == 0, ended.stderr
        assert f"written    {rows:,} examples" in ended.stdout
        peaks.append(ended.peak)
    print(f"peak memory, {kind}: {peaks} MiB")
    assert peaks[1] < peaks[0] + 150, peaks
    assert peaks[1] < 512, peaks


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name",
    [
        "chelsea_uint8_300x451x3.npy",
        "chessboard_RGB_U8.npy",
        "chessboard_RGB_U8.npz",
        "coconet_TestData_int64.npz",
        "rank_filter_tests.npz",
    ],
)
def test_real_arrays(shared_data, tmp_path, name) -> None:
    path = shared_data / "numpy/arrays" / name
    loaded = np.load(path)
    arrays = {"x": loaded} if name.endswith(".npy") else {k: loaded[k] for k in loaded.files}
    manifest = published(input=path, output=tmp_path / "ds")
    check_records(tmp_path / "ds", manifest, arrays, name)
