"""The catalog: one Parquet file per shard, with a row for each record.

It says which input a record was made of, and is the cache of ``--update``. Other programs read it
with pandas, Polars or DuckDB; docs/catalog.md describes the columns.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from shardmill.schemas.errors import FormatError
from shardmill.schemas.refs import EncodedImage, InputRef
from shardmill.schemas.schema_pbtxt.image_features import (
    COUNTS,
    RARE_COUNTS,
    VALUES,
    catalog_columns,
)

_Copy = TypeVar("_Copy")
_BATCH_ROWS = 1024
_SHARD_CRC = b"shard_crc32c"  # in the metadata of the Parquet file


class CatalogRow(NamedTuple):
    """One record, and the input that it was made of.

    Attributes:
        key: Key of the input.
        source: Path or URI of the input.
        input_bytes: Size of the input.
        input_version: Modification time in nanoseconds, or an object's generation.
        content_hash: BLAKE3 of the content of the input, 64 hexadecimal digits.
        label: Label, or None.
        width: Width of the input in pixels, after the rotation that its EXIF data asks for.
        height: Its height.
        multi_frame: Whether only the first of several frames was used.
        pixels: Number of pixels of the record's image.
        pixel_sums: Sum of the values of each channel.
        pixel_squares: Sum of their squares.
        record_bytes: Bytes of the record in the uncompressed shard, with the frame.
        features: Columns that record features of the record: BLAKE3 hashes or numbers, and
            counts.
        input_ctime: Time of the last change of the file or its attributes, in nanoseconds; 0 for
            objects. Two builds of the same inputs may differ in it.
    """

    key: str
    source: str
    input_bytes: int
    input_version: str
    content_hash: str
    label: str | None
    width: int
    height: int
    multi_frame: bool
    pixels: int
    pixel_sums: Sequence[int]
    pixel_squares: Sequence[int]
    record_bytes: int
    features: Mapping[str, Any] = {}
    input_ctime: int = 0

    @classmethod
    def of(cls, ref: InputRef, image: EncodedImage, record_bytes: int) -> CatalogRow:
        """Return the row of the record of an input."""
        fields = image._asdict()
        if ref.attached or VALUES in image.features:
            fields["features"] = {**image.features, VALUES: ref.values_digest() or None}
        return cls(
            ref.key,
            ref.uri,
            ref.size,
            ref.version,
            label=ref.label,
            record_bytes=record_bytes,
            input_ctime=ref.ctime,
            **fields,
        )

    @property
    def counts(self) -> dict[str, int]:
        """Values of the columns that are counts."""
        features = self.features
        counts = {name: features[name] for name in COUNTS if features.get(name) is not None}
        return {name: n for name, n in counts.items() if n or name not in RARE_COUNTS}

    @property
    def image(self) -> EncodedImage:
        """The facts of the image that a published record keeps."""
        return EncodedImage._make(_IMAGE_FIELDS(self))


_IMAGE_FIELDS = attrgetter(*EncodedImage._fields)
_COLUMNS = [name for name in CatalogRow._fields if name != "features"]


class Catalog:
    """The rows of a shard, in the order of its records; few of them are Python objects at a time.

    Attributes:
        record_id: Identity of the options and codecs that decided the features of all records.
        record_bytes: Bytes of each record.
        shard_crc32c: CRC-32C of the shard that it describes, as 8 hexadecimal digits; empty in
            catalogs of 0.2.0.
    """

    def __init__(self, data: bytes) -> None:
        table = read_table(data, (*row_columns(), "record_id"))
        chunks = table.column("record_id").chunks
        ids = {value for chunk in chunks for value in chunk.dictionary.to_pylist()}
        if len(ids) > 1:
            raise FormatError(f"it has records of {len(ids)} record_ids")
        self.record_id = "".join(ids)
        self.record_bytes: list[int] = table.column("record_bytes").to_pylist()
        self.shard_crc32c = shard_crc_of(table)
        self._table = table

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.record_bytes)

    def __iter__(self) -> Iterator[CatalogRow]:
        """Yield the rows."""
        for batch in self._table.to_batches(_BATCH_ROWS):
            columns = {name: batch.column(name).to_pylist() for name in _COLUMNS}
            columns["features"] = batch.select(list(catalog_columns())).to_pylist()
            yield from map(CatalogRow, *(columns[name] for name in CatalogRow._fields))


def shard_crc_of(table: Any) -> str:
    """Return the CRC-32C of the shard that a catalog describes; empty in catalogs of 0.2.0."""
    metadata = table.schema.metadata or {}
    return str(metadata.get(_SHARD_CRC, b"").decode("ascii", "replace"))


def _schema() -> Any:
    import pyarrow as pa  # takes 0.1 s to load

    text, whole = pa.string(), pa.int64()
    repeated = pa.dictionary(pa.int32(), text)
    kinds = {"bytes": text, "float32": pa.float32(), "int64": whole}
    return pa.schema(
        {
            "record": whole,
            "key": text,
            "source": text,
            "input_bytes": whole,
            "input_version": text,
            "content_hash": text,
            "label": repeated,
            "width": pa.int32(),
            "height": pa.int32(),
            "multi_frame": pa.bool_(),
            "pixels": whole,
            "pixel_sums": pa.list_(whole),
            "pixel_squares": pa.list_(whole),
            "record_bytes": whole,
            **{name: kinds[kind] for name, kind in catalog_columns().items()},
            "record_id": repeated,
            "input_ctime": whole,
        }
    )


def format_catalog(
    rows: Iterable[Sequence[Any]], record_id: str, shard_crc32c: str | None
) -> bytes:
    """Return the Parquet file of the rows of a shard.

    Args:
        rows: ``CatalogRow`` values, or sequences of their fields.
        record_id: Identity of the options and codecs that decided the features.
        shard_crc32c: CRC-32C of the shard: the catalog describes no other one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = list(map(list, zip(*rows, strict=True))) or [[] for _ in CatalogRow._fields]
    values: dict[str, Any] = dict(zip(CatalogRow._fields, columns, strict=True))
    features = values.pop("features")
    for name in catalog_columns():
        values[name] = [record_features.get(name) for record_features in features]
    number = len(features)
    values |= {"record": range(number), "record_id": [record_id] * number}
    target = io.BytesIO()
    left_out = [name for name in RARE_COUNTS if not any(values[name])]
    schema = pa.schema([field for field in _schema() if field.name not in left_out])
    schema = schema.with_metadata({_SHARD_CRC: shard_crc32c or ""})
    arrays = [pa.array(values[field.name], field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), target, compression="zstd")
    return target.getvalue()


def row_columns() -> list[str]:
    """Return the names of the columns of a row."""
    return [*_COLUMNS, *catalog_columns()]


def column_names() -> list[str]:
    """Return the names of all columns."""
    return list(_schema().names)


def annotation_of(label: str | None, values_digest: str | None, config: Mapping[str, Any]) -> str:
    """Return what copies of an image must have in common: empty if the image is not labeled.

    Args:
        label: Its label, or None.
        values_digest: The digest of its boxes and mask, or of other columns of a listing.
        config: Options of the build.
    """
    # The boxes and the mask of an image are its label too; other columns of a listing are not.
    has_annotations = config.get("annotations") or config.get("masks")
    # Every image has its own id in COCO, which the digest covers.
    is_compared = has_annotations and not config.get("coco_ids")
    values = (values_digest if is_compared else "") or ""
    if label is None and not values:
        return ""
    return f"{'' if label is None else label}\0{values}"


def copies_conflict(config: Mapping[str, Any]) -> str:
    """Return the option of a build that cannot be combined with ``--duplicates``; empty if none.

    Args:
        config: Options of the build.
    """
    splits = str(config.get("splits") or "")
    if splits in ("directory", "imagesets", "listing") or "=" in splits:
        return f"--splits={splits}"
    if config.get("group_pattern"):
        return f"--group_pattern={config['group_pattern']}"
    if config.get("label_from") == "listing":
        return "--label_from=listing"
    return ""


def find_differing(
    copies: Iterable[_Copy], value_of: Callable[[_Copy], str]
) -> tuple[_Copy, _Copy] | None:
    """Return the first copy that has a value, and the first that has another value; else None."""
    with_value = [copy for copy in copies if value_of(copy)]
    for copy in with_value:
        if value_of(copy) != value_of(with_value[0]):
            return with_value[0], copy
    return None


def read_table(data: bytes, names: Sequence[str]) -> Any:
    """Return columns of a catalog as an Arrow table.

    Raises:
        FormatError: It is not a catalog.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # read_table would import pyarrow.dataset and pyarrow.compute, in 0.05 s. A BytesIO would be
        # read by a thread of Arrow, which aborts the process if that ends while the thread starts.
        file = pq.ParquetFile(pa.BufferReader(data))
        table = file.read(columns=list(names), use_threads=False)
        table.validate(full=True)
        for name in (catalog_columns().keys() & {*names}) - {*table.column_names}:
            table = table.append_column(name, pa.nulls(len(table)))  # of an older version
        return table.select(names)
    except MemoryError:  # as ArrowMemoryError, which says nothing about the catalog
        raise
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        raise FormatError(f"it is not a catalog ({error})") from error
