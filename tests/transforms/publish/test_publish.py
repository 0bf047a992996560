"""A published generation is never changed. tests/faults has failures between any two steps."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import shardmill
from shardmill.pipelines import cli
from shardmill.pipelines.commands.build import prepare_output
from shardmill.schemas import Manifest
from shardmill.schemas.dataset import shard_names
from shardmill.schemas.errors import InputError, OutputError, StaleBuildError, StorageError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.publish.generation import find_damage, open_output, read_published
from shardmill.transforms.publish.publish import FinalFile, Publisher, roll_back
from tests.support import fault_tools as faults
from tests.support.publications import FILES, OTHER, make_manifest, publish_by_hand, stage

pytest_plugins = ["tests.support.gcs_server"]

STORAGE = LocalStorage()
NEW = ("--num_shards=2", "--seed=5", "--overwrite")


def run(source: Path, output: Path, *flags: object) -> faults.Ended:
    return faults.ended_here(*faults.few_parts(source, output, *flags))


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return faults.make_source(tmp_path_factory.mktemp("publish") / "photos", {"cat": 9, "dog": 9})


@pytest.fixture(scope="module")
def old(source, tmp_path_factory) -> Path:
    """The dataset that is at the output before; two builds, so that it has an earlier one."""
    output = tmp_path_factory.mktemp("publish") / "old"
    for seed in (1, 2):
        assert run(source, output, "--num_shards=4", f"--seed={seed}", "--update").code == 0
    return output


def copy_of(old: Path, output: Path) -> Path:
    return shutil.copytree(old, output, symlinks=True)


def without_manifest(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != "manifest.json"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def others(output: Path) -> set[str]:
    """Return the names of files that are not of a generation."""
    ours = {"manifest.json", "current", *(path.name for path in output.glob("gen-*"))}
    return {path.name for path in output.iterdir()} - ours


# Publications without a build, for states that commands do not reach.


@pytest.fixture
def published(tmp_path) -> Path:
    output = tmp_path / "out"
    assert publish_by_hand(output, make_manifest())
    return output


def as_own(manifest: Manifest) -> Manifest:
    return replace(manifest, generation="", previous=(), manifests={})


def now(output: Path | str) -> Manifest:
    found = read_published(open_storage(str(output)), str(output)).manifest
    assert found is not None
    assert not find_damage(open_storage(str(output)), found.folder(str(output)), found)
    return found


def generations(output: Path) -> set[str]:
    return {path.name for path in output.glob("gen-*")}


def test_every_publication_is_a_new_folder(published):
    first = now(published)
    before = files_of(published / first.generation)
    assert set(before) == FILES
    second = publish_by_hand(published, OTHER).manifest
    assert now(published) == second
    assert as_own(second) == OTHER
    assert second.previous == (first.generation,)
    assert files_of(published / first.generation) == before
    assert os.readlink(published / "current") == second.generation
    own = Manifest.from_json((published / "current" / "manifest.json").read_bytes())
    assert own == OTHER


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_keeps_earlier_generations(published, keep):
    made = [now(published).generation]
    for number in range(5):
        new = publish_by_hand(published, make_manifest(input_id=str(number)), keep)
        made.insert(0, new.manifest.generation)
        assert new.remark == ""
    assert now(published).previous == tuple(made[1 : keep + 1])
    assert generations(published) == {*made[: keep + 1]}


def test_rolls_back_and_forth(published):
    first = now(published).generation
    second = publish_by_hand(published, OTHER).manifest.generation
    output = str(published)
    assert as_own(roll_back(STORAGE, output)) == make_manifest()
    assert (now(published).generation, now(published).previous) == (first, (second,))
    assert os.readlink(published / "current") == first
    assert as_own(roll_back(STORAGE, output, second)) == OTHER
    with pytest.raises(InputError, match=f"has no earlier version 'gen-x': it has {first}"):
        roll_back(STORAGE, output, "gen-x")
    (published / first / "train-0.gz").write_bytes(b"shorter")
    (published / first / "train-0.gz").write_bytes(b"short")
    with pytest.raises(
        InputError, match=r"train-0\.gz is missing or damaged \(its [^)]*\): choose another"
    ):
        roll_back(STORAGE, output)
    third = publish_by_hand(published, make_manifest(input_id="k")).manifest.generation
    assert generations(published) == {second, third}


@pytest.mark.parametrize("keep", [0, 1, 2])
@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_lost_manifest_loses_no_generation(published, text, keep, monkeypatch):
    """Neither the next build nor a rollback depends on it; a build keeps ``keep`` of them."""
    first, manifest = now(published).generation, published / "manifest.json"
    later = (f"gen-2999010{number}T000000Z-0123456789ab" for number in range(9))
    monkeypatch.setattr(shard_names, "new_generation", lambda _: next(later))
    second = publish_by_hand(published, OTHER).manifest.generation
    unsound = publish_by_hand(published, make_manifest(input_id="k"), 2).manifest.generation
    faults.flip(published / unsound / "train-0.gz")
    (published / unsound / "train-0.gz").write_bytes(b"cut")
    for restore in (True, False):
        manifest.unlink()
        if text is not None:
            manifest.write_text(text)
        if restore:
            assert roll_back(STORAGE, str(published)).generation == second
            assert now(published).previous == (first,)
    third = publish_by_hand(published, make_manifest(input_id="new"), keep).manifest.generation
    assert now(published).previous == (second, first)[:keep]
    assert generations(published) == {third, *(second, first)[:keep]}


def test_a_lost_manifest_keeps_no_copy_of_the_same_build(published):
    """A publisher was killed before it replaced the first manifest."""
    (published / "manifest.json").unlink()
    new = publish_by_hand(published, make_manifest()).manifest
    assert new.previous == ()
    assert generations(published) == {new.generation}


@pytest.mark.parametrize("text", [None, "", "\0\0\0"])
def test_commands_say_how_to_restore_a_lost_manifest(published, capsys, text):
    path = published / "manifest.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    for command in (["verify"], ["files"], ["show"], ["check"], ["steps", "--batch_size=2"]):
        assert cli.main([command[0], str(published), *command[1:]]) == 1
        assert capsys.readouterr().err == (
            f"shardmill: {path} is missing or damaged: run `shardmill rollback {published}` to "
            "publish the latest version again, or build again.\n"
        )
    with pytest.raises(InputError, match="run `shardmill rollback"):
        shardmill.files(published, "train")
    assert cli.main(["rollback", str(published)]) == 0
    assert shardmill.files(published, "train")


def test_rollback_command(published, capsys):
    assert cli.main(["rollback", str(published)]) == 1
    assert "keeps no earlier version: build with --keep=1" in capsys.readouterr().err
    publish_by_hand(published, OTHER)
    assert cli.main(["rollback", str(published)]) == 0
    assert capsys.readouterr().out.startswith(f"Published {now(published).generation} at ")
    assert cli.main(["files", str(published)]) == 0
    path = published / now(published).generation / "train-0.gz"
    assert capsys.readouterr().out == f"{path}\n"
    assert cli.main(["rollback", ""]) == 2
    assert "DIR" in capsys.readouterr().err
    for wrong in (str(published / "missing"), str(published / "manifest.json")):
        assert cli.main(["rollback", wrong]) == 1
        assert "is not a folder: give the folder of a dataset" in capsys.readouterr().err


def test_only_the_first_of_two_publishers_publishes(published):
    base = read_published(STORAGE, str(published)).version
    files = stage(published)
    assert Publisher(STORAGE, str(published), base).publish(OTHER, files)
    assert Publisher(STORAGE, str(published), base).publish(OTHER, files) is None
    with pytest.raises(OutputError, match="Another command has changed the dataset"):
        Publisher(STORAGE, str(published), base).publish(make_manifest(input_id="k"), files)
    assert as_own(now(published)) == OTHER
    assert len(generations(published)) == 2


def test_reports_files_of_a_build_that_changed(published):
    files = stage(published)
    base = read_published(STORAGE, str(published)).version
    publisher = Publisher(STORAGE, str(published), base)
    with pytest.raises(StaleBuildError, match="was changed by another command: run again"):
        publisher.publish(OTHER, [*files[1:], files[0]._replace(num_bytes=8)])
    with pytest.raises(FileNotFoundError):
        publisher.publish(OTHER, [*files, FinalFile(".build-x/y", "z", 1)])
    assert as_own(now(published)) == make_manifest()
    assert len(generations(published)) == 1


def test_failed_cleanup_does_not_fail_the_publication(published, monkeypatch):
    def fail(self, path):
        raise StorageError(f"Cannot delete {path}: bad luck; try again.")

    monkeypatch.setattr(LocalStorage, "delete_tree", fail)
    done = publish_by_hand(published, OTHER, keep=0)
    assert "could not be deleted (Cannot delete" in done.remark
    assert f"run `shardmill clean {published}`" in done.remark
    assert as_own(now(published)) == OTHER


def test_link_is_repaired_and_a_folder_of_that_name_is_kept(published):
    (published / "current").unlink()
    prepare_output(str(published))
    assert os.readlink(published / "current") == now(published).generation
    (published / "current").unlink()
    (published / "current").mkdir()
    publish_by_hand(published, OTHER)
    assert not (published / "current").is_symlink()


@pytest.mark.sweep
@pytest.mark.parametrize("flags", [("--update",), ("--overwrite",), ("--dry_run",)])
def test_a_version_is_no_output(source, old, tmp_path, flags):
    output = copy_of(old, tmp_path / "out")
    generation, before = now(output).generation, files_of(output)
    for name in ("current", generation, now(output).previous[0]):
        for command in (
            faults.few_parts(source, output / name, "--seed=7", *flags),
            ["rollback", output / name],
            ["clean", output / name, "--older_than=0"],
        ):
            ended = faults.ended_here(*command)
            assert ended.code == 1
            flag = "--output=" if len(command) > 3 else ""
            assert ended.sentence == (
                f"shardmill: {flag}{output / name} is a version of the dataset {output}: "
                f"use {flag}{output}."
            )
        assert faults.ended_here("verify", output / name).code == 0
    assert files_of(output) == before
    with pytest.raises(OutputError, match="is a version of the dataset gs://bucket/ds: use"):
        roll_back(STORAGE, f"gs://bucket/ds/{generation}")


def test_a_copy_of_a_version_is_no_output(source, old, tmp_path):
    """Nothing may be published next to its files; it is read as a dataset."""
    output = shutil.copytree(old / "current", tmp_path / "copy")
    before = files_of(output)
    for flags in (("--update",), ("--overwrite",), ("--dry_run",)):
        assert "is a copy of one version" in run(source, output, "--seed=7", *flags).sentence
    for command in ("verify", "show", "files"):
        assert faults.ended_here(command, output).code == 0
    assert files_of(output) == before


# Outputs with other files.

SYSTEM_FILES = (".DS_Store", "lost+found", "Thumbs.db", ".git", "gen-20260101T000000Z-0123456789ab")


def test_files_of_systems_do_not_stop_a_build_and_others_do(tmp_path):
    for name in SYSTEM_FILES:
        (tmp_path / "out" / name).mkdir(parents=True)
    assert open_output(STORAGE, str(tmp_path / "out")).manifest is None
    assert publish_by_hand(tmp_path / "out", OTHER)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"holds 'notes.txt' but no manifest.json"):
        open_output(STORAGE, str(tmp_path / "other"))


FOREIGN = ["[]", "null", "{}", '{"version": 1}', '{"version": 99}', '{"name": "web app"}']


@pytest.mark.parametrize("text", ["", "{", "\x00", *FOREIGN])
def test_manifest_of_another_program_is_never_replaced(source, tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    ended = run(source, tmp_path, "--overwrite")
    assert ended.code == 1
    assert "manifest.json cannot be read" in ended.sentence
    assert files_of(tmp_path) == {"manifest.json": text.encode()}


def test_manifest_of_a_count_is_never_replaced(source, tmp_path):
    """Its files were not built here."""
    output = tmp_path / "records"
    assert run(source, tmp_path / "ds", *NEW).code == 0
    shutil.copytree(tmp_path / "ds" / "current", output)
    (output / "manifest.json").unlink()
    command = ["count", f"--input={output}", f"--manifest={output}/manifest.json"]
    assert faults.ended_here(*command).code == 0
    before = files_of(output)
    assert "is the manifest of a count" in run(source, output, "--overwrite").sentence
    assert files_of(output) == before


CLIMBING = ("../victim", "a/../../victim", "/victim", "", ".", "..", "a/b", "x\0y", ".hidden")


@pytest.mark.parametrize("name", CLIMBING)
@pytest.mark.parametrize("field", ["file", "previous", "generation"])
def test_rejects_manifest_with_path_outside_the_output(published, tmp_path, name, field):
    """A later publication deletes what a manifest names as earlier."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = published / "manifest.json"
    body = json.loads(path.read_text())
    if field == "file":
        body["splits"]["train"]["shards"][0]["file"] = name
    else:
        body[field] = name if field == "generation" else [name]
    path.write_text(json.dumps(body))
    with pytest.raises(OutputError, match=r"manifest\.json cannot be read"):
        publish_by_hand(published, OTHER)
    assert victim.read_text() == "precious"


@pytest.mark.heavy
def test_damaged_dataset_is_not_up_to_date(source, old, tmp_path):
    output = copy_of(old, tmp_path / "out")
    flags, wanted = ("--num_shards=4", "--seed=2"), faults.check_dataset(output)
    for damage in (Path.unlink, lambda shard: os.truncate(shard, 9)):
        shard = next((output / "current").glob("train-00000-*"))
        damage(shard)
        ended = run(source, output, *flags)
        assert ended.code == 1
        assert shard.name in ended.sentence
        assert "--overwrite" in ended.sentence
        assert run(source, output, *flags, "--update").code == 0
        assert faults.check_dataset(output) == wanted


@pytest.mark.heavy
def test_verify_names_a_command_that_repairs_damage_of_the_same_size(source, old, tmp_path):
    output = copy_of(old, tmp_path / "out")
    wanted = faults.check_dataset(output)
    faults.flip(next((output / "current").glob("train-00000-*")))
    assert "up to date" in run(source, output, "--num_shards=4", "--seed=2", "--update").stdout
    ended = faults.ended_here("verify", output)
    assert ended.code == 1
    command = ended.stderr.split("`")[1].split()
    assert command[:2] == ["shardmill", "images"]
    assert faults.ended_here(*command[1:]).code == 0
    assert files_of(output / "current").items() >= without_manifest(wanted).items()
    assert faults.ended_here("verify", output).code == 0


@pytest.mark.parametrize(
    ("label", "message"),
    [("ж" * 53, "bytes, and file systems allow 255"), ("CAT", "disks that ignore case")],
)
def test_impossible_names_are_rejected_before_anything_is_written(
    source, old, tmp_path, label, message
):
    photos, output = shutil.copytree(source, tmp_path / "photos"), copy_of(old, tmp_path / "out")
    shutil.copytree(photos / "cat", photos / label)
    before = files_of(output)
    ended = run(photos, output, "--shard_by=label", "--overwrite")
    assert ended.code == 1
    assert message in ended.sentence
    assert files_of(output) == before
    for command in ("verify", "clean"):
        assert faults.ended_here(command, output).code == 0


# Buckets.


def test_publishes_and_rolls_back_in_a_bucket(strict_bucket):
    output = f"{strict_bucket}/ds"
    storage = open_storage(output)
    first = publish_by_hand(output, make_manifest()).manifest.generation
    second = publish_by_hand(output, OTHER).manifest.generation
    assert now(output).previous == (first,)
    assert storage.read(f"{output}/{first}/train-0.gz") == b"payload"
    assert roll_back(storage, output).generation == first
    third = publish_by_hand(output, make_manifest(input_id="k")).manifest.generation
    # The generation that was dropped is deleted at once, others only after an hour.
    assert {e.path.rsplit("/", 1)[-1] for e in storage.list_dir(output) if "/gen-" in e.path} == {
        first,
        third,
    }
    assert second not in now(output).previous
