"""Parts are cut between records for shards of an exact number, and joined so that TensorFlow reads all."""

import gzip
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.schemas import Splits
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.local import LocalStorage
from shardmill.schemas.tfrecord.framing import crc32c, frame
from shardmill.schemas.tfrecord.gzip_member import read_index
from shardmill.schemas.tfrecord.inflate import TENSORFLOW_READS, find_early_stop
from shardmill.schemas.tfrecord.reader import count_file
from shardmill.transforms import PlaceSpec, ShardSpec, SinkSpec
from shardmill.transforms.sink import record_writer
from shardmill.transforms.sink.parts import (
    BuiltShard,
    PartFile,
    PartSlice,
    PlannedShard,
    assemble_shard,
    plan_shards,
)
from shardmill.transforms.sink.placement import Series
from shardmill.transforms.sink.record_writer import MemberWriter, cut_part
from shardmill.transforms.sink.spec import PARTS_FOLDER
from shardmill.transforms.verify.verify import find_dataset, verify_dataset
from tests.conftest import build_dataset, examples, make_photos
from tests.support.readers import current, dataset_files, framed_payloads, gzip_records, tf_records
from tests.support.record_tools import (
    deflated_member,
    flip,
    framed,
    in_groups,
    indexed,
    stored_member,
)

TRAIN = Series("train", "")
PACKINGS = ("stored", "deflated", "none")


def write_part(
    folder: Path, number: int, records: list[bytes], packing: str, *member_bytes: int
) -> PartFile:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number}.part"
    with path.open("wb") as file:
        writer = MemberWriter(file, packing, *member_bytes)
        for record in records:
            writer.add(record)
        writer.close()
    return PartFile(number, path.name, writer.num_bytes, writer.crc, len(records))


def write_parts(folder: Path, contents: list[list[bytes]], packing: str) -> list[PartFile]:
    """Write parts whose members have about 100 bytes of records; every third has rejects."""
    parts = [
        write_part(folder, number, records, packing, 100) if records else PartFile(number)
        for number, records in enumerate(contents)
    ]
    return [each._replace(rejects=f"{each.number}.json" * (each.number % 3 == 0)) for each in parts]


def assemble(output: Path, parts: list[PartFile], shards: int, packing: str) -> list[BuiltShard]:
    place, cut = PlaceSpec(Splits.parse("train:1")), ShardSpec(num_shards=shards)
    sink, storage = SinkSpec(str(output), "b", place, cut), open_storage(str(output))
    jobs = plan_shards(cut, TRAIN, len(parts), parts[::-1])
    return [assemble_shard(storage, sink, job, packing) for job in jobs]


def read(path: Path, packing: str) -> list[bytes]:
    return framed_payloads(path.read_bytes()) if packing == "none" else gzip_records(path)


def index_of(data: bytes):
    return read_index(lambda at, length: data[at : at + length], len(data))


def check_shard(path: Path, shard: BuiltShard, packing: str) -> list[bytes]:
    """Assert that a shard is valid; return its records."""
    data, records = path.read_bytes(), read(path, packing)
    assert (shard.shard.bytes, shard.shard.crc32c) == (len(data), f"{crc32c(data):08x}")
    assert shard.shard.records == len(records)
    if packing != "none":
        members = index_of(data)
        assert sum(member.records for member in members) == len(records)
        assert all(member.records for member in members) or not records
    return records


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    shards=st.integers(1, 20),
    packing=st.sampled_from(PACKINGS),
    seed=st.integers(0, 99),
)
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_shards_have_the_records_of_the_parts_in_order(
    tmp_path_factory, counts, shards, packing, seed
) -> None:
    rng = random.Random(seed)
    contents = [[rng.randbytes(rng.choice([0, 1, 30, 150])) for _ in range(n)] for n in counts]
    output = tmp_path_factory.mktemp("cut")
    parts = write_parts(output / ".build-b" / PARTS_FOLDER, contents, packing)
    built = assemble(output, parts, shards, packing)
    paths = [output / shard.files[0].source for shard in built]
    found = [check_shard(*each, packing) for each in zip(paths, built, strict=True)]
    assert list(itertools.chain(*found)) == list(itertools.chain(*contents))
    sizes = [len(records) for records in found]
    assert (len(sizes), sizes) == (shards, sorted(sizes, reverse=True))
    assert sizes[0] - sizes[-1] <= 1
    assert [name for shard in built for name in shard.rejects] == [
        part.rejects for part in parts if part.rejects
    ]
    assert sorted((output / ".build-b/shards").iterdir()) == sorted(paths)  # no pieces
    joined = output / "joined"
    joined.write_bytes(b"".join(path.read_bytes() for path in paths))
    assert read(joined, packing) == list(itertools.chain(*contents))
    assert packing == "none" or sum(m.records for m in index_of(joined.read_bytes())) == sum(counts)
    before = [path.read_bytes() for path in paths]
    assert assemble(output, parts, shards, packing) == built
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.sweep
@pytest.mark.parametrize("packing", PACKINGS)
def test_tensorflow_reads_cut_shards(packing, tmp_path) -> None:
    rng = random.Random(3)
    contents = [[rng.randbytes(rng.randint(0, 200)) for _ in range(n)] for n in (70, 0, 1, 90, 33)]
    parts = write_parts(tmp_path / ".build-b" / PARTS_FOLDER, contents, packing)
    for shards in (1, 3, 7):
        kind = "" if packing == "none" else "GZIP"
        built = assemble(tmp_path, parts, shards, packing)
        found = [tf_records(tmp_path / shard.files[0].source, kind) for shard in built]
        assert {len(records) for records in found} <= {194 // shards, -(-194 // shards)}
        assert list(itertools.chain(*found)) == list(itertools.chain(*contents))


def test_only_members_at_the_cut_are_compressed_again(tmp_path) -> None:
    """Members of another compression level are in the piece as they were."""
    groups = in_groups([b"%d" % n * 300 for n in range(40)], 8)
    fast = [gzip.compress(framed(group), 1)[10:] for group in groups]
    (tmp_path / "a.part").write_bytes(indexed(groups, lambda data: gzip.compress(data, 1)))
    for first, stop, copied in (
        (0, 20, [0, 1]),
        (8, 40, [1, 2, 3, 4]),
        (13, 35, [2, 3]),
        (9, 11, []),
    ):
        size, crc = cut_part(
            open_storage(str(tmp_path)),
            f"{tmp_path}/a.part",
            first,
            stop,
            f"{tmp_path}/b",
            "deflated",
        )
        data = (tmp_path / "b").read_bytes()
        assert (size, crc) == (len(data), crc32c(data))
        assert [number for number, body in enumerate(fast) if body in data] == copied
        assert gzip_records(tmp_path / "b") == [b"%d" % n * 300 for n in range(first, stop)]
        assert len(index_of(data)) == len({n // 8 for n in range(first, stop)})


def test_cuts_parts_with_several_indexes_and_large_members(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("shardmill.schemas.tfrecord.reader._WHOLE_MEMBER", 4_000)
    rng = random.Random(1)
    records = [rng.randbytes(5_000 if n % 50 == 7 else 40) for n in range(400)]
    (part,) = write_parts(tmp_path / ".build-b" / PARTS_FOLDER, [records], "stored")
    data = (tmp_path / ".build-b" / PARTS_FOLDER / part.payload).read_bytes()
    assert data.count(b"\x1f\x8b\x08\x04") >= 2
    built = assemble(tmp_path, [part], 3, "stored")
    assert [gzip_records(tmp_path / shard.files[0].source) for shard in built] == [
        records[:134],
        records[134:267],
        records[267:],
    ]


@pytest.mark.parametrize("packing", PACKINGS)
def test_damaged_part_is_one_sentence(packing, tmp_path) -> None:
    folder = tmp_path / ".build-b" / PARTS_FOLDER
    (part,) = write_parts(folder, [[b"x" * 10] * 3], packing)
    data = (folder / "0.part").read_bytes()
    with pytest.raises(OutputError, match=r"0\.part is damaged \(.*\): run again"):
        assemble(tmp_path, [part._replace(records=5)], 2, packing)  # too few
    for at in (20, len(data) - 20):  # in the index, and in the last record
        (folder / "0.part").write_bytes(flip(data, at))
        with pytest.raises(OutputError, match=r"0\.part is damaged \(.*\): run again"):
            assemble(tmp_path, [part], 2, packing)
    assert not list(tmp_path.rglob("*.piece"))
    (folder / "0.part").unlink()
    with pytest.raises(FileNotFoundError):  # another builder deleted it
        assemble(tmp_path, [part], 2, packing)


def test_another_builder_may_cut_the_same_parts(tmp_path, monkeypatch) -> None:
    """It begins and ends after this builder has cut a part, and before it reads the pieces."""
    contents = [[b"%d" % (n * part) * 50 for n in range(20)] for part in range(1, 4)]
    parts = write_parts(tmp_path / ".build-b" / PARTS_FOLDER, contents, "stored")
    built, concat = [], LocalStorage.concat

    def concat_later(storage, pieces, path) -> None:
        monkeypatch.setattr(LocalStorage, "concat", concat)
        built.append(assemble(tmp_path, parts, 4, "stored"))
        concat(storage, pieces, path)

    monkeypatch.setattr(LocalStorage, "concat", concat_later)
    built.append(assemble(tmp_path, parts, 4, "stored"))
    assert built[0] == built[1]
    records = [gzip_records(tmp_path / shard.files[0].source) for shard in built[0]]
    assert list(itertools.chain(*records)) == list(itertools.chain(*contents))


# Whole builds.


def save_rows(folder: Path, rows: int) -> Path:
    np.save(folder / "X.npy", np.arange(rows * 3).reshape(rows, 3))
    return folder / "X.npy"


@pytest.mark.heavy
@pytest.mark.parametrize("compression", ["gzip", pytest.param("none", marks=pytest.mark.heavy)])
def test_build_has_shards_of_equal_size(compression, tmp_path) -> None:
    """5,000 records in 64 shards; they had 59 to 100 when whole parts were dealt."""
    options = {
        "input": save_rows(tmp_path, 5_000),
        "splits": "train:1",
        "compression": compression,
    }
    _, manifest = build_dataset("arrays", output=tmp_path / "even", num_shards=64, **options)
    _, whole = build_dataset("arrays", output=tmp_path / "whole", shard_examples=100, **options)
    packing = "none" if compression == "none" else "deflated"
    shards, others = (
        [
            read(current(tmp_path / name) / shard.file, packing)
            for shard in each.splits["train"].shards
        ]
        for name, each in (("even", manifest), ("whole", whole))
    )
    assert [len(records) for records in shards] == [79] * 8 + [78] * 56
    assert [shard.records for shard in manifest.splits["train"].shards] == [79] * 8 + [78] * 56
    assert list(itertools.chain(*shards)) == list(itertools.chain(*others))
    assert verify_dataset(find_dataset(str(tmp_path / "even"))) == []


@pytest.mark.heavy
def test_labels_have_even_shards_and_rejects_keep_their_order(tmp_path) -> None:
    photos = make_photos(tmp_path / "in", {"cat": 23, "dog": 17}, size=(12, 9))
    for number in range(12):
        (photos / f"cat/no{number}.jpg").write_bytes(b"no image")
    options = {"input": photos, "image_size": 8, "splits": "train:1", "max_reject_fraction": 0.5}
    _, manifest = build_dataset(output=tmp_path / "a", num_shards=4, shard_by="label", **options)
    counts = [(shard.label, shard.records) for shard in manifest.splits["train"].shards]
    assert counts == [("cat", 6)] * 3 + [("cat", 5), ("dog", 5)] + [("dog", 4)] * 3
    for name, shards in (("b", {"num_shards": 5}), ("c", {"shard_bytes": "1KiB"})):
        build_dataset(output=tmp_path / name, **options, **shards)
    rejects = [dataset_files(tmp_path / name)["rejects.jsonl"] for name in "bc"]
    assert rejects[0] == rejects[1]
    assert len(rejects[0].splitlines()) == 12


RNG = random.Random(11)
NOISE = RNG.randbytes(3 * TENSORFLOW_READS)
SMALL = [RNG.randbytes(700) for _ in range(90)]


def record_for(size: int, pack) -> bytes:
    """Return a record whose framed member has this size."""
    for length in range(size - 300, size):
        if len(pack(frame(NOISE[:length]))) == size:
            return NOISE[:length]
    raise AssertionError("no record has that size")


STOPS = [(pack, behind, 90) for pack in (stored_member, deflated_member) for behind in (1, 5, 8)]
READS_ALL = [(stored_member, behind, 90) for behind in (0, -3, 40)] + [(stored_member, 5, 500)]


@pytest.mark.sweep
@pytest.mark.parametrize(("pack", "behind", "many"), STOPS + READS_ALL)
def test_predicts_where_tensorflow_stops(pack, behind, many, tmp_path) -> None:
    first = pack(frame(record_for(TENSORFLOW_READS + behind, pack)))
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(first + b"".join(pack(frame(SMALL[n % 90])) for n in range(many)))
    found = count_file(str(path))
    assert (found.records, found.fault) == (many + 1, None)
    if (pack, behind, many) in READS_ALL:
        assert len(tf_records(path)) == many + 1
        assert found.warnings == ()
        return
    assert len(tf_records(path)) == 1  # without an error
    assert len(gzip_records(path)) == many + 1
    assert f"ends at byte {len(first):,}" in found.warnings[0]
    assert "loses the records after it" in found.warnings[0]


def test_only_the_last_read_stops_early() -> None:
    reads = TENSORFLOW_READS
    assert find_early_stop([reads + 3, reads + 900], reads + 900) == reads + 3
    assert find_early_stop([reads + 3, 2 * reads + 900], 2 * reads + 900) == -1
    assert find_early_stop([reads + 3], reads + 3) == -1  # the end itself
    assert find_early_stop([3, 900], 900) == -1  # one read
    assert find_early_stop([], 0) == -1


def assemble_slices(
    build: Path, parts: tuple[PartFile, ...], packing: str, **cut: int
) -> BuiltShard:
    """Assemble a shard from parts, of which the last one may be cut."""
    *whole, last = (PartSlice(part, 0, part.records) for part in parts)
    job = PlannedShard(Series("train", ""), 0, 1, (*whole, last._replace(**cut)))
    sink = SinkSpec(str(build.parent), "b", PlaceSpec(Splits.parse("train:1")), ShardSpec())
    return assemble_shard(open_storage(str(build)), sink, job, packing)


@pytest.mark.sweep
@pytest.mark.parametrize("cut", [{}, {"first": 5}, {"stop": 80}])
@pytest.mark.parametrize("packing", ["stored", "deflated"])
def test_repacks_a_shard_that_tensorflow_would_not_read(packing, cut, tmp_path) -> None:
    pack = stored_member if packing == "stored" else deflated_member
    # In a part, an index replaces the header of the first member.
    large = record_for(TENSORFLOW_READS + 4 - 502, pack)
    folder = tmp_path / ".build-b" / PARTS_FOLDER
    found = (write_part(folder, 0, [large], packing), write_part(folder, 1, SMALL, packing))
    joined = tmp_path / "joined.tfrecord.gz"
    joined.write_bytes((folder / "0.part").read_bytes() + (folder / "1.part").read_bytes())
    assert found[0].num_bytes == TENSORFLOW_READS + 4
    assert len(tf_records(joined)) == 1

    shard = assemble_slices(folder.parent, found, packing, **cut)
    assert shard == assemble_slices(folder.parent, found, packing, **cut)
    path = tmp_path / shard.files[0].source
    wanted = [large, *SMALL[cut.get("first") : cut.get("stop")]]
    assert tf_records(path) == wanted == check_shard(path, shard, packing)
    assert count_file(str(path)).warnings == ()


def test_repacks_until_tensorflow_reads_the_shard(tmp_path, monkeypatch) -> None:
    answers = iter([True, True, False])
    monkeypatch.setattr(record_writer, "loses_records", lambda *_: next(answers))
    write_part(tmp_path, 0, SMALL, "stored")
    storage, part = open_storage(str(tmp_path)), str(tmp_path / "0.part")
    size, _ = record_writer.repack(storage, [part], str(tmp_path / "new"), "stored")
    assert (tmp_path / "new").stat().st_size == size
    assert next(answers, None) is None
    assert tf_records(tmp_path / "new") == SMALL
