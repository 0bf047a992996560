"""Filters by column: of catalogs, listings and tables, judged by the table that was the input."""

import math
import os
import random
import subprocess
import sys
import warnings
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import shardmill
from shardmill.loaders import Stream, keras_dataset, open_dataset, torch_dataset
from shardmill.schemas.errors import InputError, UsageError
from tests.support.loader_tools import write_numbered
from tests.support.rows_tools import build_rows

ROWS = 60
START = datetime(2024, 1, 1, tzinfo=timezone.utc)
KINDS = {
    "text": pa.string(),
    "whole": pa.int64(),
    "ratio": pa.float64(),
    "flag": pa.bool_(),
    "when": pa.timestamp("us"),
    "tags": pa.list_(pa.string()),
    "sizes": pa.list_(pa.int64()),
    "scores": pa.list_(pa.float32()),
}
CHOICES = {
    "text": ["red", "blue", "größe", "", "a|b"],
    "whole": [-1, 0, 7, 2**62],
    "ratio": [0.1, -2.5, 0.0, 1e-30],
    "flag": [True, False],
    "when": [START + timedelta(days=n) for n in range(4)],
    "tags": [["x"], ["x", "y"], ["z", "z"], []],
    "sizes": [[1], [1, 2], [3, 3, 3], []],
    "scores": [[0.1], [0.1, 0.7], []],
}


def plain(value, kind):
    """Returns a cell as a reader gives it: times in microseconds, floats of 32 bits."""
    if isinstance(value, list):
        return [plain(part, kind) for part in value]
    if kind == "when" and value is not None:
        return (value - START.replace(year=1970)) // timedelta(microseconds=1)
    if kind in ("ratio", "scores") and value is not None:
        return float(np.float32(value))
    return value


@pytest.fixture(scope="module")
def table():
    rng = random.Random(5)
    rows = []
    for number in range(ROWS):
        row = {"path": f"{number}.png", "label": rng.choice(["ant", "bee"])}
        for kind, choices in CHOICES.items():
            row[kind] = rng.choice([None, *choices])
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def datasets(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("filters")
    for row in table:
        Image.new("RGB", (8, 8)).save(folder / row["path"])
    columns = {name: pa.array([row[name] for row in table], kind) for name, kind in KINDS.items()}
    columns = {name: [row[name] for row in table] for name in ("path", "label")} | columns
    pq.write_table(pa.table(columns), folder / "list.parquet")
    options = {"splits": "train:0.7,validation:0.3", "num_shards": 2}
    shardmill.images(
        folder / "list.parquet",
        folder / "images",
        label_from="listing",
        image_size=8,
        **options,
    )
    build_rows(input=folder / "list.parquet", output=folder / "rows", label="label", **options)
    return {"images": folder / "images", "rows": folder / "rows"}


def random_condition(rng, kind):
    """Returns a condition of a column, and the judge of a cell as the listing has it."""
    choices = [plain(value, kind) for value in CHOICES[kind]]
    is_list = isinstance(choices[0], list)

    def matches(cell, value):
        if not is_list:
            return cell == value
        if value is None or value == []:
            return not cell
        return cell is not None and (cell == value or value in cell)

    parts = [part for value in choices for part in (value if is_list else [value])]
    some = rng.sample([None, *parts], rng.randint(1, len(set(parts))))
    how = rng.choice(["one", "several", "set", "array", "lists", "predicate"])
    if how == "lists" and is_list:
        some = rng.sample(choices, 2)
    if how == "predicate":
        return (
            lambda cell: cell in some
        ), lambda cell: (cell or []) in some if is_list else cell in some
    if how == "one":
        some = some[:1]
    given = {"one": some[0], "set": set(some) if how == "set" else None}.get(how, some)
    if how == "array" and None not in some:
        given = np.array(some)
    return given, lambda cell: any(matches(cell, value) for value in some)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:where=")
@pytest.mark.parametrize("kind", CHOICES)
@pytest.mark.parametrize("dataset", ["images", "rows"])
def test_every_type_of_column(dataset, kind, table, datasets):
    """Values, collections of them, predicates and None select what they select in the table."""
    rng = random.Random(kind)
    name, key = (f"image/{kind}", "image/key") if dataset == "images" else (kind, "path")
    features = [key]
    for case in range(12):
        condition, judge = random_condition(rng, kind)
        other = "bee" if case % 3 == 0 else None
        where = {name: condition} if other is None else {name: condition, "label": other}
        expected = {
            row["path"]
            for row in table
            if judge(plain(row[kind], kind)) and other in (None, row["label"])
        }
        found = []
        for split in ("train", "validation"):
            records = open_dataset(datasets[dataset], split, features=features)
            stream = Stream(records, where=where, shuffle=case % 2 > 0)
            rows = [row[key].decode() for row in stream]
            assert len(rows) == len(stream)
            found += rows
        assert sorted(found) == sorted(expected), (where, case)


def test_a_column_of_a_listing_may_lack_its_prefix(datasets):
    records = open_dataset(datasets["images"], features=["image/whole"], fill={"image/whole": 9})
    short, full = (Stream(records, where={name: 7}) for name in ("whole", "image/whole"))
    assert {int(row["image/whole"]) for row in short} == {7}
    assert len(short) == len(full)
    # Three columns: a typing error, an array, and none.
    for name in ("image/whol", "image", "x" * 99):
        with pytest.raises(UsageError, match=r"the catalog has no column .*image/whole"):
            Stream(records, where={name: 1})


@pytest.mark.parametrize(("column", "value"), [("ratio", 0.1), ("scores", 0.7)])
def test_floats_are_compared_as_records_have_them(column, value, table, datasets):
    """With 32 bits, of which 0.1 is another number."""
    count = sum(
        value in ([row[column]] if column == "ratio" else row[column] or []) for row in table
    )
    for dataset in datasets.values():
        found = [
            Stream(open_dataset(dataset, split, features=["label"]), where={column: value})
            for split in ("train", "validation")
        ]
        assert sum(map(len, found)) == count > 0


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"whole": "7"}, "the values of the column are numbers"),
        ({"text": 7}, "the values of the column are str"),
        ({"tags": [1]}, "the values of the column are str"),
        ({"when": START}, "the values of the column are numbers"),
        ({"ratio": lambda cell: cell > 0}, "raised TypeError.* for the value None"),
    ],
)
def test_values_that_no_record_can_have(where, message, datasets):
    for dataset in datasets.values():
        with pytest.raises(UsageError, match=message):
            Stream(open_dataset(dataset, features=["label"]), where=where)


# Filters that keep nothing.


def keeps_none(_):
    return False


def read_stream(ds, where):
    stream = Stream(open_dataset(ds, decode=False, features=["label"]), where=where, shuffle=True)
    return sum(len(list(stream)) for _ in range(3))


def read_torch(ds, where):
    stream = torch_dataset(ds, where=where, features=["label"], shuffle=True)
    from torch.utils.data import DataLoader

    loader = DataLoader(stream, 4)
    return sum(len(list(loader)) for _ in range(3))


def read_keras(ds, where):
    dataset = keras_dataset(ds, where=where, label=None)
    return sum(len(list(dataset)) for _ in range(3))


@pytest.mark.sweep
@pytest.mark.parametrize("read", [read_stream, read_torch, read_keras])
@pytest.mark.parametrize(
    "where",
    [{"label": []}, {"label": "ant", "key": "x"}, {"text": lambda text: text == "no"}, keeps_none],
    ids=["empty", "contradiction", "column", "predicate"],
)
def test_a_filter_that_keeps_nothing_is_a_warning(where, read, datasets):
    """One, with the filter, however many passes follow."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            assert read(datasets["images"], where) == 0
        except InputError:  # Keras takes no dataset whose length is 0
            assert (read, callable(where)) == (read_keras, False)
    texts = [str(each.message) for each in caught if "where=" in str(each.message)]
    (text,) = texts
    assert "keeps none of the " in text
    names = ["keeps_none in", __file__] if callable(where) else [repr(name) for name in where]
    assert all(name in text for name in names)


def test_a_filter_that_keeps_something_is_not(datasets):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        records = open_dataset(datasets["images"], features=["label"])
        assert list(Stream(records, where={"label": "ant"}))
        assert list(Stream(records, where=lambda row: row["label"] == 0))
        assert not list(Stream(records[:0], where={"label": "ant"}))


PASSES = """
import sys
from torch.utils.data import DataLoader
from shardmill.loaders.torch_data import torch_dataset

def keeps_none(_):
    return False

if __name__ == "__main__":
    for persistent in (False, True):
        filtered = torch_dataset(sys.argv[1], where=keeps_none, features=["label"], shuffle=True)
        shared = torch_dataset(sys.argv[1], features=["label"], host=(0, 31))
        for stream in (filtered, shared):
            loader = DataLoader(stream, 4, num_workers=2, persistent_workers=persistent)
            for _ in range(3):
                list(loader)
        print("next", file=sys.stderr, flush=True)
"""


@pytest.mark.nightly
def test_workers_warn_once_together(datasets, tmp_path):
    """Pytest records what forked workers warn of, so they are in another process."""
    (tmp_path / "passes.py").write_text(PASSES)
    command = [sys.executable, "-W", "always", tmp_path / "passes.py", datasets["images"]]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    for text in done.stderr.split("next\n")[:2]:
        assert text.count("keeps none of the") == 1
        assert text.count("leave out") == 1


# What several hosts leave out.


def rests(make, passes=2):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()
        for _ in range(passes):
            list(made)
    return [str(each.message) for each in caught if "leave out" in str(each.message)]


def test_hosts_say_once_what_they_leave_out(tmp_path):
    ds = write_numbered(tmp_path / "ds", [20, 9], 4)
    records = open_dataset(ds)
    (text,) = rests(lambda: Stream(records, host=(0, 3)))
    assert text.startswith("3 hosts leave out 2 of the examples")
    assert "remainder='pad'" in text
    assert len(rests(lambda: torch_dataset(ds, host=(0, 3), remainder="drop"))) == 1
    (text,) = rests(lambda: keras_dataset(ds, batch_size=6, label=None, host=(0, 3)))
    assert text.startswith("3 hosts leave out 5 of the examples")
    for options in (
        {"host": (1, 3)},  # the first one speaks for all
        {"host": (0, 3), "remainder": "pad"},
        {"host": (0, 3), "shuffle": True},
        {"host": (0, 29)},
        {},
    ):
        assert not rests(lambda given=options: Stream(records, **given), passes=1)


# Splits without labels.


@pytest.fixture(scope="module")
def unlabeled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unlabeled")
    lines = ["name,label,part", *(f"k{n},{'' if n > 9 else n % 2},{n > 9}" for n in range(15))]
    (folder / "in").mkdir()
    (folder / "in" / "all.csv").write_text("\n".join(lines[:11]))
    (folder / "in" / "test.csv").write_text("\n".join([lines[0], *lines[11:]]))
    build_rows(
        input=folder / "in",
        output=folder / "ds",
        label="label",
        unlabeled_splits="test",
        splits="train=all.csv,test=test.csv",
    )
    return folder / "ds"


@pytest.mark.parametrize(
    "options",
    [{"as_supervised": True}, {"features": ["label"]}, {"label": "text", "as_supervised": True}],
)
def test_labels_of_a_split_without_them(options, unlabeled):
    assert len(open_dataset(unlabeled, "train", features=["label"])) == 10
    for split in ("train+test", "test", "test[:2]+train"):
        with pytest.raises(
            UsageError, match=r"has no labels, because test has none .*read the other"
        ):
            open_dataset(unlabeled, split, **options)
    with pytest.raises(UsageError, match="because test has none"):
        keras_dataset(unlabeled, "train+test")


def test_labels_that_are_left_out_are_a_warning(unlabeled):
    with pytest.warns(UserWarning, match="is read without labels, because test has none"):
        records = open_dataset(unlabeled, "train+test")
    assert set(records[0]) == {"name", "part"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert len(open_dataset(unlabeled, "train+test", features=["name"])) == 15
        open_dataset(unlabeled, "test")
        assert not math.isnan(len(keras_dataset(unlabeled, "train+test", label=None)))
