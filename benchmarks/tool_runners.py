"""Run another tool as its documentation describes: tool_runners.py TOOL INPUT OUTPUT [SIZE].

This script runs in the environment of the tool, without Shardmill; see environments.py. INPUT is
a folder of photos in class folders, or a table made by tables.py. Photos become JPEGs of SIZE x
SIZE with quality 95 (of the same size if SIZE is 0), with label and key. Where a tool leaves the
work on pixels to the caller, `image_peers.encode` does it. SIZE may be followed by `new`, `again`
or `changed`: see updates.py.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Pool
from pathlib import Path

from image_peers import encode, list_images

PROCESSES = 2
SHARD_BYTES = 128 << 20
TEXT_COLUMNS = ("protocol_type", "service", "flag", "label")


def photo_record(item: tuple[str, int, str], size: int) -> dict[str, object]:
    """Returns the record of a photo: its image, class number and key."""
    path, number, label = item
    return {"image": encode(path, size), "label": number, "key": f"{label}/{Path(path).name}"}


# -- TFDS --


def write_tfds(target: Path, make_features: Callable, examples: Callable, config: object) -> None:
    """Writes TFRecords with a TFDS builder; `download_and_prepare` reuses what is complete."""
    import tensorflow_datasets as tfds_

    class Records(tfds_.core.GeneratorBasedBuilder):
        """Photos in class folders, or rows of a table."""

        VERSION = tfds_.core.Version("1.0.0")

        def _info(self):  # noqa: ANN202
            features = tfds_.features.FeaturesDict(make_features(tfds_.features))
            return tfds_.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _manager):  # noqa: ANN001, ANN202
            return {"train": self._generate_examples()}

        def _generate_examples(self):  # noqa: ANN202
            return examples()

    builder = Records(data_dir=str(target), file_format="tfrecord")
    builder.download_and_prepare(download_config=config)


def tfds(source: Path, target: Path, size: int) -> None:
    """Writes TFRecords with TFDS."""
    items = list_images(source)
    examples = partial(map, partial(tfds_example, size=size), items)
    write_tfds(target, partial(tfds_features, source, size), examples, None)


def tfds_beam(source: Path, target: Path, size: int) -> None:
    """Writes TFRecords with TFDS on Beam."""
    import apache_beam as beam
    import tensorflow_datasets as tfds_
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the processes of workers
    items = list_images(source)
    # Not "DirectRunner": without a network it waits for the download of Prism.
    options = PipelineOptions(direct_num_workers=PROCESSES, direct_running_mode="multi_processing")
    config = tfds_.download.DownloadConfig(beam_runner=FnApiRunner(), beam_options=options)
    write_tfds(
        target,
        partial(tfds_features, source, size),
        lambda: beam.Create(items) | beam.Reshuffle() | beam.Map(tfds_example, size),
        config,
    )


def tfds_features(source: Path, size: int, features: object) -> dict[str, object]:
    """Returns the features of photos; without a size, TFDS keeps the files as they are."""
    labels = sorted(path.name for path in source.iterdir())
    encoding = "jpeg" if size else None
    return {
        "image": features.Image(shape=(None, None, 3), encoding_format=encoding),
        "label": features.ClassLabel(names=labels),
        "name": features.Text(),
    }


def tfds_example(item: tuple[str, int, str], size: int) -> tuple[str, dict[str, object]]:
    """Returns the key and the example of a photo."""
    path, number, label = item
    key = f"{label}/{Path(path).name}"
    image = io.BytesIO(encode(path, size)) if size else path
    return key, {"image": image, "label": number, "name": key}


def tfds_rows(source: Path, target: Path) -> None:
    """Writes TFRecords of a table with TFDS."""
    import numpy as np

    def kind(name: str) -> type:
        return np.float32 if name.endswith("_rate") else np.int64

    with source.open(newline="") as file:
        reader = csv.DictReader(file)
        kinds = {n: str if n in TEXT_COLUMNS else kind(n) for n in reader.fieldnames}
        rows = ({name: kinds[name](text) for name, text in row.items()} for row in reader)
        write_tfds(
            target,
            lambda f: {n: f.Text() if k is str else f.Scalar(k) for n, k in kinds.items()},
            lambda: enumerate(rows),
            None,
        )


# -- img2dataset --


class _SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def img2dataset(source: Path, target: Path, size: int) -> None:
    """Writes TFRecords with img2dataset, which downloads from a web server on this machine.

    A complete output is extended by the photos that were not in the last listing.
    """
    from img2dataset import download

    handler = partial(_SilentHandler, directory=str(source))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    paths = [path.relative_to(source) for path in sorted(source.glob("*/*"))]
    listing = target.parent / f"{target.name}-complete.txt"
    known = set(listing.read_text().splitlines()) if listing.exists() else set()
    urls = target.parent / f"{target.name}.txt"
    urls.write_text("".join(f"{base}/{path}\n" for path in paths if str(path) not in known))
    if not urls.stat().st_size:
        return
    download(
        url_list=str(urls),
        output_folder=str(target),
        output_format="tfrecord",
        image_size=size or 64,
        resize_mode="center_crop" if size else "no",
        encode_quality=95,
        number_sample_per_shard=500,
        processes_count=PROCESSES,
        thread_count=16,
        retries=1,
        enable_wandb=False,
        incremental_mode="extend" if known else "incremental",
    )
    if size:
        listing.write_text("\n".join(map(str, paths)))


# -- MosaicML Streaming, WebDataset, Hugging Face datasets, Ray Data, LitData --


def mosaicml(source: Path, target: Path, size: int) -> None:
    """Writes MDS shards with a pool of processes, and merges their indexes."""
    from streaming.base.util import merge_index

    with Pool(PROCESSES) as pool:
        tasks = [(source, target, size, number) for number in range(PROCESSES)]
        pool.starmap(mosaicml_part, tasks)
    merge_index(str(target), keep_local=True)


def mosaicml_part(source: Path, target: Path, size: int, number: int) -> None:
    """Writes the MDS shards of one process."""
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int", "key": "str"}
    with MDSWriter(out=str(target / str(number)), columns=columns, size_limit=SHARD_BYTES) as out:
        for item in list_images(source)[number::PROCESSES]:
            out.write(photo_record(item, size))


def webdataset(source: Path, target: Path, size: int) -> None:
    """Writes tar shards with a pool of processes."""
    target.mkdir(parents=True)
    with Pool(PROCESSES) as pool:
        tasks = [(source, target, size, number) for number in range(PROCESSES)]
        pool.starmap(webdataset_part, tasks)


def webdataset_part(source: Path, target: Path, size: int, number: int) -> None:
    """Writes the tar shards of one process."""
    from webdataset import ShardWriter

    pattern = f"{target}/train-{number}-%05d.tar"
    with ShardWriter(pattern, maxsize=SHARD_BYTES, verbose=0) as out:
        for item in list_images(source)[number::PROCESSES]:
            found = photo_record(item, size)
            key = str(found["key"]).removesuffix(".jpg")
            out.write({"__key__": key, "jpg": found["image"], "cls": found["label"]})


def datasets(source: Path, target: Path, size: int) -> None:
    """Writes Parquet from the "imagefolder" loader; its cache is in the home folder."""
    from datasets import Image, load_dataset

    target.mkdir(parents=True, exist_ok=True)
    rows = load_dataset("imagefolder", data_dir=str(source), split="train")
    rows = rows.cast_column("image", Image(decode=False))
    rows = rows.map(datasets_record, fn_kwargs={"size": size}, num_proc=PROCESSES)
    rows.cast_column("image", Image()).to_parquet(str(target / "train.parquet"))


def datasets_record(row: dict, size: int) -> dict[str, object]:
    """Returns the record of a photo: "image" is a path, and becomes the bytes of a JPEG."""
    path = row["image"]["path"]
    key = "/".join(path.rsplit("/", 2)[1:])
    return {"image": {"bytes": encode(path, size), "path": None}, "key": key}


def datasets_rows(source: Path, target: Path) -> None:
    """Writes Parquet of a table."""
    from datasets import load_dataset

    target.mkdir(parents=True)
    rows = load_dataset("csv", data_files=str(source), split="train")
    rows.to_parquet(str(target / "train.parquet"))


def _start_ray():  # noqa: ANN202
    import ray

    ray.init(num_cpus=PROCESSES, include_dashboard=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data


def ray(source: Path, target: Path, size: int) -> None:
    """Writes Parquet with Ray Data."""
    labels = {path.name: number for number, path in enumerate(sorted(source.iterdir()))}
    rows = _start_ray().read_binary_files(str(source), include_paths=True)
    rows.map(ray_record, fn_kwargs={"labels": labels, "size": size}).write_parquet(str(target))


def ray_record(row: dict, labels: dict[str, int], size: int) -> dict[str, object]:
    """Returns the record of a photo."""
    label, name = row["path"].rsplit("/", 2)[1:]
    image = encode(io.BytesIO(row["bytes"]), size)
    return {"image": image, "label": labels[label], "key": f"{label}/{name}"}


def ray_rows(source: Path, target: Path) -> None:
    """Writes Parquet of a table with Ray Data."""
    _start_ray().read_csv(str(source)).write_parquet(str(target))


def litdata(source: Path, target: Path, size: int) -> None:
    """Writes chunks with `optimize`, or appends the photos that were not in the last listing."""
    from litdata import optimize

    listing = target.parent / "listing.txt"
    known = set(listing.read_text().splitlines()) if target.exists() else set()
    items = list_images(source)
    listing.write_text("\n".join(path for path, *_ in items))
    if items := [item for item in items if item[0] not in known]:
        optimize(
            fn=partial(photo_record, size=size),
            inputs=items,
            output_dir=str(target),
            num_workers=PROCESSES,
            chunk_bytes="64MB",
            mode="append" if known else None,
        )


# -- keys of what was written, in the order of the files --


def tfds_keys(target: Path) -> list[str]:
    """Returns the keys in a dataset of TFDS."""
    import tensorflow_datasets as tfds_

    rows = tfds_.load("records", data_dir=str(target), split="train", shuffle_files=False)
    return [row["name"].decode() for row in tfds_.as_numpy(rows)]


def parquet_keys(target: Path) -> list[str]:
    """Returns the keys in Parquet files."""
    import pyarrow.parquet as pq

    return [
        key
        for path in sorted(target.glob("*.parquet"))
        for key in pq.read_table(path, columns=["key"])["key"].to_pylist()
    ]


def litdata_keys(target: Path) -> list[str]:
    """Returns the keys in a dataset of LitData."""
    from litdata import StreamingDataset

    return [row["key"] for row in StreamingDataset(str(target), shuffle=False)]


def example_keys(target: Path) -> list[str]:
    """Returns the keys in GZIP TFRecord files of Shardmill or a program of image_peers.py."""
    from shardmill.schemas.example.parse import parse_example
    from shardmill.schemas.tfrecord.reader import open_records

    current = target / "current"
    found = []
    for path in sorted((current if current.exists() else target).glob("*.gz")):
        with open_records(str(path)) as reader:
            found += [parse_example(bytes(r))["image/key"].values[0].decode() for r in reader]
    return ["/".join(key.split("/")[-2:]) for key in found]


def mosaicml_keys(target: Path) -> list[str]:
    """Returns the keys in MDS shards."""
    from streaming import StreamingDataset

    return [row["key"] for row in StreamingDataset(local=str(target), batch_size=1)]


def webdataset_keys(target: Path) -> list[str]:
    """Returns the keys in tar shards."""
    import tarfile

    found = []
    for path in sorted(target.glob("*.tar")):
        with tarfile.open(path) as shard:
            found += [name for name in shard.getnames() if name.endswith(".jpg")]
    return found


def img2dataset_keys(target: Path) -> list[str]:
    """Returns the keys in the tables that img2dataset writes next to the records."""
    import pyarrow.parquet as pq

    return [
        "/".join(url.rsplit("/", 2)[1:])
        for path in sorted(target.glob("*.parquet"))
        for url in pq.read_table(path)["url"].to_pylist()
    ]


IMAGES = {
    "tfds": tfds,
    "tfds-beam": tfds_beam,
    "img2dataset": img2dataset,
    "mosaicml": mosaicml,
    "webdataset": webdataset,
    "datasets": datasets,
    "ray": ray,
    "litdata": litdata,
}
ROWS = {"tfds": tfds_rows, "datasets": datasets_rows, "ray": ray_rows}
KEYS = {
    "tfds": tfds_keys,
    "tfds-beam": tfds_keys,
    "img2dataset": img2dataset_keys,
    "mosaicml": mosaicml_keys,
    "webdataset": webdataset_keys,
    "datasets": parquet_keys,
    "ray": parquet_keys,
    "litdata": litdata_keys,
}


def main() -> None:
    """Runs a tool."""
    tool, where, to, *size = sys.argv[1:]
    source, target = Path(where), Path(to)
    if where == "keys":
        print("\n".join(KEYS.get(tool, example_keys)(target)))
    elif source.suffix == ".csv":
        ROWS[tool](source, target)
    else:
        IMAGES[tool](source, target, *map(int, size))


if __name__ == "__main__":
    main()
