"""Publishing survives a kill between any two steps and changes no file of another program."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError, StaleBuildError
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.publish import publish
from shardmill.transforms.publish.journal import Move
from tests.support import fault_tools as faults
from tests.support import publications

BUILD, OTHER = publications.BUILD, publications.OTHER
NEW = ("--num_shards=2", "--seed=5", "--overwrite")
OLD = {
    "fresh": None,
    "fewer shards before": ("--num_shards=1",),
    "more shards before": ("--num_shards=4",),
    "the same names before": ("--num_shards=2",),
}


def run(source: Path, output: Path, *flags: object, **options) -> faults.Ended:
    return faults.zygote().run(*faults.few_parts(source, output, *flags), **options)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return faults.make_source(tmp_path_factory.mktemp("publish") / "photos", {"cat": 9, "dog": 9})


@pytest.fixture(scope="module")
def wanted(source, tmp_path_factory) -> dict[str, bytes]:
    """The reproducible files of the new dataset, built without faults."""
    output = tmp_path_factory.mktemp("publish") / "out"
    assert run(source, output, *NEW).code == 0
    return faults.check_dataset(output)


@pytest.fixture(scope="module")
def olds(source, tmp_path_factory) -> dict[str, Path | None]:
    """The dataset that is at the output before, for each name."""
    folder = tmp_path_factory.mktemp("old")
    for name, flags in OLD.items():
        if flags is not None:
            assert run(source, folder / name, *flags).code == 0
    return {name: flags and folder / name for name, flags in OLD.items()}


def copy_old(old: Path | None, output: Path) -> Path:
    if old is not None:
        shutil.copytree(old, output)
    return output


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def check_killed(output: Path, old: Path | None) -> bool:
    """Assert what must hold after a kill at any moment; return whether publishing had begun."""
    begun = (output / faults.JOURNAL).exists()
    if (output / "manifest.json").exists():
        faults.check_manifest(output)
    elif not begun:
        assert old is None
    if not begun and old is not None:
        now = files_of(output)
        assert all(now[name] == data for name, data in files_of(old).items())
    return begun


@pytest.mark.parametrize("before", OLD)
def test_recovers_from_a_kill_before_any_change(source, wanted, olds, tmp_path, before):
    """A copy of the output right before each change is what a kill there leaves."""
    old, output = olds[before], copy_old(olds[before], tmp_path / "out")
    watch = faults.Watched(output, since=faults.JOURNAL, copies=tmp_path / "copies")
    assert run(source, output, *NEW, watch=watch).code == 0
    assert faults.check_dataset(output) == wanted
    moments = sorted((tmp_path / "copies").iterdir())
    assert len(moments) > 20
    begun = [check_killed(moment, old) for moment in moments]
    assert begun == sorted(begun)
    assert begun.count(True) > 15
    storage = LocalStorage()
    for moment in (moment for moment, journal in zip(moments, begun, strict=True) if journal):
        seen = publish.check_output(storage, str(moment))
        assert publish.recover_output(storage, str(moment)) == seen
        assert faults.check_dataset(moment) == wanted
    if old is None:  # neither journal nor manifest: an unfinished build that can be resumed
        assert publish.check_output(storage, str(moments[0])) is None


def test_completes_a_publication_after_repeated_kills(source, wanted, olds, tmp_path):
    output = copy_old(olds["more shards before"], tmp_path / "out")
    run(source, output, *NEW, watch=faults.Watched(output, since=faults.JOURNAL, at=(5,)))
    kills = 0
    while (ended := run(source, output, *NEW, watch=faults.Watched(output, at=(3,)))).code != 0:
        assert ended.code == -signal.SIGKILL
        if (output / faults.JOURNAL).exists():
            check_killed(output, olds["more shards before"])
        else:  # the publication was complete, and the command was killed after it
            faults.check_manifest(output)
        kills += 1
        assert kills < 40
    assert kills > 3
    assert faults.check_dataset(output) == wanted


# Publications without a build, for states that commands do not reach.


@pytest.fixture
def published(tmp_path) -> Path:
    output = tmp_path / "out"
    assert publications.publish_by_hand(output, publications.make_manifest())
    return output


def manifest_of(output: Path) -> Manifest:
    return Manifest.from_json((output / "manifest.json").read_bytes())


def test_publishes_once_and_replaces_only_with_overwrite(published):
    assert set(files_of(published)) == publications.FILES
    assert not publications.publish_by_hand(published, publications.make_manifest())
    with pytest.raises(OutputError, match="add --overwrite"):
        publications.publish_by_hand(published, OTHER)
    assert manifest_of(published) == publications.make_manifest()
    assert publications.publish_by_hand(published, OTHER, overwrite=True)
    assert manifest_of(published) == OTHER
    assert {path.name for path in published.iterdir()} == publications.FILES


def test_keeps_foreign_files_and_folders_with_names_of_its_files(tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    (output / "train-0.gz").write_text("mine")
    with pytest.raises(OutputError, match="is not a Shardmill dataset"):
        publications.publish_by_hand(output, publications.make_manifest(), overwrite=True)
    (output / "train-0.gz").rename(tmp_path / "aside")
    publications.publish_by_hand(output, publications.make_manifest())
    (output / "train-1.gz").write_text("mine")
    moves = [*publications.stage(output), Move(f"{BUILD}/shards/more", "train-1.gz", 7)]
    (output / f"{BUILD}/shards/more").write_bytes(b"payload")
    with pytest.raises(OutputError, match=r"train-1.gz exists and is not part"):
        publish.publish(LocalStorage(), str(output), OTHER, moves, BUILD, overwrite=True)
    assert (output / "train-1.gz").read_text() == "mine"
    (output / "schema.pbtxt").unlink()
    (output / "schema.pbtxt").mkdir()
    with pytest.raises(OutputError, match="move it away"):
        publications.publish_by_hand(output, OTHER, overwrite=True)
    assert manifest_of(output) == publications.make_manifest()


def test_reports_a_build_deleted_before_the_journal(published):
    moves = publications.stage(published)
    (published / f"{BUILD}/shards/train-0.gz").unlink()
    with pytest.raises(StaleBuildError, match="run again"):
        publish.publish(LocalStorage(), str(published), OTHER, moves, BUILD, overwrite=True)
    assert manifest_of(published) == publications.make_manifest()
    assert not (published / faults.JOURNAL).exists()


def test_reads_the_new_manifest_while_files_are_moved(published):
    publications.write_journal(published)
    (published / "manifest.json").unlink()
    assert publish.read_manifest(LocalStorage(), str(published)) == OTHER
    assert not (published / "manifest.json").exists()
    assert publish.read_manifest(LocalStorage(), str(published / "missing")) is None


CLIMBING = ("../victim", "a/../../victim", "/victim", "", ".", "..", "a/b", "x\0y", ".hidden")


@pytest.mark.parametrize("name", CLIMBING)
@pytest.mark.parametrize("where", ["delete", "target", "source", "build", "below"])
def test_rejects_journal_with_path_outside_the_output(published, tmp_path, name, where):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    before = files_of(published)
    path = publications.write_journal(published)
    body = json.loads(path.read_text())
    if where == "delete":
        body["deletes"] = [name]
    elif where == "build":
        body["build"] = name
    elif where == "below":
        body["moves"][0]["source"] = f"{BUILD}/x/{name}" if name != "a/b" else "x/a/b"
    else:
        body["moves"][0][where] = name
    path.write_text(json.dumps(body))
    for call in (publish.recover_output, publish.check_output, publish.read_manifest):
        with pytest.raises(OutputError, match="delete it and run again"):
            call(LocalStorage(), str(published))
    assert (victim / "file").read_text() == "precious"
    path.unlink()
    assert files_of(published) == before


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '"x"', "\x00\x01", '{"manifest": 1, "moves": [], "deletes": [], "build": 2}',
     '{"manifest": "x", "moves": [{"source": 1, "target": 2, "num_bytes": 3}], "deletes": [], "build": ".build-c"}'],
)  # fmt: skip
def test_rejects_damaged_journal(published, text):
    (published / faults.JOURNAL).write_text(text)
    with pytest.raises(OutputError, match=r"\.publish\.json cannot be followed: .*delete it"):
        publish.recover_output(LocalStorage(), str(published))
    assert (published / faults.JOURNAL).read_text() == text


@pytest.mark.parametrize("name", CLIMBING)
def test_rejects_manifest_with_path_outside_the_output(published, tmp_path, name):
    """Replacing a dataset deletes the files that its manifest names."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = published / "manifest.json"
    body = json.loads(path.read_text())
    body["splits"]["train"]["shards"][0]["file"] = name
    path.write_text(json.dumps(body))
    with pytest.raises(OutputError, match=r"manifest\.json cannot be read"):
        publications.publish_by_hand(published, OTHER, overwrite=True)
    assert victim.read_text() == "precious"
    assert (published / "train-0.gz").read_bytes() == b"payload"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": 1}', '{"version": 99}', "\x00"]
)
def test_rejects_damaged_manifest(source, tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    ended = run(source, tmp_path, "--overwrite")
    assert ended.code == 1
    assert "manifest.json cannot be read" in ended.sentence
    assert files_of(tmp_path) == {"manifest.json": text.encode()}


def test_dataset_with_a_damaged_shard_is_not_up_to_date(source, olds, tmp_path):
    flags = OLD["fewer shards before"]
    output = copy_old(olds["fewer shards before"], tmp_path / "out")
    wanted = faults.check_dataset(output)
    shard = next(output.glob("train-00000-*"))
    data = shard.read_bytes()
    for damage in (shard.unlink, lambda: shard.write_bytes(data[:-1])):
        damage()
        ended = run(source, output, *flags)
        assert ended.code == 1
        assert shard.name in ended.sentence
        assert "--overwrite" in ended.sentence
        assert run(source, output, *flags, "--overwrite").code == 0
        assert faults.check_dataset(output) == wanted


def test_dry_run_does_not_change_an_unfinished_publication(source, wanted, olds, tmp_path):
    output = copy_old(olds["more shards before"], tmp_path / "out")
    watch = faults.Watched(output, since=faults.JOURNAL, at=(8,))
    assert run(source, output, *NEW, watch=watch).code == -signal.SIGKILL
    before = {p: p.stat().st_mtime_ns for p in output.rglob("*")}
    assert not (output / "manifest.json").exists()
    assert "up to date" in run(source, output, *NEW, "--dry_run").stdout
    assert {p: p.stat().st_mtime_ns for p in output.rglob("*")} == before
    assert faults.build_folder(output)
    assert run(source, output, *NEW).code == 0
    assert faults.check_dataset(output) == wanted
