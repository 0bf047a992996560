"""ListingTable: reads the references of a listing, with the values of its other columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmill.schemas.errors import InputError
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.match.labels import sort_labels
from shardmill.transforms.match.listing import key_of_entry
from shardmill.transforms.match.walk import make_key
from shardmill.transforms.tables.row_rejects import RowReject
from shardmill.transforms.tables.table_source import TypedBatch

_STEP = 4096  # rows that become Python objects at a time


@dataclass(frozen=True)
class ListingTable:
    """Reads the references of a listing; a picklable value.

    Attributes:
        ref: The file.
        source: Its rows.
        path: The column that names inputs.
        features: The columns that are features.
        separator: Text that joins the labels of an input that may have several; else empty.
    """

    ref: InputRef
    source: Any
    path: str
    features: tuple[str, ...]
    separator: str

    def entries(self, root: str) -> Iterator[InputRef]:
        """Yield a reference for each row, without size.

        Args:
            root: Folder that entries are relative to and must not leave.

        Raises:
            InputError: The listing is malformed, or an entry has another scheme or leads outside
                the root.
        """
        for batch in self._batches():
            lines = batch.rows.lines
            for start in range(0, len(lines), _STEP):
                order = np.arange(start, min(start + _STEP, len(lines)))
                cells = {column.name: column.take(order).to_pylist() for column in batch.columns}
                for number, line in enumerate(lines[order].tolist()):
                    row = {name: values[number] for name, values in cells.items()}
                    yield self._of_row(row, f"{self.ref.uri}, line {line}", root)

    def find_complete(self) -> set[str]:
        """Return the features that all rows have.

        Raises:
            InputError: The listing is malformed.
        """
        lacking = {
            each.name
            for batch in self._batches()
            for each in batch.columns
            if (each.values.null_count if each.indices is None else (each.indices < 0).any())
        }
        return {*self.features} - lacking

    def _batches(self) -> Iterator[TypedBatch]:
        try:
            item = self.source.inspect(self.ref)
            if item.ref.error and item.ref.error != "empty":
                raise unreadable(self.ref.uri, item.ref.error, item.ref.message)
            for unit in () if item.ref.error else self.source.units(item):
                for batch in self.source.read(unit):
                    raise_first(self.ref, batch.rows.rejects())
                    yield batch
        except RejectedError as error:
            raise unreadable(self.ref.uri, error.error, error.message) from error

    def _of_row(self, row: Mapping[str, Any], where: str, root: str) -> InputRef:
        def text(name: str) -> str:
            return (row.get(name) or b"").decode("utf-8", "replace").strip()

        entry = text(self.path)
        if not entry:
            raise InputError("listing-cell-empty", where=where, name=self.path)
        key, uri = key_of_entry(entry, root, where)
        values = ((name, row[name]) for name in self.features)
        attached = encode_example(
            {f"listing/{name}": each for name, each in values if each is not None and each != []}
        )
        ref = InputRef(key, uri, split=text("split"), group=text("group"), attached=attached)
        if not self.separator:
            return ref._replace(label=make_key(text("label")) or None)
        texts = row.get("label") or b""
        joined = texts if isinstance(texts, bytes) else self.separator.encode().join(texts)
        parts = joined.decode("utf-8", "replace").split(self.separator)
        classes = sort_labels({make_key(each.strip()) for each in parts})
        label = self.separator.join(classes) or None
        return ref._replace(label=label, classes=classes if label else ())


def raise_first(ref: InputRef, rejects: Sequence[RowReject]) -> None:
    """Raise an error for the first of rejected rows: a listing is used with all rows or not.

    Raises:
        InputError: There is one.
    """
    for reject in rejects[:1]:
        if reject.error == "encoding":
            raise InputError("listing-encoding", source=ref.uri)
        column = f", column {reject.column}" if reject.column else ""
        raise InputError(
            "listing-malformed", source=ref.uri, line=f"{reject.line}{column}", error=reject.message
        )


def unreadable(source: str, error: str, message: str) -> InputError:
    """Return the error of a listing that is rejected for a reason of ``rejects.REASONS``."""
    if error == "encoding":
        return InputError("listing-encoding", source=source)
    return InputError("listing-unreadable", source=source, message=message)
