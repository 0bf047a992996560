"""Commands as Python functions: results, options, progress, errors and interruption."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone

import pytest

import shardmill
from shardmill.pipelines.commands import COMMANDS
from shardmill.pipelines.report.terminal import logged
from shardmill.schemas.errors import UsageError
from tests.conftest import ROOT, make_photos
from tests.support.fault_tools import PROGRESS
from tests.support.record_tools import framed
from tests.support.rows_tools import make_table

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls")
    make_photos(folder / "photos", {"cat": 6, "dog": 4}, size=(20, 20))
    (folder / "photos" / "cat" / "bad.jpg").write_text("no image")
    return folder


def test_images(folder):
    """A build, the same build with options spelt otherwise, and an update."""
    splits = {"train": 0.5, "validation": 0.5}
    options = {"splits": splits, "max_reject_fraction": 0.5}
    built = shardmill.images(folder / "photos", folder / "ds", image_size=(16, 16), **options)
    assert (built.status, built.matched) == ("published", 11)
    assert built.manifest.written == 10
    assert [reject["key"] for reject in built.rejects] == ["cat/bad.jpg"]
    assert all(os.path.exists(path) for path in built.files)
    counts = {name: split.num_examples for name, split in built.manifest.splits.items()}
    assert sum(counts.values()) == 10
    assert f"train {counts['train']}, validation {counts['validation']}; 1 rejected" in repr(built)
    same = shardmill.images(
        str(folder / "photos"),
        str(folder / "ds"),
        image_size="16x16",
        splits="train:1/2,validation:1/2",
        max_reject_fraction=0.5,
    )
    assert same.status == "up_to_date"
    with pytest.raises(shardmill.ShardmillError, match="image_size was 16, now 8"):
        shardmill.images(folder / "photos", folder / "ds", image_size=8, **options)
    again = shardmill.images(folder / "photos", folder / "ds", image_size=8, update=True, **options)
    assert (again.status, again.manifest.generation == built.manifest.generation) == (
        "published",
        False,
    )
    planned = shardmill.images(folder / "photos", folder / "other", dry_run=True)
    assert planned.status == "dry_run"
    assert sum(series["inputs"] for series in planned.planned) == 11
    assert not (folder / "other").exists()


@pytest.mark.nightly
def test_rows_verify_and_count(folder):
    make_table(folder / "in.csv", ("a", "b"), [(n, f"x{n}") for n in range(20)])
    built = shardmill.rows(folder / "in.csv", folder / "rows", label="b", num_shards=1)
    assert built.manifest.written == 20
    assert shardmill.verify(folder / "rows").sound
    make_table(folder / "in.csv", ("a", "b"), [(f"n{n}", f"x{n}") for n in range(20)])
    with pytest.raises(shardmill.ShardmillError, match="another release, schema or codecs"):
        shardmill.rows(folder / "in.csv", folder / "rows", label="b", num_shards=1)
    counted = shardmill.count(built.files)
    assert counted.written == 20
    (folder / "bad.tfrecord").write_bytes(framed([b"x"])[:-1])
    damaged = shardmill.count(folder / "bad.tfrecord")
    assert [each.file for each in damaged.damaged] == ["bad.tfrecord"]


def test_notes_are_printed_and_errors_are_not(folder):
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard):
        shardmill.images(folder / "photos", folder / "large", image_size=5000, dry_run=True)
        with pytest.raises(UsageError):
            shardmill.images(folder / "photos", folder / "large", image_size="big")
    (note,) = re.findall("^shardmill: .*", heard.getvalue(), re.MULTILINE)
    assert "makes records of 5000x5000 pixels" in note


def test_imports_no_beam(folder):
    code = "import sys, shardmill; shardmill.images(*sys.argv[1:], max_reject_fraction=1)\n"
    code += (
        "print([name for name in ('apache_beam', 'tensorflow', 'pyarrow') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, str(folder / "photos"), str(folder / "nobeam")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.nightly
def test_interrupted(folder):
    """An interrupt of the caller interrupts the build, and the same call resumes it."""
    many = make_photos(folder / "many", {"a": 1500}, size=(300, 300))
    main = threading.main_thread().ident

    def interrupt():
        while not list((folder / "slow").glob(".build-*/parts/*.json")):
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    options = {"shard_examples": 100, "workers": 1}
    threading.Thread(target=interrupt, daemon=True).start()
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), pytest.raises(KeyboardInterrupt):
        shardmill.images(many, folder / "slow", **options)
    assert "Traceback" not in heard.getvalue()
    built = shardmill.images(many, folder / "slow", **options)
    assert built.parts_reused
    assert built.manifest.written == 1500


def json_lines(done):
    """Return the objects that a command wrote to standard error, one a line; it wrote nothing else."""
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.stdout == ""
    for entry in entries:
        when = datetime.fromisoformat(entry["time"])
        assert abs((datetime.now(timezone.utc) - when).total_seconds()) < 60
        assert {"level", "message"} < entry.keys()
    return entries


def test_lines_of_a_json_log_are_whole(monkeypatch):
    """Libraries print a line in pieces, from several threads, and the last one without its end."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)

    def run():
        print("a", 1, end="", file=sys.stderr)
        other = threading.Thread(target=lambda: print("of", "another", file=sys.stderr))
        other.start()
        other.join()
        print(" b", "c\nshardmill: no", "end", end="", file=sys.stderr)
        return 3

    assert logged(run) == 3
    found = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(each["level"], each["message"]) for each in found] == [
        ("info", "of another"),
        ("info", "a 1 b c"),
        ("error", "no end"),
    ]


@pytest.mark.nightly
def test_json_of_every_command(folder):
    """Each prints one object with a status and the keys that docs/cli.md lists, or is quiet."""
    from tests.conftest import shardmill as run

    photos, output = folder / "photos", folder / "js"
    build = ["images", photos, output, "--max_reject_fraction=1", "--num_shards=1"]
    commands = [
        build,
        build,
        ["count", output],
        ["verify", output],
        ["check", output],
        ["clean", output],
        ["files", output],
        ["steps", output, "--batch_size=2"],
        ["show", output],
        ["diff", output, output],
        ["report", output, f"--output={folder}/r.html"],
        ["demo", folder / "demo"],
        [*build, "--seed=1", "--update"],
        [*build, "--dry_run", "--update"],
        ["rollback", output],
    ]
    rows = re.findall(
        r"^\| (`\w+`.*?) \| (.*?) \| (.*) \|$", (ROOT / "docs/cli.md").read_text(), re.MULTILINE
    )
    documented = {name: row for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert documented.keys() == COMMANDS.keys()
    statuses = []
    for words in commands:
        done = run(*words, "--json")
        found = json.loads(done.stdout)
        assert (done.returncode, PROGRESS.sub("", done.stderr)) == (0, ""), done
        _, status, keys = documented[words[0]]
        statuses.append(found.pop("status"))
        assert f"`{statuses[-1]}`" in status, done
        assert found.keys() <= {*re.findall(r"`(\w+)`", keys)}, words
        if words[0] == "check":
            written = json.loads((output / "manifest.json").read_text())
            assert found["manifest"] == f"{output}/manifest.json"
            assert found["config_id"] == written["build"]["config_id"]
            assert found["examples"] == {k: v["num_examples"] for k, v in written["splits"].items()}
    assert statuses == [
        "published",
        "up_to_date",
        "counted",
        *["ok"] * 6,
        "same",
        "written",
        "written",
        "published",
        "dry_run",
        "published",
    ]
    failed = run("images", "nowhere", output, "--json")
    failure = json.loads(failed.stdout)
    assert failure["type"] == "InputError"
    assert failed.returncode == 1
    built = json_lines(run(*build, "--overwrite", "--log_format=json"))[-1]
    manifest = json.loads((output / "manifest.json").read_text())
    numbers = {name: split["num_examples"] for name, split in manifest["splits"].items()}
    for name, lines in {
        "images": [built],
        "count": json_lines(run("count", output, "--log-format", "json")),
    }.items():
        summary = lines[-1]["summary"]
        assert (lines[-1]["level"], summary["command"]) == ("info", name)
        assert summary["examples"] == numbers
        assert (summary["written"], summary["seconds"] > 0) == (sum(numbers.values()), True)
    assert built["summary"]["counters"]["examples_encoded"] == manifest["written"]
    assert built["summary"]["counters"]["encode_milliseconds"]["count"] >= 1
    (error,) = json_lines(run("images", "nowhere", output, "--log_format=json", "--quiet"))
    assert (error["level"], error["type"]) == ("error", "InputError")
    assert error["message"] == failure["error"]
    (error,) = json_lines(run("images", "nowhere", output, "--log_format=json", "--debug"))
    assert error["traceback"].startswith("Traceback")
    for words in (build, ["count", output], ["verify", output], ["check", output]):
        done = run(*words, "--quiet", *(["--overwrite"] if words is build else []))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), words
