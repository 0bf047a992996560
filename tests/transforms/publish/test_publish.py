"""Publishing survives a kill between any two steps, and never touches what is not a dataset's."""

import itertools
import json
import random
import shutil
import signal
from pathlib import Path

import pytest

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError, StaleBuildError
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.publish.journal import Journal, Move
from shardmill.transforms.publish.publish import (
    check_output,
    publish,
    read_manifest,
    recover_output,
)
from tests.support.fault_tools import (
    JOURNAL,
    SOAK,
    Watched,
    build_folder,
    built,
    check_dataset,
    check_manifest,
    images,
    make_source,
    zygote,
)

NEW = ("--num_shards=2", "--seed=5", "--overwrite")
OLD = {
    "fresh": None,
    "fewer shards before": ("--num_shards=1",),
    "more shards before": ("--num_shards=4",),
    "the same names before": ("--num_shards=2",),
}


def few(source: Path, output: Path, *flags: object) -> list[str]:
    """The arguments of a build with few parts."""
    return [a for a in images(source, output, *flags) if not a.startswith("--shard_examples")]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_source(tmp_path_factory.mktemp("publish") / "photos", {"cat": 9, "dog": 9})


@pytest.fixture(scope="module")
def wanted(source, tmp_path_factory) -> dict[str, bytes]:
    """The lasting files of the new dataset, built undisturbed."""
    output = tmp_path_factory.mktemp("publish") / "out"
    assert zygote().run(*few(source, output, *NEW)).code == 0
    return check_dataset(output)


@pytest.fixture(scope="module")
def olds(source, tmp_path_factory) -> dict[str, Path | None]:
    """What stands at the output before."""
    folder = tmp_path_factory.mktemp("old")
    for name, flags in OLD.items():
        if flags is not None:
            assert zygote().run(*few(source, folder / name, *flags)).code == 0
    return {name: flags and folder / name for name, flags in OLD.items()}


def lasting(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def check_killed(output: Path, old: Path | None) -> bool:
    """Asserts what must hold after a kill at any moment; tells whether publishing had begun."""
    begun = (output / JOURNAL).exists()
    if (output / "manifest.json").exists():
        check_manifest(output)
    elif not begun:
        assert old is None
    if not begun and old is not None:
        now = lasting(output)
        assert all(now[name] == data for name, data in lasting(old).items())
    return begun


@pytest.mark.parametrize("before", OLD)
def test_every_moment_of_publishing(source, wanted, olds, tmp_path, before):
    """A copy of the output right before each change is what a kill there leaves."""
    old, output = olds[before], tmp_path / "out"
    if old is not None:
        shutil.copytree(old, output)
    watch = Watched(output, since=JOURNAL, copies=tmp_path / "copies")
    assert zygote().run(*few(source, output, *NEW), watch=watch).code == 0
    assert check_dataset(output) == wanted
    moments = sorted((tmp_path / "copies").iterdir())
    assert len(moments) > 20
    begun = [check_killed(moment, old) for moment in moments]
    assert begun == sorted(begun)
    assert begun.count(True) > 15
    storage = LocalStorage()
    for moment in (moment for moment, journal in zip(moments, begun, strict=True) if journal):
        seen = check_output(storage, str(moment))
        assert recover_output(storage, str(moment)) == seen
        assert check_dataset(moment) == wanted
    if old is None:  # no journal and no manifest: an unfinished build, to be gone on with
        assert check_output(storage, str(moments[0])) is None


@pytest.mark.parametrize("before", OLD)
def test_killed_while_publishing(source, wanted, olds, tmp_path, before):
    """SIGKILL, then any command at all completes what was begun, and the next finds it so."""
    first, last = 1, 20  # with no dataset before there are a few more, with one many more
    sampled = sorted(random.Random(before).sample(range(first, last + 1), 1))
    for number in itertools.count(first) if SOAK else sampled:
        old, output = olds[before], tmp_path / f"out{number}"
        if old is not None:
            shutil.copytree(old, output)
        watch = Watched(output, since=JOURNAL, at=(number,))
        ended = zygote().run(*few(source, output, *NEW), watch=watch)
        if ended.code == 0 and number > last:
            break  # that many steps there are not
        assert ended.code == -signal.SIGKILL
        begun = check_killed(output, old)
        other = zygote().run(*few(source, output, "--seed=77"))  # other flags, no --overwrite
        if begun or old is not None:
            assert other.code == 1
            assert "other inputs or options" in other.sentence
        if begun:
            assert check_dataset(output) == wanted
        else:
            assert zygote().run(*few(source, output, *NEW)).code == 0
            assert check_dataset(output) == wanted
        assert "up to date" in zygote().run(*few(source, output, *NEW)).stdout


def test_killed_again_while_recovering(source, wanted, olds, tmp_path):
    """A recovery that is killed, again and again, each time one step further."""
    output = tmp_path / "out"
    shutil.copytree(olds["more shards before"], output)
    command = few(source, output, *NEW)
    zygote().run(*command, watch=Watched(output, since=JOURNAL, at=(5,)))
    kills = 0
    while (ended := zygote().run(*command, watch=Watched(output, at=(3,)))).code != 0:
        assert ended.code == -signal.SIGKILL
        if (output / JOURNAL).exists():
            check_killed(output, olds["more shards before"])
        else:  # all was completed, and the command was killed at what it did next
            check_manifest(output)
        kills += 1
        assert kills < 40
    assert kills > 3
    assert check_dataset(output) == wanted


# Publications made by hand, to reach what commands do not.


def manifest(**changes: object) -> Manifest:
    """A manifest of one shard with the bytes ``payload``."""
    body = {
        "version": 1,
        "splits": {"train": {"num_examples": 0, "num_bytes": 7, "label_counts": {}, "shards": [
            {"file": "train-0.gz", "records": 0, "bytes": 7, "crc32c": "00000000"}]}},
        "written": 0, "compression": "gzip",
        "inputs": {"root": "", "matched": 0, "accepted": 0, "rejected": 0, "skipped": 0,
                   "duplicates": 0, "rejected_by_reason": {}},
        "build": {"config_id": "c", "input_id": "i", "config": {}, "versions": {}, "runner": "",
                  "finished": ""},
        "labels": [], "features": [], "warnings": [],
    }  # fmt: skip
    body["build"].update(changes)
    return Manifest.from_json(json.dumps(body))


def stage(output: Path) -> list[Move]:
    """Writes a finished build by hand and returns its moves."""
    moves = []
    for name in ("schema.pbtxt", "rejects.jsonl", "train-0.gz"):
        path = output / ".build-c" / "shards" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"payload")
        moves.append(Move(f".build-c/shards/{name}", name, 7))
    return moves


def publish_by_hand(output: Path, new: Manifest, *, overwrite: bool = False) -> bool:
    return publish(LocalStorage(), str(output), new, stage(output), ".build-c", overwrite=overwrite)


@pytest.fixture
def published(tmp_path) -> Path:
    output = tmp_path / "out"
    assert publish_by_hand(output, manifest())
    return output


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_publish_twice_and_over(published):
    files = names(published)
    assert files == {"manifest.json", "train-0.gz", "schema.pbtxt", "rejects.jsonl"}
    assert not publish_by_hand(published, manifest())
    assert names(published) == files
    with pytest.raises(OutputError, match="add --overwrite"):
        publish_by_hand(published, manifest(input_id="j"))
    assert publish_by_hand(published, manifest(input_id="j"), overwrite=True)
    assert names(published) == files


def test_a_foreign_file_in_the_way_is_not_touched(tmp_path):
    output = tmp_path / "out"
    moves = stage(output)
    (output / "train-0.gz").write_text("mine")
    with pytest.raises(OutputError, match="is not Shardmill's"):
        publish(LocalStorage(), str(output), manifest(), moves, ".build-c", overwrite=True)
    (output / "train-0.gz").rename(tmp_path / "aside")
    publish(LocalStorage(), str(output), manifest(), moves, ".build-c", overwrite=False)
    (output / "train-1.gz").write_text("mine")
    moves = stage(output)
    moves.append(Move(".build-c/shards/more", "train-1.gz", 7))
    (output / ".build-c/shards/more").write_bytes(b"payload")
    with pytest.raises(OutputError, match=r"train-1.gz exists and is not part"):
        publish(
            LocalStorage(), str(output), manifest(input_id="j"), moves, ".build-c", overwrite=True
        )
    assert (output / "train-1.gz").read_text() == "mine"
    assert Manifest.from_json((output / "manifest.json").read_bytes()) == manifest()


def test_a_build_that_vanished_before_the_journal(published):
    moves = stage(published)
    (published / ".build-c/shards/train-0.gz").unlink()
    with pytest.raises(StaleBuildError, match="run again"):
        publish(
            LocalStorage(),
            str(published),
            manifest(input_id="j"),
            moves,
            ".build-c",
            overwrite=True,
        )
    assert Manifest.from_json((published / "manifest.json").read_bytes()) == manifest()
    assert not (published / JOURNAL).exists()


def journal_of(output: Path, **changes: object) -> Path:
    """A journal as a publisher killed right after it would leave it."""
    text = manifest(input_id="j").to_json()
    moves = [*stage(output), Move(".build-c/new/manifest.json", "manifest.json", len(text))]
    (output / ".build-c/new").mkdir()
    (output / ".build-c/new/manifest.json").write_text(text)
    body = json.loads(Journal(text, tuple(moves), (), ".build-c").to_json())
    body.update(changes)
    (output / JOURNAL).write_text(json.dumps(body))
    return output / JOURNAL


def test_a_journal_is_followed(published):
    journal_of(published)
    assert recover_output(LocalStorage(), str(published)) == manifest(input_id="j")
    assert names(published) == {"manifest.json", "train-0.gz", "schema.pbtxt", "rejects.jsonl"}


def test_a_manifest_that_is_away_for_a_moment(published):
    """Who asks for the manifest while files move is told what they move to."""
    journal_of(published)
    (published / "manifest.json").unlink()
    assert read_manifest(LocalStorage(), str(published)) == manifest(input_id="j")
    assert not (published / "manifest.json").exists()
    assert read_manifest(LocalStorage(), str(published / "missing")) is None


def test_a_journal_without_its_build_folder_is_taken_back(published):
    """Whoever removed the build folder by hand keeps the old dataset."""
    journal_of(published)
    shutil.rmtree(published / ".build-c")
    assert recover_output(LocalStorage(), str(published)) == manifest()
    assert not (published / JOURNAL).exists()
    assert (published / "train-0.gz").read_bytes() == b"payload"


def test_a_publication_that_cannot_be_completed_is_a_sentence(published):
    journal_of(published)
    (published / "manifest.json").unlink()
    (published / "schema.pbtxt").unlink()
    shutil.rmtree(published / ".build-c")
    with pytest.raises(OutputError, match=r"schema\.pbtxt, so the publication cannot be"):
        recover_output(LocalStorage(), str(published))


CLIMBING = ("../victim", "a/../../victim", "/victim", "", ".", "..", "a/b", "x\0y", ".hidden")


@pytest.mark.parametrize("name", CLIMBING)
@pytest.mark.parametrize("where", ["delete", "target", "source", "build", "below"])
def test_a_journal_never_leads_out(published, tmp_path, name, where):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    before = lasting(published)
    path = journal_of(published)
    body = json.loads(path.read_text())
    if where == "delete":
        body["deletes"] = [name]
    elif where == "build":
        body["build"] = name
    elif where == "below":
        body["moves"][0]["source"] = f".build-c/x/{name}" if name != "a/b" else "x/a/b"
    else:
        body["moves"][0][where] = name
    path.write_text(json.dumps(body))
    for call in (recover_output, check_output, read_manifest):
        with pytest.raises(OutputError, match="delete it and run again"):
            call(LocalStorage(), str(published))
    assert (victim / "file").read_text() == "precious"
    path.unlink()
    assert lasting(published) == before


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '"x"', "\x00\x01", '{"manifest": 1, "moves": [], "deletes": [], "build": 2}',
     '{"manifest": "x", "moves": [{"source": 1, "target": 2, "num_bytes": 3}], "deletes": [], "build": ".build-c"}'],
)  # fmt: skip
def test_a_damaged_journal_is_a_sentence(published, text):
    (published / JOURNAL).write_text(text)
    with pytest.raises(OutputError, match=r"\.publish\.json cannot be followed: .*delete it"):
        recover_output(LocalStorage(), str(published))
    assert (published / JOURNAL).read_text() == text


@pytest.mark.parametrize("name", CLIMBING)
def test_a_manifest_never_leads_out(published, tmp_path, name):
    """Overwriting deletes what the old manifest names, so its names are looked at first."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = published / "manifest.json"
    body = json.loads(path.read_text())
    body["splits"]["train"]["shards"][0]["file"] = name
    path.write_text(json.dumps(body))
    with pytest.raises(OutputError, match=r"manifest\.json cannot be read"):
        publish_by_hand(published, manifest(input_id="j"), overwrite=True)
    assert victim.read_text() == "precious"
    assert (published / "train-0.gz").read_bytes() == b"payload"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": 1}', '{"version": 99}', "\x00"]
)
def test_a_damaged_manifest_is_a_sentence(source, tmp_path, text):
    output = tmp_path / "out"
    output.mkdir()
    (output / "manifest.json").write_text(text)
    ended = zygote().run(*few(source, output, "--overwrite"))
    assert ended.code == 1
    assert "manifest.json cannot be read" in ended.sentence
    assert lasting(output) == {"manifest.json": text.encode()}


def test_a_folder_in_the_place_of_a_file_is_not_touched(published):
    (published / "schema.pbtxt").unlink()
    (published / "schema.pbtxt").mkdir()
    with pytest.raises(OutputError, match="move it away"):
        publish_by_hand(published, manifest(input_id="j"), overwrite=True)
    assert Manifest.from_json((published / "manifest.json").read_bytes()) == manifest()


def test_a_shard_that_was_deleted_is_not_up_to_date(source, tmp_path):
    output = tmp_path / "out"
    built(source, output)
    wanted = check_dataset(output)
    shard = next(output.glob("train-00000-*"))
    shard.unlink()
    ended = zygote().run(*images(source, output))
    assert ended.code == 1
    assert shard.name in ended.sentence
    assert "--overwrite" in ended.sentence
    built(source, output, "--overwrite")
    assert check_dataset(output) == wanted
    shard.write_bytes(shard.read_bytes()[:-1])
    assert zygote().run(*images(source, output)).code == 1
    built(source, output, "--overwrite")
    assert check_dataset(output) == wanted


def test_a_dry_run_changes_nothing_in_an_unfinished_publication(source, wanted, olds, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(olds["more shards before"], output)
    watch = Watched(output, since=JOURNAL, at=(8,))
    assert zygote().run(*few(source, output, *NEW), watch=watch).code == -signal.SIGKILL
    before = {p: p.stat().st_mtime_ns for p in output.rglob("*")}
    assert not (output / "manifest.json").exists()
    assert "up to date" in zygote().run(*few(source, output, *NEW, "--dry_run")).stdout
    assert {p: p.stat().st_mtime_ns for p in output.rglob("*")} == before
    assert build_folder(output)
    assert zygote().run(*few(source, output, *NEW)).code == 0
    assert check_dataset(output) == wanted
