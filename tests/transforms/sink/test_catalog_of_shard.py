"""An update takes a record only if it is that of its row: the shard's catalog, and the row's image."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import shardmill
from shardmill.schemas.tfrecord.framing import crc32c
from tests.conftest import build_dataset
from tests.support.readers import dataset_files

# Records of equal length, so that the index of a shard fits to the catalog of any other.
OPTIONS = {
    "image_size": "8",
    "encoding": "raw",
    "compression": "none",
    "splits": "train:1",
    "num_shards": 2,
}
IMAGES = 20


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """Images of one colour each, which their names give, and their dataset."""
    folder = tmp_path_factory.mktemp("catalogs")
    for n in range(IMAGES):
        path = folder / "in" / f"c{n % 2}" / f"{n:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (n, n, n)).save(path)
    build_dataset(input=folder / "in", output=folder / "out", **OPTIONS)
    return folder


@pytest.fixture
def work(pristine, tmp_path) -> Path:
    return shutil.copytree(pristine, tmp_path / "work", symlinks=True)


def shards_of(manifest: dict) -> list[dict]:
    return manifest["splits"]["train"]["shards"]


def edit_manifests(output: Path, change: Callable[[dict], None]) -> None:
    """Change the manifest of the output and that of its generation."""
    for path in (output / "manifest.json", output / "current" / "manifest.json"):
        body = json.loads(path.read_text())
        body.pop("checksums", None)
        change(body)
        path.write_text(json.dumps(body))


def rewrite_catalogs(output: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the catalogs, and their sizes and checksums in the manifests."""
    entries = {}
    for path in (output / "current" / "catalog").iterdir():
        target = io.BytesIO()
        pq.write_table(change(pq.read_table(path)), target)
        data = target.getvalue()
        path.write_bytes(data)
        entries[path.name] = {"bytes": len(data), "crc32c": f"{crc32c(data):08x}"}

    def record(manifest: dict) -> None:
        for shard in shards_of(manifest):
            shard["catalog"].update(entries[Path(shard["catalog"]["file"]).name])

    edit_manifests(output, record)


def exchange_entries(output: Path) -> None:
    def exchange(manifest: dict) -> None:
        first, second = shards_of(manifest)
        first["catalog"], second["catalog"] = second["catalog"], first["catalog"]

    edit_manifests(output, exchange)


def reverse_rows(output: Path) -> None:
    def reverse(table: pa.Table) -> pa.Table:
        return table.take(list(range(len(table)))[::-1])

    rewrite_catalogs(output, reverse)


def exchange_images(output: Path) -> None:
    """Exchange all columns about the images of two rows, but not the keys."""

    def exchange(table: pa.Table) -> pa.Table:
        order = [1, 0, *range(2, len(table))]
        kept = {"record", "key", "source", "input_bytes", "input_version", "input_ctime"}
        columns = {
            name: table[name] if name in kept else table[name].take(order)
            for name in table.column_names
        }
        return pa.table(columns).replace_schema_metadata(table.schema.metadata)

    rewrite_catalogs(output, exchange)


def without_crc(table: pa.Table) -> pa.Table:
    """Return a catalog as 0.2.0 wrote it: it names no shard."""
    return table.replace_schema_metadata({})


def wrong_images(output: Path) -> int:
    """Return the number of records whose image is not that of their name; read by the loader."""
    records = shardmill.open_dataset(output, "train", features=["image", "image/key"])
    assert len(records) == IMAGES
    names = [str(record["image/key"]).split("/")[1] for record in records]
    return sum(
        int(record["image"].max()) != int(name[:2])
        for record, name in zip(records, names, strict=True)
    )


@pytest.mark.sweep
@pytest.mark.parametrize("version", ["today", "0.2.0"])
@pytest.mark.parametrize("edit", [exchange_entries, reverse_rows, exchange_images])
def test_no_record_of_another_input_is_taken(work, edit, version) -> None:
    if version == "0.2.0":
        rewrite_catalogs(work / "out", without_crc)
    edit(work / "out")
    build_dataset(input=work / "in", output=work / "out", update=True, seed=5, **OPTIONS)
    assert wrong_images(work / "out") == 0
    build_dataset(input=work / "in", output=work / "new", seed=5, **OPTIONS)
    assert dataset_files(work / "out") == dataset_files(work / "new")


@pytest.mark.parametrize("version", ["today", "0.2.0"])
def test_all_records_of_an_intact_dataset_are_taken(work, version) -> None:
    if version == "0.2.0":
        rewrite_catalogs(work / "out", without_crc)
    outcome, _ = build_dataset(
        input=work / "in", output=work / "out", update=True, seed=5, **OPTIONS
    )
    assert outcome.reused == IMAGES
    assert wrong_images(work / "out") == 0


@pytest.mark.parametrize("version", ["today", "0.2.0"])
@pytest.mark.heavy
def test_records_without_a_hash_are_taken_only_by_the_catalog_of_their_shard(work, version) -> None:
    options = {**OPTIONS, "features": "image/key,image/height"}
    build_dataset(input=work / "in", output=work / "keys", **options)
    if version == "0.2.0":
        rewrite_catalogs(work / "keys", without_crc)
    outcome, _ = build_dataset(
        input=work / "in", output=work / "keys", update=True, seed=5, **options
    )
    assert outcome.reused == (IMAGES if version == "today" else 0)


def test_a_catalog_holds_the_crc_of_its_shard(work) -> None:
    manifest = json.loads((work / "out" / "manifest.json").read_text())
    for shard in shards_of(manifest):
        data = (work / "out" / shard["file"]).read_bytes()
        metadata = pq.read_schema(work / "out" / shard["catalog"]["file"]).metadata
        assert metadata[b"shard_crc32c"].decode() == f"{crc32c(data):08x}" == shard["crc32c"]
