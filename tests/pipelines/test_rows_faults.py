"""Inputs of rows that change under the reader, and inputs that are made to do harm."""

import bz2
import gzip
import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.support.fault_tools import SOAK, Ended, Watched, check_dataset, zygote
from tests.support.readers import tf_examples

pytestmark = pytest.mark.heavy

GOOD = b"".join(b"%d,%d.5,text%d\n" % (n, n, n % 7) for n in range(5_000))
HEADER = b"id,value,word\n"
SCHEMA = (
    'feature { name: "id" type: INT presence { min_fraction: 1 } }\n'
    'feature { name: "value" type: FLOAT presence { min_fraction: 1 } }\n'
    'feature { name: "word" type: BYTES presence { min_fraction: 1 } }\n'
)
MIB = 1 << 20
PEAK = 900  # MiB, of which some 210 are Python, Beam and Arrow


def run(source: Path | str, output: Path, *flags: object, **kwargs) -> Ended:
    """Runs the real command; whatever the input, it ends well or in one sentence."""
    ended = zygote().run("rows", f"--input={source}", f"--output={output}", *flags, **kwargs)
    assert ended.code in (0, 1, 2), ended
    if ended.code:
        said = ended.stderr.splitlines()
        assert "Traceback" not in ended.stderr
        assert said[-1].startswith("shardmill: "), ended.stderr
        assert len(said[-1]) < 3_000
    assert ended.peak < PEAK, ended
    printable(ended.stdout + ended.stderr)
    return ended


def printable(text: str) -> None:
    """Asserts that nothing can take over a terminal."""
    assert all(letter.isprintable() or letter == "\n" for letter in text), repr(text[:500])


def published(source: Path | str, output: Path, *flags: object, **kwargs) -> dict:
    ended = run(source, output, *flags, **kwargs)
    assert ended.code == 0, ended.stderr
    check_dataset_of_rows(output)
    return json.loads((output / "manifest.json").read_text())


def check_dataset_of_rows(output: Path) -> None:
    labels = output / "labels.txt"
    if not labels.exists():  # as there is no label
        labels.touch()
        check_dataset(output)
        labels.unlink()
    else:
        check_dataset(output)


def reasons(manifest: dict) -> dict[str, int]:
    return manifest["inputs"]["rejected_by_reason"]


def rejects_of(output: Path) -> list[dict]:
    (path,) = [*output.glob("rejects.jsonl"), *output.glob(".build-*/rejects.jsonl")]
    return [json.loads(line) for line in path.read_text().splitlines()]


def ids_of(output: Path) -> Counter:
    examples = [e for path in sorted(output.glob("*.tfrecord.gz")) for e in tf_examples(path)]
    return Counter(example["id"][0] for example in examples)


# Inputs that change between listing and reading.


def replaced(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(b"9" * size)


CHANGES = {
    "vanished": (Path.unlink, "not_found"),
    "truncated": (lambda path: os.truncate(path, 40), "changed"),
    "emptied": (lambda path: os.truncate(path, 0), "changed"),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b"9,9,x\n"), "changed"),
    "replaced": (replaced, "changed"),
    "touched": (lambda path: os.utime(path, ns=(1, 1)), "changed"),
}


def make_tables(folder: Path) -> Path:
    folder.mkdir()
    for number in range(len(CHANGES) + 2):
        rows = b"".join(b"%d,1.5,x\n" % (number * 100 + row) for row in range(100))
        data = HEADER + rows
        (folder / f"{number}.csv").write_bytes(data)
    path = folder / "7.csv"
    (folder / "7.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    (folder / "schema.pbtxt").write_text(SCHEMA)
    return folder


@pytest.mark.parametrize("moment", ["/runs", "/parts"])
def test_inputs_that_change_under_a_real_build(tmp_path, moment):
    """Stopped before the first run, or before the first part, when all is read already."""
    source, output = make_tables(tmp_path / "tables"), tmp_path / "out"
    flags = [f"--input={source}", f"--output={output}", f"--schema={source / 'schema.pbtxt'}"]
    flags += ["--max_reject_fraction=1", "--threads=1"]
    watch = Watched(output, since=moment, at=(1,), number=signal.SIGSTOP)
    command = zygote().start("rows", *flags, watch=watch)
    assert command.wait_stopped()
    for number, (alter, _) in enumerate(CHANGES.values()):
        alter(source / f"{number}.csv")
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert ended.code == 0, ended.stderr
    check_dataset_of_rows(output)
    manifest = json.loads((output / "manifest.json").read_text())
    refused = {reject["key"].partition("@")[0]: reject["error"] for reject in rejects_of(output)}
    if moment == "/parts":
        assert not refused
        assert manifest["written"] == 800
        return
    # The file whose run was about to be written had been read, and one may have been ahead.
    assert len(refused) >= len(CHANGES) - 2
    for key, error in refused.items():
        assert error == list(CHANGES.values())[int(key[0])][1]
    ids = ids_of(output)
    assert set(ids.values()) == {1}
    for number in range(8):
        own = sum(id_ // 100 == number for id_ in ids)
        assert own == (0 if f"{number}.csv" in refused else 100)
    again = zygote().run("rows", *flags)
    assert again.code == 1  # other inputs now
    assert "--overwrite" in again.sentence


def test_a_file_more_or_less_is_another_dataset(tmp_path):
    source, output = make_tables(tmp_path / "tables"), tmp_path / "out"
    first = published(source, output)
    shutil.copy(source / "0.csv", source / "new.csv")
    ended = run(source, output)
    assert ended.code == 1
    assert "--overwrite" in ended.stderr
    assert json.loads((output / "manifest.json").read_text()) == first
    assert published(source, output, "--overwrite")["written"] == first["written"] + 100
    (source / "new.csv").unlink()
    (source / "0.csv").unlink()
    assert run(source, output).code == 1
    assert published(source, output, "--overwrite")["written"] == first["written"] - 100


# Rows and files that are too much.


def test_one_row_of_100_megabytes(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + GOOD + b"5,1.5," + b"x" * (100 * MIB) + b"\n" + GOOD)
    manifest = published(path, tmp_path / "out")
    assert reasons(manifest) == {"too_large": 1}
    assert manifest["written"] == 10_000


@pytest.mark.parametrize("size", [20, 200] if SOAK else [8])
def test_a_quote_that_nobody_closed(tmp_path, size):
    """In the middle of a large file: the one row is refused, all before and behind it are there."""
    times = size * MIB // 2 // len(GOOD)
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + GOOD * times + b'7,1.5,"open\n' + GOOD * times)
    manifest = published(path, tmp_path / "out")
    assert reasons(manifest) == {"quote": 1}
    assert manifest["written"] == 2 * times * 5_000
    (reject,) = rejects_of(tmp_path / "out")
    assert reject["key"] == f"x.csv:{times * 5_000 + 2}"


@pytest.mark.parametrize("packing", ["gzip", "bzip2"])
def test_a_bomb(tmp_path, packing):
    """300 MB of the same letter in some hundred kilobytes, behind good rows, beside a good file."""
    pack = {"gzip": lambda data: gzip.compress(data, 6), "bzip2": bz2.compress}[packing]
    source = tmp_path / "tables"
    source.mkdir()
    zeros = pack(bytes(8 * MIB).replace(b"\0", b"x")) * (40 if not SOAK else 400)
    (source / "bomb.csv").write_bytes(pack(HEADER + GOOD) + zeros + pack(b"\n" + GOOD))
    (source / "good.csv").write_bytes(HEADER + GOOD)
    manifest = published(source, tmp_path / "out")
    assert set(reasons(manifest)) == {"too_large"}
    # The good file, and the rows before the bomb.
    assert manifest["written"] == 10_000


@pytest.mark.parametrize("rows", [1_000_000 if SOAK else 50_000])
def test_very_many_bad_rows(tmp_path, rows):
    path, schema = tmp_path / "x.csv", tmp_path / "schema.pbtxt"
    schema.write_text(SCHEMA)
    path.write_bytes(HEADER + GOOD + b"x1,1.5,t\n" * rows + GOOD)
    flags = (f"--schema={schema}",)
    ended = run(path, tmp_path / "out", *flags)
    assert ended.code == 1
    assert f"{rows:,} of {rows + 10_000:,}" in ended.stderr
    assert "column 'id'" in ended.stderr
    manifest = published(path, tmp_path / "out", *flags, "--max_reject_fraction=1")
    assert manifest["written"] == 10_000
    assert reasons(manifest) == {"cast": rows}


def test_a_row_of_very_many_cells(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + GOOD + b",".join([b"1"] * 100_000) + b"\n" + GOOD)
    manifest = published(path, tmp_path / "out")
    assert (reasons(manifest), manifest["written"]) == ({"ragged": 1}, 10_000)
    (reject,) = rejects_of(tmp_path / "out")
    assert len(reject["message"]) < 300


@pytest.mark.parametrize("columns", [20_000] if SOAK else [1_000])
def test_very_many_columns(tmp_path, columns):
    path = tmp_path / "x.csv"
    names = b",".join(b"c%d" % number for number in range(columns))
    path.write_bytes(names + b"\n" + b",".join([b"7"] * columns) + b"\n")
    manifest = published(path, tmp_path / "out", "--splits=train:1")
    assert manifest["written"] == 1
    assert len(manifest["features"]) == columns


def test_more_columns_than_a_table_has(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b",".join(b"c%d" % n for n in range(150_000)) + b"\n1\n")
    ended = run(path, tmp_path / "out")
    assert ended.code == 1
    assert "100,000" in ended.stderr


def test_a_name_of_a_megabyte(tmp_path):
    path, output = tmp_path / "x.csv", tmp_path / "out"
    path.write_bytes(b"id," + b"n" * MIB + b"\n" + b"1,2\n" * 20)
    published(path, output, "--splits=train:1")
    ended = run(path, tmp_path / "other", "--label=wrong")
    assert ended.code == 2
    assert "--label=wrong is no column" in ended.stderr


ODD = {
    "escape": "a\x1b[31mred\x1b]0;title\x07",
    "quote": "b\"q'",
    "slash": "c/../d\\e",
    "newline": "e\nf\r\ng",
    "nul": "k\x00l",
    "right to left": "x\u202etxt",
    "emoji": "🙂",
    "space": " ",
}


def test_odd_names_of_columns(tmp_path):
    """They come back from the records and the schema as they were, and break no terminal."""
    path, output = tmp_path / "x.csv", tmp_path / "out"
    header = ",".join('"' + name.replace('"', '""') + '"' for name in ODD.values())
    row = ",".join(str(number) for number in range(len(ODD)))
    path.write_bytes(f"{header}\n{row}\n{row},too many\n".encode())
    published(path, output, "--splits=train:1")
    (example,) = tf_examples(next(output.glob("train*")))
    assert example == {name: [number] for number, name in enumerate(ODD.values())}
    for name in ("schema.pbtxt", "rejects.jsonl"):
        assert not set((output / name).read_text()) & set("\x00\x07\x1b\r")
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = text_format.Parse((output / "schema.pbtxt").read_text(), schema_pb2.Schema())
    assert {feature.name for feature in schema.feature} == set(ODD.values())
    for flag in ("--label=wrong", "--key=wrong", "--split_by=wrong", "--group_by=wrong"):
        assert run(path, tmp_path / "other", flag).code == 2
    ended = zygote().run("show", output)
    assert ended.code == 0, ended.stderr
    printable(ended.stdout)
    schema_file = output / "schema.pbtxt"
    path.write_bytes(f"{header}\n{row.replace('0', 'zero')}\n{row}\n{row}\n".encode())
    ended = run(path, tmp_path / "strict", f"--schema={schema_file}", "--max_reject_fraction=0")
    assert ended.code in (0, 1)


def test_names_of_columns_that_are_no_utf_8(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"id,g\xff\n1,2\n")
    ended = run(path, tmp_path / "out")
    assert ended.code == 1
    assert "0xff" in ended.stderr
    assert published(path, tmp_path / "out", "--encoding=latin-1")["written"] == 1


def test_nuls_in_cells(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + b"1,2.5,a\0b\n\0,2.5,x\n2,2.5,\0\n" + GOOD)
    schema = tmp_path / "schema.pbtxt"
    schema.write_text(SCHEMA)
    manifest = published(path, tmp_path / "out", f"--schema={schema}", "--splits=train:1")
    assert reasons(manifest) == {"cast": 1}
    examples = tf_examples(next((tmp_path / "out").glob("train*")))
    words = {example["word"][0] for example in examples}
    assert {b"a\0b", b"\0"} <= words


# Labels, keys and splits.


def test_labels_with_control_characters(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + GOOD + b'1,2.5,"new\nline"\n1,2.5,\x1b[31mred\n')
    manifest = published(path, tmp_path / "out", "--label=word")
    assert reasons(manifest) == {"label_text": 2}
    assert len((tmp_path / "out/labels.txt").read_text().splitlines()) == 7


@pytest.mark.parametrize("rows", [1_000_000] if SOAK else [30_000])
def test_very_many_labels_keys_and_splits(tmp_path, rows):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + b"".join(b"%d,1.5,w%d\n" % (n, n) for n in range(rows)))
    manifest = published(path, tmp_path / "labels", "--label=word")
    assert manifest["written"] == rows
    assert "too many distinct values" in " ".join(manifest["warnings"])
    assert not any(split["label_counts"] for split in manifest["splits"].values())
    assert published(path, tmp_path / "keys", "--key=word")["written"] == rows
    ended = run(path, tmp_path / "splits", "--split_by=word")
    assert ended.code in (1, 2)
    assert "--split_by=word names more than 100 splits" in ended.stderr
    assert not list((tmp_path / "splits").glob("*"))
    assert len(list((tmp_path / "splits").rglob("*"))) < 10


def test_integers_as_labels(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + b"".join(b"%d,1.5,w\n" % (n % 3) for n in range(300)))
    manifest = published(path, tmp_path / "out", "--label=id", "--splits=train:1")
    assert manifest["splits"]["train"]["label_counts"] == {"0": 100, "1": 100, "2": 100}
    assert not (tmp_path / "out/labels.txt").exists()


def test_long_names_of_splits_and_many_of_them(tmp_path):
    path = tmp_path / "x.csv"
    names = [f"s{n}" for n in range(100)] + ["x" * MIB, "a/b", "../up", "new\nline", ""]
    rows = "".join(f'{n},1.5,"{name}"\n' for n, name in enumerate(names))
    path.write_bytes(HEADER + rows.encode())
    manifest = published(path, tmp_path / "out", "--split_by=word")
    assert len(manifest["splits"]) == 100
    assert reasons(manifest) == {"no_split": 5}
    assert not list(tmp_path.glob("up*"))
    assert max(len(reject["message"]) for reject in rejects_of(tmp_path / "out")) < 400


def test_shares_of_very_many_splits(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + GOOD)
    shares = ",".join(f"s{number}:1/200" for number in range(200))
    manifest = published(path, tmp_path / "out", f"--splits={shares}")
    assert sum(split["num_examples"] for split in manifest["splits"].values()) == 5_000


def test_keys_of_a_megabyte(tmp_path):
    path, key = tmp_path / "x.csv", b"k" * MIB
    rows = [b"%d,1.5,%d%s\n" % (number, number, key) for number in range(12)]
    again = [b"0,1.5,0%s\n" % key, b"77,1.5,1%s\n" % key]
    path.write_bytes(HEADER + b"".join(rows + again))
    manifest = published(path, tmp_path / "out", "--key=word", "--max_reject_fraction=0.5")
    assert manifest["written"] == 12
    assert manifest["inputs"]["duplicates"] == 1
    assert reasons(manifest) == {"key_conflict": 1}
    (reject,) = rejects_of(tmp_path / "out")
    assert len(reject["message"]) < 500


# Names that are not what they seem.


def test_lists_that_lead_elsewhere(tmp_path):
    source = tmp_path / "tables"
    source.mkdir()
    (tmp_path / "secret.csv").write_bytes(HEADER + b"666666,1.5,x\n")
    for name in ("a.csv", "b.csv", "c.csv"):
        (source / name).write_bytes(HEADER + GOOD[:60])
    (source / "list.txt").write_text("a.csv\n../secret.csv\nb.csv\ngone.csv\nc.csv\n")
    ended = run(source / "list.txt", tmp_path / "out", "--max_reject_fraction=0.5")
    if ended.code:
        assert "secret.csv" in ended.stderr
        return
    assert 666666 not in ids_of(tmp_path / "out")
    found = Counter(reject["error"] for reject in rejects_of(tmp_path / "out"))
    assert found == {"outside_root": 1, "not_found": 1}


def test_pipes_folders_and_links(tmp_path):
    source = tmp_path / "tables"
    (source / "folder.csv").mkdir(parents=True)
    (source / "good.csv").write_bytes(HEADER + GOOD)
    os.mkfifo(source / "pipe.csv")
    (tmp_path / "outside.csv").write_bytes(HEADER + b"666666,1.5,x\n")
    (source / "link.csv").symlink_to(tmp_path / "outside.csv")
    (source / "loop.csv").symlink_to("loop.csv")
    (source / "lost.csv").symlink_to("nowhere.csv")
    manifest = published(source, tmp_path / "out", "--max_reject_fraction=0.5")
    assert manifest["written"] == 5_000
    assert 666666 not in ids_of(tmp_path / "out")
    assert reasons(manifest) == {"not_a_file": 1, "outside_root": 1, "not_found": 2}
    ended = run(source / "pipe.csv", tmp_path / "pipe")
    assert ended.code in (1, 2)
