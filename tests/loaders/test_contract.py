"""What every reader promises, stated once for Stream, torch, Keras and Grain."""

import contextlib
import gc
import itertools
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardmill.loaders import (
    Stream,
    keras_dataset,
    mix,
    open_dataset,
    steps_per_epoch,
    torch_dataset,
)
from shardmill.schemas import ShardmillError
from tests.support.loader_tools import (
    CELLS,
    import_for_workers,
    write_numbered,
)
from tests.support.record_tools import deflated_member

pytest_plugins = ["tests.support.loader_data"]

SIZES = [7, 0, 9, 5, 1, 12]
TOTAL = sum(SIZES)
BATCH = 4
BOTH = "train+validation"


@pytest.fixture(scope="module")
def numbered(tmp_path_factory) -> Path:
    """34 records that hold their number, in shards of different sizes."""
    return write_numbered(tmp_path_factory.mktemp("ids") / "ds", SIZES, 2, deflated_member)


# A reader returns the batches of one epoch: columns, and with padding also weights.


def read_stream(folder, epoch: int, *, threads: int = 0, features=None, **options):
    stream = Stream(open_dataset(folder, features=features), workers=threads, **options)
    stream.set_epoch(epoch)
    rows = [*stream]
    assert "limit" not in options or len(rows) == len(stream)
    return [{name: [value] for name, value in row.items()} for row in rows]


def read_torch(folder, epoch: int, *, workers: int = 0, **options):
    from torch.utils.data import DataLoader

    import_for_workers()
    stream = torch_dataset(folder, **options)
    context = "fork" if workers else None
    loader = DataLoader(stream, BATCH, num_workers=workers, multiprocessing_context=context)
    stream.set_epoch(epoch)
    return [*loader]


def read_keras(folder, epoch: int, *, batch_size: int | None = BATCH, **options):
    hosts = options.get("host", (0, 1))[1]
    size = batch_size and batch_size * hosts
    dataset = keras_dataset(folder, label=None, batch_size=size, **options)
    for _ in range(epoch):
        for _ in dataset:
            pass
    batches = [*dataset]
    assert int(dataset.cardinality()) in (len(batches), -2)
    pairs = [batch if isinstance(batch, tuple) else (batch, None) for batch in batches]
    return [
        columns if weights is None else {**columns, "weight": weights} for columns, weights in pairs
    ]


def read_grain(folder, epoch: int, *, processes: int = 0, shuffle: bool = False):
    import grain
    from absl import flags

    examples = grain.MapDataset.source(open_dataset(folder))
    assert len(examples) == TOTAL
    examples = examples.seed(epoch).shuffle() if shuffle else examples
    reading = grain.ReadOptions(num_threads=BATCH, prefetch_buffer_size=2 * BATCH)
    batches = examples.batch(BATCH).to_iter_dataset(reading)
    if processes:
        flags.FLAGS.mark_as_parsed()  # as absl.app.run does
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes))
    return [*batches]


def read_map_style(folder, epoch: int, *, method: str | None = None, shuffle: bool = False):
    import torch
    from torch.utils.data import DataLoader

    records = open_dataset(folder)
    records[5]  # the files are open when the DataLoader forks
    loader = DataLoader(
        records,
        BATCH,
        shuffle,
        num_workers=2 if method else 0,
        multiprocessing_context=method,
        generator=torch.Generator().manual_seed(epoch),
    )
    assert len(loader) == -(-TOTAL // BATCH)
    return [*loader]


STREAMS = {
    "stream": (read_stream, {}),
    "threads": (read_stream, {"threads": 2}),
    "torch": (read_torch, {}),
    "torch workers": (read_torch, {"workers": 2}),
    "keras": (read_keras, {}),
    "keras examples": (read_keras, {"batch_size": None}),
}
READERS = {
    **STREAMS,
    "map": (read_map_style, {}),
    "map fork": (read_map_style, {"method": "fork"}),
    "grain": (read_grain, {}),
    "grain processes": (read_grain, {"processes": 1}),
}
KERAS = [pytest.mark.heavy, pytest.mark.xdist_group("transform")]  # TensorFlow starts once
QUICK = ("stream", "threads")


def parameters(readers) -> list:
    return [pytest.param(name, marks=() if name in QUICK else KERAS) for name in readers]


def read(reader: str, folder, feature: str = "id", epoch: int = 0, **options) -> list:
    """Return the values of a feature in the order of an epoch, without padding."""
    function, own = READERS[reader]
    values: list = []
    for batch in function(folder, epoch, **own, **options):
        column = np.ravel(batch[feature]).tolist()
        weights = np.ravel(batch.get("weight", [1] * len(column)))
        values += [value for value, weight in zip(column, weights, strict=True) if weight]
    return values


@pytest.mark.parametrize("reader", parameters(READERS))
def test_an_epoch_has_each_record_once_in_an_order_of_its_own(reader, numbered):
    plain = read(reader, numbered)
    assert sorted(plain) == list(range(TOTAL))
    assert "workers" in reader or plain == list(range(TOTAL))
    shuffled = [read(reader, numbered, epoch=epoch, shuffle=True) for epoch in range(2)]
    assert [sorted(order) for order in shuffled] == [sorted(plain)] * 2
    assert len({tuple(order) for order in [plain, *shuffled]}) == 3
    assert read(reader, numbered, epoch=1, shuffle=True) == shuffled[1]
    if reader in STREAMS:
        assert read(reader, numbered, shuffle=True, seed=1) not in shuffled
        same = read("stream", numbered, epoch=1, shuffle=True)
        assert "workers" in reader or shuffled[1] == same


@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("reader", parameters(STREAMS)[:-1])  # padding needs batches
def test_hosts_share_an_epoch(reader, remainder, hosts, numbered):
    function, own = STREAMS[reader]
    shares, sizes = [], set()
    for host in range(hosts):
        options = {"host": (host, hosts), "remainder": remainder, "shuffle": True}
        batches = function(numbered, 0, **own, **options)
        sizes.add(sum(np.ravel(batch["id"]).size for batch in batches))
        shares.append(read(reader, numbered, **options))
    numbers = Counter(itertools.chain(*shares))
    assert set(numbers.values()) == {1}
    assert len(sizes) == 1
    if remainder == "drop":
        assert sizes == {len(shares[0])}
        assert 0 <= TOTAL - len(numbers) < BATCH * hosts
    else:
        assert len(numbers) == TOTAL
    if reader == "keras":
        steps = steps_per_epoch(numbered, "train", BATCH * hosts, remainder=remainder, hosts=hosts)
        assert sizes == {BATCH * steps}


def open_files(folder: Path) -> set[str]:
    paths = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing
            paths.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {path for path in paths if path.startswith(f"{folder}/")}


OPENED = {
    "map": open_dataset,
    "stream": lambda path: Stream(open_dataset(path)),
    "threads": lambda path: Stream(open_dataset(path), workers=2),
    "shuffled": lambda path: Stream(open_dataset(path), shuffle=True),
    "records": lambda path: Stream(open_dataset(path), shuffle=True, order="records"),
    "torch": torch_dataset,
    "torch shuffled": lambda path: torch_dataset(path, shuffle=True),
    "mix": lambda path: torch_dataset(mix({path: 1}), shuffle=True),
    "mix of records": lambda path: Stream(open_dataset(mix({path: 1})), shuffle=True),
}


@pytest.mark.sweep
@pytest.mark.parametrize("look", [False, True], ids=["epoch", "look"])
@pytest.mark.parametrize("reader", OPENED)
def test_a_dropped_reader_closes_its_files(reader, look, numbered, tmp_path):
    """At once: who opens many datasets in a process must not wait for the garbage collector."""
    folder = shutil.copytree(numbered, tmp_path / "ds")
    gc.collect()
    gc.disable()
    try:
        opened = OPENED[reader](folder)
        if look:
            next(iter(opened))
        else:
            list(opened)
        assert open_files(folder)
        del opened
        assert not open_files(folder)
    finally:
        gc.enable()


SELECTIONS = {
    "label": {"where": {"label": ["ant", "cow"]}},
    "predicate": {"where": lambda row: row["image/class/text"] == b"cow"},
    "limit": {"where": lambda row: row["image/class/text"] != b"cow", "limit": 8},
    "balance": {"balance": "label"},
    "weights": {"balance": {"ant": 3, "cow": 1}},
    "record weight": {"record_weight": "height"},
}


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("reader", parameters(STREAMS)[1:])
def test_a_selection_is_that_of_a_stream(reader, selection, images):
    options = {
        "features": ["image/class/text", "image/key"],
        "shuffle": True,
        "seed": 3,
        **SELECTIONS[selection],
    }
    for epoch in range(2):
        keys = read(reader, images("jpeg"), "image/key", epoch, **options)
        same = read("stream", images("jpeg"), "image/key", epoch, **options)
        assert len(same) > 5
        assert len(keys) == len(same)
        if "workers" not in reader:
            assert keys == same
        elif selection != "limit":  # each worker has its part of the limit
            assert Counter(keys) == Counter(same)


@pytest.mark.heavy
@pytest.mark.xdist_group("transform")
def test_a_number_to_shuffle_by_is_the_buffer_of_a_stream(numbered):
    options = {"shuffle": True, "buffer": 5}
    assert read("keras", numbered, shuffle=5) == read("stream", numbered, **options)
    assert read("keras", numbered, shuffle=5) != read("keras", numbered, shuffle=True)


@pytest.mark.heavy
@pytest.mark.xdist_group("transform")
@pytest.mark.parametrize("batch_size", [16, None])
@pytest.mark.parametrize("kind", ["jpeg", "png", "raw", "none"])
def test_images_of_keras_are_those_of_records(kind, batch_size, images):
    """Which test_records compares with Pillow."""
    dataset = keras_dataset(images(kind), BOTH, batch_size=batch_size)
    records = open_dataset(images(kind), BOTH)
    pixels, labels = dataset.element_spec
    shape = list(records[0]["image"].shape)
    assert [pixels.shape.as_list(), labels.shape.as_list()] == (
        [[None, *shape], [None]] if batch_size else [shape, []]
    )
    dataset = dataset if batch_size is None else dataset.unbatch()
    for record, (image, label) in zip(records, dataset, strict=True):
        assert image.dtype == np.uint8
        assert label.dtype == np.int64
        assert np.array_equal(image.numpy(), record["image"])
        assert int(label) == record["label"]
    full = keras_dataset(images(kind), batch_size=BATCH, remainder="drop")
    assert full.element_spec[0].shape.as_list() == [BATCH, *shape]


@pytest.mark.heavy
@pytest.mark.xdist_group("transform")
@pytest.mark.parametrize("batch_size", [20, None])
def test_rows_of_keras_are_those_of_records(batch_size, table):
    """Which test_records compares with the cells of the table."""
    fill = {"count": -1, "ratio": -0.5, "name": "unknown"}
    dataset = keras_dataset(table, BOTH, fill=fill, label="text", batch_size=batch_size)
    assert set(dataset.element_spec[0]) == set(CELLS) - {"kind"}
    dataset = dataset if batch_size is None else dataset.unbatch()
    for record, (columns, label) in zip(open_dataset(table, BOTH, fill=fill), dataset, strict=True):
        assert label.numpy() == record["kind"]
        for name, values in columns.items():
            assert values.numpy().tolist() == np.ravel(record[name]).tolist()
    with pytest.raises(ShardmillError, match="'count' may be missing"):
        keras_dataset(table, label="text")
