"""Measure the stages of a build; scale.py runs each in a separate process.

The results are printed as one line of JSON. The measured code is that of real builds; only the
references are generated, and a record has a hundred bytes without an image.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scale_tools import (
    EVENTS,
    FOLDERS,
    RECORD,
    ROOT,
    CountingStorage,
    MemoryMonitor,
    ShuffleMonitor,
    TinyEncoder,
    make_ref,
    make_sink,
    memory,
    now,
    timed,
)

from shardmill.schemas.dataset.manifest import Build, Inputs, Manifest, Shard, Split
from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE, ShardTemplate
from shardmill.schemas.refs import InputRef, Reject
from shardmill.schemas.storage import open_storage
from shardmill.transforms.match.inputs import find_input, read_listing, walk_input
from shardmill.transforms.match.labels import LabelSpec
from shardmill.transforms.match.walk import first_level
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.beam_steps import SumInto, TupleCoder
from shardmill.transforms.sink.census import Census, PlacedRefCoder
from shardmill.transforms.sink.duplicates import Copies
from shardmill.transforms.sink.finalize import Built, finish
from shardmill.transforms.sink.parts import (
    PlannedPart,
    assemble_shard,
    order_refs,
    part_id,
    plan_shards,
    write_part,
)
from shardmill.transforms.sink.placement import PartKey, PlacedRef, Series
from shardmill.transforms.sink.plan import Plan, make_plan
from shardmill.transforms.sink.spec import EncoderOutput, SinkSpec, report, take_reported
from shardmill.transforms.sink.transform import WriteShards, place_refs
from shardmill.transforms.sources.listings import ListingOptions, open_listings
from shardmill.transforms.statistics.sums import Totals

_BATCH = 10_000


def measure_walk(size: int, folder: Path) -> dict:
    """Measure matching a tree of empty files."""
    names = [folder / f"n{number:08d}" for number in range(min(FOLDERS, size // 100))]
    for path in names:
        path.mkdir(parents=True)
    for number in range(size):
        where = names[number % len(names)]
        os.close(os.open(where / f"{where.name}_{number:09d}.JPEG", os.O_CREAT | os.O_WRONLY))
    spec = find_input(str(folder))
    before = memory()
    peak = [before]

    def walk() -> int:
        count = 0
        for task in first_level(spec.input):
            count += sum(1 for _ in walk_input(spec, task))
            peak[0] = max(peak[0], memory())
        return count

    count, seconds = timed(walk)
    assert count == size
    return {"walk": {**seconds, "mib": peak[0] - before}}


def measure_listing(size: int, folder: Path) -> dict:
    """Measure parsing a listing of ``size`` lines, which one worker does."""
    path = folder / "listing.csv"
    with path.open("w") as file:
        file.write("path,label\n")
        for number in range(size):
            key = make_ref(number).key
            file.write(f"{key},{key[:9]}\n")
    before = memory()
    peak = before

    def read() -> int:
        nonlocal peak
        count = 0
        match = find_input(str(path), ROOT, listing=True)
        match = open_listings(match, ListingOptions(labelled=True))[0]
        for count, _ in enumerate(read_listing(match)):
            if not count % _BATCH:
                peak = max(peak, memory())
        return count + 1

    count, seconds = timed(read)
    assert count == size
    found = {**seconds, "mib": peak - before, "bytes": path.stat().st_size}
    path.unlink()
    return {"listing": found}


def measure_refs(size: int, folder: Path) -> dict:
    """Measure the work per reference between matching and parts, without a runner."""
    sink = make_sink(str(folder / "out"))
    labels, place = LabelSpec("directory"), sink.place
    sums = SumInto(Census, Census.merge)
    spent: Counter[str] = Counter()
    partial, encoded_bytes, done = [], 0, 0
    value_coder, key_coder = PlacedRefCoder(PlacedRef), TupleCoder(PartKey)
    plan = Plan("build", "", {Series("train", ""): 1 << 14, Series("validation", ""): 1 << 11})
    start = memory()
    peak = start

    def step(name: str, call: Callable[[], list]) -> list:
        began = time.process_time()
        result = call()
        spent[name] += time.process_time() - began
        return result

    while done < size:
        batch = [make_ref(number) for number in range(done, min(done + _BATCH, size))]
        refs = step("label", lambda batch=batch: [labels.with_label(ref) for ref in batch])
        refs = step("split", lambda refs=refs: [place.with_split(ref) for ref in refs])
        census = Census()
        step(
            "census",
            lambda refs=refs, census=census: [census.add(r, place.series_of(r)) for r in refs],
        )
        partial.append(census)
        placed = step("place", lambda refs=refs: [*place_refs(place, refs, plan)])
        encoded = step(
            "encode",
            lambda placed=placed: [
                (key_coder.encode(key), value_coder.encode(value)) for key, value in placed
            ],
        )
        step("decode", lambda encoded=encoded: [value_coder.decode(e[1]) for e in encoded])
        step("order", lambda placed=placed: [_identify(placed)])
        encoded_bytes += sum(len(key) + len(value) for key, value in encoded)
        done += len(batch)
        peak = max(peak, memory())
    whole, merging = timed(lambda: sums.merge_accumulators(partial))
    seconds = {name: {"cpu": value, "wall": value} for name, value in spent.items()}
    shown = {
        "mib": peak - start,
        "shuffled_bytes": encoded_bytes / size,
        "census_bytes": len(pickle.dumps(whole)),
        "censuses_merged": len(partial),
    }
    return {**seconds, "merge": merging, "facts": shown}


def _identify(placed: list) -> str:
    refs, _ = order_refs(value for _, value in placed)
    return part_id("0" * 16, PartKey("train", "", 0), refs, ())


def measure_build(size: int, folder: Path) -> dict:
    """Measure the whole pipeline without images on the in-memory runner."""
    return _build(size, make_sink(str(folder / "out")))


def measure_update(size: int, folder: Path) -> dict:
    """Measure an update of a dataset to which one image in a hundred was added."""
    sink = make_sink(str(folder / "out"))
    _build(size - size // 100, sink)
    EVENTS.clear()
    return _build(size, replace(sink, update=True, compares=True))


def _build(size: int, sink: SinkSpec) -> dict:
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    shuffled = ShuffleMonitor()
    watch = MemoryMonitor(progress.Progress(), float(os.environ.get("SCALE_GIB", "12")))
    tasks = [(start, min(start + _BATCH, size)) for start in range(0, size, _BATCH)]
    labels = LabelSpec("directory")
    began, before = now(), memory()
    watch.start()
    with progress.collect(watch.shown), beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | beam.Create(tasks)
            | "FanOut" >> beam.Reshuffle()
            | beam.FlatMap(lambda task: map(make_ref, range(*task))).with_output_types(InputRef)
            | "Label" >> beam.Map(labels.with_label).with_output_types(InputRef)
            | WriteShards(sink, TinyEncoder())
            | beam.Map(report, "scale", os.getpid(), "")
        )
    ended = now()
    watch.ended.set()
    watch.join()
    outcome = take_reported("scale", "")
    assert outcome is not None
    manifest = json.loads(outcome.manifest)
    assert outcome.status == "published", outcome
    assert manifest["written"] == size
    marks = [
        began,
        EVENTS["plan"],
        EVENTS["parts begin"],
        EVENTS["parts end"],
        EVENTS["publishing begins"],
        ended,
    ]
    phases = ("census", "group", "parts", "assemble", "publish")
    found = {
        name: {"wall": b[0] - a[0], "cpu": b[1] - a[1]}
        for name, (a, b) in zip(phases, itertools.pairwise(marks), strict=True)
    }
    found["whole"] = {"wall": ended[0] - began[0], "cpu": ended[1] - began[1]}
    found["facts"] = {
        "parts": outcome.parts_made,
        "shards": sum(len(split["shards"]) for split in manifest["splits"].values()),
        "before_mib": before,
        "peak_mib": watch.peaks,
        "shuffled": {
            name: shuffled.bytes_of(f"WriteShards{name}") / size
            for name in (
                "",
                "/BuildShards/GroupByPart",
                "/BuildShards/CountCopies",
                "/ComparePublished/JoinByKey",
                "/ComparePublished",
            )
        },
        "manifest_bytes": len(outcome.manifest),
    }
    return found


def measure_finish(size: int, folder: Path) -> dict:
    """Measure assembling and publishing a number of parts, four per shard."""
    sink = make_sink(str(folder / "out"))
    sink = replace(sink, shards=replace(sink.shards, shard_examples=4))
    storage, encoder, series = (
        CountingStorage(open_storage(sink.output)),
        TinyEncoder(),
        Series("train", ""),
    )
    versions = encoder.versions()
    parts, totals = [], Totals()

    def write() -> None:
        for number in range(size):
            key = PartKey(*series, number)
            job = PlannedPart(key, f"{number:032x}", sink.parts, "stored", versions)
            items: list[EncoderOutput] = list(encoder.encode([make_ref(number)], ()))
            if not number % 10:
                items.append(Reject(make_ref(number).key, "", "decode", "decode", "made up"))
            part = write_part(storage, job, items)
            totals.merge(part.totals)
            parts.append(part.file)

    found, calls = {}, {}

    def step(name: str, call: Callable[[], object]) -> object:
        storage.calls.clear()
        result, found[name] = timed(call)
        calls[name] = dict(storage.calls)
        return result

    _, found["write"] = timed(write)
    random.Random(1).shuffle(parts)
    jobs = step("plan", lambda: list(plan_shards(sink.shards, series, size, parts)))
    built = step(
        "assemble",
        lambda: [assemble_shard(storage, sink, job, sink.packing(encoder.packing)) for job in jobs],
    )
    census = Census({series: (size + size // 10, 0)}, matched=size + size // 10)
    spec = replace(sink, max_reject_fraction=0.5)
    plan = make_plan(spec, RECORD, census)
    outcome = step(
        "publish",
        lambda: finish(
            storage, spec, encoder, plan, census, Built(built, {series: totals}), Copies()
        ),
    )
    assert outcome.status == "published", outcome
    found["facts"] = {
        "shards": len(built),
        "calls": calls,
        "shard_job_bytes": len(pickle.dumps(jobs)) / len(jobs),
        "built_bytes": sum(len(pickle.dumps(shard)) for shard in built) / len(built),
        "totals_bytes": len(pickle.dumps(totals)),
        "mib": memory(),
    }
    return found


def measure_manifest(size: int, folder: Path) -> dict:
    """Measure writing and reading a manifest with a number of shards."""
    from shardmill.loaders import open_dataset, steps_per_epoch

    template = ShardTemplate(DEFAULT_TEMPLATE)
    shards = tuple(
        Shard(
            template.format("train", number, size, 10_240),
            10_240,
            134_217_000 + number,
            f"{number * 2_654_435_761 % 2**32:08x}",
        )
        for number in range(size)
    )
    labels = {f"n{1_440_764 + number:08d}": size * 10_240 // FOLDERS for number in range(FOLDERS)}
    written = size * 10_240
    labels["n01440764"] += written - sum(labels.values())
    split = Split(written, sum(shard.bytes for shard in shards), labels, shards)
    manifest = Manifest(
        {"train": split},
        written,
        "gzip",
        Inputs(ROOT, written, written, 0, 0, 0, {}),
        Build("0" * 16, "0" * 32, {}, {}, "", ""),
        tuple(labels),
        ({"name": "key", "type": "bytes"},),
    )
    before = memory()
    text, writing = timed(manifest.to_json)
    read, reading = timed(lambda: Manifest.from_json(text))
    assert read == manifest
    (folder / "manifest.json").write_text(text)
    (folder / "schema.pbtxt").write_text(TinyEncoder().schema(()))
    for shard in shards:  # sparse files: opening checks names and sizes only
        with (folder / shard.file).open("wb") as file:
            file.truncate(shard.bytes)
    steps, stepping = timed(lambda: steps_per_epoch(folder, "train", 1))
    assert steps == written
    opened, opening = timed(lambda: open_dataset(folder, "train"))
    assert len(opened) == written
    return {
        "write": writing,
        "read": reading,
        "steps_per_epoch": stepping,
        "open_dataset": opening,
        "facts": {"bytes": len(text.encode()), "mib": memory() - before},
    }


STAGES: dict[str, Callable[[int, Path], dict]] = {
    "walk": measure_walk,
    "listing": measure_listing,
    "refs": measure_refs,
    "build": measure_build,
    "update": measure_update,
    "finish": measure_finish,
    "manifest": measure_manifest,
}


def main() -> None:
    """Measure one stage and prints the result."""
    stage, size, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps(STAGES[stage](size, folder)))
