"""Full disks, inputs that change during the build, damaged build folders, unusable outputs."""

import itertools
import os
import shutil
import signal
import socket
import stat
import time
from pathlib import Path

import psutil
import pytest

from shardmill.pipelines.images_config import ImagesConfig
from shardmill.schemas.refs import REASONS, Reject
from shardmill.transforms.match.inputs import find_input, walk_input
from shardmill.transforms.match.walk import WalkTask
from tests.conftest import make_image, make_photos, shardmill, start_shardmill
from tests.support.fault_tools import (
    SOAK,
    Watched,
    build_folder,
    check_dataset,
    few_parts,
    flip,
    make_source,
    zygote,
)
from tests.support.hostile_files import HostileCase, hostile_environment, write_hostile
from tests.support.processes import descendants

pytest_plugins = ["tests.support.worker_failures"]
pytestmark = pytest.mark.heavy

FEW = ("--num_shards=8",)


def run(source: Path, output: Path, *flags: object, **kwargs):
    """Run a build of about sixteen parts."""
    return zygote().run(*few_parts(source, output, *FEW, *flags), **kwargs)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_source(tmp_path_factory.mktemp("faults") / "photos", {"cat": 22, "dog": 16})


@pytest.fixture(scope="module")
def wanted(source, tmp_path_factory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("faults") / "out"
    assert run(source, output).code == 0
    return check_dataset(output)


def lasting(folder: Path) -> dict[str, bytes]:
    """Return the published files, all of whose folders are generations."""
    found = (p for p in folder.rglob("*") if p.is_file() and ".build-" not in str(p))
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


# Full disks.


def fill(disk: Path, leave: int) -> Path:
    """Fill a disk except for some bytes."""
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    ballast.write_bytes(bytes(max(0, free - leave)))
    return ballast


STEPS = ("parts", "shards", "final-", "gen-")  # what is written next, in order


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("step", "old"),
    list(
        itertools.product(STEPS, (False, True))
        if SOAK
        else zip(STEPS, (False, True) * 2, strict=True)
    ),
)
def test_resumes_after_the_disk_fills_up(source, wanted, small_disk, tmp_path, old, step):
    """The disk is filled while the build is stopped at a step."""
    output = small_disk / "out"
    if old:
        assert run(source, output, "--seed=4").code == 0
    before = lasting(output) if old else {}
    watch = Watched(
        output, since=f"/{step}", at=(8 if step == "parts" else 1,), number=signal.SIGSTOP
    )
    command = zygote().start(*few_parts(source, output, *FEW, "--overwrite"), watch=watch)
    assert command.wait_stopped()
    ballast = fill(small_disk, 0)
    command.send(signal.SIGCONT)
    ended = command.wait()
    assert ended.code == 1
    assert "No space left on device" in ended.sentence
    assert str(output) in ended.sentence
    assert "free some space and run again, finished parts are kept" in ended.sentence
    assert (lasting(output) if output.exists() else {}) == before
    assert not list(output.rglob("*.tmp"))
    finished = len(list(output.glob(".build-*/parts/*.json")))
    ballast.unlink()
    resumed = run(source, output, "--overwrite")
    assert resumed.parts()[1] == finished
    assert check_dataset(output) == wanted


# Inputs that change between listing and reading.


def replaced(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(bytes(size))


def became_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def became_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def became_socket(path: Path) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def became_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def lost_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("a file now")


CHANGES = {
    "vanished": (Path.unlink, "not_found"),
    "truncated": (lambda path: os.truncate(path, 100), "changed"),
    "emptied": (lambda path: os.truncate(path, 0), "changed"),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "changed"),
    "replaced": (replaced, "changed"),
    "touched": (lambda path: os.utime(path, ns=(1, 1)), "changed"),
    "became a folder": (became_folder, "changed"),
    "became a pipe": (became_pipe, "changed"),
    "became a socket": (became_socket, "changed"),
    "became a loop": (became_loop, "not_found"),
    "lost its folder": (lost_folder, "not_found"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rejects_inputs_that_change_after_matching(tmp_path, change):
    source = tmp_path / "photos"
    for name in ("one/a.jpg", "two/b.jpg", "three/c.jpg"):
        (source / name).parent.mkdir(parents=True)
        make_image(1, 40, 30).save(source / name)
    config = ImagesConfig(str(source), str(tmp_path / "out"), image_size="16", label_from="none")
    tasks = [WalkTask(name, deep=True) for name in ("one", "two", "three")]
    spec = find_input(str(source))
    refs = [ref for task in tasks for ref in walk_input(spec, task)]
    alter, reason = CHANGES[change]
    alter(source / "two/b.jpg")
    items = list(config.encoder.encode(refs, []))
    rejects = [item for item in items if isinstance(item, Reject)]
    assert [(one.key, one.stage, one.error) for one in rejects] == [("two/b.jpg", "read", reason)]
    assert reason in REASONS
    assert len(items) == 3


# Damaged build folders.


@pytest.fixture(scope="module")
def unpublished(source, tmp_path_factory) -> Path:
    """Return a build with parts and shards that failed because of its rejects."""
    output = tmp_path_factory.mktemp("faults") / "out"
    ended = run(source, output, "--max_reject_fraction=0")
    assert ended.code == 1
    return output


def test_replaces_damaged_shards_and_ignores_other_files(source, wanted, unpublished, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(unpublished, output)
    build = build_folder(output)
    number = len(list(build.glob("parts/*.json")))
    shards = sorted((build / "shards").iterdir())
    flip(shards[0])
    os.truncate(shards[1], 5)
    shards[2].unlink()
    (build / "junk").mkdir()
    (build / "junk/file").write_text("junk")
    (build / "parts/.x.tmp").write_text("junk")
    (build / "parts/x.part").write_bytes(b"junk")
    (build / "parts/x.json").write_bytes(b"junk")
    (build / "file").symlink_to("/etc/passwd")
    (output / ".build-other").mkdir()
    ended = run(source, output)
    assert ended.parts() == (0, number)
    assert check_dataset(output, [".build-other"]) == wanted
    assert Path("/etc/passwd").exists()


# Too many rejects.


def make_rejects(folder: Path, good: int, bad: int) -> Path:
    (folder / "x").mkdir(parents=True)
    for number in range(good):
        make_image(number, 40, 30).save(folder / "x" / f"{number}.jpg")
    for number in range(bad):
        (folder / "x" / f"bad{number}.jpg").write_bytes(b"" if number % 3 == 0 else b"text")
    return folder


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("good", "bad", "fraction", "code"),
    [
        (5, 1, 0, 0),  # one reject is always tolerated
        (5, 2, 0, 1),
        (8, 2, 0.2, 0),  # exactly the share
        (71, 29, 0.29, 0),  # 0.29 * 100 is below 29 in doubles
        (7, 3, 0.29, 1),
        (1, 5, 1, 0),
        (0, 3, 1, 1),  # nothing left
        (0, 1, 0, 1),
    ],
)
def test_reject_limit_at_its_edges(tmp_path, good, bad, fraction, code):
    source, output = make_rejects(tmp_path / "photos", good, bad), tmp_path / "out"
    ended = zygote().run(
        "images",
        f"--input={source}",
        f"--output={output}",
        "--image_size=8",
        "--splits=train:1",
        f"--max_reject_fraction={fraction}",
    )
    assert ended.code == code, ended.stderr
    if code:
        assert f"{bad} of {good + bad} inputs were rejected" in ended.sentence
        assert not (output / "manifest.json").exists()
    else:
        check_dataset(output)


@pytest.mark.parametrize("kind", ["images", "rows", "count"])
def test_a_folder_that_cannot_be_listed_is_not_one_reject(tmp_path, kind):
    """Its files would be missing, and their number is not known."""
    files = {"images": ("x.jpg", make_image(1)), "rows": ("x.csv", None), "count": ("x.gz", None)}
    name, image = files[kind]
    for folder in ("a", "b", "c", "lost+found"):
        path = tmp_path / "in" / folder / name
        path.parent.mkdir(parents=True)
        image.save(path) if image else path.write_bytes(b"x\n1\n2\n" if kind == "rows" else b"")
    for folder in (*tmp_path.parents, tmp_path, tmp_path / "in"):
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    tmp_path.chmod(0o777)
    for folder in ("c", "lost+found"):
        (tmp_path / "in" / folder).chmod(0o700)
    flags = [] if kind == "count" else [f"--output={tmp_path}/out", "--max_reject_fraction=1"]
    ended = zygote().run(kind, f"--input={tmp_path}/in", *flags, uid=65534)
    assert ended.code == 1
    assert f"The folder {tmp_path}/in/c cannot be listed" in ended.sentence
    assert not list(tmp_path.glob("out/manifest.json"))
    ended = zygote().run(kind, f"--input={tmp_path}/in/[ab]/*", *flags, uid=65534)
    if kind == "images":  # decoders do not start for this user
        assert "decodes images did not start" in ended.sentence
    else:
        assert ended.code == 0, ended


# Unusable outputs.


def assert_rejected(source: Path, output: Path, words: str, **kwargs) -> None:
    ended = run(source, output, "--overwrite", **kwargs)
    assert ended.code == 1, ended
    assert words in ended.sentence
    assert str(output) in ended.sentence


def test_rejects_foreign_outputs(source, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    assert_rejected(source, foreign, "choose an empty or new folder")
    assert_rejected(source, foreign / "notes.txt", "is a file: choose a folder")
    assert_rejected(source, foreign / "notes.txt/below", "a folder of the path is a file")
    assert lasting(foreign) == {"notes.txt": b"mine"}
    photos = make_photos(tmp_path / "photos", {"cat": 1})
    assert_rejected(source, photos, "choose an empty or new folder")
    assert_rejected(source, photos.parent, "choose an empty or new folder")
    assert [*lasting(photos)] == ["cat/000.jpg"]


def test_rejects_outputs_without_write_permission(source, tmp_path):
    assert_rejected(source, Path("/proc/shardmill"), "choose an output on a writable file system")
    locked = tmp_path / "locked"
    locked.mkdir()
    # Another user may read these folders, but not write.
    for path in {*locked.parents, *source.parents, locked, source, source / "cat", source / "dog"}:
        if tmp_path.parent in (path, path.parent) or path in source.parents or path == tmp_path:
            path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    assert_rejected(source, locked / "out", "check the permissions", uid=65534)
    assert_rejected(source, locked, "check the permissions", uid=65534)
    assert not list(locked.iterdir())
    secret = locked / "secret"
    secret.mkdir(mode=0o700)
    assert_rejected(source, secret, "check the permissions", uid=65534)
    assert_rejected(source, secret / "out", "check the permissions", uid=65534)


# Identity.


@pytest.mark.nightly
def test_each_file_is_one_reject_and_all_others_are_written(tmp_path):
    case = HostileCase(tmp_path)
    done = shardmill(*case.args(tmp_path / "out"), env=hostile_environment())
    assert done.returncode == 0, done.stderr
    case.check(tmp_path / "out")
    assert "Traceback" not in done.stderr
    first = (tmp_path / "out/current/rejects.jsonl").read_bytes()
    again = shardmill(*case.args(tmp_path / "again"), env=hostile_environment())
    assert again.returncode == 0
    assert (tmp_path / "again/current/rejects.jsonl").read_bytes() == first


def decoders(client: int) -> list[psutil.Process]:
    return descendants(client, "decoder_process")


@pytest.mark.sweep
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("action", ["none", "loop", "sleep"])
def test_no_decoder_outlives_a_stopped_build(tmp_path: Path, action: str, number: int):
    """The terminal sends SIGINT to the process group of the command."""
    source = make_photos(tmp_path / "in", {"cat": 40, "dog": 30}, size=(900, 700))
    if action != "none":
        for name in range(4):
            write_hostile(source / "cat" / f"{name}.bmp", action)
    args = [
        "images",
        f"--input={source}",
        f"--output={tmp_path / 'out'}",
        "--image_size=700",
        "--encoding=png",
        "--shard_examples=8",
        "--workers=2",
    ]
    client = start_shardmill(*args, env=hostile_environment(), start_new_session=True)
    end = time.monotonic() + 60
    while time.monotonic() < end and not (found := decoders(client.pid)):
        time.sleep(0.02)
    time.sleep(0.5)
    found = decoders(client.pid)
    assert found
    os.killpg(client.pid, number)
    _, stderr = client.communicate(timeout=60)
    assert client.returncode != 0
    assert "Traceback" not in stderr
    assert not psutil.wait_procs(found, 10)[1]
    if action == "none":
        done = shardmill(*args)
        assert done.returncode == 0, done.stderr
        check_dataset(tmp_path / "out")
