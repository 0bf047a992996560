"""Job graphs, side inputs and shuffled values stay small for large inputs."""

import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import apache_beam as beam
import pytest
from apache_beam.coders import FastPrimitivesCoder, registry

from shardmill.schemas import InputRef, Manifest, ShardTemplate, Splits
from shardmill.schemas.dataset.manifest import Shard
from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE
from shardmill.schemas.storage import open_storage
from shardmill.transforms import (
    Example,
    LabelSpec,
    MatchFiles,
    PlaceSpec,
    ShardSpec,
    SinkSpec,
    find_input,
)
from shardmill.transforms.runtime import beam_steps
from shardmill.transforms.runtime.beam_steps import SumInto
from shardmill.transforms.sink import parts, transform
from shardmill.transforms.sink.census import PLACED, Census
from shardmill.transforms.sink.duplicates import Copies
from shardmill.transforms.sink.finalize import Built, finish
from shardmill.transforms.sink.placement import PartKey, Placed, Series
from shardmill.transforms.sink.plan import make_plan
from shardmill.transforms.sink.spec import EncoderOutput
from shardmill.transforms.sources.listings import ListingOptions, open_listings
from shardmill.transforms.statistics.sums import Summary, Sums, Totals

TRAIN = Series("train", "")
LABELS = [f"n{number:08d}" for number in range(1_000)]


class KeyEncoder:
    """An encoder that writes keys and reads no files."""

    packing = "stored"
    expected_bytes = 100

    def encode(self, refs, labels) -> Iterator[EncoderOutput]:
        for ref in refs:
            yield ref.to_reject() if ref.error else Example(ref.key.encode(), ref.labels)

    def versions(self) -> dict[str, str]:
        return {"tiny": "1"}

    def schema(self, labels) -> str:
        return 'feature { name: "key" type: BYTES }\n'

    def features(self) -> list[dict[str, str]]:
        return [{"name": "key", "type": "bytes"}]


def make_refs(count: int) -> list[InputRef]:
    return [
        InputRef(
            f"{LABELS[n % 1000]}/{n:012d}.jpg",
            f"gs://bucket/photos/{LABELS[n % 1000]}/{n:012d}.jpg",
            110_000,
            "1700000000000000",
            LABELS[n % 1000],
            "train",
        )
        for n in range(count)
    ]


def spec(output, **shards) -> SinkSpec:
    return SinkSpec(
        output=str(output),
        config_id="0" * 16,
        place=PlaceSpec(Splits.parse("train:1")),
        shards=ShardSpec(ShardTemplate(DEFAULT_TEMPLATE), **shards),
        max_reject_fraction=0.9,
    )


class CountingStorage:
    """A storage that counts its calls."""

    def __init__(self, storage) -> None:
        self.storage, self.calls = storage, Counter()

    def __getattr__(self, name: str):
        method = getattr(self.storage, name)

        def call(*args, **kwargs):
            self.calls[name] += 1
            return method(*args, **kwargs)

        return call


def census_of(refs: list[InputRef]):
    census, place = Census(), PlaceSpec(Splits.parse("train:1"))
    for ref in refs:
        census.add(ref, place.series_of(ref))
    return census


def test_census_and_plan_do_not_grow_with_the_inputs(tmp_path) -> None:
    few, many = (census_of(make_refs(count)) for count in (1_000, 20_000))
    assert (few.refs, many.refs) == (1_000, 20_000)
    assert len(pickle.dumps(many)) <= len(pickle.dumps(few)) + 64
    plans = [make_plan(spec(tmp_path / "ds"), 100, census) for census in (few, many)]
    assert plans[0].parts != plans[1].parts
    assert abs(len(pickle.dumps(plans[1])) - len(pickle.dumps(plans[0]))) < 64


def packed_bytes(placed: list[Placed]) -> float:
    """Return the bytes of a reference where these cross a shuffle in one bundle."""
    packer = beam_steps._PackValues(PLACED)
    packer.start_bundle()
    found = [pair for each in placed for pair in packer.process(each)]
    found += [each.value for each in packer.finish_bundle()]
    key_coder = registry.get_coder(PartKey)
    values: dict[PartKey, list[bytes]] = {}
    for key, value in found:
        values.setdefault(key, []).append(value)
    unpacked = {key: [*beam_steps.unpack(some, PLACED)] for key, some in values.items()}
    assert unpacked == {key: [ref for one, ref in placed if one == key] for key in values}
    return sum(len(key_coder.encode(key)) + len(value) for key, value in found) / len(placed)


def test_references_are_small_in_the_shuffle(tmp_path, monkeypatch) -> None:
    times = random.Random(1)
    refs = [
        ref._replace(version=str(10**18 + times.getrandbits(50)), ctime=times.getrandbits(50))
        for ref in make_refs(5_000)
    ]
    plan = make_plan(spec(tmp_path / "ds"), 100, census_of(refs))
    placed = [*transform.place_refs(spec(tmp_path).place, refs, plan)]
    assert 40 < packed_bytes(placed) < 60
    monkeypatch.setattr(beam_steps, "_WAITING", 100)  # few of a part at a time
    assert packed_bytes(placed) < 75
    # A runner with small bundles: the names of the photo have 79 bytes.
    monkeypatch.setattr(beam_steps, "_WAITING", 1)
    assert packed_bytes(placed) < 150


def make_part(number: int, labels: list[str], rejects: int = 0) -> parts.Part:
    sums = Sums("int64", 896, 896 * 224 * 224, total=10**10, squares=10**12)
    return parts.Part(
        PartKey("train", "", number),
        f"{'a' * 32}-{'b' * 12}.part",
        11_000_000,
        1 << 31,
        f"{'a' * 32}.json",
        totals=Totals(
            made=1,
            records=896,
            label_counts=Counter(labels),
            rejects=Counter(decode=rejects) if rejects else Counter(),
            versions={(("x", "1"),)},
            summary=Summary(channels=(sums,) * 3),
        ),
    )


def test_totals_do_not_grow_with_the_parts() -> None:
    many = [make_part(number, LABELS[number % 100 :][:896]) for number in range(2_000)]
    adder = SumInto(Totals, lambda totals, part: totals.merge(part.totals))
    sizes = []
    for some in (many[:100], many):
        accumulators = [adder.create_accumulator() for _ in range(4)]
        for number, part in enumerate(some):
            adder.add_input(accumulators[number % 4], part)
        totals = adder.extract_output(adder.merge_accumulators(accumulators))
        assert (totals.made, totals.records) == (len(some), 896 * len(some))
        assert sum(totals.label_counts.values()) == sum(len(p.totals.label_counts) for p in some)
        assert totals.summary.channels[0].total == len(some) * 10**10
        sizes.append(len(pickle.dumps(totals)))
    assert sizes[1] < 1.2 * sizes[0]


def test_assembling_needs_few_bytes_of_a_part() -> None:
    part = make_part(1, LABELS, rejects=5)
    assert len(pickle.dumps(part)) > 5_000
    assert len(FastPrimitivesCoder().encode(tuple(part.file))) < 160
    files = [make_part(number, LABELS).file for number in range(400)]
    jobs = list(parts.plan_shards(spec("x", num_shards=100).shards, TRAIN, 400, files))
    assert [len(job.slices) for job in jobs] == [4] * 100
    assert max(len(pickle.dumps(job)) for job in jobs) < 800
    name = "train-00001-of-00100.tfrecord.gz"
    shard = parts.BuiltShard(
        TRAIN,
        1,
        Shard(name, 3_584, 1 << 27, "80000000"),
        (parts.FinalFile("shards/" + "a" * 32, name, 1 << 27),),
    )
    assert len(pickle.dumps(shard)) < 500


def build_by_hand(folder, count: int) -> tuple[dict[str, int], Manifest]:
    """Write parts of one record, two per shard, and publish them; return the calls after the parts."""
    wanted = spec(folder, num_shards=count // 2)
    storage, encoder, totals, files = open_storage(str(folder)), KeyEncoder(), Totals(), []
    for number in range(count):
        key = PartKey(*TRAIN, number)
        job = parts.PlannedPart(key, f"{number:032x}", wanted.parts, "stored", encoder.versions())
        ref = make_refs(1)[0]
        rejects = [ref.rejected("decode", "bad").to_reject()] * (number % 2)
        part = parts.write_part(storage, job, [*encoder.encode([ref], ()), *rejects])
        totals.merge(part.totals)
        files.append(part.file)
    counted = CountingStorage(storage)
    built = [
        parts.assemble_shard(counted, wanted, job, "stored")
        for job in parts.plan_shards(wanted.shards, TRAIN, count, files)
    ]
    census = replace(census_of(make_refs(count)), matched=count + count // 2)
    plan = replace(make_plan(wanted, 100, census), labels=(LABELS[0],))
    whole = Built(built, {TRAIN: totals})
    outcome = finish(counted, wanted, encoder, plan, census, whole, Copies())
    assert outcome.status == "published", outcome
    return dict(counted.calls), Manifest.from_json(outcome.manifest)


def test_calls_and_manifest_grow_with_the_shards_only(tmp_path) -> None:
    calls, sizes = [], []
    for count in (20, 80):
        made, manifest = build_by_hand(tmp_path / str(count), count)
        assert (manifest.written, manifest.inputs.rejected) == (count, count // 2)
        assert (
            len((tmp_path / f"{count}/current/rejects.jsonl").read_text().splitlines())
            == count // 2
        )
        calls.append(sum(made.values()))
        sizes.append(len(manifest.to_json()))
    shards = sidecars_with_rejects = (80 - 20) // 2
    assert calls[1] - calls[0] <= 7 * shards + sidecars_with_rejects
    # Each name begins with the folder of its generation.
    assert sizes[1] - sizes[0] <= (150 + len(manifest.generation)) * shards


def test_job_graph_does_not_grow_with_the_inputs(tmp_path) -> None:
    sizes = []
    for count in (10, 5_000):
        listing = tmp_path / f"{count}.csv"
        listing.write_text("path,label\n" + "".join(f"{n}.jpg,a\n" for n in range(count)))
        pipeline = beam.Pipeline()
        match = find_input(str(listing), str(tmp_path), listing=True)
        match = open_listings(match, ListingOptions(labelled=True))[0]
        matched = pipeline | MatchFiles(match, LabelSpec("listing"))
        _ = matched | transform.WriteShards(spec("x"), KeyEncoder())
        sizes.append(len(pipeline.to_runner_api().SerializeToString()))
    assert abs(sizes[1] - sizes[0]) < 1_000
    assert sizes[1] < 500_000


@pytest.mark.heavy
def test_listings_are_decoded_line_by_line(tmp_path) -> None:
    code = (
        "import sys\n"
        "from shardmill.transforms.match.inputs import find_input, read_listing\n"
        "from shardmill.transforms.sources.listings import ListingOptions, open_listings\n"
        "def used(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "options = ListingOptions(labelled=True)\n"
        "match = open_listings(find_input('x.csv', listing=True), options)[0]\n"
        "next(read_listing(match))\n"  # loads what is loaded once
        "before = used()\n"
        "peaks = [used() for n, _ in enumerate(read_listing(match)) if n % 5_000 == 0]\n"
        "assert len(peaks) == 60\n"
        "assert max(peaks) - before < 30 << 20, max(peaks) - before\n"
    )
    lines = "".join(f"{n:0100}.jpg,label\n" for n in range(300_000))  # 35 MB
    (tmp_path / "x.csv").write_text(f"path,label\n{lines}")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
