"""The text of schema.pbtxt never changes: readers may compare or hash the published file."""

from types import SimpleNamespace

import numpy as np
import pytest

from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.schemas.schema_pbtxt.image_features import FeatureSet
from shardmill.schemas.schema_pbtxt.schema_text import array_tags
from shardmill.transforms.sink.placement import PlaceSpec
from shardmill.transforms.sources.arrays.array_source import ArraySource
from shardmill.transforms.tables.table_source import TableSpec
from tests.conftest import ROOT

FOLDER = ROOT / "tests/schemas/schema_pbtxt/golden"


def rows() -> str:
    return format_schema(
        [
            Column("size", "int64"),
            Column("größe", "float32", low=-0.1, high=0.1, default="0.1"),
            Column("low_only", "int64", zero_padded=True, low=0),
            Column("optional", "bytes", required=False, values=("a", "ü")),
            Column("boolean", "int64", booleans=("Yes", "no")),
            Column("many", "int64", separator="|", default="1|2", high=9),
        ]
    )


def images() -> str:
    names = FeatureSet.parse(
        "größe=image/height,image/encoded,image/class/label,image/class/text", ["label"]
    )
    tags = array_tags(np.dtype("uint8"), [2, 3, 3], "png", 3)
    return names.schema(["ä", "b"], tags)


def arrays(*, texts: tuple[str, ...]) -> str:
    features = [
        SimpleNamespace(name="x", dtype=np.dtype(">f4"), shape=(10, 28, 1)),
        SimpleNamespace(name="größe", dtype=np.dtype("uint8"), shape=(10,)),
    ]
    label = SimpleNamespace(name="y", text_name="y/text", texts=texts)
    found = SimpleNamespace(arrays=features, label=label)
    return ArraySource(TableSpec((), PlaceSpec(Splits("fractions"))), found).schema(texts)


SCHEMAS = {
    "rows": rows,
    "images": images,
    "arrays_number_labels": lambda: arrays(texts=()),
    "arrays_text_labels": lambda: arrays(texts=("ä", "b")),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_published_text_is_unchanged(name):
    assert SCHEMAS[name]() == (FOLDER / f"{name}.pbtxt").read_text(encoding="utf-8")
