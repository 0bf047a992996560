"""Columns of Hive partitions: the values of folders that are named NAME=VALUE."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import unquote

import pyarrow as pa

from shardmill.schemas.refs import InputRef
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.sources.csv.cell_rules import CellRules
from shardmill.transforms.sources.csv.infer import infer_column, profile_columns

_MISSING = (
    "__HIVE_DEFAULT_PARTITION__"  # org.apache.hadoop.hive.conf: hive.exec.default.partition.name
)


def partition_values(key: str) -> dict[str, bytes | None]:
    """Return the values of the partition of a file by the names of their columns."""
    folders = (folder.partition("=") for folder in key.split("/")[:-1])
    return {
        unquote(name): None if value == _MISSING else unquote(value).encode()
        for name, equals, value in folders
        if name and equals
    }


def partition_columns(refs: Iterable[InputRef], rules: CellRules) -> dict[str, Column]:
    """Return the columns of the partitions of all files, with the types that CSV would give."""
    cells: dict[str, list[bytes]] = defaultdict(list)
    for ref in refs:
        for name, value in partition_values(ref.key).items():
            cells[name].append(value or b"")
    arrays = {name: pa.array(each, pa.binary()).dictionary_encode() for name, each in cells.items()}
    profiles = {name: profile_columns({name: each}, rules)[name] for name, each in arrays.items()}
    return {
        name: replace(infer_column(name, profile), required=False)
        for name, profile in profiles.items()
    }
