"""``shardmill show``: datasets, TFRecord files, and escaped text."""

import contextlib
import gzip
import io
import json
import os
import re
import struct
import subprocess
import sys
import warnings
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from shardmill.pipelines.report.layout import Layout, fields, print_report
from shardmill.pipelines.report.show_data import describe, describe_bytes, describe_record
from shardmill.pipelines.report.show_text import render
from shardmill.schemas.errors import InputError
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.numbers import printable
from shardmill.schemas.tfrecord.framing import frame, masked_crc
from tests.conftest import build_dataset, examples, make_image, make_photos, shardmill
from tests.support.publications import damaged

RECORDS = [encode_example({"n": number, "name": b"name %d" % number}) for number in range(5)]


def shown(path, width: int = 100, **options) -> list[str]:
    """Return the plain lines for a path; each must be printable and fit the width."""
    return lines_of(describe(str(path), **options), width)


def lines_of(report: dict, width: int = 100, *, ascii_only: bool = False) -> list[str]:
    output, layout = io.StringIO(), Layout(width, ascii_only)
    print_report(render(report, layout), layout, output)
    lines = output.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    assert not ascii_only or "".join(lines).isascii()
    path = printable(report["path"])  # is not cut, so that it can be copied
    widest = max((line for line in lines if path not in line), key=cell_len)
    assert cell_len(widest) <= width, widest
    return lines


def record_lines(record: dict, width: int = 100) -> list[str]:
    records = {"split": None, "file": "f", "first": [record], "damage": ""}
    found = {"kind": "file", "path": "f", "bytes": 9, "compression": "none", "records": records}
    return lines_of(found, width)


def test_a_key_may_have_another_form_of_unicode(tmp_path) -> None:
    make_photos(tmp_path / "in", {"caf\u00e9": 1}, size=(8, 8))
    build_dataset(input=tmp_path / "in", output=tmp_path / "ds", image_size=8, splits="train:1")
    for accent in ("\u00e9", "e\u0301"):
        assert describe(str(tmp_path / "ds"), key=f"caf{accent}/000.jpg")["found"]


def test_json_agrees_with_the_manifest(dataset) -> None:
    done = shardmill("show", dataset, "--json", "--records=2", "--split=validation")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    manifest = json.loads((dataset / "manifest.json").read_text())
    assert found["kind"] == "dataset"
    assert found["num_examples"] == manifest["written"]
    for name, split in found["splits"].items():
        for shard, listed in zip(split["shards"], manifest["splits"][name]["shards"], strict=True):
            prefix = f"{manifest['generation']}/"
            shard["catalog"]["file"] = prefix + shard["catalog"]["file"]
            assert {**shard, "file": prefix + shard["file"]} == listed
        assert {label["label"]: label["splits"][name] for label in found["labels"]} == (
            manifest["splits"][name]["label_counts"]
        )
    for field in ("inputs", "features", "warnings"):
        assert found[field] == manifest[field]
    assert found["rejects"][0]["key"] == "cat/broken.jpg"
    assert found["records"]["split"] == "validation"
    assert len(found["records"]["first"]) == 2
    image = found["records"]["first"][0]["features"]["image/encoded"]["values"][0]["image"]
    assert image == {"format": "JPEG", "width": 32, "height": 32, "mode": "RGB"}


def test_reads_records_from_several_shards(photos, tmp_path) -> None:
    build_dataset(
        input=photos, output=tmp_path / "ds", image_size=16, num_shards=7, splits="train:1"
    )
    found = describe(str(tmp_path / "ds"), records=9)
    assert len({record["file"] for record in found["records"]["first"]}) >= 2
    assert len(found["records"]["first"]) == 9


def test_prints_colours_within_the_width_of_a_terminal(dataset) -> None:
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "shardmill.pipelines.cli", "show", str(dataset)],
        stdout=slave,
        stderr=slave,
        env=environment,
    )
    os.close(slave)
    output = b""
    try:
        while chunk := os.read(master, 65536):
            output += chunk
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert process.wait(60) == 0
    text = output.decode()
    assert "\x1b[1m" in text
    bare = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "\x1b" not in bare
    lines = bare.replace("\r\n", "\n").split("\n")
    assert all(cell_len(line) <= 60 or str(dataset) in line for line in lines)
    assert "Labels  2" in lines


def test_prints_ascii_if_the_encoding_needs_it(dataset) -> None:
    lines_of(describe(str(dataset)), ascii_only=True)
    done = shardmill("show", dataset, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "####" in done.stdout


@pytest.mark.parametrize("suffix", ["tfrecord", "gz", "txt", ""])
@pytest.mark.parametrize(("compression", "pack"), [("none", bytes), ("gzip", gzip.compress)])
def test_detects_compression_from_the_bytes(tmp_path, suffix, compression, pack) -> None:
    path = tmp_path / f"file.{suffix}"
    path.write_bytes(pack(b"".join(map(frame, RECORDS))))
    found = describe(str(path), records=2)
    assert found["kind"] == "file"
    assert found["compression"] == compression
    assert found["bytes"] == path.stat().st_size
    assert [record["features"]["n"]["values"] for record in found["records"]["first"]] == [[0], [1]]
    assert '    name  "name 1"' in shown(path)


@pytest.mark.nightly
def test_survives_damage_to_any_manifest_field(dataset) -> None:
    path = dataset / "manifest.json"
    values = (None, "\x1b[2Jtext", -1, 1.5, [], {"a": 1})
    tried = reported = 0
    for _, body in damaged(json.loads(path.read_text()), values):
        path.write_text(json.dumps(body))
        tried += 1
        with contextlib.suppress(InputError):
            shown(dataset, records=1)
            reported += 1
    assert tried > 300
    assert reported > 100


def test_shows_the_records_before_a_bomb_in_bounded_memory(tmp_path) -> None:
    path, size = tmp_path / "bomb.tfrecord.gz", 1 << 30
    head = struct.pack("<Q", size)
    with gzip.open(path, "wb", 9) as file:
        file.write(frame(RECORDS[0]) + head + struct.pack("<I", masked_crc(head)))
        for _ in range(16):  # 256 MiB
            file.write(bytes(1 << 24))
    read = (
        "import re, sys; from shardmill.pipelines.cli import main; main(sys.argv[1:]);"
        "print(int(re.search('VmHWM: *([0-9]+)', open('/proc/self/status').read().replace(chr(9),"
        " ' '))[1]) >> 10)"
    )
    done = subprocess.run(
        [sys.executable, "-c", read, "show", path], capture_output=True, text=True, check=True
    )
    text = " ".join(done.stdout.split())
    assert "name 0" in text
    assert f"record 1 at byte {len(frame(RECORDS[0]))} has {size + 16:,} bytes, over the" in text
    assert int(text.split()[-1]) < 200  # MiB


def test_shows_the_most_frequent_labels(tmp_path) -> None:
    classes = {f"label {number:03d}": 1 for number in range(30)} | {"label 017": 4, "zz": 3}
    make_photos(tmp_path / "photos", classes, size=(8, 8))
    build_dataset(input=tmp_path / "photos", output=tmp_path / "ds", image_size=8)
    lines = shown(tmp_path / "ds")
    at = lines.index("Labels  31, the most frequent:")
    assert re.match(r"  label 017 +17 .* 4  █{24}$", lines[at + 2])
    assert re.match(r"  zz +30 .* 3  █{18}$", lines[at + 3])
    assert lines[at + 22] == "  … and 11 more labels"
    assert "  ... and 11 more labels" in lines_of(describe(str(tmp_path / "ds")), ascii_only=True)


HOSTILE = [
    "[bold]b[/bold] [/] :smile: [link=file:///x]y[/link]",
    "\x1b[2J\x1b]0;owned\x07",
    "a\nb\r",
    "\u202egnp.exe",
    "\x9b31m",
    "字" * 300,
    "x" * 5000,
    "e\u0301" * 90,
]


def test_escapes_and_shortens_hostile_texts(dataset) -> None:
    path = dataset / "manifest.json"
    body = json.loads(path.read_text())
    body["labels"] += HOSTILE
    for split in body["splits"].values():
        split["label_counts"] |= dict.fromkeys(HOSTILE, 1)
    body["splits"] |= {
        text: {"num_examples": 0, "num_bytes": 0, "label_counts": {}, "shards": []}
        for text in HOSTILE
    }
    body["warnings"] = HOSTILE
    body["features"] = [{"name": t, "type": t, "source": t} for t in HOSTILE]
    body["compression"] = body["build"]["finished"] = body["inputs"]["root"] = "".join(HOSTILE)[:40]
    body["inputs"]["rejected_by_reason"] = dict.fromkeys(HOSTILE, 1)
    path.write_text(json.dumps(body))
    rejects = [{"key": t, "stage": t, "error": t, "message": t} for t in HOSTILE]
    (dataset / "rejects.jsonl").write_text("\n".join(["damaged", *map(json.dumps, rejects)]) + "\n")
    (dataset / "train-00000-of-00001.tfrecord.gz").write_bytes(
        b"".join(
            frame(encode_example({"a" * 300: text.encode() * 3, "b": [text.encode()] * 50}))
            for text in HOSTILE
        )
    )
    for width in (40, 60, 80, 100, 200):
        lines = shown(dataset, width, records=99)
        assert len(lines) > 60
    assert any("\\x1b[2J" in line for line in lines)
    assert sum("[bold]b[/bold] [/] :smile:" in line for line in lines) >= 5  # not markup
    done = shardmill("show", dataset, "--json")
    assert done.stdout.replace("\n", "").isprintable()


@pytest.mark.parametrize("text", [*HOSTILE, "plain", "größe", "字x字", "a\u0301b", "한국어", "🐈"])
def test_cut_text_fits_its_width(text) -> None:
    for width in range(1, 30):
        for layout in (Layout(), Layout(ascii_only=True)):
            assert cell_len(layout.cut(text, width)) <= width
    assert Layout().cut("x" * 50, 10) == "xxxxxxxxx…"
    assert Layout(ascii_only=True).cut("x" * 50, 10) == "xxxxxxx..."
    assert Layout().cut("x" * 10, 10) == "x" * 10


def test_fields_are_aligned_escaped_and_never_cut() -> None:
    """Paths in the summary of a build can be copied, also from a pipe of 100 columns."""
    output = io.StringIO()
    rows = [("train", "5 examples"), ("a very long split", "x" * 300), ("manifest", "a\nb")]
    print_report(fields(rows), Layout(), output)
    assert output.getvalue().splitlines() == [
        "  train             5 examples",
        "  a very long split " + "x" * 300,
        "  manifest          a\\nb",
    ]
    (line,) = fields([("parts", "2 made")])
    assert line.plain == "  parts      2 made"


def test_detects_text_that_is_cut_inside_a_character() -> None:
    for start in range(4):
        described = describe_bytes(b"x" * start + "字🐈".encode() * 2000)
        assert described["text"].startswith("x" * start + "字🐈字")
    assert "base64" in describe_bytes("字".encode()[:2])


def test_names_bombs_and_broken_images_without_decoding() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    start = b"\x89PNG\r\n\x1a\n"
    bomb = start + chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    bomb += chunk(b"IDAT", zlib.compress(b""))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert describe_bytes(bomb)["image"] == {
            "format": "PNG",
            "error": "too many pixels to open",
        }
        large = bomb.replace(struct.pack(">II", 60000, 60000), struct.pack(">II", 10000, 10000))
        large = start + chunk(b"IHDR", large[16:29]) + large[33:]
        assert describe_bytes(large)["image"]["width"] == 10000
        assert describe_bytes(start)["image"] == {"format": "PNG", "error": "does not open"}
    assert "image" not in describe_bytes(b"BMW cars are not bitmaps, and neither is this text")
    assert "image" not in describe_bytes(b"RIFF\0\0\0\0WAVE")
    for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"):
        buffer = io.BytesIO()
        make_image(1, 30, 20).save(buffer, format=kind)
        image = describe_bytes(buffer.getvalue())["image"]
        assert (image["format"], image["width"], image["height"]) == (kind, 30, 20)


def test_survives_any_broken_image(shared_data) -> None:
    files = [path for path in sorted((shared_data / "bad").rglob("*")) if path.is_file()]
    assert len(files) > 500
    opened = sum("image" in describe_bytes(path.read_bytes()) for path in files[::3])
    assert opened > 100


@settings(max_examples=examples(200))
@given(st.one_of(st.binary(max_size=300), st.text(max_size=600).map(str.encode)))
def test_shows_any_payload(payload: bytes) -> None:
    record = describe_record(payload)
    assert json.loads(json.dumps(record)) == record
    record_lines(record, 60)
    record_lines(describe_record(encode_example({"v": [payload, payload]})), 60)
