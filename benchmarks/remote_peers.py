"""Compare reading from a bucket: Shardmill, MosaicML Streaming, LitData, WebDataset.

usage: python benchmarks/remote_peers.py DATASET WORK [--tools NAME...] [--rounds N]

Prints one table per network. All tools read the images of a dataset, shuffled, by a DataLoader
with two workers, from the same server (see ``remote``), and decode them to NumPy arrays. WORK holds
environments and formats; ``python benchmarks/remote_peers.py run TOOL URL`` is one epoch in the
environment of a tool. tf.data is left out: its gs:// storage has no setting for another server.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from readers import examples_of, write_mds

IMAGE, LABEL = "image/encoded", "image/class/label"
BATCH, WORKERS, ROUNDS = 64, 2, 3
SHUFFLE = 2000  # records in the buffer of WebDataset, which are about 64 MB of these
SHARD_BYTES = 8_000_000  # of a shard: boto3 fetches larger ones in ranges, which the server ignores
NETWORKS = {"100 ms, 200 MB/s": (0.1, 200e6), "20 ms, 1 GB/s": (0.02, 1e9)}
TITLES = {
    "stream": "`Stream`, without a DataLoader",
    "blocks": "`torch_dataset`",
    "records": "`torch_dataset`, `records`, `cache_dir`",
    "mosaicml": "MosaicML Streaming",
    "litdata": "LitData",
    "webdataset": "WebDataset, buffer of 64 MB",
}
COLUMNS = (
    "first batch, s | then records/s | slowest batch, ms | CPU a record, ms | requests "
    "| bytes of the dataset"
)
# By tool: its format, and the environment that it runs in.
FORMATS = {
    "stream": ("ds", "shardmill"),
    "blocks": ("ds", "shardmill"),
    "records": ("ds", "shardmill"),
    "mosaicml": ("mds", "mosaicml"),
    "litdata": ("litdata", "litdata"),
    "webdataset": ("wds", "shardmill"),
}
S3 = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "us-east-1",
}


# --- Formats -------------------------------------------------------------------------------------


def write_wds(dataset: Path, folder: Path) -> None:
    """Writes one tar file per shard."""
    from shardmill.loaders import open_dataset

    records = open_dataset(dataset, features=[IMAGE, LABEL], decode=False)
    examples = iter(records[number] for number in range(len(records)))
    for number, shard in enumerate(records.source.shards):
        with tarfile.open(folder / f"{number:05d}.tar", "w") as tar:
            for place, example in enumerate(itertools.islice(examples, shard.records)):
                parts = {"jpg": example[IMAGE], "cls": b"%d" % example[LABEL]}
                for suffix, data in parts.items():
                    entry = tarfile.TarInfo(f"{number:05d}-{place:06d}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))


def write_litdata(tars: Path, folder: Path, shard_bytes: int) -> None:
    """Writes chunks of LitData."""
    from litdata.streaming import Cache

    cache = Cache(str(folder), chunk_bytes=shard_bytes)
    for number, (image, label) in enumerate(examples_of(tars)):
        cache[number] = {"image": image, "label": label}
    cache.done()
    cache.merge()


WRITERS = {"mds": write_mds, "litdata": write_litdata}


# --- Programs: an import, and then the batches of an epoch ----------------------------------------


def stream(_: str, __: str) -> Callable[[], Iterable[Any]]:
    """Returns the reader of ``Stream``, which has no batches: each 64 examples are one."""
    import google.cloud.storage  # noqa: F401

    from shardmill.loaders import Stream, open_dataset

    def read() -> Iterable[Any]:
        examples = Stream(open_dataset("gs://bench/ds", features=["image", "label"]), shuffle=True)
        rows = iter(examples)
        while batch := list(itertools.islice(rows, BATCH)):
            yield batch

    return read


def blocks(_: str, __: str, **options: Any) -> Callable[[], Iterable[Any]]:
    """Returns the reader of ``torch_dataset`` in its order for buckets."""
    import google.cloud.storage  # noqa: F401
    from torch.utils.data import DataLoader

    from shardmill import torch_dataset

    def read() -> Iterable[Any]:
        data = torch_dataset("gs://bench/ds", features=["image", "label"], shuffle=True, **options)
        return DataLoader(data, BATCH, num_workers=WORKERS)

    return read


def records(url: str, scratch: str) -> Callable[[], Iterable[Any]]:
    """Returns the reader of ``torch_dataset`` that shuffles all records singly."""
    return blocks(url, scratch, order="records", cache_dir=scratch)


def mosaicml(url: str, scratch: str) -> Callable[[], Iterable[Any]]:
    """Returns the reader of MosaicML Streaming in its default order."""
    import boto3  # noqa: F401
    import numpy as np
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()
    os.environ["S3_ENDPOINT_URL"] = url

    class Pairs(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            row = super().__getitem__(at)
            return np.array(row["image"]), row["label"]

    def read() -> Iterable[Any]:
        data = Pairs(remote="s3://bench/mds", local=scratch, shuffle=True, batch_size=BATCH)
        # Forked workers would share the connection of the parent, and mix up shards.
        data.streams[0]._downloader.clean_up()  # noqa: SLF001
        return DataLoader(data, BATCH, num_workers=WORKERS)

    return read


def litdata(url: str, scratch: str) -> Callable[[], Iterable[Any]]:
    """Returns the reader of LitData."""
    import boto3  # noqa: F401
    import numpy as np
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader
    from PIL import Image

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001 - the server's scheme

    class Pairs(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            row = super().__getitem__(at)
            return np.array(Image.open(io.BytesIO(row["image"]))), row["label"]

    def read() -> Iterable[Any]:
        data = Pairs(
            "s3://bench/litdata",
            cache_dir=scratch,
            shuffle=True,
            storage_options={"endpoint_url": url},
        )
        return StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS)

    return read


def webdataset(url: str, _: str) -> Callable[[], Iterable[Any]]:
    """Returns the reader of WebDataset with a buffer of the same size."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    shards = int(os.environ["SHARDS"])

    def read() -> Iterable[Any]:
        urls = [f"pipe:curl -sfL {url}/bench/wds/{number:05d}.tar" for number in range(shards)]
        data = wds.WebDataset(urls, shardshuffle=100, empty_check=False)
        data = data.shuffle(SHUFFLE // WORKERS).decode("rgb8").to_tuple("jpg", "cls")
        return DataLoader(data, BATCH, num_workers=WORKERS)

    return read


def run(tool: str, url: str) -> dict[str, Any]:
    """Returns when each batch of an epoch was there, in seconds, and the CPU time."""
    with tempfile.TemporaryDirectory() as scratch:
        read = globals()[tool](url, scratch)
        before, start = cpu_seconds(), time.perf_counter()
        times = [time.perf_counter() - start for _ in read()]
        return {"times": times, "cpu": cpu_seconds() - before}


def cpu_seconds() -> float:
    """Returns the CPU time of this process and of those that it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


# --- The comparison ------------------------------------------------------------------------------


class Epoch(NamedTuple):
    """Measures of an epoch.

    Attributes:
        first: Seconds to the first batch.
        rate: Records per second after it.
        slowest: Seconds of the slowest other batch.
        cpu: Milliseconds of CPU a record.
        requests: Number of requests.
        share: Bytes of answers, divided by the size of the dataset in the format of the tool.
    """

    first: float
    rate: float
    slowest: float
    cpu: float
    requests: float
    share: float


def prepare(dataset: Path, work: Path, tools: Iterable[str]) -> dict[str, str]:
    """Writes missing formats; returns the Python of each tool."""
    from environments import environment

    pythons = {}
    (work / "wds").mkdir(parents=True, exist_ok=True)
    if not any((work / "wds").iterdir()):
        write_wds(dataset, work / "wds")
    for tool in tools:
        name, env = FORMATS[tool]
        pythons[tool] = sys.executable if env == "shardmill" else environment(env, work)
        folder = dataset if name == "ds" else work / name
        if not folder.exists():
            command = [pythons[tool], __file__, "write", name, str(work / "wds"), str(folder)]
            subprocess.run(command, check=True)
    return pythons


def compare(dataset: Path, work: Path, tools: list[str], rounds: int) -> str:
    """Returns one table per network; its figures are medians of rounds in which tools alternate."""
    from remote import Network, run_bucket, upload

    pythons = prepare(dataset, work, tools)
    folders = {FORMATS[tool][0]: work / FORMATS[tool][0] for tool in tools} | {"ds": dataset}
    sizes = {
        name: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        for name, folder in folders.items()
    }
    shards = len(list((work / "wds").glob("*.tar")))
    lines = []
    for title, network in NETWORKS.items():
        epochs: dict[str, list[Epoch]] = {tool: [] for tool in tools}
        with run_bucket(Network(*network)) as bucket:
            for name, folder in folders.items():
                upload(bucket, folder, name)
            env = {**os.environ, **S3, "SHARDS": str(shards), "STORAGE_EMULATOR_HOST": bucket.slow}
            for _, tool in itertools.product(range(rounds), tools):
                requests, size = bucket.read_counts()
                command = [pythons[tool], __file__, "run", tool, bucket.slow]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env)
                result = json.loads(done.stdout.splitlines()[-1])
                times = result["times"]
                waits = [after - before for before, after in itertools.pairwise(times)]
                epochs[tool].append(
                    Epoch(
                        times[0],
                        BATCH * len(waits) / sum(waits),
                        max(waits),
                        result["cpu"] * 1e3 / (BATCH * len(times)),
                        bucket.read_counts()[0] - requests,
                        (bucket.read_counts()[1] - size) / sizes[FORMATS[tool][0]],
                    )
                )
                print(f"# {title}, {tool}: {epochs[tool][-1]}", file=sys.stderr, flush=True)
        lines += [f"| {title} | {COLUMNS} |", "|---" * (COLUMNS.count("|") + 2) + "|"]
        for tool, measured in epochs.items():
            first, rate, slowest, cpu, calls, share = map(
                statistics.median, zip(*measured, strict=True)
            )
            lines.append(
                f"| {TITLES[tool]} | {first:.2f} | {rate:,.0f} | {slowest * 1e3:,.0f} | {cpu:.2f} "
                f"| {calls:,.0f} | {share:.2f} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Runs a comparison, or a part of one in the environment of a tool."""
    if sys.argv[1] == "run":
        print(json.dumps(run(*sys.argv[2:])))
        return
    if sys.argv[1] == "write":
        name, tars, folder = sys.argv[2:]
        WRITERS[name](Path(tars), Path(folder), SHARD_BYTES)
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tools", nargs="+", choices=TITLES, default=[*TITLES])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    print(compare(given.dataset, given.work.resolve(), given.tools, given.rounds))


if __name__ == "__main__":
    main()
