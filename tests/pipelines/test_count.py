"""``shardmill count`` writes a manifest of any TFRecord files."""

import csv
import gzip
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import google_crc32c
import jsonschema
import psutil
import pytest

from shardmill.loaders import steps_per_epoch
from shardmill.pipelines import cli, run
from shardmill.pipelines.commands import MEBIBYTES
from shardmill.pipelines.count import build_count, outcomes
from shardmill.pipelines.count_config import CountConfig, CountJob, resolve
from shardmill.pipelines.report.summary import render_count
from shardmill.pipelines.runners.base import IN_MEMORY
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError, ShardmillError, UsageError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.tfrecord.framing import frame
from shardmill.transforms.count.counting import count_now
from shardmill.transforms.match.inputs import common_root
from tests.conftest import ROOT, SOAK, build_dataset, shardmill, start_shardmill
from tests.support.processes import descendants
from tests.support.readers import tf_records
from tests.support.record_tools import make_payloads, write_records

SCHEMA = json.loads((ROOT / "schemas" / "dataset" / "manifest.schema.json").read_text())


def count_with_beam(job: CountJob) -> Manifest:
    """Count with Beam's in-memory runner."""
    outcome = run.run_pipeline(
        lambda root: outcomes(root, job), IN_MEMORY, [], "", new_progress=MEBIBYTES
    ).outcome
    if outcome.status == "failed":
        raise OutputError(outcome.message)
    return Manifest.from_json(outcome.manifest)


def result_of(counted: Callable[[CountJob], Manifest], job: CountJob) -> Manifest | ShardmillError:
    try:
        manifest = counted(job)
    except ShardmillError as error:
        return error
    path = job.spec.manifest
    assert not path or open_storage(path).read(path).decode() == manifest.to_json()
    return manifest


def comparable(result: Manifest | ShardmillError) -> tuple:
    """Return a manifest without its time, or the message and exit code of an error."""
    if isinstance(result, ShardmillError):
        return str(result), result.exit_code
    assert result.build.finished
    return replace(result, build=replace(result.build, finished="")), 0


def count(*inputs: Path | str, **options) -> Manifest:
    """Count in this process as the command does, and check the invariants.

    Beam's in-memory runner must give the same manifest or error.
    """
    job = resolve(CountConfig(input=tuple(map(str, inputs)), **options), runner=IN_MEMORY)
    with_beam, manifest = result_of(count_with_beam, job), result_of(count_here, job)
    assert comparable(manifest) == comparable(with_beam)
    if isinstance(manifest, ShardmillError):
        raise manifest
    jsonschema.validate(json.loads(manifest.to_json()), SCHEMA)
    inputs_ = manifest.inputs
    assert inputs_.matched == (
        inputs_.accepted + inputs_.rejected + inputs_.skipped + inputs_.duplicates
    )
    assert inputs_.accepted == len(manifest.files)
    assert inputs_.rejected == len(manifest.damaged)
    assert manifest.written == sum(split.num_examples for split in manifest.splits.values())
    return manifest


def count_here(job: CountJob) -> Manifest:
    """Count in this process, and check the last state of its progress."""
    reported = MEBIBYTES()
    manifest = run.run_here(lambda: count_now(job.match, job.spec), lambda: reported)
    assert reported.done == reported.total
    return manifest


def records_of(manifest: Manifest) -> dict[str, int]:
    return {s.file: s.records for split in manifest.splits.values() for s in split.shards}


@pytest.fixture
def mixed(tmp_path) -> Path:
    """Files of every compression and unusual names in two splits, next to unrelated files."""
    folder = tmp_path / "mixed"
    write_records(folder / "train-00000-of-00003.tfrecord", make_payloads(5), "gzip")
    seven = [b"%060d" % number for number in range(7)]
    write_records(folder / "train-00001-of-00003.tfrecord.gz", seven, "none")
    write_records(folder / "train-00002-of-00003", make_payloads(2, 2), "gzip")
    write_records(folder / "val" / "ünï code [1].tfrec", make_payloads(3, 3), "gzip")
    (folder / "README.md").write_text("about")
    (folder / "features.json").write_text("{}")
    (folder / ".hidden").write_bytes(b"junk")
    return folder


def test_detects_compression_by_content_not_by_name(mixed) -> None:
    manifest = count(mixed)
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {
        "train": 14,
        "validation": 3,
    }
    assert manifest.compression == "mixed"
    assert manifest.inputs.skipped == 3
    assert manifest.root == str(mixed)
    assert not manifest.warnings
    assert not manifest.damaged
    for split in manifest.splits.values():
        for shard in split.shards:
            data = (mixed / shard.file).read_bytes()
            assert (shard.bytes, shard.crc32c) == (len(data), f"{google_crc32c.value(data):08x}")
    assert steps_per_epoch(manifest, "train", 4) == 4


@pytest.mark.parametrize("check", ["records", "index"])
def test_counts_of_real_files_match_two_other_readers(shared_data, check) -> None:
    with (shared_data / "tfrecord" / "facts.tsv").open() as file:
        facts = {row["path"]: row for row in csv.DictReader(file, delimiter="\t")}
    assert len(facts) > 20
    manifest = count(shared_data / "tfrecord", check=check)
    counted = {f"tfrecord/{file}": records for file, records in records_of(manifest).items()}
    assert counted == {
        path: int(row["records"]) for path, row in facts.items() if row["framing"] == "ok"
    }
    assert {f"tfrecord/{each.file}" for each in manifest.damaged} == set(facts) - set(counted)
    (pointer,) = manifest.damaged
    assert (pointer.reason, pointer.record, pointer.offset) == ("not_tfrecord", 0, 0)
    assert "Git LFS pointer" in pointer.message
    assert {"train", "validation", "test", "eval", "all"} == set(manifest.splits)


@pytest.mark.sweep
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_count_of_a_dataset_matches_its_manifest(photos, tmp_path, compression) -> None:
    _, made = build_dataset(
        input=photos,
        output=tmp_path / "ds",
        image_size=24,
        compression=compression,
        splits="fold_a:0.7,fold_b:0.3",
        num_shards=2,
    )
    for check in ("records", "index"):
        found = count(tmp_path / "ds", check=check)
        assert records_of(found) == {
            s.file: s.records for x in made.splits.values() for s in x.shards
        }
        # The names contain no known split: the dataset's own manifest lists them.
        assert {n: s.num_examples for n, s in found.splits.items()} == {
            n: s.num_examples for n, s in made.splits.items()
        }
        assert all(s.crc32c is None for x in found.splits.values() for s in x.shards) == (
            check == "index"
        )
        assert found.compression == compression
    exact = count(tmp_path / "ds")
    assert {s.file: s.crc32c for x in exact.splits.values() for s in x.shards} == {
        s.file: s.crc32c for x in made.splits.values() for s in x.shards
    }


def test_counts_intact_files_and_lists_damaged_ones(mixed, tmp_path) -> None:
    whole = (mixed / "train-00001-of-00003.tfrecord.gz").read_bytes()
    damage = {
        "cut.tfrecord": whole[:-3],
        "flipped.tfrecord": whole[:30] + bytes([whole[30] ^ 1]) + whole[31:],
        "length.tfrecord": b"\x01" + whole[1:],
        "empty.tfrecord": b"",
        "text.tfrecord": b"just some notes\n" * 9,
        "tail.tfrecord": (mixed / "train-00000-of-00003.tfrecord").read_bytes() + b"garbage",
        "gone.tfrecord": (mixed / "train-00000-of-00003.tfrecord").read_bytes()[:-20],
    }
    for name, data in damage.items():
        (mixed / name).write_bytes(data)
    manifest = count(mixed)
    assert manifest.written == 17
    assert {each.file: each.reason for each in manifest.damaged} == {
        "cut.tfrecord": "truncated",
        "flipped.tfrecord": "payload_crc",
        "length.tfrecord": "length_crc",
        "empty.tfrecord": "empty",
        "text.tfrecord": "not_tfrecord",
        "tail.tfrecord": "trailing_garbage",
        "gone.tfrecord": "truncated",
    }
    assert manifest.inputs.rejected_by_reason["truncated"] == 2
    at = {each.file: (each.record, each.offset) for each in manifest.damaged}
    first = int.from_bytes(whole[:8], "little") + 16
    assert at["flipped.tfrecord"] == (0, 0)
    assert at["cut.tfrecord"][0] == 6
    assert at["cut.tfrecord"][1] > first

    done = shardmill("count", "--input", mixed, "--manifest", tmp_path / "m.json")
    assert done.returncode == 1
    assert done.stderr == (
        "shardmill: 7 of 11 files are damaged or hold no TFRecords; the others were counted.\n"
    )
    assert "damaged    text.tfrecord: it is not a TFRecord file but text" in done.stdout
    assert "train      14 records in 3 files" in done.stdout
    assert Manifest.from_json((tmp_path / "m.json").read_bytes()).damaged == manifest.damaged


def test_escapes_control_characters_of_names(tmp_path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "\x1b[31mred\n.tfrecord").write_bytes(b"text " * 9)
    (folder / os.fsdecode(b"\xff.tfrecord")).write_bytes(frame(b"x"))
    done = shardmill("count", "--input", folder, "--manifest", tmp_path / "m.json")
    assert (
        "damaged    \\x1b[31mred\\n.tfrecord: it is not a TFRecord file but text\n" in done.stdout
    )
    assert "damaged    %FF.tfrecord: the name is not valid UTF-8: rename the file\n" in done.stdout
    again = shardmill("verify", tmp_path / "m.json")
    gone = shardmill("count", "--input", f"{folder}/\x1b[31m")
    assert "\x1b" not in done.stdout + again.stdout + gone.stderr


def test_warns_if_all_files_are_empty(tmp_path) -> None:
    (tmp_path / "train-00000-of-00001.tfrecord").write_bytes(b"")
    manifest = count(tmp_path)
    assert (manifest.written, manifest.damaged) == (0, ())
    assert manifest.warnings == ("all files are empty",)


def test_warns_of_names_that_contradict_the_count(tmp_path) -> None:
    write_records(tmp_path / "flowers00-5.tfrec", make_payloads(4))
    write_records(tmp_path / "flowers01-4.tfrec", make_payloads(4))
    write_records(tmp_path / "x-00002-of-00004.tfrecord", make_payloads(1))
    manifest = count(tmp_path)
    assert [*manifest.splits] == ["all"]  # no name contains a split
    assert manifest.warnings == (
        "flowers00-5.tfrec: the name says 5 records, it has 4",
        "of 4 files x-*-of-00004 number 0, 1, 3 is missing",
    )


def test_warns_of_empty_gzip_member_where_tensorflow_stops(tmp_path) -> None:
    path = write_records(tmp_path / "a.tfrecord.gz", make_payloads(3), "gzip")
    path.write_bytes(path.read_bytes() + gzip.compress(b"") + path.read_bytes())
    assert len(tf_records(path)) == 3  # of 6, without an error
    manifest = count(tmp_path)
    assert manifest.written == 6
    assert "TensorFlow may stop reading there" in manifest.warnings[0]


@pytest.mark.heavy
def test_counts_lists_globs_and_several_inputs(mixed, tmp_path) -> None:
    names = sorted(p.relative_to(mixed).as_posix() for p in mixed.rglob("*") if "tfrec" in p.name)
    (mixed / "list.txt").write_text("# ours\n\n" + "\n".join(names) + "\nnot there.tfrecord\n")
    listed = count(mixed / "list.txt")
    assert sorted(records_of(listed)) == names
    assert [(each.file, each.reason) for each in listed.damaged] == [
        ("not there.tfrecord", "not_found")
    ]
    with (mixed / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path"], *([name] for name in names), [names[0]]])
    from_csv = count(mixed / "list.csv")
    assert records_of(from_csv) == records_of(listed)
    assert from_csv.inputs.duplicates == 1

    both = count(f"{mixed}/train-*", f"{mixed}/val/*", f"{mixed}/train-00001*", root=str(mixed))
    assert both.written == 17
    assert both.inputs.duplicates == 1
    alone = count(mixed / "train-00002-of-00003")
    assert records_of(alone) == {"train-00002-of-00003": 2}
    far = write_records(tmp_path / "far" / "test.tfrecord", make_payloads(8))
    together = count(mixed, far)
    assert together.root == str(tmp_path)
    assert records_of(together)["far/test.tfrecord"] == 8


def test_a_link_that_leads_outside_the_root_is_damage(tmp_path) -> None:
    (tmp_path / "in").mkdir()
    write_records(tmp_path / "out.tfrecord", make_payloads(2))
    link = tmp_path / "in" / "link.tfrecord"
    link.symlink_to(tmp_path / "out.tfrecord")
    (damaged,) = count(tmp_path / "in").damaged
    assert (damaged.file, damaged.reason) == ("link.tfrecord", "outside_root")
    assert count(tmp_path / "in", follow_links=True).written == 2


def test_replaces_only_the_manifest_of_another_count(mixed, photos, tmp_path) -> None:
    path = tmp_path / "count.json"
    count(mixed, manifest=str(path))
    before = json.loads(path.read_text())
    write_records(mixed / "test.tfrecord", make_payloads(9))
    count(mixed, manifest=str(path))
    assert json.loads(path.read_text())["written"] == before["written"] + 9
    assert json.loads(path.read_text())["build"]["input_id"] != before["build"]["input_id"]

    build_dataset(input=photos, output=tmp_path / "ds", image_size=24)
    own = (tmp_path / "ds" / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="is the manifest that a build wrote"):
        count(mixed, manifest=str(tmp_path / "ds" / "manifest.json"))
    assert (tmp_path / "ds" / "manifest.json").read_bytes() == own


def test_beam_counts_if_its_options_are_given(mixed, tmp_path, monkeypatch, capsys) -> None:
    (mixed / "bad.tfrecord").write_text("no records " * 9)
    used = []
    real = run.run_pipeline
    monkeypatch.setattr(run, "run_pipeline", lambda *a, **k: used.append(a[2]) or real(*a, **k))
    argv = ["count", "--input", str(mixed), f"--manifest={tmp_path / 'm.json'}"]
    assert cli.main(argv) == 1
    first = json.loads((tmp_path / "m.json").read_bytes())
    assert used == []
    capsys.readouterr()
    assert cli.main([*argv, "--direct_num_workers=1", "--debug"]) == 1
    assert used == [["--direct_num_workers=1"]]
    counters = dict(re.findall(r"^counter (\w+): (.*)$", capsys.readouterr().err, re.MULTILINE))
    assert counters == {
        "files_counted": "5",
        "files_damaged": "1",
        "records_scanned": "17",
    }
    second = json.loads((tmp_path / "m.json").read_bytes())
    assert first["build"].pop("finished") <= second["build"].pop("finished")
    assert first == second


def test_common_root_of_inputs() -> None:
    assert common_root(["/a/b", "/a/c/d"]) == "/a"
    assert common_root(["/a", "/b"]) == "/"
    assert common_root(["gs://x/a/b", "gs://x/a/c"]) == "gs://x/a"
    assert common_root(["gs://x/a", "gs://x/b"]) == "gs://x"
    with pytest.raises(UsageError, match="several buckets"):
        common_root(["gs://x/a", "gs://y/a"])
    with pytest.raises(UsageError, match="several storages"):
        common_root(["gs://x/a", "/a"])


def same(manifest: Manifest) -> dict:
    body = json.loads(manifest.to_json())
    del body["build"]
    return body


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """Files large enough to be read by several processes."""
    folder = tmp_path_factory.mktemp("large")
    records = b"".join(frame(bytes([number]) * (20_000 + number)) for number in range(250))
    (folder / "train.tfrecord").write_bytes(records * 32)
    (folder / "test.tfrecord.gz").write_bytes(gzip.compress(records * 3, 1))
    return folder


@pytest.mark.heavy
def test_processes_do_not_change_the_manifest(large) -> None:
    assert (large / "train.tfrecord").stat().st_size > 2 * (64 << 20)
    alone, together = count(large), count(large, processes=2)
    assert same(alone) == same(together)
    assert records_of(alone) == {"train.tfrecord": 8000, "test.tfrecord.gz": 750}


def test_build_in_a_custom_pipeline(mixed, tmp_path) -> None:
    config = CountConfig(input=(str(mixed),), manifest=str(tmp_path / "m.json"))
    with beam.Pipeline(runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner") as p:
        build_count(p, config) | beam.Map(lambda outcome: outcome.check())
    assert Manifest.from_json((tmp_path / "m.json").read_bytes()).written == 17
    assert {path.name for path in tmp_path.iterdir()} == {"mixed", "m.json"}


def wait_for_readers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait until the reader processes have started, and return them."""
    for _ in range(600):
        found = descendants(process.pid, "spawn_main")
        if len(found) >= 2:
            return found
        time.sleep(0.02)
    raise AssertionError("no reader process started")


@pytest.fixture(scope="module")
def slow(tmp_path_factory) -> Path:
    """Small records in files that take seconds to read."""
    folder = tmp_path_factory.mktemp("slow")
    for number in range(3):
        (folder / f"{number}.tfrecord").write_bytes(frame(b"x" * 20) * 3_000_000)
    return folder


SIGNALS = [signal.SIGKILL, signal.SIGINT, signal.SIGTERM]


@pytest.mark.heavy
@pytest.mark.parametrize("how", SIGNALS if SOAK else SIGNALS[:1])
def test_rerun_after_a_signal(slow, tmp_path, how) -> None:
    manifest = tmp_path / "m.json"
    flags = ["--input", slow, "--manifest", manifest]
    process = start_shardmill("count", *flags, start_new_session=True)
    readers = wait_for_readers(process)
    os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
    out, err = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert (process.returncode, out) == (130, "")
        assert err == "shardmill: interrupted; nothing was written.\n"
    _, alive = psutil.wait_procs(readers, timeout=10)
    assert not alive
    assert not manifest.exists()
    assert list(tmp_path.iterdir()) == []
    if how == signal.SIGKILL:
        assert shardmill("count", *flags).returncode == 0
        assert Manifest.from_json(manifest.read_bytes()).written == 9_000_000


@pytest.mark.heavy
def test_reports_killed_reader_process(slow, tmp_path) -> None:
    process = start_shardmill("count", "--input", slow, "--manifest", tmp_path / "m.json")
    wait_for_readers(process)[0].kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith("shardmill: A process that read files was killed, perhaps")
    assert not (tmp_path / "m.json").exists()


def test_prints_at_most_20_damaged_files(tmp_path) -> None:
    write_records(tmp_path / "sound.tfrecord", make_payloads(1))
    for number in range(30):
        (tmp_path / f"{number:02d}.tfrecord").write_text("notes " * 9)
    printed = [line.plain for line in render_count(count(tmp_path), "m.json", 1.0)]
    damaged = [line for line in printed if line.startswith("  damaged ")]
    assert len(damaged) == 21
    assert damaged[-1].endswith("and 10 more, see the manifest")
