"""Rows from malicious and from large inputs."""

import json
import random
from pathlib import Path

import pytest

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from tests.support.fault_tools import SOAK, Ended, zygote
from tests.support.readers import tf_examples
from tests.support.rows_tools import check_dataset, make_table, rejects_of

pytestmark = pytest.mark.heavy

GOOD = b"".join(b"%d,%d.5,text%d\n" % (n, n, n % 7) for n in range(5_000))
HEADER = b"id,value,word\n"
SCHEMA = format_schema([Column("id", "int64"), Column("value", "float32"), Column("word", "bytes")])
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
    text = (output / "manifest.json").read_text()
    check_dataset(output, Manifest.from_json(text))
    return json.loads(text)


def reasons(manifest: dict) -> dict[str, int]:
    return manifest["inputs"]["rejected_by_reason"]


# Rows and files that are too large.


@pytest.mark.parametrize("rows", [1_000_000 if SOAK else 50_000])
def test_counts_very_many_bad_rows(tmp_path, rows):
    path, schema = tmp_path / "x.csv", tmp_path / "schema.pbtxt"
    schema.write_text(SCHEMA)
    path.write_bytes(HEADER + GOOD + b"x1,1.5,t\n" * rows + GOOD)
    flags = (f"--schema={schema}",)
    ended = run(path, tmp_path / "out", *flags)
    assert ended.code == 1
    assert f"{rows:,} of {rows + 10_000:,}" in ended.stderr
    assert "column 'id', for example x.csv:5002" in ended.stderr
    manifest = published(path, tmp_path / "out", *flags, "--max_reject_fraction=1")
    assert manifest["written"] == 10_000
    assert reasons(manifest) == {"cast": rows}


@pytest.mark.parametrize("columns", [20_000] if SOAK else [1_000])
def test_reads_very_many_and_very_long_column_names(tmp_path, columns):
    path = tmp_path / "x.csv"
    names = [b"n" * MIB, *(b"c%d" % number for number in range(1, columns))]
    path.write_bytes(b",".join(names) + b"\n" + b",".join([b"7"] * columns) + b"\n")
    manifest = published(path, tmp_path / "out", "--splits=train:1")
    assert manifest["written"] == 1
    assert len(manifest["features"]) == columns
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
    (example,) = tf_examples(next(output.glob("current/train*")))
    assert example == {name: [number] for number, name in enumerate(ODD.values())}
    for name in ("schema.pbtxt", "rejects.jsonl"):
        assert not set((output / "current" / name).read_text()) & set("\x00\x07\x1b\r")
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = text_format.Parse((output / "current/schema.pbtxt").read_text(), schema_pb2.Schema())
    assert {feature.name for feature in schema.feature} == set(ODD.values())
    for flag in ("--label=wrong", "--key=wrong", "--split_by=wrong", "--group_by=wrong"):
        assert run(path, tmp_path / "other", flag).code == 2
    ended = zygote().run("show", output)
    assert ended.code == 0, ended.stderr
    assert_printable(ended.stdout)


# Labels, keys and splits.


def test_rejects_labels_with_control_characters(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(HEADER + GOOD + b'1,2.5,"new\nline"\n1,2.5,\x1b[31mred\n')
    manifest = published(path, tmp_path / "out", "--label=word")
    assert reasons(manifest) == {"label_text": 2}
    assert len((tmp_path / "out/current/labels.txt").read_text().splitlines()) == 7


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


# Memory.


def write_table(path: Path, rows: int) -> Path:
    """Write a table of 42 columns: numbers, fractions and categories."""
    rng = random.Random(7)
    tails = [
        [rng.randrange(10 ** (1 + k % 6)) for k in range(26)]
        + [rng.randrange(100) / 100 for _ in range(14)]
        for _ in range(20_000)
    ]
    names = ["n", "kind", *(f"c{k}" for k in range(40))]
    kinds = ((n, f"t{n // 5_000 % 70}", *tails[n % len(tails)]) for n in range(rows))
    return make_table(path, names, kinds)


LIMIT = 1024  # MiB
SIZES = (500_000, 3_000_000) if SOAK else (100_000, 300_000)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_rows(tmp_path):
    peaks = []
    for rows in SIZES:
        path = write_table(tmp_path / f"{rows}.csv", rows)
        output = tmp_path / f"out{rows}"
        ended = zygote().run("rows", f"--input={path}", f"--output={output}", "--label=kind")
        assert ended.code == 0, ended.stderr
        assert f"matched    {rows:,} rows" in ended.stdout
        assert (output / "manifest.json").exists()
        peaks.append(ended.peak)
        path.unlink()
    print(f"peak memory: {dict(zip(SIZES, peaks, strict=True))} MiB")
    assert max(peaks) < LIMIT
    assert peaks[1] < peaks[0] * 1.35, peaks
