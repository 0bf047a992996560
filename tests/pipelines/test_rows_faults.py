"""Rows from inputs that change during the build, and from malicious inputs."""

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
from tests.support.rows_tools import rejects_of

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
    """Run the command; it must succeed, or fail with one sentence, in bounded memory."""
    ended = zygote().run("rows", f"--input={source}", f"--output={output}", *flags, **kwargs)
    assert ended.code in (0, 1, 2), ended
    if ended.code:
        last = ended.stderr.splitlines()[-1]
        assert "Traceback" not in ended.stderr
        assert last.startswith("shardmill: "), ended.stderr
        assert len(last) < 3_000
    assert ended.peak < PEAK, ended
    assert_printable(ended.stdout + ended.stderr)
    return ended


def assert_printable(text: str) -> None:
    """Check that the text has no terminal control characters."""
    assert all(letter.isprintable() or letter == "\n" for letter in text), repr(text[:500])


def published(source: Path | str, output: Path, *flags: object, **kwargs) -> dict:
    ended = run(source, output, *flags, **kwargs)
    assert ended.code == 0, ended.stderr
    check_dataset_of_rows(output)
    return json.loads((output / "manifest.json").read_text())


def check_dataset_of_rows(output: Path) -> None:
    labels = output / "labels.txt"
    if not labels.exists():  # check_dataset expects the file
        labels.touch()
        check_dataset(output)
        labels.unlink()
    else:
        check_dataset(output)


def reasons(manifest: dict) -> dict[str, int]:
    return manifest["inputs"]["rejected_by_reason"]


def ids_of(output: Path) -> Counter:
    examples = [e for path in sorted(output.glob("*.tfrecord.gz")) for e in tf_examples(path)]
    return Counter(example["id"][0] for example in examples)


# Inputs that change between listing and reading.


def replace_file(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(b"9" * size)


CHANGES = {
    "vanished": (Path.unlink, "not_found"),
    "truncated": (lambda path: os.truncate(path, 40), "changed"),
    "emptied": (lambda path: os.truncate(path, 0), "changed"),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b"9,9,x\n"), "changed"),
    "replaced": (replace_file, "changed"),
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
def test_rejects_inputs_that_change_during_the_build(tmp_path, moment):
    """The build stops before the first run, or before the first part, when all was read."""
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
    rejected = {reject["key"].partition("@")[0]: reject["error"] for reject in rejects_of(output)}
    if moment == "/parts":
        assert not rejected
        assert manifest["written"] == 800
        return
    # The file whose run was about to be written had been read, and maybe the next one.
    assert len(rejected) >= len(CHANGES) - 2
    for key, error in rejected.items():
        assert error == list(CHANGES.values())[int(key[0])][1]
    ids = ids_of(output)
    assert set(ids.values()) == {1}
    for number in range(8):
        own = sum(id_ // 100 == number for id_ in ids)
        assert own == (0 if f"{number}.csv" in rejected else 100)
    again = zygote().run("rows", *flags)
    assert again.code == 1  # the inputs differ now
    assert "--overwrite" in again.sentence


def test_adding_or_removing_a_file_needs_overwrite(tmp_path):
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


# Rows and files that are too large.

# name: (row, reason, copies of GOOD before and after it)
HARMFUL_ROWS = {
    "100 MiB": (lambda: b"5,1.5," + b"x" * (100 * MIB), "too_large", 1),
    "100,000 cells": (lambda: b",".join([b"1"] * 100_000), "ragged", 1),
    **{
        f"unclosed quote in {size} MiB": (
            lambda: b'7,1.5,"open', "quote", size * MIB // 2 // len(GOOD)
        )
        for size in ([20, 200] if SOAK else [8])
    },
}  # fmt: skip


@pytest.mark.parametrize("case", HARMFUL_ROWS)
def test_a_harmful_row_is_one_reject(tmp_path, case):
    row, reason, copies = HARMFUL_ROWS[case]
    path = tmp_path / "x.csv"
    path.write_bytes(b"".join([HEADER, GOOD * copies, row(), b"\n", GOOD * copies]))
    manifest = published(path, tmp_path / "out")
    assert (reasons(manifest), manifest["written"]) == ({reason: 1}, 10_000 * copies)
    (reject,) = rejects_of(tmp_path / "out")
    assert reject["key"] == f"x.csv:{copies * 5_000 + 2}"
    assert len(reject["message"]) < 300


@pytest.mark.parametrize("compression", ["gzip", "bzip2"])
def test_a_decompression_bomb_is_one_reject(tmp_path, compression):
    """300 MB of one letter in a few hundred kilobytes, after valid rows, next to a valid file."""
    compress = {"gzip": lambda data: gzip.compress(data, 6), "bzip2": bz2.compress}[compression]
    source = tmp_path / "tables"
    source.mkdir()
    bomb = compress(b"x" * (8 * MIB)) * (40 if not SOAK else 400)
    (source / "bomb.csv").write_bytes(compress(HEADER + GOOD) + bomb + compress(b"\n" + GOOD))
    (source / "good.csv").write_bytes(HEADER + GOOD)
    manifest = published(source, tmp_path / "out")
    assert set(reasons(manifest)) == {"too_large"}
    assert manifest["written"] == 10_000  # the valid file, and the rows before the bomb


@pytest.mark.parametrize("rows", [1_000_000 if SOAK else 50_000])
def test_counts_very_many_bad_rows(tmp_path, rows):
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


@pytest.mark.parametrize("columns", [20_000] if SOAK else [1_000])
def test_reads_very_many_columns(tmp_path, columns):
    path = tmp_path / "x.csv"
    names = b",".join(b"c%d" % number for number in range(columns))
    path.write_bytes(names + b"\n" + b",".join([b"7"] * columns) + b"\n")
    manifest = published(path, tmp_path / "out", "--splits=train:1")
    assert manifest["written"] == 1
    assert len(manifest["features"]) == columns


def test_rejects_more_than_100_000_columns(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b",".join(b"c%d" % n for n in range(150_000)) + b"\n1\n")
    ended = run(path, tmp_path / "out")
    assert ended.code == 1
    assert "100,000" in ended.stderr


def test_reads_a_column_name_of_a_megabyte(tmp_path):
    path, output = tmp_path / "x.csv", tmp_path / "out"
    path.write_bytes(b"id," + b"n" * MIB + b"\n" + b"1,2\n" * 20)
    published(path, output, "--splits=train:1")
    ended = run(path, tmp_path / "other", "--label=wrong")
    assert ended.code == 2
    assert "--label=wrong is not a column" in ended.stderr


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


def test_keeps_unusual_column_names(tmp_path):
    """Records and schema have the names unchanged; the terminal gets no control characters."""
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
    assert_printable(ended.stdout)
    schema_file = output / "schema.pbtxt"
    path.write_bytes(f"{header}\n{row.replace('0', 'zero')}\n{row}\n{row}\n".encode())
    ended = run(path, tmp_path / "strict", f"--schema={schema_file}", "--max_reject_fraction=0")
    assert ended.code in (0, 1)


def test_rejects_column_names_that_are_not_utf_8(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"id,g\xff\n1,2\n")
    ended = run(path, tmp_path / "out")
    assert ended.code == 1
    assert "0xff" in ended.stderr
    assert published(path, tmp_path / "out", "--encoding=latin-1")["written"] == 1


def test_keeps_nuls_in_cells(tmp_path):
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


def test_rejects_labels_with_control_characters(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + GOOD + b'1,2.5,"new\nline"\n1,2.5,\x1b[31mred\n')
    manifest = published(path, tmp_path / "out", "--label=word")
    assert reasons(manifest) == {"label_text": 2}
    assert len((tmp_path / "out/labels.txt").read_text().splitlines()) == 7


@pytest.mark.parametrize("rows", [1_000_000] if SOAK else [30_000])
def test_accepts_very_many_labels_and_keys_but_not_splits(tmp_path, rows):
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


def test_counts_integer_labels_without_labels_txt(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + b"".join(b"%d,1.5,w\n" % (n % 3) for n in range(300)))
    manifest = published(path, tmp_path / "out", "--label=id", "--splits=train:1")
    assert manifest["splits"]["train"]["label_counts"] == {"0": 100, "1": 100, "2": 100}
    assert not (tmp_path / "out/labels.txt").exists()


def test_rejects_rows_with_invalid_split_names(tmp_path):
    path = tmp_path / "x.csv"
    names = [f"s{n}" for n in range(100)] + ["x" * MIB, "a/b", "../up", "new\nline", ""]
    rows = "".join(f'{n},1.5,"{name}"\n' for n, name in enumerate(names))
    path.write_bytes(HEADER + rows.encode())
    manifest = published(path, tmp_path / "out", "--split_by=word")
    assert len(manifest["splits"]) == 100
    assert reasons(manifest) == {"no_split": 5}
    assert not list(tmp_path.glob("up*"))
    assert max(len(reject["message"]) for reject in rejects_of(tmp_path / "out")) < 400


def test_splits_by_very_many_shares(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + GOOD)
    shares = ",".join(f"s{number}:1/200" for number in range(200))
    manifest = published(path, tmp_path / "out", f"--splits={shares}")
    assert sum(split["num_examples"] for split in manifest["splits"].values()) == 5_000


def test_finds_duplicates_by_keys_of_a_megabyte(tmp_path):
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


# Paths outside the input, and paths that are not files.


def test_does_not_read_listed_files_outside_the_root(tmp_path):
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


def test_rejects_pipes_and_links_outside_the_root(tmp_path):
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
