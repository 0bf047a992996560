"""Shards are repacked where TensorFlow would not read a gzip file to its end."""

import random
from pathlib import Path

import pytest

from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.storage import open_storage
from shardmill.schemas.tfrecord.framing import crc32c, frame
from shardmill.schemas.tfrecord.gzip_member import read_index
from shardmill.schemas.tfrecord.inflate import TENSORFLOW_READS, find_early_stop
from shardmill.schemas.tfrecord.reader import count_file
from shardmill.transforms.sink import assemble as assembling
from shardmill.transforms.sink import record_writer
from shardmill.transforms.sink.assemble import BuiltShard, PartSlice, ShardJob, assemble_shard
from shardmill.transforms.sink.parts import PartFile
from shardmill.transforms.sink.placement import PlaceSpec, Series, ShardSpec
from shardmill.transforms.sink.record_writer import MemberWriter
from shardmill.transforms.sink.spec import PARTS_FOLDER, SinkSpec
from shardmill.transforms.verify.verify import find_dataset, verify_dataset
from tests.conftest import build_dataset
from tests.support.readers import dataset_files, gzip_records, tf_records
from tests.support.record_tools import deflated_member, stored_member

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


def write_part(folder: Path, number: int, records: list[bytes], packing: str) -> PartFile:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number}.part"
    with path.open("wb") as file:
        writer = MemberWriter(file, packing)
        for record in records:
            writer.add(record)
        writer.close()
    return PartFile(
        number, payload=path.name, records=len(records),
        num_bytes=writer.num_bytes, crc32c=writer.crc,
    )  # fmt: skip


def assemble(build: Path, parts: tuple[PartFile, ...], packing: str, **cut: int) -> BuiltShard:
    """Assemble a shard from parts, of which the last one may be cut."""
    *whole, last = (PartSlice(part, 0, part.records) for part in parts)
    job = ShardJob(Series("train", ""), 0, 1, (*whole, last._replace(**cut)))
    sink = SinkSpec(str(build.parent), "b", PlaceSpec(Splits.parse("train:1")), ShardSpec())
    return assemble_shard(open_storage(str(build)), sink, job, packing)


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

    shard = assemble(folder.parent, found, packing, **cut)
    assert shard == assemble(folder.parent, found, packing, **cut)
    path = tmp_path / shard.files[0].source
    data = path.read_bytes()
    assert (shard.shard.bytes, shard.shard.crc32c) == (len(data), f"{crc32c(data):08x}")
    wanted = [large, *SMALL[cut.get("first") : cut.get("stop")]]
    assert tf_records(path) == wanted == gzip_records(path)
    members = read_index(lambda at, length: data[at : at + length], len(data))
    assert members is not None
    assert sum(member.records for member in members) == len(wanted)
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


def test_other_shards_are_the_concatenation_of_their_parts(tmp_path) -> None:
    folder = tmp_path / ".build-b" / PARTS_FOLDER
    found = (write_part(folder, 0, SMALL * 6, "stored"), write_part(folder, 1, SMALL, "stored"))
    shard = assemble(folder.parent, found, "stored")
    joined = (folder / "0.part").read_bytes() + (folder / "1.part").read_bytes()
    assert (tmp_path / shard.files[0].source).read_bytes() == joined


@pytest.mark.parametrize("encoding", ["jpeg", "raw"])
def test_builds_of_repacked_shards_are_reproducible(
    photos, tmp_path, encoding, monkeypatch
) -> None:
    options = {"input": photos, "image_size": 32, "encoding": encoding, "num_shards": 2}
    build_dataset(output=tmp_path / "usual", **options)
    monkeypatch.setattr(assembling, "loses_records", lambda _storage, sources, _size: bool(sources))
    for name in ("first", "second"):
        outcome, _ = build_dataset(output=tmp_path / name, **options)
        assert outcome.status == "published"
        assert verify_dataset(find_dataset(str(tmp_path / name))) == []
    assert dataset_files(tmp_path / "first") == dataset_files(tmp_path / "second")
    names = sorted(path.name for path in (tmp_path / "usual/current").glob("*.gz"))
    assert len(names) == 4
    for name in names:
        first, usual = (tmp_path / each / "current" / name for each in ("first", "usual"))
        assert tf_records(first) == tf_records(usual)
