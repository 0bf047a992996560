"""Measure the stages of a build; scale.py runs each in a separate process.

The results are printed as one line of JSON. The measured code is that of real builds; only the
references are generated, and a record has a hundred bytes without an image.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardmill.schemas.dataset.manifest import Build, Inputs, Manifest, Shard, Split
from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE, ShardName, ShardTemplate
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import Reject
from shardmill.schemas.storage import Storage, open_storage
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.build import coders
from shardmill.transforms.build.assemble import assemble_shard, plan_shards
from shardmill.transforms.build.census import Census
from shardmill.transforms.build.encoder import Example, Item
from shardmill.transforms.build.finalize import Built, finish
from shardmill.transforms.build.outcome import report, take_reported
from shardmill.transforms.build.parts import PartJob, order_refs, part_id, write_part
from shardmill.transforms.build.placement import PartKey, PlaceSpec, Series
from shardmill.transforms.build.planning import Plan, ShardSpec
from shardmill.transforms.build.spec import SinkSpec
from shardmill.transforms.build.totals import Totals
from shardmill.transforms.build.transform import WriteShards, make_plan, place_ref
from shardmill.transforms.match.labels import LabelSpec
from shardmill.transforms.match.listing import parse_listing
from shardmill.transforms.match.transform import find_input, walk_input
from shardmill.transforms.match.walk import first_level
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.sum_into import SumInto
from shardmill.transforms.statistics.sums import Summary, Sums

FOLDERS = 1_000  # labels
ROOT = "gs://some-bucket/imagenet/train"
RECORD = 100  # bytes
PIXELS = 224 * 224
_BATCH = 10_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


def make_ref(number: int) -> InputRef:
    """Returns a reference as from matching, with names as long as those of ImageNet."""
    folder = f"n{1_440_764 + number % FOLDERS:08d}"
    key = f"{folder}/{folder}_{number:09d}.JPEG"
    return InputRef(
        key, f"{ROOT}/{key}", 110_000 + number % 9_973, f"{1_700_000_000_000_000 + number}"
    )


@dataclass(frozen=True)
class TinyEncoder:
    """Encodes a reference to a record without reading a file."""

    packing: Packing = "stored"
    expected_bytes: int | None = RECORD

    def encode(self, refs: Sequence[InputRef], labels: Sequence[str]) -> Iterator[Item]:  # noqa: ARG002
        """Yields an example for each reference."""
        sums = tuple(
            Sums("int64", 1, PIXELS, total=110 * PIXELS, squares=14_000 * PIXELS) for _ in range(3)
        )
        EVENTS.setdefault("parts begin", now())
        for ref in refs:
            if ref.error:
                yield ref.to_reject()
            else:
                record = ref.key.encode().ljust(RECORD - 16)
                yield Example(record, ref.label, summary=Summary(channels=sums))
        EVENTS["parts end"] = now()

    def versions(self) -> dict[str, str]:
        """Returns as many versions as the encoder of images."""
        return {"pillow": "1", "jpeg": "1", "deflate": "1", "zlib": "1"}

    def schema(self, labels: Sequence[str]) -> str:  # noqa: ARG002
        """Returns a schema."""
        EVENTS["publishing begins"] = now()
        return 'feature { name: "key" type: BYTES }\n'

    def features(self) -> list[dict[str, str]]:
        """Returns a feature."""
        return [{"name": "key", "type": "bytes"}]


EVENTS: dict[str, tuple[float, float]] = {}


def now() -> tuple[float, float]:
    """Returns wall and CPU time in seconds."""
    return time.perf_counter(), time.process_time()


def memory() -> float:
    """Returns this process's memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * _PAGE / 2**20


def timed(call: Callable[[], object]) -> tuple[object, dict[str, float]]:
    """Returns the result of a call, and its wall and CPU seconds."""
    gc.collect()
    wall, cpu = now()
    result = call()
    after = now()
    return result, {"wall": after[0] - wall, "cpu": after[1] - cpu}


def make_sink(output: str) -> SinkSpec:
    """Returns a sink that makes shards of 1 MiB."""
    return SinkSpec(
        output=output,
        config_id="00000000000c0de5",
        place=PlaceSpec(Splits.parse("train:0.9,validation:0.1")),
        shards=ShardSpec(ShardTemplate(DEFAULT_TEMPLATE), shard_bytes=1 << 20),
        root=ROOT,
    )


def measure_walk(size: int, folder: Path) -> dict:
    """Measures matching a tree of empty files."""
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
    """Measures parsing a listing of ``size`` lines, which one worker does."""
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
        data = path.read_bytes()
        for count, _ in enumerate(parse_listing(data, "x.csv", ROOT, labelled=True, split=False)):
            if not count % _BATCH:
                peak = max(peak, memory())
        return count + 1

    count, seconds = timed(read)
    assert count == size
    found = {**seconds, "mib": peak - before, "bytes": path.stat().st_size}
    path.unlink()
    return {"listing": found}


def measure_refs(size: int, folder: Path) -> dict:
    """Measures the work per reference between matching and parts, without a runner."""
    sink = make_sink(str(folder / "out"))
    labels, place = LabelSpec("directory"), sink.place
    sums = SumInto(Census, Census.merge)
    spent: Counter[str] = Counter()
    partial, encoded_bytes, done = [], 0, 0
    value_coder, key_coder = coders.PlacedRefCoder(), coders.PartKeyCoder()
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
        placed = step(
            "place", lambda refs=refs: [p for r in refs for p in place_ref(place, r, plan)]
        )
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


class MemoryMonitor(threading.Thread):
    """Records peak memory and the time of the plan; exits above a memory limit."""

    def __init__(self, shown: progress.Progress, limit: float) -> None:
        super().__init__(daemon=True)
        self.shown, self.limit = shown, limit
        self.peaks: dict[str, float] = {}
        self.ended = threading.Event()

    def phase(self) -> str:
        """Returns the current phase of the build."""
        for event, name in (
            ("publishing begins", "publish"), ("parts begin", "parts and shards"),
            ("plan", "group"),
        ):  # fmt: skip
            if event in EVENTS:
                return name
        return "census"

    def run(self) -> None:
        """Samples memory until the build has ended."""
        while not self.ended.wait(0.05):
            if self.shown.total is not None:
                EVENTS.setdefault("plan", now())
            phase, used = self.phase(), memory()
            self.peaks[phase] = max(self.peaks.get(phase, 0.0), used)
            if used > self.limit * 1024:
                print(f"stopped: {used:,.0f} MiB in {phase}", file=sys.stderr)
                os._exit(3)


def measure_build(size: int, folder: Path) -> dict:
    """Measures the whole pipeline without images on the in-memory runner."""
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    sink = make_sink(str(folder / "out"))
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
            | beam.Map(report, "scale")
        )
    ended = now()
    watch.ended.set()
    watch.join()
    outcome = take_reported("scale")
    assert outcome is not None
    manifest = json.loads(outcome.manifest)
    assert outcome.status == "published", outcome
    assert manifest["written"] == size
    marks = [began, EVENTS["plan"], EVENTS["parts begin"], EVENTS["parts end"],
             EVENTS["publishing begins"], ended]  # fmt: skip
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
        "manifest_bytes": len(outcome.manifest),
    }
    return found


class CountingStorage:
    """A storage that counts calls."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        call = getattr(self._storage, name)

        def counted(*args: object, **kwargs: object) -> object:
            self.calls[name] += 1
            return call(*args, **kwargs)

        return counted


def measure_finish(size: int, folder: Path) -> dict:
    """Measures assembling and publishing a number of parts, four per shard."""
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
            job = PartJob(key, f"{number:032x}", sink.parts, "stored", versions)
            items: list[Item] = list(encoder.encode([make_ref(number)], ()))
            if not number % 10:
                items.append(Reject(make_ref(number).key, "", "decode", "decode", "made up"))
            part = write_part(storage, job, items)
            totals.add(part)
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
        lambda: [
            assemble_shard(storage, sink.build, job, sink.shards.template, gzip=True)
            for job in jobs
        ],
    )
    census = Census({series: (size + size // 10, 0)}, matched=size + size // 10)
    spec = replace(sink, max_reject_fraction=0.5)
    plan = make_plan(spec, RECORD, census)
    outcome = step(
        "publish",
        lambda: finish(storage, spec, encoder, plan, census, Built(built, {series: totals})),
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
    """Measures writing and reading a manifest with a number of shards."""
    from shardmill.loaders import open_dataset, steps_per_epoch

    template = ShardTemplate(DEFAULT_TEMPLATE)
    shards = tuple(
        Shard(
            template.format(ShardName("train", number, size, 10_240)), 10_240, 134_217_000 + number,
            f"{number * 2_654_435_761 % 2**32:08x}",
        )
        for number in range(size)
    )  # fmt: skip
    labels = {f"n{1_440_764 + number:08d}": size * 10_240 // FOLDERS for number in range(FOLDERS)}
    written = size * 10_240
    labels["n01440764"] += written - sum(labels.values())
    split = Split(written, sum(shard.bytes for shard in shards), labels, shards)
    manifest = Manifest(
        {"train": split}, written, "gzip",
        Inputs(ROOT, written, written, 0, 0, 0, {}),
        Build("0" * 16, "0" * 32, {}, {}, "", ""), tuple(labels),
        ({"name": "key", "type": "bytes"},),
    )  # fmt: skip
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
        "write": writing, "read": reading, "steps_per_epoch": stepping, "open_dataset": opening,
        "facts": {"bytes": len(text.encode()), "mib": memory() - before},
    }  # fmt: skip


STAGES: dict[str, Callable[[int, Path], dict]] = {
    "walk": measure_walk,
    "listing": measure_listing,
    "refs": measure_refs,
    "build": measure_build,
    "finish": measure_finish,
    "manifest": measure_manifest,
}


def main() -> None:
    """Measures one stage and prints the result."""
    stage, size, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps(STAGES[stage](size, folder)))
