"""shardmill.write: every kind of source, interruption, identity, rejects and errors."""

import contextlib
import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image

import shardmill
from shardmill.pipelines import python_source
from shardmill.schemas.dataset.shard_names import SPOOL_FOLDER
from shardmill.schemas.errors import InputError, OutputError, ShardmillError
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.sources.python import records
from tests.conftest import make_photos
from tests.support.python_sources import Longer, Mixed, Reused
from tests.support.rows_tools import check_dataset, rejects_of, run_json_here
from tests.support.typed_tools import counted, expected

ROWS = [
    {"id": n, "x": n / 4, "name": f"n{n}", "v": [*range(n % 3)], "ok": n % 2 == 0, "gap": n or None}
    for n in range(200)
]
TABLE = pa.table({name: pa.array([row[name] for row in ROWS]) for name in ROWS[0]})


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Builds run in this process, as by the command, and units are small."""
    monkeypatch.setattr(python_source, "run", run_json_here)
    monkeypatch.setattr(records, "UNIT_ROWS", 64)


def shards(folder):
    return {os.path.basename(path): Path(path).read_bytes() for path in folder.files}


class Indexed:
    """A map-style data set, such as PyTorch's: with an index and a length."""

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return ROWS[index]


def hugging_face():
    from datasets import Dataset

    return Dataset.from_list(ROWS)


def grain():
    from grain import MapDataset

    return MapDataset.source(ROWS)


SOURCES = {
    "list": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
    "columns": lambda: TABLE.to_pydict() | {"x": np.array(TABLE["x"])},
    "pandas": lambda: TABLE.to_pandas(types_mapper=pd.ArrowDtype)[lambda frame: frame.id >= 0],
    "polars": lambda: pl.DataFrame(ROWS),
    "pyarrow": lambda: TABLE,
    "batches": lambda: TABLE.to_reader(max_chunksize=50),
    "hugging face": hugging_face,
    "streaming": lambda: hugging_face().to_iterable_dataset().filter(lambda row: row["id"] >= 0),
    "indexed": Indexed,
    "grain": grain,
    "grain stream": lambda: grain().to_iter_dataset(),
}


QUICK = ("generator", "pandas", "streaming", "grain")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.heavy] * (kind not in QUICK)) for kind in SOURCES],
)
def test_all_values_of_each_source(tmp_path, kind):
    built = shardmill.write(SOURCES[kind](), tmp_path / "ds")
    assert built.splits == {"train": 180, "validation": 20} or sum(built.splits.values()) == 200
    assert counted(check_dataset(tmp_path / "ds", built.manifest)) == expected(TABLE)
    assert len(built.open("validation", fill={"gap": 0})) == built.splits["validation"]
    assert {path.name for path in tmp_path.glob("ds/.*")} == set()


@pytest.mark.heavy
def test_torch_data_sets(tmp_path):
    from torch import tensor
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Mapped(Dataset):
        __len__ = Indexed.__len__

        def __getitem__(self, index):
            return {"x": tensor(index / 2), "v": tensor([index, 1])}

    class Iterated(IterableDataset):
        def __iter__(self):
            reused = {}
            for index in range(200):
                reused |= {"x": np.float64(index / 2), "v": np.array([index, 1])}
                yield reused

    table = pa.table({"x": [n / 2 for n in range(200)], "v": [[n, 1] for n in range(200)]})
    loader = DataLoader(Mapped(), batch_size=None, num_workers=2)
    for number, source in enumerate((Mapped(), Iterated(), loader)):
        built = shardmill.write(source, tmp_path / str(number))
        assert counted(check_dataset(tmp_path / str(number), built.manifest)) == expected(table)


@pytest.mark.heavy
@pytest.mark.parametrize("image", ["", "image"])
def test_a_loader_with_workers_gives_the_dataset_of_its_source(tmp_path, image):
    """Its workers read in the order of the source; they end with the call."""
    from torch.utils.data import DataLoader

    source = Mixed(len(image), image=bool(image))
    options = {"image": image, "image_size": 8, "max_reject_fraction": 0.5} if image else {}
    alone = shardmill.write(source, tmp_path / "alone", **options)
    assert alone.manifest.written + alone.manifest.inputs.rejected == len(source)
    loader = DataLoader(source, batch_size=None, num_workers=3)
    before = {*multiprocessing.active_children()}
    built = shardmill.write(loader, tmp_path / "loader", **options)
    assert shards(built) == shards(alone)
    assert before >= {*multiprocessing.active_children()}
    if not image:
        table = pa.Table.from_pylist([source[n] | {"c": [*source[n]["c"]]} for n in range(150)])
        assert counted(check_dataset(tmp_path / "loader", built.manifest)) == expected(table)


@pytest.mark.heavy
@pytest.mark.parametrize("odd", ["text", "float", "field", "number"])
def test_an_odd_record_of_a_loader_ends_its_workers(tmp_path, odd):
    from torch.utils.data import DataLoader

    source = Mixed(5, odd=odd)
    loader = DataLoader(source, batch_size=None, num_workers=2)
    before = {*multiprocessing.active_children()}
    with pytest.raises(InputError, match=f"Record {source.place}"):
        shardmill.write(loader, tmp_path / "ds")
    assert before >= {*multiprocessing.active_children()}


KILLED_READER = """
import os, signal, shardmill
from torch.utils.data import DataLoader
class Source:
    def __len__(self):
        return 1000
    def __getitem__(self, n):
        if n == 500:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"id": n}
shardmill.write(DataLoader(Source(), batch_size=None, num_workers=2), "ds")
"""


@pytest.mark.nightly
def test_a_killed_worker_of_a_loader_loses_nothing_in_silence(tmp_path):
    """In a process, since a handler of torch raises later, too."""
    command = [sys.executable, "-c", KILLED_READER]
    done = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "DataLoader worker" in done.stderr
    assert not (tmp_path / "ds" / "manifest.json").exists()


@pytest.mark.heavy
def test_identity_is_that_of_the_values(tmp_path, monkeypatch):
    """Bytes and ids depend neither on the kind of source, nor on the units or the place."""
    first = shardmill.write(ROWS, tmp_path / "a", key="id", label="name")
    again = shardmill.write(iter(ROWS), tmp_path / "a", key="id", label="name")
    assert (again.status, again.matched) == ("up_to_date", 200)
    monkeypatch.setattr(records, "UNIT_ROWS", 30)
    other = shardmill.write(iter(ROWS), tmp_path / "b" / "c", key="id", label="name")
    assert shards(other) == shards(first)
    builds = [each.manifest.build for each in (first, other)]
    assert builds[0].config_id == builds[1].config_id
    assert str(tmp_path) not in (tmp_path / "a" / "manifest.json").read_text()
    with pytest.raises(OutputError, match="other inputs"):
        shardmill.write(ROWS[:-1], tmp_path / "a", key="id", label="name")
    changed = shardmill.write(ROWS[:-1], tmp_path / "a", key="id", label="name", update=True)
    assert changed.manifest.written == 199


@pytest.mark.heavy
def test_a_version_replaces_reading(tmp_path, monkeypatch):
    def unread():
        raise AssertionError
        yield

    shardmill.write(ROWS, tmp_path / "ds", version="1", seed=3)
    again = shardmill.write(unread(), tmp_path / "ds", version="1", seed=3)
    assert (again.status, again.matched) == ("up_to_date", 200)
    for other in ({"version": "2", "seed": 3}, {"version": "1", "seed": 4}):
        with pytest.raises(AssertionError):
            shardmill.write(unread(), tmp_path / "ds", **other)
    with monkeypatch.context() as patch:
        patch.setattr("deflate.__version__", "0")  # other codecs may give other bytes
        with pytest.raises(AssertionError):
            shardmill.write(unread(), tmp_path / "ds", version="1", seed=3)
    shardmill.write(hugging_face(), tmp_path / "hf")
    os.remove(next((tmp_path / "hf").glob("gen-*/train-*")))
    with pytest.raises(OutputError, match="is missing"):
        shardmill.write(hugging_face(), tmp_path / "hf")


def test_key_and_split(tmp_path):
    rows = [{"text": f"t{n}", "part": ("train", "test")[n % 2]} for n in range(100)]
    built = shardmill.write(rows, tmp_path / "ds", split="part", key=lambda row: row["text"][1:])
    assert built.splits == {"train": 50, "test": 50}
    found = built.open("test", ids=True)[3]
    assert {*found} == {"text", "__key__", "sample_id"}
    assert found["text"].decode() == f"t{found['sample_id']}"
    with pytest.raises(OutputError, match="key_conflict"):
        shardmill.write(rows, tmp_path / "twice", key="part")


def test_rejects_name_the_index(tmp_path):
    rows = [{"id": n, "y": None if n in (17, 150) else "a"} for n in range(200)]
    built = shardmill.write(rows, tmp_path / "ds", label="y", max_reject_fraction=0.5, key="id")
    assert [(each["key"], each["uri"]) for each in rejects_of(tmp_path / "ds")] == [
        ("record:17", ""),
        ("record:150", ""),
    ]
    assert built.manifest.inputs.rejected == 2


@pytest.mark.heavy
def test_options_may_be_none(tmp_path):
    source = [{"id": "0", "x": 1}]
    options = {"label": None, "split": None, "image": None}
    build = shardmill.write(source, tmp_path / "ds", key="id", splits="train:1", **options)
    assert build.splits == {"train": 1}


@pytest.mark.heavy
def test_labels_of_hugging_face_that_are_none(tmp_path, capsys):
    """-1 means none, in memory and streamed, of images and rows; no class is renamed or moved."""
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features(image=Value("binary"), label=ClassLabel(names=["z", "y", "x"]))
    numbers = [n % 4 - 1 for n in range(100)]
    png = io.BytesIO()
    Image.new("L", (4, 4)).save(png, "PNG")
    columns = {"image": [png.getvalue()] * 100, "label": numbers}
    source = Dataset.from_dict(columns, features=features)
    options = {"splits": "train:1", "max_reject_fraction": 0.5, "label": "label"}
    options_of_images = {"image": "image", "image_size": 4}
    for name, each in {"memory": source, "stream": source.to_iterable_dataset()}.items():
        built = shardmill.write(each, tmp_path / name, **options, **options_of_images)
        assert built.manifest.labels == ("z", "y", "x")
        rows = built.open(ids=True)
        places = {int(row["sample_id"].partition(":")[2]): row["label"] for row in rows}
        assert places == {n: label for n, label in enumerate(numbers) if label >= 0}
        assert {(each["error"], each["message"]) for each in built.rejects} == {
            ("no_label", f"record {n} has no label in its field 'label'") for n in range(0, 100, 4)
        }
        again = shardmill.write(each, tmp_path / name, **options, **options_of_images)
        assert (again.status, again.matched) == ("up_to_date", 100)
    rows = shardmill.write(source.remove_columns("image"), tmp_path / "rows", **options)
    assert Counter(row["label"] for row in rows.open()) == {0: 25, 1: 25, 2: 25}
    assert rows.manifest.inputs.rejected == 25
    assert "class ids are not these numbers" not in capsys.readouterr().err
    plain = [{"image": png.getvalue(), "label": n} for n in (-1, 0)]
    shardmill.write(plain, tmp_path / "plain", **options, **options_of_images)
    assert "numbers from -1 on, so class ids are not these numbers" in capsys.readouterr().err


ALSO = {
    "masked": ([{"a": v} for v in np.ma.array([1, 2, 3], mask=[0, 1, 0])], {"a": [1, None, 3]}),
    "days": (
        [
            {"a": np.datetime64(day), "b": [np.datetime64("1970-01-02")]}
            for day in ("1969-12-31", "NaT")
        ],
        {"a": [-1, None], "b": [[1], [1]]},
    ),
    "nanoseconds": (
        [{"a": pd.Timestamp(n)} for n in (1, 1000)],
        {"a": pa.array([1, 1000], pa.timestamp("ns"))},
    ),
    "categories": (
        pl.DataFrame({"a": ["x", None, "y"], "b": [["x"], [], ["y", "x"]]}).cast(
            {"a": pl.Categorical, "b": pl.List(pl.Enum(["x", "y"]))}
        ),
        {"a": ["x", None, "y"], "b": [["x"], [], ["y", "x"]]},
    ),
    "missing lists of one size": (
        pa.table({"a": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2))}),
        {"a": [[1, 2], None, [3, 4]]},
    ),
    "late records without fields": (
        [{"a": 1}] * 64 + [{}] * 64,
        {"a": [1] * 64 + [None] * 64},
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ALSO)
def test_values_that_arrow_reads_otherwise(tmp_path, kind):
    source, wanted = ALSO[kind]
    built = shardmill.write(source, tmp_path / "ds")
    assert counted(check_dataset(tmp_path / "ds", built.manifest)) == expected(pa.table(wanted))


def test_a_type_may_be_known_late(tmp_path):
    rows = [{"a": None, "b": 1}] * 70 + [{"a": n, "b": n / 2 if n else None} for n in range(2)]
    rows = [{"b": 0.5}, *rows]  # a field that some records lack, and integers among floats
    built = shardmill.write(rows, tmp_path / "ds")
    wanted = {name: pa.array([row.get(name) for row in rows]) for name in "ab"}
    assert counted(check_dataset(tmp_path / "ds", built.manifest)) == expected(pa.table(wanted))


@pytest.mark.heavy
def test_numbers_out_of_range_of_records_are_rejects(tmp_path):
    """Of types that are wider than int64 and float32, as in Parquet and CSV files."""
    sources = {
        "unsigned": np.array([1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64),
        "float": np.array([1, 3e38, 4e38, -1e300]),
        "decimal": [Decimal(value) for value in (1, 2**63 - 1, 2**63, -(2**63) - 1)],
    }
    for name, values in sources.items():
        built = shardmill.write(
            {"x": values}, tmp_path / name, splits="train:1", max_reject_fraction=0.5
        )
        assert (built.splits, built.manifest.inputs.rejected) == ({"train": 2}, 2)
        assert [(each["key"], each["error"]) for each in rejects_of(tmp_path / name)] == [
            ("record:2", "range"),
            ("record:3", "range"),
        ]


@pytest.mark.heavy
def test_images_have_the_bytes_of_a_build_of_their_files(tmp_path):
    """Keys and labels as of a folder: from dicts, tuples, tables and Hugging Face, in any units."""
    import datasets

    make_photos(tmp_path / "photos", {"a": 30, "b": 40})
    (tmp_path / "photos" / "a" / "bad.jpg").write_bytes(b"no image")
    paths = sorted(path for path in (tmp_path / "photos").rglob("*") if path.is_file())
    rows = [
        {
            "image": path.read_bytes(),
            "kind": path.parent.name,
            "name": f"{path.parent.name}/{path.name}",
        }
        for path in paths
    ]
    options = {"image_size": 16, "seed": 3, "max_reject_fraction": 0.5}
    wanted = shardmill.images(tmp_path / "photos", tmp_path / "ds", **options)
    files = [{"bytes": row["image"], "path": "x"} for row in rows]
    table = datasets.Dataset.from_list(
        [row | {"image": file} for row, file in zip(rows, files, strict=True)]
    )
    sources = {
        "dicts": (iter(rows), {}),
        "tuples": ([tuple(row.values()) for row in rows], {"fields": ("image", "kind", "name")}),
        "polars": (pl.DataFrame(rows), {}),
        "hugging face": (table.cast_column("image", datasets.Image()), {}),
    }
    for name, (source, more) in sources.items():
        built = shardmill.write(
            source, tmp_path / name, image="image", label="kind", key="name", **options, **more
        )
        assert shards(built) == shards(wanted)
        assert built.manifest.labels == wanted.manifest.labels
        place = f"record:{paths.index(tmp_path / 'photos' / 'a' / 'bad.jpg')}"
        assert [(each["key"], each["uri"]) for each in built.rejects] == [("a/bad.jpg", place)]
        assert built.rejects[0]["error"] == "not_an_image"


@pytest.mark.parametrize("texts", [True, False])
def test_images_without_a_label_are_rejects_that_name_the_field(tmp_path, texts):
    """Of texts an empty one is none, too; nothing speaks of archives."""
    pixels = [np.full((4, 4), n, np.uint8) for n in range(6)]
    labels = ["a", "", None, "b", "a", "b"] if texts else [0, None, None, 1, 0, 1]
    source = [{"x": each, "y": label} for each, label in zip(pixels, labels, strict=True)]
    built = shardmill.write(
        source, tmp_path / "ds", image="x", label="y", splits="train:1", max_reject_fraction=0.5
    )
    assert {(each["error"], each["message"]) for each in built.rejects} == {
        ("no_label", f"record {n} has no label in its field 'y'") for n in (1, 2)
    }
    assert len(built.open()) == 4


@pytest.mark.heavy
def test_pixels_labels_and_splits_of_images(tmp_path):
    """Arrays and images of Pillow keep their pixels; numbers of classes are class ids."""
    rng = np.random.default_rng(0)
    shapes = [(5, 7, 3), (6, 4), (3, 3, 1), (4, 5, 4)]
    pixels = [rng.integers(0, 256, shapes[n % 4], np.uint8) for n in range(120)]
    turned = Image.fromarray(pixels[0])
    turned.getexif()[0x112] = 6  # to be shown turned by 90 degrees clockwise
    rows = [
        {"x": Image.fromarray(each) if n % 8 == 1 else each, "y": 11 - n % 12, "s": "ab"[n % 2]}
        for n, each in enumerate(pixels)
    ]
    rows += [
        {"x": turned, "y": 3, "s": "a"},
        {"x": None, "y": 0, "s": "b"},
        {"x": pixels[0], "y": None, "s": "b"},
        {"x": b"", "y": 0, "s": "b"},
        {"x": None, "y": None, "s": "b"},
    ]
    options = {"image": "x", "label": "y", "split": "s", "resize": "none", "channels": 4}
    options |= {"encoding": "png", "max_reject_fraction": 0.1}
    built = shardmill.write(rows, tmp_path / "ds", **options)
    assert built.manifest.labels == tuple(map(str, range(12)))
    assert {each["key"]: (each["error"], each["message"]) for each in built.rejects} == {
        "record:121": ("empty", "record 121 has no image: its field 'x' is None"),
        "record:122": ("no_label", "record 122 has no label in its field 'y'"),
        "record:123": ("empty", "the image 'x' of record 123 has no bytes or is damaged"),
        "record:124": ("empty", "record 124 has no image: its field 'x' is None"),
    }
    wanted = [*pixels, np.rot90(pixels[0], -1)]
    found = [row for split in "ab" for row in built.open(split, ids=True)]
    assert len(found) == 121
    for row in found:
        number = int(row["sample_id"].removeprefix("record:"))
        assert row["label"] == (11 - number % 12 if number < 120 else 3)
        each = wanted[number]
        each = each[..., 0] if each.shape[2:] == (1,) else each
        assert (row["image"] == np.asarray(Image.fromarray(each).convert("RGBA"))).all()
    assert {row["sample_id"] for row in built.open("a", ids=True)} == {
        f"record:{n}" for n in range(0, 121, 2)
    }
    again = shardmill.write(iter(rows), tmp_path / "ds", **options)
    assert again.status == "up_to_date"
    rows[7] |= {"x": pixels[7][::-1]}
    changed = shardmill.write(iter(rows), tmp_path / "ds", update=True, **options)
    assert (changed.reused, changed.changes[0]) == (120, "1 changed: record:7")
    assert changed.changes[1].endswith("0 renamed, 120 same, 1 changed (1 image, 1 input)")


KILLED = """
import os, sys, shardmill
from shardmill.transforms.sources.python import records
records.UNIT_ROWS = 64
number = int(sys.argv[2])
def read():
    for n in range(1000):
        if n == 500:
            os.kill(os.getpid(), number)
        yield {"id": n, "text": "x" * (n % 7)}
shardmill.write(read(), sys.argv[1])
"""


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_while_it_reads(tmp_path, capsys, monkeypatch, number):
    """The finished files are kept; of another source, those before the first difference."""
    rows = [{"id": n, "text": "x" * (n % 7)} for n in range(1000)]
    command = [sys.executable, "-c", KILLED, tmp_path / "ds", str(int(number))]
    ended = subprocess.run(
        command, check=False, start_new_session=True, stderr=subprocess.PIPE, timeout=60
    )
    assert ended.returncode == -number
    assert ended.stderr.count(b"Traceback") == (number == signal.SIGINT), ended.stderr
    folder = tmp_path / "ds" / SPOOL_FOLDER / "spool"
    files = [*folder.glob("*.parquet")]
    assert len(files) == 500 // 64
    undisturbed = shardmill.write(rows, tmp_path / "other")
    written = []
    replace = LocalStorage.replace

    def count(self, path, data):
        written.append(os.path.basename(path))
        replace(self, path, data)

    monkeypatch.setattr(LocalStorage, "replace", count)
    shutil.copytree(tmp_path / "ds", tmp_path / "changed")
    resumed = shardmill.write(iter(rows), tmp_path / "ds")
    assert shards(resumed) == shards(undisturbed)
    assert not {path.name for path in files} & {*written}
    assert sum(name.endswith(".parquet") for name in written) == 1000 // 64 + 1 - len(files)
    assert "from record" not in capsys.readouterr().err
    written.clear()
    rows[200] |= {"text": "changed"}
    changed = shardmill.write(iter(rows), tmp_path / "changed")
    assert sum(name.endswith(".parquet") for name in written) == 1000 // 64 + 1 - 200 // 64
    assert "from record 192 on" in capsys.readouterr().err
    assert changed.manifest.written == 1000
    assert shards(changed) != shards(undisturbed)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [Reused, Longer])
def test_odd_sources_have_all_their_values(tmp_path, kind):
    built = shardmill.write(kind(), tmp_path / "ds")
    rows = [row for split in built.splits for row in built.open(split)]
    assert sorted(row["id"] for row in rows) == [*range(150)]
    for row in rows:
        assert {*np.hstack([*row.values()])} == {row["id"]}


@pytest.mark.parametrize("odd", ["text", "float", "field", "number", "function", "error"])
def test_an_odd_record_is_named(tmp_path, odd):
    source = Mixed(5, odd=odd)
    error, message = InputError, f"Record {source.place}"
    if odd == "error":  # of the source itself
        error, message = ValueError, "no such file"
    with pytest.raises(error, match=message):
        shardmill.write(source, tmp_path / "ds")


def test_workers_without_images_are_deprecated(tmp_path):
    with pytest.warns(FutureWarning, match=r"0\.5\.0 removes it: use a DataLoader of the source"):
        shardmill.write(ROWS, tmp_path / "ds", workers=2)


CALLED = """
import asyncio, multiprocessing, sys, threading, shardmill
class Source:
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return {"a": index}
def write(name):
    built = shardmill.write(Source(), out + name)
    print(f"{name} {built.splits}\\n", end="", flush=True)
async def main():
    write("loop")
out = sys.argv[1] + "/"
write("script")
asyncio.run(main())
thread = threading.Thread(target=write, args=("thread",))
thread.start()
thread.join()
multiprocessing.get_context("fork").Pool(1).apply(write, ("daemon",))
print([name for name in ("apache_beam", "tensorflow") if name in sys.modules])
"""


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("has_file", [True, False])
def test_script_thread_and_loop(tmp_path, has_file):
    """A script or notebook needs no main guard; the calling process imports no Beam."""
    script = tmp_path / "script.py"
    script.write_text(CALLED)
    ended = subprocess.run(
        [sys.executable, *([script] if has_file else ["-c", CALLED]), tmp_path],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = ended.stdout.splitlines()
    assert lines[-1] == "[]"
    called = dict(line.split(maxsplit=1) for line in lines[:-1])
    assert called.keys() == {"script", "loop", "thread", "daemon"}
    assert len({*called.values()}) == 1


def test_two_calls_at_a_time_never_publish_the_values_of_the_other(tmp_path, monkeypatch) -> None:
    """The second call writes its files after the first did, and before that reads them."""
    build, ds = python_source.run, tmp_path / "ds"

    def overtaken(*args, **options):
        monkeypatch.setattr(python_source, "run", Mock(side_effect=KeyboardInterrupt))
        with contextlib.suppress(KeyboardInterrupt):
            shardmill.write([{"a": 2}] * 20, ds)
        return build(*args, **options)

    monkeypatch.setattr(python_source, "run", overtaken)
    with pytest.raises(ShardmillError):
        shardmill.write([{"a": 1}] * 20, ds)
    assert not (ds / "manifest.json").exists()


def photos_with(name, values):
    return [{"image": photo(number), name: value} for number, value in enumerate(values)]


def photo(number):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 0, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("source", ["pandas", "records", "float16"])
def test_whole_floats_are_class_ids_and_nan_is_no_label(tmp_path, source):
    """Pandas makes floats of integers with gaps: its own nullable integers are the judge."""
    values = [0.0, 1.0, float("nan"), 2.0, 1.0, 0.0]
    table = pd.DataFrame(photos_with("y", values))
    given = {
        "pandas": table,
        "records": table.to_dict("records"),
        "float16": table.astype({"y": np.float16}).to_dict("records"),
    }
    options = {"image": "image", "label": "y", "max_reject_fraction": 0.5, "splits": "train:1"}
    built = shardmill.write(given[source], tmp_path / "ds", **options)
    expected_ids = Counter(table["y"].astype("Int64").dropna().tolist())
    assert Counter(int(row["label"]) for row in built.open("train")) == expected_ids
    assert [reject["error"] for reject in built.rejects] == ["no_label"]


def test_space(tmp_path):
    class Huge(list):
        nbytes = 1 << 60

    with pytest.raises(OutputError, match=r"1,048,576\.0 TiB"):
        shardmill.write(Huge(ROWS), tmp_path / "ds")


@pytest.mark.parametrize("key", ["", "name"])
@pytest.mark.parametrize(("role", "fix"), [("label", "leave label out"), ("split", "splits='")])
def test_advice_for_records_names_arguments_of_write(tmp_path, key, role, fix):
    source = [{**record, "name": f"a/{n}"} for n, record in enumerate(photos_with("y", [None] * 2))]
    with pytest.raises(OutputError, match=fix) as caught:
        shardmill.write(source, tmp_path / "ds", image="image", key=key, **{role: "y"})
    assert "--label" not in str(caught.value)
    assert "--input" not in str(caught.value)


def test_the_order_of_numbers_is_that_of_classes_that_are_numbers(tmp_path):
    source = photos_with("y", range(12))
    options = {"image": "image", "label": "y", "label_order": "number", "splits": "train:1"}
    built = shardmill.write(source, tmp_path / "ds", **options)
    assert sorted(int(row["label"]) for row in built.open("train")) == [*range(12)]
    assert shardmill.write(source, tmp_path / "ds", **options, update=True).status == "up_to_date"
