"""``shardmill clean`` takes what unfinished builds left, and nothing of anybody else."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.pipelines import cli
from shardmill.pipelines.commands.clean import age
from shardmill.pipelines.report.numbers import parse_duration
from shardmill.schemas.dataset import shard_names
from shardmill.schemas.errors import ShardmillError, StaleBuildError, StorageError, UsageError
from shardmill.schemas.storage import Entry, Storage, join, open_storage
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.publish import cleanup
from shardmill.transforms.publish.journal import Journal, Move
from shardmill.transforms.publish.publish import publish, read_manifest
from tests.conftest import SOAK, make_photos
from tests.support.fault_tools import (
    JOURNAL,
    Ended,
    Watched,
    build_folder,
    built,
    check_dataset,
    images,
    make_source,
    zygote,
)
from tests.transforms.publish.test_publish import journal_of, manifest, publish_by_hand

pytest_plugins = ["tests.support.gcs_server"]

HEX = "0123456789ab4def8123456789abcdef"  # as uuid4().hex
OLD = 3 * 3600
OTHER = ("--seed=9", "--overwrite")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_source(tmp_path_factory.mktemp("clean") / "photos")


@pytest.fixture(scope="module")
def published(source, tmp_path_factory) -> Path:
    """A dataset and, beside it, a build of another one that was killed after some parts."""
    output = tmp_path_factory.mktemp("clean") / "ds"
    built(source, output)
    watch = Watched(output, at=(30,))
    assert zygote().run(*images(source, output, *OTHER), watch=watch).code == -signal.SIGKILL
    assert not (output / JOURNAL).exists()
    assert len(list(build_folder(output).rglob("*.part"))) >= 2
    return output


@pytest.fixture
def output(published, tmp_path) -> Path:
    """A copy of it to work on."""
    return shutil.copytree(published, tmp_path / "ds")


def run(*args: object, **kwargs) -> Ended:
    return zygote().run("clean", *args, **kwargs)


def make_old(folder: Path, seconds: int = OLD) -> Path:
    """Sets the times of all hidden things in an output back."""
    then = time.time() - seconds
    for path in [*folder.rglob("*")]:
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            os.utime(path, (then, then), follow_symlinks=False)
    return folder


def tree(folder: Path) -> dict[str, tuple]:
    """All that stands in a folder, with what a change to it would change."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_ino, status.st_mtime_ns, status.st_mode, data)
    return found


def plain(folder: Path) -> dict[str, tuple]:
    """What is published: all whose name has no dot in front, with times and inodes."""
    return {
        path: value
        for path, value in tree(folder).items()
        if path != str(folder) and "/." not in path.removeprefix(str(folder))
    }


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_a_killed_build_goes_and_the_dataset_stays(output):
    before, build = plain(output), build_folder(output)
    files = [path for path in build.rglob("*") if path.is_file()]
    (output / f".outcome-{HEX[:12]}.json").write_text("{}")
    (output / f"..outcome-{HEX[:12]}.json.{HEX}.tmp").write_text("{")
    make_old(output)
    done = run(output)
    assert (done.code, done.stderr) == (0, "")
    assert hidden(output) == []
    assert plain(output) == before
    check_dataset(output)
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    (line,) = (line for line in lines if build.name in line)
    assert line.startswith("removed  ")
    assert f"in {len(files)} files, last changed 3 hours ago" in line
    assert lines[-1].startswith("Removed 3 leftovers: ")
    assert f"in {len(files) + 2} files." in lines[-1]
    assert run(output).stdout == f"{output}: nothing to clean.\n"


def test_a_dry_run_says_the_same_and_changes_nothing(output):
    make_old(output)
    before = tree(output)
    would = run(output, "--dry_run")
    assert (would.code, would.stderr) == (0, "")
    assert tree(output) == before
    did = run(output)
    said = would.stdout.replace("would remove", "removed").replace("Would remove", "Removed")
    assert said.replace("; nothing was changed", "") == did.stdout


def test_what_changed_lately_is_kept_with_the_remedy(output):
    make_old(output)
    (newest,) = (path for path in build_folder(output).rglob("parts"))
    os.utime(newest)  # one folder deep below that took a file just now
    before = tree(output)
    for flags in ([], ["--older_than=1h"], ["--older_than=2d"], ["--older_than=15m"]):
        done = run(output, *flags)
        assert done.code == 0
        assert "a build may be running" in done.stdout
        assert "--older_than=0" in done.stdout
        assert "Nothing was removed." in done.stdout
        assert tree(output) == before
    make_old(output, 100)
    assert "kept  .build-" in run(output, "--older_than=15m").stdout
    assert "removed  .build-" in run(output, "--older_than=90s").stdout


def test_zero_keeps_nothing_not_even_what_is_of_tomorrow(output):
    make_old(output, -86400)
    assert "last changed 0 seconds ago" in run(output).stdout
    assert run(output, "--older_than=0").code == 0
    assert hidden(output) == []


# What is ours.

OURS = {
    ".build-c0de5c0de5c0de50": "dir",
    ".build-": "dir",
    f".outcome-{HEX[:12]}.json": "file",
    f"..outcome-{HEX[:12]}.json.{HEX}.tmp": "file",
    f".manifest.json.{HEX}.tmp": "file",
    f"..publish.json.{HEX}.tmp": "file",
    ".build-probe-a_3kz09q": "empty",
}
FOREIGN = {
    ".outcome-.json": "file",
    f".outcome-{HEX[:11]}.json": "file",
    f".outcome-{HEX[:12]}.json.bak": "file",
    f".outcome-{HEX[:12]}.json\n": "file",
    f".OUTCOME-{HEX[:12]}.json": "file",
    ".outcome-report.json": "file",
    f".outcome-{HEX[:11]}4.json": "dir",
    f".manifest.json.{HEX[:-1]}.tmp": "file",
    f".manifest.json.{HEX}.tmp2": "file",
    f".manifest.json.{'f' * 32}.tmp": "file",  # no random UUID
    f".manifest.json.{HEX.upper()}.tmp": "file",
    f".notes.txt.{HEX}.tmp": "file",
    f"manifest.json.{HEX}.tmp": "file",
    f".schema.pbtxt.{HEX}.tmp": "dir",
    ".build-probe-a_3kz09r": "file",  # has content
    ".build-c0de5c0de5c0de51": "file",
    ".build": "dir",
    "build-c0de5c0de5c0de50": "dir",
    ".buildx-1": "dir",
    ".publish.json~": "file",
    ".git": "dir",
    ".DS_Store": "file",
    "notes.txt": "file",
}


def make_things(folder: Path, things: dict[str, str]) -> None:
    for name, kind in things.items():
        if kind == "dir":
            (folder / name / "parts").mkdir(parents=True)
            (folder / name / "parts" / "x").write_text("x")
        else:
            (folder / name).write_text("x" if kind == "file" else "")


def test_only_what_is_ours_goes(output):
    make_things(output, OURS)
    make_things(output, FOREIGN)
    left = {name for name in os.listdir(output) if name not in OURS}
    left -= {path.name for path in output.glob(".build-*") if path.is_dir()}
    others = {p: v for p, v in tree(output).items() if Path(p).relative_to(output).parts[:1] and Path(p).relative_to(output).parts[0] in left}  # fmt: skip
    assert run(output, "--older_than=0").code == 0
    assert set(os.listdir(output)) == left
    assert {path: value for path, value in tree(output).items() if path != str(output)} == others


@given(st.text(min_size=1), st.sampled_from(["file", "dir", "other"]), st.integers(0, 3))
def test_a_published_name_is_never_a_leftover(name, kind, size):
    if not name.startswith("."):
        assert cleanup.classify(name, kind, size) is None
    assert cleanup.classify(name, "other", size) is None
    for own in (*shard_names.RESERVED, shard_names.JOURNAL):
        assert cleanup.classify(own, kind, size) is None


def test_a_folder_of_another_tool_with_a_name_like_ours(tmp_path):
    (tmp_path / ".build-cache" / "parts").mkdir(parents=True)
    (tmp_path / ".build-cache" / "objects").mkdir()
    before = tree(tmp_path)
    done = run(tmp_path, "--older_than=0")
    assert done.code == 0
    assert "kept  .build-cache: it holds 'objects', which no build does" in done.stdout
    assert tree(tmp_path) == before


def test_links_are_left_and_never_followed(output, tmp_path):
    outside = tmp_path / "outside"
    (outside / "parts").mkdir(parents=True)
    (outside / "parts" / "precious").write_text("precious")
    (output / ".build-0000000000000000").symlink_to(outside)
    (output / ".build-0000000000000001").symlink_to(tmp_path / "nowhere")
    (output / f".outcome-{HEX[:12]}.json").symlink_to(outside / "parts" / "precious")
    (build_folder_of_parts(output) / "parts" / "link").symlink_to(outside)
    (build_folder_of_parts(output) / "shards").symlink_to(outside)
    before = tree(outside)
    done = run(output, "--older_than=0")
    assert done.code == 0
    assert "kept  .build-0000000000000000: it is a link" in done.stdout
    assert f"kept  .outcome-{HEX[:12]}.json: it is a link" in done.stdout
    assert tree(outside) == before
    assert len(hidden(output)) == 3  # the real build folder went, with the links in it


def build_folder_of_parts(output: Path) -> Path:
    (found,) = (p for p in output.glob(".build-*") if p.is_dir() and not p.is_symlink())
    return found


def test_hostile_names(output):
    parts = build_folder(output) / "parts"
    for name in (b"new\nline", b"\xff\xfe", b"\x1b[31m", b"-rf", b"a" * 255, "ü".encode()):
        Path(os.fsdecode(os.fsencode(parts) + b"/" + name)).write_text("x")
    deep = parts
    for _ in range(60):
        deep /= "deep"
    deep.mkdir(parents=True)
    for name in (b".build-a\nb", b".build-\xff", b".build-\x1b[31m", b".build- "):
        os.makedirs(os.fsencode(output) + b"/" + name + b"/parts")
    done = run(output, "--older_than=0")
    assert (done.code, done.stderr) == (0, "")
    assert hidden(output) == []
    assert len(done.stdout.splitlines()) == 6
    assert all(line.isprintable() for line in done.stdout.splitlines())
    check_dataset(output)


# Journals.


def test_an_unfinished_publish_is_completed(source, published, tmp_path):
    output = shutil.copytree(published, tmp_path / "ds")
    watch = Watched(output, since=JOURNAL, at=(8,))
    assert zygote().run(*images(source, output, *OTHER), watch=watch).code == -signal.SIGKILL
    assert (output / JOURNAL).exists()
    assert not (output / "manifest.json").exists()
    (output / ".build-0000000000000000" / "parts").mkdir(parents=True)
    before = tree(output)
    would = run(output, "--dry_run", "--older_than=0")
    assert (would.code, would.stderr) == (0, "")
    assert tree(output) == before
    assert would.stdout.startswith("would complete the unfinished publish of 42 examples; ")
    done = run(output, "--older_than=0")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("completed the unfinished publish of 42 examples; ")
    assert done.stdout.splitlines()[1:-1] == [
        line.replace("would remove", "removed") for line in would.stdout.splitlines()[1:-1]
    ]
    wanted = tmp_path / "wanted"
    built(source, wanted, *OTHER)
    assert check_dataset(output) == check_dataset(wanted)


def published_by_hand(folder: Path) -> Path:
    output = folder / "out"
    assert publish_by_hand(output, manifest())
    return output


@pytest.mark.parametrize("flags", [[], ["--dry_run"]])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"manifest": 1}'])
def test_a_journal_that_cannot_be_followed(text, flags, tmp_path):
    output = published_by_hand(tmp_path)
    (output / ".build-0000000000000000" / "parts").mkdir(parents=True)
    (output / JOURNAL).write_text(text)
    before = tree(output)
    done = run(output, "--older_than=0", *flags)
    assert (done.code, done.stdout) == (1, "")
    assert ".publish.json cannot be followed: it is damaged" in done.sentence
    assert tree(output) == before


def test_a_journal_whose_files_are_gone(tmp_path):
    output = published_by_hand(tmp_path)
    journal_of(output)
    shutil.rmtree(output / ".build-c")
    before = plain(output)
    done = run(output)
    assert done.code == 0
    assert done.stdout.startswith("took back the unfinished publish")
    assert (plain(output), hidden(output)) == (before, [])
    journal_of(output)
    shutil.rmtree(output / ".build-c")
    (output / "manifest.json").unlink()
    (output / "schema.pbtxt").unlink()
    (output / ".build-0000000000000000" / "parts").mkdir(parents=True)
    done = run(output, "--older_than=0")
    assert done.code == 1
    assert "the publication cannot be completed" in done.sentence
    assert (output / ".build-0000000000000000" / "parts").exists()


# What DIR may be.


def test_places_without_a_dataset(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign" / "src").mkdir(parents=True)
    (tmp_path / "foreign" / "src" / ".build-0000000000000000").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    before = tree(tmp_path)
    assert "missing does not exist: give the folder" in run(tmp_path / "missing").sentence
    assert "file is no folder: give the folder" in run(tmp_path / "file").sentence
    assert run(tmp_path / "file" / "x").code == 1
    assert "loop" in run(tmp_path / "loop").sentence
    for name in ("empty", "foreign"):
        done = run(tmp_path / name, "--older_than=0")
        assert (done.code, done.stdout) == (0, f"{tmp_path / name}: nothing to clean.\n")
    assert tree(tmp_path) == before


def test_an_output_that_was_never_published(source, tmp_path):
    output = tmp_path / "ds"
    watch = Watched(output, at=(30,))
    assert zygote().run(*images(source, output), watch=watch).code == -signal.SIGKILL
    assert build_folder(output)
    assert run(output, "--older_than=0").code == 0
    assert list(output.iterdir()) == []
    built(source, output)


@pytest.mark.parametrize("text", ["", "{", '{"version": 99}'])
def test_a_manifest_that_cannot_be_read_is_no_hindrance(text, output):
    (output / "manifest.json").write_text(text)
    before = plain(output)
    assert run(output, "--older_than=0").code == 0
    assert (hidden(output), plain(output)) == ([], before)


def let_others_in(path: Path) -> None:
    """Lets other users reach a folder of pytest's, however deep it lies."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if mode & (stat.S_IXOTH | stat.S_IROTH) != stat.S_IXOTH | stat.S_IROTH:
            folder.chmod(mode | stat.S_IXOTH | stat.S_IROTH)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to act for another user")
def test_permissions_get_one_sentence_each(output, tmp_path):
    let_others_in(tmp_path)
    before = tree(output)
    done = run(output, "--older_than=0", uid=65534)
    assert done.code == 1
    assert "Cannot delete " in done.sentence
    assert done.sentence.endswith("Permission denied; check the permissions.")
    assert tree(output) == before
    # Of several, those that can be removed are.
    output.chmod(0o777)
    mine = output / ".build-0000000000000000"
    (mine / "parts").mkdir(parents=True)
    for path in (mine, mine / "parts"):
        os.chown(path, 65534, 65534)
    secret = output / ".build-0000000000000001"
    secret.mkdir(mode=0o700)
    done = run(output, "--older_than=0", uid=65534)
    assert done.code == 1
    assert not mine.exists()
    first, second = sorted(done.stderr.splitlines())
    assert first.startswith("shardmill: Cannot delete")
    assert second.startswith(f"shardmill: Cannot list {secret}: Permission denied")
    output.chmod(0o711)
    assert f"Cannot list {output}: Permission denied" in run(output, uid=65534).sentence


def test_an_output_that_takes_no_changes(output, tmp_path):
    """The folder's own entry cannot go when only its parent forbids that."""
    if os.geteuid():
        pytest.skip("needs to act for another user")
    let_others_in(tmp_path)
    for path in [build_folder(output), *build_folder(output).rglob("*")]:
        os.chown(path, 65534, 65534)
    done = run(output, "--older_than=0", uid=65534)
    assert done.code == 1
    assert "cannot be removed wholly: check the permissions" in done.sentence
    check_dataset(output, hidden(output))


def test_a_full_disk_can_be_cleaned(output, monkeypatch, capsys):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shardmill.schemas.storage.local._temporary", full)
    assert cli.main(["clean", str(output), "--older_than=0"]) == 0
    assert "Removed 1 leftover" in capsys.readouterr().out
    assert hidden(output) == []


def test_flags(tmp_path, capsys):
    for text in ("5", "-1h", "1.5h", "1w", "h", "", " 1h", "1 h", "0x1h", "٣h", "1h ", "9" * 20 + "d"):  # fmt: skip
        assert cli.main(["clean", str(tmp_path), f"--older_than={text}"]) == 2
        assert "is no time: write it as in 90s" in capsys.readouterr().err
    for argv in ([], ["a", "b"], ["a", "--dry"], ["a", "--older"], [""]):
        assert cli.main(["clean", *argv]) == 2
    with pytest.raises(UsageError):
        parse_duration("x", "--flag")
    seconds = [parse_duration(text, "--flag") for text in ("90s", "15m", "1h", "2d", "0", "0s")]
    assert seconds == [90, 900, 3600, 172800, 0, 0]


def test_ages() -> None:
    now = 10**18
    for seconds, wanted in ((0, "0 seconds"), (1, "1 second"), (61, "1 minute"), (7199, "1 hour"), (172800, "2 days"), (-5, "0 seconds")):  # fmt: skip
        assert age(now - seconds * 10**9, now) == f"last changed {wanted} ago"
    assert age(None, now) == "changed nobody knows when"
    unknown = cleanup.Leftover("x", "build", 1, 1, None)
    assert unknown.is_recent(1, now)
    assert not unknown.is_recent(0, now)


def test_when_an_entry_changed() -> None:
    assert Entry("/a", 1, "5").changed_ns == 5
    assert Entry("gs://b/a", 1, "1700000000000000").changed_ns == 1_700_000_000_000_000_000
    assert Entry("gs://b/a", 1, "7").changed_ns is None  # no time, whatever it is
    assert Entry("gs://b/a", 0, "", "dir").changed_ns is None


def test_clean_loads_neither_beam_nor_tensorflow(tmp_path) -> None:
    code = (
        "import sys\nfrom shardmill.pipelines.cli import main\n"
        f"assert main(['clean', {str(tmp_path)!r}]) == 0\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'apache_beam', 'tensorflow', 'numpy', 'PIL'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# Kills, and others at work.


def test_killed_at_any_step(output, tmp_path):
    """SIGKILL before each step that it takes; run again, all is clean and the dataset whole."""
    make_things(output, {name: kind for name, kind in OURS.items() if name != ".build-"})
    make_old(output)
    before = plain(output)
    kills = 0
    while True:
        copy = shutil.copytree(output, tmp_path / "copy", symlinks=True)
        ended = run(copy, watch=Watched(copy, at=(kills + 1,)))
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL
        check_dataset(copy, hidden(copy))
        assert run(copy, "--older_than=0").code == 0
        check_dataset(copy)
        assert hidden(copy) == []
        shutil.rmtree(copy)
        kills += 1
    assert kills > 15
    assert plain(output) == before


def test_two_cleans_at_once(output, tmp_path):
    make_things(output, {".build-c0de5c0de5c0de50": "dir", f".outcome-{HEX[:12]}.json": "file"})
    for turn in range(6):
        copy = shutil.copytree(output, tmp_path / f"copy{turn}")
        before = plain(copy)
        both = [zygote().start("clean", copy, "--older_than=0") for _ in range(2)]
        assert [command.wait().code for command in both] == [0, 0]
        assert [command.ended.stderr for command in both] == ["", ""]
        assert (plain(copy), hidden(copy)) == (before, [])


@pytest.mark.parametrize("flags", [(), OTHER][: 1 + SOAK])
def test_a_clean_beside_a_builder(flags, source, published, tmp_path):
    """Again and again while it builds: it ends well or says to run again; then one run mends all."""
    wanted = tmp_path / "wanted"
    built(source, wanted, *flags)
    removed = 0
    for turn in range(3):
        output = tmp_path / f"out{turn}"
        if flags:
            shutil.copytree(published, output)
        builder = zygote().start(*images(source, output, *flags))
        while not list(output.glob(".build-*")) and not (output / "manifest.json").exists():
            time.sleep(0.005)
        for _ in range(4 + turn):
            ended = run(output, "--older_than=0")
            removed += "removed" in ended.stdout
            assert ended.code == 0 or "no build runs there" in ended.sentence
            if flags:
                assert read_manifest(LocalStorage(), str(output)) is not None
            time.sleep(0.1)
        ended = builder.wait()
        assert ended.code == 0 or "run again" in ended.sentence
        built(source, output, *flags)
        assert check_dataset(output, hidden(output)) == check_dataset(wanted)
    assert removed


def test_a_running_builder_is_left_alone(source, tmp_path):
    output = tmp_path / "out"
    builder = zygote().start(*images(source, output))
    while not list(output.glob(".build-*/parts/*")):
        time.sleep(0.002)
    builder.send(signal.SIGSTOP)
    assert "kept  .build-" in run(output).stdout
    builder.send(signal.SIGCONT)
    assert builder.wait().code == 0
    check_dataset(output)


def test_a_folder_that_a_builder_took_up_again_is_left(output):
    """It was old when it was looked at; when it is to go, somebody works on it."""
    make_old(output)
    storage, now = LocalStorage(), time.time_ns()
    (item,) = cleanup.find_leftovers(storage, str(output)).leftovers
    hour = 3600 * 10**9
    assert not item.is_recent(hour, now)
    (build_folder(output) / "parts" / "new").write_text("x")
    assert not cleanup.remove(storage, str(output), item, hour, now)
    assert build_folder(output).exists()


def test_a_publication_that_began_meanwhile_is_completed_first(tmp_path):
    output = published_by_hand(tmp_path)
    storage = LocalStorage()
    item = cleanup.Leftover(".build-c", "build", 1, 1, 1)
    journal_of(output)
    assert not cleanup.remove(storage, str(output), item, 0, 0)
    assert read_manifest(storage, str(output)) == manifest(input_id="j")
    assert hidden(output) == []


# Buckets.


def stage(storage: Storage, output: str, build: str = ".build-c0de5c0de5c0de50") -> list[Move]:
    """Writes a finished build by hand and returns its moves."""
    moves = []
    for name in ("schema.pbtxt", "rejects.jsonl", "train-0.gz"):
        storage.replace(f"{output}/{build}/shards/{name}", b"payload")
        moves.append(Move(f"{build}/shards/{name}", name, 7))
    return moves


@pytest.fixture
def stored(strict_bucket) -> str:
    """A dataset in a bucket, an unfinished build and an outcome beside it."""
    output = f"{strict_bucket}/a/ds"
    storage = open_storage(output)
    moves = stage(storage, output)
    assert publish(storage, output, manifest(), moves, ".build-c0de5c0de5c0de50", overwrite=False)
    stage(storage, output)
    storage.replace(f"{output}/.outcome-{HEX[:12]}.json", b"{}")
    storage.replace(f"{output}/.notes", b"mine")
    storage.replace(f"{strict_bucket}/a/ds2/.build-c0de5c0de5c0de50/parts/x", b"a neighbour's")
    return output


def objects(uri: str) -> dict[str, str]:
    return {entry.path: entry.version for entry in open_storage(uri).walk(uri.rsplit("/", 1)[0])}


def said(capsys, *args: str) -> tuple[int, str, str]:
    code = cli.main(["clean", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_bucket(stored, capsys):
    before = objects(stored)
    going = {path for path in before if f"{stored}/.build" in path or f"{stored}/.outcome" in path}
    assert len(going) == 4
    code, out, err = said(capsys, stored)
    assert (code, err) == (0, "")
    assert out.count("kept  .") == 2
    assert "last changed 0 seconds ago" in out or "second" in out  # the emulator's clock is ours
    code, out, err = said(capsys, stored, "--older_than=0", "--dry_run")
    assert (code, err) == (0, "")
    assert objects(stored) == before
    code, out, err = said(capsys, f"{stored}/", "--older_than=0")
    assert (code, err) == (0, "")
    assert "Removed 2 leftovers: 23 B in 4 files." in out
    assert objects(stored) == {p: v for p, v in before.items() if p not in going}
    assert said(capsys, stored) == (0, f"{stored}: nothing to clean.\n", "")


def test_a_bucket_without_a_dataset(strict_bucket, capsys):
    output = f"{strict_bucket}/ds"
    assert said(capsys, output)[0] == 1
    open_storage(output).replace(f"{output}/.build-c0de5c0de5c0de50/parts/x", b"x")
    assert said(capsys, f"{output}/.build-c0de5c0de5c0de50/parts/x")[0] == 1
    assert said(capsys, output, "--older_than=0")[0] == 0
    assert list(open_storage(output).walk(output)) == []
    code, _, err = said(capsys, "gs://no-such-bucket/x")
    assert code == 1
    assert "does not exist" in err


def test_a_publisher_who_comes_first_in_a_bucket(stored, capsys, monkeypatch):
    """Between the last look and the journal of the removal another command publishes."""
    storage = open_storage(stored)
    create, done = type(storage).create, []

    def late(self, path, data, aside=""):
        if path.endswith(JOURNAL) and not done:
            done.append(1)
            build = ".build-c0de5c0de5c0de50"
            moves = [*stage(storage, stored), _staged_manifest(storage, stored, build)]
            journal = Journal(manifest(input_id="j").to_json(), tuple(moves), (), build)
            assert create(self, path, journal.to_json())
        return create(self, path, data, aside)

    monkeypatch.setattr(type(storage), "create", late)
    code, _, err = said(capsys, stored, "--older_than=0")
    assert (code, err, done) == (0, "", [1])
    assert read_manifest(storage, stored) == manifest(input_id="j")
    assert storage.read(f"{stored}/train-0.gz") == b"payload"
    assert not [path for path in objects(stored) if path.startswith(f"{stored}/.build")]
    assert storage.stat(f"{stored}/{JOURNAL}") is None


def _staged_manifest(storage: Storage, output: str, build: str) -> Move:
    data = manifest(input_id="j").to_json().encode()
    storage.replace(f"{output}/{build}/final-{HEX[:12]}/manifest.json", data)
    return Move(f"{build}/final-{HEX[:12]}/manifest.json", "manifest.json", len(data))


def test_a_publisher_who_comes_second_in_a_bucket(stored, monkeypatch):
    """The removal was killed right after its journal: the publisher follows it, and starts again."""
    storage, build = open_storage(stored), ".build-c0de5c0de5c0de50"
    with monkeypatch.context() as patch:
        patch.setattr(cleanup, "recover_output", lambda *_: None)
        cleanup._remove_by_journal(storage, stored, build)
    assert storage.stat(f"{stored}/{JOURNAL}") is not None
    assert read_manifest(storage, stored) == manifest()
    moves = stage(storage, stored)
    with pytest.raises(StaleBuildError, match="run again"):
        publish(storage, stored, manifest(input_id="j"), moves, build, overwrite=True)
    assert read_manifest(storage, stored) == manifest()
    assert storage.read(f"{stored}/train-0.gz") == b"payload"
    moves = stage(storage, stored)
    assert publish(storage, stored, manifest(input_id="j"), moves, build, overwrite=True)


def test_a_journal_in_a_bucket(stored, capsys):
    storage = open_storage(stored)
    build = ".build-c0de5c0de5c0de50"
    moves = [*stage(storage, stored), _staged_manifest(storage, stored, build)]
    journal = Journal(manifest(input_id="j").to_json(), tuple(moves), (), build)
    storage.replace(f"{stored}/{JOURNAL}", journal.to_json())
    before = objects(stored)
    code, out, _ = said(capsys, stored, "--dry_run")
    assert code == 0
    assert out.startswith("would complete the unfinished publish")
    assert objects(stored) == before
    code, out, _ = said(capsys, stored)
    assert code == 0
    assert out.startswith("completed the unfinished publish")
    assert read_manifest(storage, stored) == manifest(input_id="j")
    storage.replace(f"{stored}/{JOURNAL}", b"{")
    stage(storage, stored)
    before = objects(stored)
    code, out, err = said(capsys, stored, "--older_than=0")
    assert (code, out) == (1, "")
    assert "cannot be followed" in err
    assert objects(stored) == before


def test_a_local_walk(tmp_path) -> None:
    make_photos(tmp_path / "in", {"a": 2})
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    found = {e.path.removeprefix(f"{tmp_path}/"): e.kind for e in LocalStorage().walk(str(tmp_path))}  # fmt: skip
    assert found == {"in": "dir", "in/a": "dir", "in/a/000.jpg": "file", "in/a/001.jpg": "file", "in/link": "other"}  # fmt: skip
    assert list(LocalStorage().walk(str(tmp_path / "no"))) == []
    with pytest.raises(StorageError):
        list(LocalStorage().walk(join(str(tmp_path), "in/a/000.jpg")))


def test_a_problem_in_the_middle_is_said(output, monkeypatch, capsys):
    def broken(self, path):
        raise StorageError(f"Cannot delete {path}: bad\nluck; check the disk.")

    monkeypatch.setattr(LocalStorage, "delete_tree", broken)
    (output / f".outcome-{HEX[:12]}.json").write_text(json.dumps({}))
    code, out, err = said(capsys, str(output), "--older_than=0")
    assert code == ShardmillError.exit_code
    assert err.count("\n") == 1
    assert "bad\\nluck" in err
    assert "removed  .outcome-" in out
