"""``shardmill clean`` deletes what unfinished builds left, and no other file."""

import errno
import itertools
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from shardmill.pipelines import cli
from shardmill.pipelines.commands.clean import format_age
from shardmill.schemas import ShardmillError
from shardmill.schemas.errors import StorageError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.publish import cleanup
from shardmill.transforms.publish.generation import read_published
from tests.conftest import ROOT, SOAK
from tests.support import fault_tools as faults
from tests.support import publications

pytest_plugins = ["tests.support.gcs_server"]

HEX = "0123456789ab4def8123456789abcdef"  # as of uuid4().hex
OUTCOME = f".outcome-{HEX[:12]}.json"
OLD = 3 * 3600
CHANGED = ("--seed=9", "--update")
NOW = "--older_than=0"
HOUR = 3600 * 10**9


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return faults.make_source(tmp_path_factory.mktemp("clean") / "photos")


@pytest.fixture(scope="module")
def published(source, tmp_path_factory) -> Path:
    """A dataset, and the build folder of another one that was killed after some parts."""
    output = tmp_path_factory.mktemp("clean") / "ds"
    faults.built(source, output)
    kill_build(source, output, *CHANGED)
    assert len(list(faults.build_folder(output).rglob("*.part"))) >= 2
    return output


@pytest.fixture
def output(published, tmp_path) -> Path:
    """A copy of ``published`` to change."""
    return shutil.copytree(published, tmp_path / "ds", symlinks=True)


def kill_build(source: Path, output: Path, *flags: str) -> None:
    watch = faults.Watched(output, at=(30,))
    command = faults.images(source, output, *flags)
    assert faults.zygote().run(*command, watch=watch).code == -signal.SIGKILL


def run(*args: object, **kwargs) -> faults.Ended:
    return faults.zygote().run("clean", *args, **kwargs)


def run_now(*args: object, **kwargs) -> faults.Ended:
    """Clean regardless of age; the command must succeed without a message."""
    ended = run(*args, NOW, **kwargs)
    assert (ended.code, ended.stderr) == (0, "")
    return ended


def make_old(folder: Path, seconds: int = OLD) -> Path:
    """Set the times of all hidden files and folders in an output back."""
    then = time.time() - seconds
    for path in [*folder.rglob("*")]:
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            os.utime(path, (then, then), follow_symlinks=False)
    return folder


def tree(folder: Path) -> dict[str, tuple]:
    """Return inode, time, mode and content of every path in a folder."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_ino, status.st_mtime_ns, status.st_mode, data)
    return found


def published_tree(folder: Path) -> dict[str, tuple]:
    """Return the ``tree`` of the published files: those without a leading dot."""
    return {
        path: value
        for path, value in tree(folder).items()
        if path != str(folder) and "/." not in path.removeprefix(str(folder))
    }


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


@pytest.mark.heavy
def test_deletes_only_generations_that_no_manifest_names(output):
    """A killed publisher leaves a generation; those of the manifest are never deleted."""
    current = json.loads((output / "manifest.json").read_text())["generation"]
    abandoned = output / "gen-20260101T000000Z-0123456789ab"
    shutil.copytree(output / current, abandoned)
    assert "kept  gen-20260101T000000Z-0123456789ab" in run(output).stdout
    for text in ("{", "", '{"version": 99}'):
        other = shutil.copytree(output, output.parent / "unreadable", symlinks=True)
        (other / "manifest.json").write_text(text)
        before = published_tree(other)
        assert "removed  gen-" not in run(other, NOW).stdout
        assert published_tree(other) == before
        shutil.rmtree(other)
    assert "removed  gen-20260101T000000Z-0123456789ab" in run_now(output).stdout
    assert not abandoned.exists()
    faults.check_dataset(output)


def test_keeps_what_a_rollback_can_publish(output):
    """Without a manifest, sound generations are the only copy of the dataset."""
    unsound = output / "gen-20260101T000000Z-0123456789ab"
    shutil.copytree(output / "current", unsound)
    next(unsound.glob("*.gz")).unlink()
    (output / "manifest.json").unlink()
    done = run_now(output).stdout
    (current,) = (path.name for path in output.glob("gen-*"))
    assert (
        f"kept  {current}: the manifest is lost; `shardmill rollback {output}` publishes the "
        "latest version\n"
    ) in done
    assert f"removed  {unsound.name}" in done
    assert faults.zygote().run("rollback", output).code == 0
    faults.check_dataset(output)


def make_build(output: Path, name: str = ".build-0000000000000000") -> Path:
    (output / name / "parts").mkdir(parents=True)
    return output / name


@pytest.mark.heavy
def test_deletes_a_killed_build_and_keeps_the_dataset(output):
    before, build = published_tree(output), faults.build_folder(output)
    files = [path for path in build.rglob("*") if path.is_file()]
    (output / OUTCOME).write_text("{}")
    (output / f".{OUTCOME}.{HEX}.tmp").write_text("{")
    make_old(output)
    done = run(output)
    assert (done.code, done.stderr) == (0, "")
    assert (hidden(output), published_tree(output)) == ([], before)
    faults.check_dataset(output)
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    (line,) = (line for line in lines if build.name in line)
    assert line.startswith("removed  ")
    assert f"in {len(files)} files, last changed 3 hours ago" in line
    assert lines[-1].startswith("Removed 3 leftovers: ")
    assert f"in {len(files) + 2} files." in lines[-1]
    assert run(output).stdout == f"{output}: nothing to clean.\n"


def test_dry_run_reports_the_same_and_changes_nothing(output):
    make_old(output)
    before = tree(output)
    planned = run(output, "--dry_run")
    assert (planned.code, planned.stderr) == (0, "")
    assert tree(output) == before
    reported = planned.stdout.replace("would remove", "removed").replace("Would remove", "Removed")
    assert reported.replace("; nothing was changed", "") == run(output).stdout


@pytest.mark.heavy
def test_keeps_recently_changed_builds(output):
    make_old(output)
    (newest,) = (path for path in faults.build_folder(output).rglob("parts"))
    os.utime(newest)  # a nested folder changed just now
    before = tree(output)
    for flags in ([], ["--older_than=1h"], ["--older_than=2d"], ["--older_than=15m"]):
        done = run(output, *flags)
        assert done.code == 0
        for text in ("a build may be running", NOW, "Nothing was removed."):
            assert text in done.stdout
        assert tree(output) == before
    make_old(output, 100)
    assert "kept  .build-" in run(output, "--older_than=15m").stdout
    assert "removed  .build-" in run(output, "--older_than=90s").stdout


def test_zero_age_deletes_even_files_from_the_future(output):
    make_old(output, -86400)
    assert "last changed 0 seconds ago" in run(output).stdout
    run_now(output)
    assert hidden(output) == []


# Names of leftovers.

OUR_FOLDERS = (publications.BUILD, ".build-", "gen-20260101T000000Z-0123456789ab")
OUR_FILES = (OUTCOME, f".{OUTCOME}.{HEX}.tmp", f".manifest.json.{HEX}.tmp")
OUR_EMPTY_FILES = (".build-probe-a_3kz09q",)
FOREIGN_FOLDERS = (
    f".outcome-{HEX[:11]}4.json",
    f".schema.pbtxt.{HEX}.tmp",
    ".build",
    "build-c0de5c0de5c0de50",
    ".buildx-1",
    ".git",
    "gen-1",
    "gen-20260101T000000Z-0123456789aB",
)
FOREIGN_FILES = (
    ".outcome-.json",
    f".outcome-{HEX[:11]}.json",
    f"{OUTCOME}.bak",
    f"{OUTCOME}\n",
    f".OUTCOME-{HEX[:12]}.json",
    ".outcome-report.json",
    f".manifest.json.{HEX[:-1]}.tmp",
    f".manifest.json.{HEX}.tmp2",
    f".manifest.json.{HEX.upper()}.tmp",
    f".notes.txt.{HEX}.tmp",
    f"manifest.json.{HEX}.tmp",
    ".build-c0de5c0de5c0de51",
    ".publish.json~",
    ".DS_Store",
    "notes.txt",
    f".manifest.json.{'f' * 32}.tmp",  # not a random UUID
    ".build-probe-a_3kz09r",  # not empty
)


def make_files(output: Path, folders: Iterable[str], files: Iterable[str]) -> None:
    for name in folders:
        (make_build(output, name) / "parts" / "x").write_text("x")
    for name in files:
        (output / name).write_text("" if name in OUR_EMPTY_FILES else "x")


def test_deletes_only_names_of_shardmill(output):
    kept = set(os.listdir(output)) - set(hidden(output)) | {*FOREIGN_FOLDERS, *FOREIGN_FILES}
    make_files(output, OUR_FOLDERS + FOREIGN_FOLDERS, OUR_FILES + OUR_EMPTY_FILES + FOREIGN_FILES)
    before = [tree(output / name) for name in sorted(kept)]
    run_now(output)
    assert set(os.listdir(output)) == kept
    assert [tree(output / name) for name in sorted(kept)] == before


def test_keeps_folders_of_other_tools_with_similar_names(tmp_path):
    (make_build(tmp_path, ".build-cache") / "objects").mkdir()
    before = tree(tmp_path)
    done = run_now(tmp_path)
    assert "kept  .build-cache: it holds 'objects', which builds never create" in done.stdout
    assert tree(tmp_path) == before


def test_keeps_links_and_never_follows_them(output, tmp_path):
    build, outside = faults.build_folder(output), tmp_path / "outside"
    (outside / "parts").mkdir(parents=True)
    (outside / "parts" / "precious").write_text("precious")
    (output / ".build-0000000000000000").symlink_to(outside)
    (output / ".build-0000000000000001").symlink_to(tmp_path / "nowhere")
    (output / OUTCOME).symlink_to(outside / "parts" / "precious")
    (build / "parts" / "link").symlink_to(outside)
    (build / "shards").symlink_to(outside)
    before = tree(outside)
    done = run_now(output)
    assert "kept  .build-0000000000000000: it is a link" in done.stdout
    assert f"kept  {OUTCOME}: it is a link" in done.stdout
    assert tree(outside) == before
    assert len(hidden(output)) == 3  # the real build folder was deleted, with the links in it


def test_deletes_builds_with_hostile_names(output):
    parts = faults.build_folder(output) / "parts"
    for name in (b"new\nline", b"\xff\xfe", b"\x1b[31m", b"-rf", b"a" * 255, "ü".encode()):
        Path(os.fsdecode(os.fsencode(parts) + b"/" + name)).write_text("x")
    parts.joinpath(*["deep"] * 60).mkdir(parents=True)
    for name in (b".build-a\nb", b".build-\xff", b".build-\x1b[31m", b".build- "):
        os.makedirs(os.fsencode(output) + b"/" + name + b"/parts")
    done = run_now(output)
    assert hidden(output) == []
    assert len(done.stdout.splitlines()) == 6
    assert all(line.isprintable() for line in done.stdout.splitlines())
    faults.check_dataset(output)


# The argument DIR.


def test_folders_without_a_dataset(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    make_build(tmp_path / "foreign" / "src")
    (tmp_path / "loop").symlink_to("loop")
    before = tree(tmp_path)
    assert "missing is not a folder: give the folder" in run(tmp_path / "missing").sentence
    assert "file is not a folder: give the folder" in run(tmp_path / "file").sentence
    assert run(tmp_path / "file" / "x").code == 1
    assert "loop" in run(tmp_path / "loop").sentence
    for name in ("empty", "foreign"):
        assert run_now(tmp_path / name).stdout == f"{tmp_path / name}: nothing to clean.\n"
    assert tree(tmp_path) == before


UID = 65534  # a user without permissions


# Who imports modules of the checkout.
acts_for_another_user = pytest.mark.skipif(
    os.geteuid() != 0 or not all(path.stat().st_mode & stat.S_IXOTH for path in ROOT.parents),
    reason="acts for another user",
)


def open_to_others(path: Path) -> None:
    """Let other users reach a temporary folder of pytest."""
    for folder in (path, *path.parents):
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)


@acts_for_another_user
def test_reports_missing_permissions_in_one_sentence_each(output, tmp_path):
    open_to_others(tmp_path)
    before = tree(output)
    done = run(output, NOW, uid=UID)
    assert done.code == 1
    assert "Cannot delete " in done.sentence
    assert done.sentence.endswith("Permission denied; check the permissions.")
    assert tree(output) == before
    # Leftovers that can be deleted are deleted.
    output.chmod(0o777)
    mine = make_build(output)
    for path in (mine, mine / "parts"):
        os.chown(path, UID, UID)
    secret = output / ".build-0000000000000001"
    secret.mkdir(mode=0o700)
    done = run(output, NOW, uid=UID)
    assert done.code == 1
    assert not mine.exists()
    first, second = sorted(done.stderr.splitlines())
    assert first.startswith("shardmill: Cannot delete")
    assert second.startswith(f"shardmill: Cannot list {secret}: Permission denied")
    output.chmod(0o711)
    assert f"Cannot list {output}: Permission denied" in run(output, uid=UID).sentence


@acts_for_another_user
def test_reports_a_build_folder_that_its_parent_protects(output, tmp_path):
    open_to_others(tmp_path)
    for path in [faults.build_folder(output), *faults.build_folder(output).rglob("*")]:
        os.chown(path, UID, UID)
    done = run(output, NOW, uid=UID)
    assert done.code == 1
    assert "cannot be deleted completely: check its permissions" in done.sentence
    faults.check_dataset(output, hidden(output))


def test_cleans_a_full_disk(output, monkeypatch, capsys):
    def raise_full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shardmill.schemas.storage.local._temporary_file", raise_full)
    code, out, _ = call_main(capsys, output, NOW)
    assert (code, "Removed 1 leftover" in out) == (0, True)
    assert hidden(output) == []


def test_ages() -> None:
    now = 10**18
    for seconds, wanted in (
        (0, "0 seconds"),
        (1, "1 second"),
        (61, "61 seconds"),
        (7199, "119 minutes"),
        (172800, "2 days"),
        (-5, "0 seconds"),
    ):
        assert format_age(now - seconds * 10**9, now) == f"last changed {wanted} ago"
    unknown = cleanup.Leftover("x", "build", 1, 1, None)
    assert unknown.is_recent(1, now)
    assert not unknown.is_recent(0, now)


# Kills and concurrent commands.


def test_survives_a_kill_before_any_step(output, tmp_path):
    make_files(output, [publications.BUILD], OUR_FILES + OUR_EMPTY_FILES)
    make_old(output)
    for step in itertools.count(1, 1 if SOAK else 3):
        copy = shutil.copytree(output, tmp_path / "copy", symlinks=True)
        ended = run(copy, watch=faults.Watched(copy, at=(step,)))
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL
        faults.check_dataset(copy, hidden(copy))
        run_now(copy)
        faults.check_dataset(copy)
        assert hidden(copy) == []
        shutil.rmtree(copy)
    assert step > 15


def test_two_cleans_at_once(output, tmp_path):
    make_files(output, [publications.BUILD], [OUTCOME])
    for turn in range(6):
        copy = shutil.copytree(output, tmp_path / f"copy{turn}", symlinks=True)
        before = published_tree(copy)
        both = [faults.zygote().start("clean", copy, NOW) for _ in range(2)]
        assert [(each.wait().code, each.ended.stderr) for each in both] == [(0, "")] * 2
        assert (published_tree(copy), hidden(copy)) == (before, [])


@pytest.mark.nightly
@pytest.mark.parametrize("flags", [(), CHANGED][: 1 + SOAK])
def test_clean_during_a_build(flags, source, published, tmp_path):
    """The build succeeds or asks to run again, and the next run completes it."""
    wanted = tmp_path / "wanted"
    faults.built(source, wanted, *flags)
    removed = 0
    for turn in range(3):
        output = tmp_path / f"out{turn}"
        if flags:
            shutil.copytree(published, output, symlinks=True)
        builder = faults.zygote().start(*faults.images(source, output, *flags))
        while not list(output.glob(".build-*")) and not (output / "manifest.json").exists():
            time.sleep(0.005)
        for _ in range(4 + turn):
            ended = run(output, NOW)
            removed += "removed" in ended.stdout
            assert ended.code == 0 or "no build is running there" in ended.sentence
            if flags:
                assert read_published(LocalStorage(), str(output)).manifest is not None
            time.sleep(0.1)
        ended = builder.wait()
        assert ended.code == 0 or "run again" in ended.sentence
        faults.built(source, output, *flags)
        assert faults.check_dataset(output, hidden(output)) == faults.check_dataset(wanted)
    assert removed


def test_keeps_a_build_folder_that_changed_since_it_was_found(output):
    make_old(output)
    storage, now = LocalStorage(), time.time_ns()
    (item,) = cleanup.find_leftovers(storage, str(output)).leftovers
    assert not item.is_recent(HOUR, now)
    (faults.build_folder(output) / "parts" / "new").write_text("x")
    assert not cleanup.remove(storage, str(output), item, HOUR, now)
    assert faults.build_folder(output).exists()


# Buckets.


@pytest.fixture
def stored(strict_bucket) -> str:
    """A dataset, an unfinished build and an outcome in a bucket."""
    output = f"{strict_bucket}/a/ds"
    storage = open_storage(output)
    assert publications.publish_by_hand(output, publications.make_manifest())
    publications.stage(output)
    storage.replace(f"{output}/{OUTCOME}", b"{}")
    storage.replace(f"{output}/.notes", b"mine")
    storage.replace(f"{strict_bucket}/a/ds2/{publications.BUILD}/parts/x", b"of another dataset")
    return output


def objects(uri: str) -> dict[str, str]:
    return {entry.path: entry.version for entry in open_storage(uri).walk(uri.rsplit("/", 1)[0])}


def call_main(capsys, *args: object) -> tuple[int, str, str]:
    """Run the command in this process; return its code and output."""
    code = cli.main(["clean", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def test_cleans_a_bucket(stored, capsys):
    before = objects(stored)
    leftovers = {path for path in before if path.startswith((f"{stored}/.build", f"{stored}/.out"))}
    assert len(leftovers) == 4
    code, out, err = call_main(capsys, stored)
    assert (code, err, out.count("kept  .")) == (0, "", 2)
    assert "second" in out  # the emulator's clock is that of this machine
    code, _, err = call_main(capsys, stored, NOW, "--dry_run")
    assert (code, err, objects(stored)) == (0, "", before)
    code, out, err = call_main(capsys, f"{stored}/", NOW)
    assert (code, err) == (0, "")
    assert "Removed 2 leftovers: 9 B in 4 files." in out
    assert objects(stored) == {p: v for p, v in before.items() if p not in leftovers}
    assert call_main(capsys, stored) == (0, f"{stored}: nothing to clean.\n", "")


def test_reports_a_failed_deletion_and_continues(output, monkeypatch, capsys):
    def raise_error(self, path):
        raise StorageError(f"Cannot delete {path}: bad\nluck; check the disk.")

    monkeypatch.setattr(LocalStorage, "delete_tree", raise_error)
    (output / OUTCOME).write_text(json.dumps({}))
    code, out, err = call_main(capsys, output, NOW)
    assert code == ShardmillError.exit_code
    assert err.count("\n") == 1
    assert "bad\\nluck" in err
    assert "removed  .outcome-" in out
