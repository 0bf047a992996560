"""Write datasets from elements of a PCollection, and read them with TensorFlow."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

import shardmill
from tests.support.readers import current, dataset_splits, tf_examples

SCHEMA = """
feature { name: "id" type: BYTES presence { min_fraction: 1 } shape { dim { size: 1 } } }
feature { name: "label" type: INT value_count { min: 1 max: 1 } int_domain { min: -5 max: 5 } }
feature { name: "x" type: FLOAT value_count { min: 0 } }
feature { name: "words" type: BYTES value_count { min: 0 } }
"""
OPTIONS: dict[str, Any] = {
    "key": "id",
    "schema": SCHEMA,
    "splits": "train:0.7,test:0.3",
    "num_shards": 3,
    "max_reject_fraction": 1.0,
}


def random_elements(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return dicts with missing values, empty lists and keys of any text."""
    chance = random.Random(seed)
    letters = "aé漢🙂 \\/#"
    return [
        {
            "id": f"{number}{''.join(chance.choices(letters, k=chance.randrange(9)))}",
            "label": chance.choice([None, -5, 0, 5]),
            "x": [chance.random() for _ in range(chance.randrange(4))],
            "words": [bytes([chance.randrange(256)]) * 5 for _ in range(chance.randrange(3))],
        }
        for number in range(count)
    ]


def write(
    output: Path,
    elements: Iterable[Any],
    runner: Any = None,
    *steps: beam.PTransform,
    **options: Any,
) -> None:
    """Write elements with ``WriteDataset``, on the in-memory runner if none is given.

    Args:
        output: The dataset.
        elements: The elements.
        runner: The runner.
        steps: Applied to the elements first.
        options: Those of ``WriteDataset`` that are not ``OPTIONS``.
    """
    with beam.Pipeline(runner=runner or FnApiRunner()) as pipeline:
        collection = pipeline | beam.Create(list(elements), reshuffle=False)
        for step in steps:
            collection |= step
        _ = collection | shardmill.WriteDataset(output, **OPTIONS | options)


def read(folder: Path) -> dict[str, dict[bytes, dict[str, list]]]:
    """Return the examples of each split by ``id``, as independent readers read them."""
    found = {}
    for name, split in dataset_splits(folder).items():
        paths = [current(folder) / shard["file"] for shard in split["shards"]]
        examples = [example for path in paths for example in tf_examples(path)]
        found[name] = {example["id"][0]: example for example in examples}
        assert len(found[name]) == len(examples) == split["num_examples"]
    return found


def expected(element: dict[str, Any]) -> dict[str, list]:
    """Return the features of the record of an element."""
    values = {
        name: value if isinstance(value, list) else [value]
        for name, value in element.items()
        if value not in (None, [])
    }
    values["id"] = [element["id"].encode()]
    if "x" in values:
        values["x"] = np.array(values["x"], np.float32).tolist()
    return values
