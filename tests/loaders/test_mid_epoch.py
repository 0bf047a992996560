"""A reader in the middle of an epoch keeps its version when new ones are published."""

import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

import shardmill
from tests.support.rows_tools import build_rows

pytest_plugins = ["tests.support.gcs_server"]
pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("transform")]  # TensorFlow starts once

ROWS, SHARDS, BEGUN = 1_200, 12, 100


def read_records(ds: str) -> Iterator[int]:
    return (int(row["id"]) for row in shardmill.open_dataset(ds))


def read_stream(ds: str) -> Iterator[int]:
    records = shardmill.open_dataset(ds)
    return (int(row["id"]) for row in shardmill.Stream(records, shuffle=True, buffer=20))


def read_keras(ds: str) -> Iterator[int]:
    batches = shardmill.keras_dataset(ds, label=None, batch_size=10, shuffle=20)
    return (int(number) for batch in batches for number in batch["id"].numpy().ravel())


def read_tf_data(ds: str) -> Iterator[int]:
    import tensorflow as tf

    spec = shardmill.feature_spec(ds)
    records = tf.data.TFRecordDataset(shardmill.files(ds, "train"), "GZIP", buffer_size=1_000)
    return (int(tf.io.parse_single_example(each, spec)["id"][0]) for each in records)


READERS = {
    "open_dataset": read_records,
    "Stream": read_stream,
    "keras_dataset": read_keras,
    "tf.data": read_tf_data,
}
Publish = Callable[[int], range]


@pytest.fixture(params=["disk", "bucket"])
def ds(request, tmp_path) -> str:
    """The URI of an output."""
    if request.param == "disk":
        return str(tmp_path / "ds")
    return f"{request.getfixturevalue('strict_bucket')}/ds"


@pytest.fixture
def publish(ds, tmp_path) -> Publish:
    """Return a function that publishes a version with other rows and returns their ids."""

    def build(version: int) -> range:
        rng, ids = random.Random(version), range(version * ROWS, (version + 1) * ROWS)
        rows = "".join(f"{number},{rng.randbytes(200).hex()}\n" for number in ids)
        (tmp_path / "in.csv").write_text(f"id,text\n{rows}")
        outcome, _ = build_rows(
            input=tmp_path / "in.csv",
            output=ds,
            splits="train:1",
            num_shards=SHARDS,
            seed=version,
            update=True,
            keep=1,
        )
        assert outcome.status == "published", outcome
        return ids

    return build


def readers(ds: str) -> dict[str, Callable[[str], Iterator[int]]]:
    """Return the readers for a storage; tf.data alone cannot read the emulator's."""
    return {n: read for n, read in READERS.items() if n != "tf.data" or "://" not in ds}


@pytest.mark.sweep
def test_epoch_ends_on_its_version(ds, publish):
    old = publish(1)
    begun = {name: read(ds) for name, read in readers(ds).items()}
    found = {name: [*islice(epoch, BEGUN)] for name, epoch in begun.items()}
    new = publish(2)
    for name, epoch in begun.items():
        assert sorted([*found[name], *epoch]) == [*old], name
    for name, read in readers(ds).items():
        assert sorted(read(ds)) == [*new], name


@pytest.mark.sweep
def test_path_of_a_version_pins_it(ds, publish, tmp_path):
    old = publish(1)
    pinned = shardmill.files(ds, "train")[0].rpartition("/")[0]
    publish(2)
    for name, read in readers(ds).items():
        assert sorted(read(pinned)) == [*old], name
