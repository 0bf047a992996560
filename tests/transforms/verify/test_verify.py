"""Verify reports every difference between a dataset and its manifest or schema.

Most are in tests/golden/transcripts/verify_findings.txt.
"""

import json
import shutil
from pathlib import Path

import pytest

from shardmill.pipelines.cli import main
from shardmill.pipelines.commands import verify as commands_verify
from shardmill.pipelines.run import run_pipeline
from shardmill.pipelines.runners.base import IN_MEMORY
from shardmill.schemas import encode_example
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.tfrecord.framing import crc32c, frame
from shardmill.schemas.tfrecord.inflate import TENSORFLOW_READS
from shardmill.schemas.tfrecord.reader import open_records
from shardmill.transforms.publish.check_version import Finding
from shardmill.transforms.runtime import process_pool
from shardmill.transforms.verify import verify
from shardmill.transforms.verify.verify import find_dataset, verify_dataset
from tests.conftest import build_dataset, examples, make_photos
from tests.pipelines.test_count import count
from tests.support.readers import tf_records
from tests.support.record_tools import indexed, make_payloads, stored_member, write_records


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A dataset of two splits, four shards and one reject."""
    folder = tmp_path_factory.mktemp("verify")
    photos = make_photos(folder / "photos", {"cat": 14, "dog": 16})
    (photos / "cat" / "broken.jpg").write_bytes(b"not an image")
    build_dataset(
        input=photos,
        output=folder / "ds",
        image_size=24,
        num_shards=2,
        splits="train:0.6,validation:0.4",
    )
    return folder / "ds" / "current"


@pytest.fixture
def dataset(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "ds")


def findings_of(path: Path | str, processes: int = 1) -> list[Finding]:
    return verify_dataset(find_dataset(str(path)), processes)


def first_shard(dataset: Path) -> Path:
    return dataset / "train-00000-of-00002.tfrecord.gz"


def edit_manifest(dataset: Path, change) -> None:
    path = dataset / "manifest.json"
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


def rewrite(dataset: Path, examples: list[bytes]) -> None:
    """Replace the first shard by a valid one of other examples, and update the manifest."""
    data = indexed([examples])
    first_shard(dataset).write_bytes(data)

    def change(manifest) -> None:
        split = manifest["splits"]["train"]
        digest = f"{crc32c(data):08x}"
        split["shards"][0].update(records=len(examples), bytes=len(data), crc32c=digest)
        catalog = split["shards"][0].pop("catalog", None)
        if catalog:
            (dataset / catalog["file"]).unlink()
        split.pop("class_weights", None)
        split["num_examples"] = sum(entry["records"] for entry in split["shards"])
        split["num_bytes"] = sum(entry["bytes"] for entry in split["shards"])
        split["label_counts"] = {}
        manifest["written"] = sum(each["num_examples"] for each in manifest["splits"].values())
        inputs = manifest["inputs"]
        inputs["accepted"] = manifest["written"]
        inputs["matched"] = sum(
            inputs[name] for name in ("accepted", "rejected", "skipped", "duplicates")
        )

    edit_manifest(dataset, change)


def read_payloads(shard: Path) -> list[bytes]:
    with open_records(str(shard)) as records:
        return list(records)


def features_of(payload: bytes) -> dict:
    return {name: feature.values for name, feature in parse_example(payload).items()}


@pytest.mark.heavy
def test_reports_any_changed_byte_and_any_truncation(dataset) -> None:
    shard = first_shard(dataset)
    whole = shard.read_bytes()
    for at in range(0, len(whole), len(whole) // examples(150)):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        found = findings_of(dataset)
        assert [finding.file for finding in found] == [shard.name], at
        shard.write_bytes(whole[:at])
        assert {finding.file for finding in findings_of(dataset)} == {shard.name}
    shard.write_bytes(whole)
    assert findings_of(dataset) == []


@pytest.mark.heavy
def test_processes_report_the_same_findings(dataset, monkeypatch) -> None:
    shard = first_shard(dataset)
    examples = read_payloads(shard)
    rewrite(dataset, [*examples[:1], b"not an example", *examples[1:]])
    other = dataset / "train-00001-of-00002.tfrecord.gz"
    other.write_bytes(other.read_bytes()[:-9])
    alone = findings_of(dataset)
    assert {finding.file for finding in alone} == {shard.name, other.name}
    started = []
    pools = process_pool.ProcessPool
    monkeypatch.setattr(process_pool, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(
        process_pool, "ProcessPool", lambda number: started.append(number) or pools(number)
    )
    assert findings_of(dataset, processes=2) == alone
    assert started == [2]


def test_workers_of_a_runner_report_the_same_findings(made, dataset, monkeypatch, capsys) -> None:
    """The command gives its flags to the runner, which reads the shards: no process here does."""
    first, second = (dataset / f"train-0000{n}-of-00002.tfrecord.gz" for n in range(2))
    rewrite(dataset, [b"not an example", *read_payloads(first)])
    second.write_bytes(second.read_bytes()[:-9])
    (dataset / "labels.txt").write_text("cat\n")
    next((dataset / "catalog").glob("validation-*")).unlink()
    alone = findings_of(dataset)
    assert len({finding.file for finding in alone}) == 4
    seen = []

    def on_beam(define, runner, flags, output):
        seen.append((runner, *flags, output))
        return run_pipeline(define, IN_MEMORY, [], output)

    monkeypatch.setattr(commands_verify, "run_pipeline", on_beam)
    monkeypatch.setattr(verify, "verify_dataset", None)
    flags = ["--runner=FlinkRunner", "--flink_master=nowhere:1", "--environment_type=EXTERNAL"]
    assert main(["verify", *flags, "--json", "--", str(dataset)]) == 1
    captured = capsys.readouterr()
    found = [tuple(each.values()) for each in json.loads(captured.out)["faults"]]
    assert sorted(found) == sorted(alone)
    assert "4 files are not as the manifest says" in captured.err
    assert seen == [("FlinkRunner", *flags[1:], str(dataset))]
    assert main(["verify", *flags, str(made)]) == 0
    assert "all sound" in capsys.readouterr().out
    counted = count(made)
    (dataset / "counted.json").write_text(counted.to_json())
    assert main(["verify", *flags, str(dataset / "counted.json")]) == 2
    assert "verifies the folder of a dataset" in capsys.readouterr().err


def test_reports_examples_that_violate_the_schema(dataset) -> None:
    shard = first_shard(dataset)
    examples = read_payloads(shard)
    examples[2] = encode_example(features_of(examples[2]) | {"image/height": [24, 24]})
    examples[4] = encode_example(features_of(examples[4]) | {"image/class/label": [2]})
    rewrite(dataset, examples)
    found = findings_of(dataset)
    assert {finding.file for finding in found} == {shard.name}
    assert [finding.message for finding in found] == [
        "record 2: the feature 'image/height' has 2 values, not 1",
        "record 4: the feature 'image/class/label' is 2, above the maximum 1",
    ]


def test_summarizes_many_violations(dataset) -> None:
    rewrite(dataset, [b"not an example"] * 50)
    found = findings_of(dataset)
    assert [finding.message[:9] for finding in found[:3]] == ["record 0:", "record 1:", "record 2:"]
    assert found[3].message == "47 more of its records do not fit the schema"


def test_reports_shard_that_tensorflow_reads_in_part(dataset) -> None:
    small = read_payloads(first_shard(dataset))
    large = features_of(small[0])
    for length in range(TENSORFLOW_READS - 1200, TENSORFLOW_READS):
        large["image/encoded"] = [b"\xff\xd8\xff" + bytes(length)]
        first = encode_example(large)
        if len(stored_member(frame(first))) + 502 == TENSORFLOW_READS + 3:
            break
    path = first_shard(dataset)
    path.write_bytes(indexed([[first], small]))
    assert len(tf_records(path)) == 1
    texts = [finding.message for finding in findings_of(dataset) if finding.file == path.name]
    assert any("TensorFlow stops reading there" in text for text in texts)


def test_verifies_counted_files(tmp_path) -> None:
    folder = tmp_path / "in"
    write_records(folder / "train.tfrecord", make_payloads(20))
    write_records(folder / "test.tfrecord", make_payloads(9), "gzip")
    count(folder, manifest=str(tmp_path / "m.json"))
    assert findings_of(tmp_path / "m.json") == []
    write_records(folder / "new.tfrecord", make_payloads(1))
    data = bytearray((folder / "train.tfrecord").read_bytes())
    data[40] ^= 1
    (folder / "train.tfrecord").write_bytes(data)
    found = findings_of(tmp_path / "m.json")
    assert found[0] == Finding("new.tfrecord", "it is not in the manifest")
    assert (found[1].file, "record 0" in found[1].message) == ("train.tfrecord", True)
    assert len(found) == 2

    count(folder, manifest=str(tmp_path / "fast.json"), check="index")
    assert [finding.file for finding in findings_of(tmp_path / "fast.json")] == ["train.tfrecord"]
