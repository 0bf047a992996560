"""Measure reading: Shardmill's loaders and others on the same images.

usage: python benchmarks/reading.py [--small] [--data FOLDER] [--rounds N] [--count N]

Writes docs/benchmarks-reading.md. ``--small`` is a quick trial that writes no page.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mixing
import remote
import remote_peers
from environments import environment
from photos import write_photos

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
IMAGE, LABEL = "image/encoded", "image/class/label"
SHARDS, MANY_SHARDS = 8, 24
EPOCHS = 16  # alternating between readers
ALTERNATING = (
    "Times of whole processes vary more than readers differ, so here the epochs of all readers "
    "alternate in one process; each figure compares two consecutive epochs. TensorFlow's default "
    "method of decoding JPEGs is up to 22 of 255 levels from the pixels that Pillow and "
    "`keras_dataset` give; of the other readers only `tuned_same_pixels` gives these."
)
PARSING = (
    "CPU time of `benchmarks/parsers.py`, each parser in a separate process, including access to "
    "all values. The loaders use Shardmill's parser, which falls back to protobuf for unusual "
    "messages."
)
MIXING = (
    "260,000 records of 23 kB in an epoch, by `benchmarks/mixing.py`: pairs within 256 that are "
    "within 256 in the next epoch again, different labels of 1,000 in 256 successive records, and "
    "the most shards in use at one time, which MosaicML Streaming has on the disk; first for 100 "
    "shards of all labels, then for a shard of each label. `torch_dataset` above shows what "
    "`records` costs to read, and `torch_blocks` what `blocks` does. WebDataset and `blocks` hold "
    "the buffer in memory; `records` holds none."
)
REMOTE = (
    "`Stream` in the order `blocks`, without a DataLoader, from {shards} shards in a bucket: 100 "
    "ms for each request and 200 MB/s in all (`benchmarks/remote.py`). Medians of three rounds."
)
REMOTE_PEERS = (
    "Several tools, measured by `benchmarks/remote_peers.py`: one epoch of all images, shuffled "
    "and decoded to NumPy arrays, in batches of 64, with a DataLoader of two workers and an empty "
    "cache. Medians of three rounds in which the tools alternate. The time to the first batch "
    "starts when the dataset is opened, after imports. Each worker of `torch_dataset` fills a "
    "window of 64 MiB first, so it starts later than WebDataset, which starts when its buffer has "
    "100 records and mixes the first ones less. `records` copies whole shards to the disk first. "
    "tf.data is missing because its gs:// file system cannot use another server."
)
GROUPS: dict[str, tuple[tuple[str, ...], str]] = {
    "TensorFlow": (
        (
            "keras_ours",
            "tuned_one_by_one",
            "tuned_any_order",
            "tuned_in_batches",
            "tuned_same_pixels",
            "classic",
        ),
        "big",
    ),
    "Augmentation in the input pipeline": (("keras_flip", "keras_layers"), "big"),
    "PyTorch, two workers": (
        ("torch_dataset", "torch_blocks", "torch_map", "webdataset", "mosaicml"),
        "big",
    ),
    "Grain, four threads": (
        ("grain_ours", "grain_array_record", "grain_payloads_ours", "grain_payloads_array_record"),
        "big",
    ),
    "Random access, one thread on one core": (("random_records", "random_payloads"), "small"),
}


def build(photos: Path, out: Path, size: int, quality: int, shards: int = SHARDS) -> None:
    """Builds a dataset of a folder of photos with a training split only."""
    command = [
        sys.executable,
        "-m",
        "shardmill.pipelines.cli",
        "images",
        f"--input={photos}",
        f"--output={out}",
        f"--image_size={size}",
        f"--quality={quality}",
        f"--num_shards={shards}",
        "--splits=train:1",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def convert(folder: Path) -> None:
    """Writes the records of ``ds`` in the other formats, shard by shard."""
    from array_record.python.array_record_module import ArrayRecordWriter

    from shardmill.loaders import open_dataset
    from shardmill.schemas.tfrecord.framing import frame

    for kind in ("plain", "wds", "array"):
        (folder / kind).mkdir(exist_ok=True)
    records = open_dataset(folder / "ds", "train", features=[IMAGE, LABEL], decode=False)
    number = 0
    for shard in records.source.shards:
        stem = shard.file.removesuffix(".tfrecord.gz")
        array = ArrayRecordWriter(str(folder / "array" / f"{stem}.arrayrecord"), "group_size:1")
        with (
            open(folder / "plain" / f"{stem}.tfrecord", "wb") as plain,
            tarfile.open(folder / "wds" / f"{stem}.tar", "w") as tar,
        ):
            for _ in range(shard.records):
                payload = records.payload(number)
                example = records.view.decoder(payload)
                plain.write(frame(payload))
                array.write(payload)
                for suffix, data in (("jpg", example[IMAGE]), ("cls", b"%d" % example[LABEL])):
                    entry = tarfile.TarInfo(f"{number:07d}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
                number += 1
        array.close()


def prepare(work: Path, count: int) -> None:
    """Writes missing photos and datasets."""
    photos = write_photos(work / "photos", count)
    for name, size, quality in (("big", 224, 95), ("small", 128, 93)):
        folder = work / f"{name}-{count}"
        if not (folder / "ready").exists():
            build(photos, folder / "ds", size, quality)
            if name == "big":
                convert(folder)
                build(photos, folder / "many", size, quality, MANY_SHARDS)
                python = environment("mosaicml", work)
                subprocess.run([python, HERE / "readers.py", "write_mds", folder], check=True)
            (folder / "ready").touch()


def read(name: str, folder: Path, *, one_core: bool) -> dict[str, Any]:
    """Runs a reader in a separate process and returns its time and memory."""
    python = environment(name, folder.parent) if name == "mosaicml" else sys.executable
    command = [python, str(HERE / "readers.py"), name, str(folder)]
    cores = sorted(os.sched_getaffinity(0))[:1] if one_core else sorted(os.sched_getaffinity(0))
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])[name]
    return found


def alternate(names: tuple[str, ...], folder: Path) -> str:
    """Returns the speed of the first reader relative to each other one, with alternating epochs."""
    script = str(HERE / "readers.py")
    command = [sys.executable, script, ",".join(names), str(folder), f"--epochs={EPOCHS}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    lines = []
    for other in names[1:]:
        pairs = zip(found[other]["epochs"], found[names[0]]["epochs"], strict=True)
        ratios = [theirs / ours for theirs, ours in pairs]
        lines.append(f"- {names[0]} to {other}: {_median_and_range(ratios)}")
    return "\n".join(lines)


def measure(work: Path, count: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Returns the runs of each reader; within a round, each of a group runs once."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for names, data in GROUPS.values():
            for name in names:
                found = read(name, work / f"{data}-{count}", one_core=data == "small")
                runs.setdefault(name, []).append(found)
                print(
                    f"{name:28} {count / found['wall']:10,.0f}/s  cpu {found['cpu']:.2f} s",
                    flush=True,
                )
    return runs


def ratio(runs: dict[str, list[dict[str, Any]]], ours: str, *others: str) -> str:
    """Returns the speed of ours relative to the fastest of the others, per round."""
    found = [
        min(runs[other][number]["wall"] for other in others) / run["wall"]
        for number, run in enumerate(runs[ours])
    ]
    return _median_and_range(found)


def _median_and_range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def sizes(folder: Path) -> str:
    """Returns the bytes per record in each format."""
    manifest = json.loads((folder / "ds" / "manifest.json").read_text())
    count = manifest["written"]
    folders = {"ds": "ds/current", "plain": "plain", "wds": "wds", "array": "array"}
    found = {
        kind: sum(path.stat().st_size for path in (folder / name).glob("train-*")) / count
        for kind, name in folders.items()
        if (folder / name).exists()
    }
    return ", ".join(f"{kind} {size:,.0f}" for kind, size in found.items())


def report(work: Path, count: int, runs: dict[str, list[dict[str, Any]]], tools: list[str]) -> str:
    """Returns the page of results.

    Args:
        work: The folder of the data.
        count: Number of photos.
        runs: The measures of each reader.
        tools: Those that are compared at reading from a bucket.
    """
    many = work / f"big-{count}" / "many"
    head = (
        f"Made by `make bench-reading` on {os.cpu_count()} cores, Python "
        f"{platform.python_version()}: {count:,} photos, 224x224 JPEG of quality 95. Each reader "
        "runs in a separate process, alternating with the others of its group; the first epoch is "
        "not measured, and the faster of two more is. Medians of the rounds. "
        "`benchmarks/readers.py` defines the readers. Bytes per record: "
        f"{sizes(work / f'big-{count}')}; for random access {sizes(work / f'small-{count}')}."
    )
    lines = ["# Benchmarks: reading", "", head, ""]
    for title, (names, _) in GROUPS.items():
        lines += [
            f"## {title}",
            "",
            "| | records/s | CPU us per record | peak MiB |",
            "|---|---|---|---|",
        ]
        for name in names:
            wall, cpu, memory = (
                statistics.median(run[key] for run in runs[name])
                for key in ("wall", "cpu", "memory")
            )
            lines.append(
                f"| {name} | {count / wall:,.0f} | {cpu / count * 1e6:,.1f} | {memory:,.0f} |"
            )
        lines.append("")
    tuned = ("tuned_one_by_one", "tuned_any_order", "tuned_in_batches")
    lines += [
        "## Ratios",
        "",
        "Medians and ranges of the rounds.",
        "",
        f"- keras_ours to the fastest tuned reader: {ratio(runs, 'keras_ours', *tuned)}",
        f"- keras_ours to classic: {ratio(runs, 'keras_ours', 'classic')}",
        f"- torch_dataset to webdataset: {ratio(runs, 'torch_dataset', 'webdataset')}",
        f"- torch_dataset to mosaicml: {ratio(runs, 'torch_dataset', 'mosaicml')}",
        f"- torch_map to webdataset: {ratio(runs, 'torch_map', 'webdataset')}",
        f"- grain_ours to grain_array_record: {ratio(runs, 'grain_ours', 'grain_array_record')}",
        "- payloads only, with Grain: "
        + ratio(runs, "grain_payloads_ours", "grain_payloads_array_record"),
        "",
    ]
    lines += ["## TensorFlow, alternating epochs", "", ALTERNATING, ""]
    names = ("keras_ours", *tuned, "tuned_same_pixels", "classic")
    lines += [alternate(names, work / f"big-{count}"), ""]
    lines += [
        "## How well records are mixed",
        "",
        MIXING,
        "",
        mixing.table(work),
        "",
        "## From a bucket",
        "",
        REMOTE.format(shards=MANY_SHARDS),
        "",
        remote.table(many),
        "",
        REMOTE_PEERS,
        "",
        remote_peers.compare(many, work / "remote", tools, remote.ROUNDS),
    ]
    lines += [
        "## Parsing a tf.train.Example without TensorFlow",
        "",
        PARSING,
        "",
        "```text",
        parsers(work / f"big-{count}" / "ds"),
        "```",
        "",
    ]
    return "\n".join(lines)


def parsers(dataset: Path) -> str:
    """Returns the time of each parser, one line each."""
    command = [sys.executable, str(HERE / "parsers.py"), str(dataset)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    """Measures all readers and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=8000)
    options = parser.parse_args()
    work = options.data or Path(tempfile.mkdtemp(prefix="shardmill-bench-"))
    count = 1000 if options.small else options.count
    prepare(work, count)
    runs = measure(work, count, 1 if options.small else options.rounds)
    tools = ["stream", "blocks"] if options.small else [*remote_peers.TITLES]
    text = report(work, count, runs, tools)
    print(text)
    if not options.small:
        (DOCS / "benchmarks-reading.md").write_text(text)


if __name__ == "__main__":
    main()
