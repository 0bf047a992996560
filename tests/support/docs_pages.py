"""Where the commands of the docs are run, and the files that each page expects."""

import contextlib
import gzip
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from shardmill.pipelines import cli
from tests.conftest import ROOT, SHARED, build_dataset, make_photos
from tests.support.array_tools import published
from tests.support.docs_tools import Block
from tests.support.examples_data import write_digits, write_shapes, write_titanic
from tests.support.rows_tools import build_rows

# Blocks that need a cluster, a cloud or a network, by their page and first words: the tests of
# packaging, deploy/ and clusters run the same commands.
ELSEWHERE = {
    "README.md": ("pip install",),
    "docs/getting-started.md": ("python3 -m venv",),
    "docs/beam.md": ("python -m apache_beam.yaml.main",),
    "docs/counting.md": ("shardmill verify gs://",),
    "docs/dataflow.md": ("export PROJECT=my-project BUCKET=my-bucket REGION=europe-west1",),
    "docs/add-an-input-kind.md": ("python -m shardmill texts",),
    "docs/architecture.md": ("make lint types",),
    "docs/flink.md": (
        "make demo",
        "for shard in",
        "REGISTRY=",
        "kubectl -n shardmill delete",
        "FLINK=1.20.0",
        "cd deploy/flink/kubernetes",
    ),
    "docs/airflow.md": (
        "python3 -m venv /opt/shardmill",
        "deploy/airflow/install.sh",
        "airflow dags trigger",
        "make test-airflow",
    ),
    "docs/gcs.md": ("pip install", "deploy/gcs/install_emulator.sh"),
    "docs/runners.md": ("deploy/prism/install.sh",),
    "docs/annotations.md": ("shardmill images --input=VOCdevkit",),
    "docs/storage.md": ("pip install",),
}
# Pages whose Python code a dedicated test runs.
DEDICATED = ("docs/training.md", "docs/add-an-input-kind.md")


class Shelf:
    """Files that pages expect: created once, copied for each page."""

    def __init__(self, base: Path) -> None:
        base.mkdir(exist_ok=True)
        self.base = base

    def put(self, folder: Path, *names: str) -> None:
        """Copy files or folders of the shelf into a folder."""
        for name in names:
            made = self.base / name
            if not made.exists():
                getattr(self, f"_{name.partition('.')[0]}")(made)
            (shutil.copytree if made.is_dir() else shutil.copy)(made, folder / name)

    def _flower_photos(self, made: Path) -> None:
        shutil.copytree(SHARED / "photos" / "flower_photos", made)

    def _taxi(self, made: Path) -> None:
        shutil.copytree(SHARED / "tfrecord" / "tfx_taxi_gz" / "csv_example_gen", made)

    def _ds(self, made: Path) -> None:
        if not (self.base / "flower_photos").exists():
            self._flower_photos(self.base / "flower_photos")
        build_dataset(input=self.base / "flower_photos", output=made, image_size=224)

    def _counted(self, made: Path) -> None:
        if not (self.base / "ds").exists():
            self._ds(self.base / "ds")
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli.main(["count", f"--input={self.base / 'ds'}", f"--manifest={made}"]) == 0

    def _titanic(self, made: Path) -> None:
        table = self.base / "titanic.csv"
        if not table.exists():
            write_titanic(table)
        if made != table:
            build_rows(input=table, output=made, label="survived", null_values="?")

    def _arrays(self, made: Path) -> None:
        write_digits(self.base)

    def _digits(self, made: Path) -> None:
        if not (self.base / "arrays").exists():
            write_digits(self.base)
        published(input=self.base / "arrays", output=made)

    def _examples(self, made: Path) -> None:
        shutil.copytree(ROOT / "examples", made)


def _front(shelf: Shelf, folder: Path) -> None:
    shelf.put(folder, "flower_photos", "taxi", "arrays", "examples")


def _arrays_page(_: Shelf, folder: Path) -> None:
    pixels = np.arange(60 * 28 * 28).reshape(60, 28, 28).astype(np.uint8)
    labels = np.arange(60) % 10
    np.save(folder / "X.npy", pixels)
    np.save(folder / "y.npy", labels)
    np.savez(folder / "data.npz", x=pixels, label=labels)


def _labels_page(_: Shelf, folder: Path) -> None:
    """Ten shards of five birds in two splits; then the photos of a sixth bird."""
    birds = dict.fromkeys(["crow", "duck", "gull", "hawk", "kite"], 40)
    make_photos(folder / "birds", birds, size=(8, 8))
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in [*birds, "owl"]))
    build_dataset(
        input=folder / "birds",
        output=folder / "ds",
        shard_by="label",
        labels=folder / "labels.txt",
    )
    make_photos(folder / "birds", {"owl": 40}, size=(8, 8))
    rows = [f"birds/crow/{n:03d}.jpg,{('a', 'a|b', 'c')[n % 3]},{n / 8}\n" for n in range(40)]
    (folder / "listing.csv").write_text("".join(["path,label,score\n", *rows]))


def _counting_page(shelf: Shelf, folder: Path) -> None:
    """Undamaged files, and copies of which one is damaged and one is a pointer of git-lfs."""
    shelf.put(folder, "taxi", "ds", "counted.json")
    shutil.copytree(folder / "taxi", folder / "broken")
    name = "broken/Split-eval/data_tfrecord-{:05d}-of-00012.gz"
    records = bytearray(gzip.decompress((folder / name.format(4)).read_bytes()))
    at = 0
    for _ in range(188):
        at += 16 + int.from_bytes(records[at : at + 8], "little")
    records[at + 20] ^= 1
    (folder / name.format(4)).write_bytes(gzip.compress(records))
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1\n"
    (folder / name.format(9)).write_text(pointer.format("0" * 64))


def _looking_page(shelf: Shelf, folder: Path) -> None:
    shelf.put(folder, "ds", "counted.json")
    shutil.copytree(SHARED / "tfrecord" / "tfx_taxi_gz" / "external" / "tfrecord", folder / "taxi")
    shutil.copy(SHARED / "tfrecord" / "nucleus" / "test_features.gff.tfrecord", folder)


def _rows_page(_: Shelf, folder: Path) -> None:
    (folder / "sales").mkdir()
    for month in ("may", "june"):
        lines = "".join(f"{number},{number / 4},{month}\n" for number in range(40))
        (folder / "sales" / f"{month}.csv").write_text(f"id,price,month\n{lines}")
    prices = 'id,price,city\n1,2.5,Bern\n2,oops,Basel\n3,1.5\n3,1.75,Genf\n4,,"Zürich\n5,3,Chur\n'
    (folder / "prices.csv").write_text(prices, encoding="utf-8")
    orders = 'id,zip,day,age,total,Bezahlt\n1,08001,24.12.2025,,"1.234,50",ja\n'
    orders += "".join(f'{n},04109,01.02.2026,{n},"0,{n}",nein\n' for n in range(2, 40))
    (folder / "orders.csv").write_text(orders, encoding="utf-8")
    events = pd.DataFrame({"clicked": [n % 2 for n in range(40)], "page": ["a", "b"] * 20})
    events.to_parquet(folder / "events.parquet")
    for day in ("2026-01-01", "2026-01-02"):
        (folder / "export" / f"day={day}").mkdir(parents=True)
        events.to_parquet(folder / "export" / f"day={day}" / "part-00000.snappy.parquet")
    (folder / "logs").mkdir()
    events.to_json(folder / "logs" / "may.jsonl.gz", orient="records", lines=True)
    kinds = {"id": "INT", "price": "FLOAT", "city": "BYTES"}
    features = [f'feature {{ name: "{name}" type: {kind} }}\n' for name, kind in kinds.items()]
    (folder / "prices.pbtxt").write_text("".join(features))


def _has(*names: str) -> Callable[[Shelf, Path], None]:
    return lambda shelf, folder: shelf.put(folder, *names)


def _dots(shelf: Shelf, folder: Path) -> None:
    """A black and a white pixel, and the reader by hand."""
    for name, value in (("black", 0), ("white", 255)):
        (folder / "dots" / name).mkdir(parents=True)
        Image.new("L", (1, 1), value).save(folder / "dots" / name / "0.png")
    shelf.put(folder, "examples")


def _annotations_page(shelf: Shelf, folder: Path) -> None:
    """Raccoons with boxes; generated squares with masks."""
    shutil.copytree(SHARED / "photos" / "voc_raccoon", folder / "raccoons")
    write_shapes(folder / "shapes", 40)


# Creates the files in the folder in which the commands of a page are run.
PREPARE: dict[str, Callable[[Shelf, Path], None]] = {
    "README.md": _front,
    "docs/annotations.md": _annotations_page,
    "docs/arrays.md": _arrays_page,
    "docs/beam.md": _has("flower_photos"),
    "docs/catalog.md": _has("flower_photos", "ds"),
    "docs/counting.md": _counting_page,
    "docs/format.md": _dots,
    "docs/getting-started.md": _front,
    "docs/images.md": _has("flower_photos"),
    "docs/index.md": _has("flower_photos"),
    "docs/labels-and-splits.md": _labels_page,
    "docs/looking.md": _looking_page,
    "docs/manifest.md": _has("ds"),
    "docs/operations.md": _has("flower_photos"),
    "docs/python.md": _has("flower_photos", "titanic.csv"),
    "docs/rows.md": _rows_page,
}


def elsewhere(block: Block) -> bool:
    """Report whether a block is run by another test."""
    return block.first.startswith(ELSEWHERE.get(block.page, ()))
