"""Readers without their framework, and values of thousands of characters.

Other mistakes in calls of readers are in tests/golden/transcripts/readers.txt.
"""

import sys
from pathlib import Path

import pytest

import shardmill
from shardmill.loaders import feature_spec, keras_dataset, normalization, open_dataset
from shardmill.schemas import encode_example
from shardmill.schemas.errors import UsageError
from tests.support.loader_tools import ID, make_dataset, make_shard, write_dataset


@pytest.fixture
def dataset(tmp_path) -> Path:
    write_dataset(tmp_path / "ds", [[[encode_example({"id": 1})]]], ID)
    return tmp_path / "ds"


def torch_records(dataset: Path) -> None:
    from shardmill.loaders import torch_data

    torch_data.torch_dataset(open_dataset(dataset))


@pytest.mark.parametrize(
    ("call", "framework", "extra"),
    [
        (lambda dataset: keras_dataset(dataset, label=None), "tensorflow", "tensorflow"),
        (feature_spec, "tensorflow", "tensorflow"),
        (lambda dataset: normalization(dataset, feature="id"), "keras", "tensorflow"),
        (shardmill.torch_dataset, "torch", "torch"),
        (torch_records, "torch", "torch"),
    ],
)
def test_a_missing_framework_is_an_import_error(call, framework, extra, dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ImportError) as caught:
        call(dataset)
    assert isinstance(caught.value, shardmill.ShardmillError)
    assert str(caught.value).endswith(f"is not installed: pip install 'shardmill[{extra}]'.")


def test_long_values_are_cut(tmp_path):
    """As of a table with many columns."""
    columns = "\n".join(ID.replace('"id"', f'"{"c" * 40}{n}"') for n in range(999))
    write_dataset(tmp_path / "wide", [[]], columns)
    shards = {"train-a": make_shard([[encode_example({"id": 1})]])}
    make_dataset(tmp_path / "labelled", shards, {"train-a": 1}, ID, labels=["a"])
    for call in (
        lambda: open_dataset(tmp_path / "wide", features=["y"]),
        lambda: keras_dataset(
            tmp_path / "labelled", balance={"a": -1, **{f"{n}": 1 for n in range(999)}}
        ),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert len(str(caught.value)) < 600
