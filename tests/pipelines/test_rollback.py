"""A rollback with a scheduler that updates every night, and with answers that are lost."""

import json
import shutil

import pytest

import shardmill
from shardmill.pipelines.cli import main
from shardmill.schemas.dataset.manifest import Manifest
from tests.conftest import build_dataset, make_photos
from tests.support.fault_tools import sentence_here
from tests.support.rows_tools import run_here


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two versions: the input lost images after the first one."""
    folder = tmp_path_factory.mktemp("rollback")
    make_photos(folder / "in", {"cat": 6, "dog": 6}, size=(8, 8))
    (folder / "table.csv").write_text("a,b\n1,2\n3,4\n")
    for _ in range(2):
        build_dataset(**images(folder), update=True)
        build_dataset("rows", **rows(folder), update=True)
        (folder / "in" / "cat" / "000.jpg").unlink(missing_ok=True)
        (folder / "table.csv").write_text("a,b\n1,2\n")
    return folder


def images(folder) -> dict:
    return {"input": folder / "in", "output": folder / "images", "image_size": 8}


def rows(folder) -> dict:
    return {"input": folder / "table.csv", "output": folder / "rows"}


OPTIONS = {"images": images, "rows": rows}


@pytest.fixture
def work(made, tmp_path):
    """A copy of both datasets and their inputs; modification times are kept."""
    shutil.copytree(made, tmp_path / "work", symlinks=True)
    return tmp_path / "work"


def published(output) -> Manifest:
    return Manifest.from_json((output / "manifest.json").read_bytes())


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("kind", OPTIONS)
def test_builds_fail_until_the_hold_is_released(work, kind, capsys) -> None:
    options = OPTIONS[kind](work)
    output = options["output"]
    bad = published(output)
    good = bad.previous[0]
    code, out, _ = run_here(capsys, "rollback", str(output), "--hold")
    assert (code, "rollback" in out, "--release" in out) == (0, True, True)
    before = (output / "manifest.json").read_bytes()
    assert published(output).generation == good
    assert json.loads(before)["held"] is True
    for more in ({}, {"update": True}, {"update": "content"}, {"overwrite": True}):
        outcome, _ = build_dataset(kind, **options, **more)
        assert outcome.status == "failed"
        assert f"is held at {good} by a rollback" in outcome.message
        assert f"shardmill rollback {output} --release" in outcome.message
        assert (output / "manifest.json").read_bytes() == before
    outcome, _ = build_dataset(kind, **options, update=True, dry_run=True)
    assert outcome.status == "dry_run"
    assert main(["verify", str(output), "--deep", "--quiet"]) == 0
    assert main(["rollback", str(output), "--release", "--quiet"]) == 0
    assert "held" not in json.loads((output / "manifest.json").read_bytes())
    outcome, after = build_dataset(kind, **options, update=True)
    assert outcome.status == "published"
    assert after.files == bad.files
    assert [shard.crc32c for shard in after.shards] == [shard.crc32c for shard in bad.shards]


@pytest.mark.sweep
@pytest.mark.parametrize("flags", [["--hold"], ["--to"], ["--hold", "--to"]])
def test_a_repeated_rollback_changes_nothing(work, flags, capsys) -> None:
    """Its answer was lost, so that the operator runs it again."""
    output = work / "images"
    good = published(output).previous[0]
    words = [f"--to={good}" if flag == "--to" else flag for flag in flags]
    run_here(capsys, "rollback", str(output), *words)
    once = (output / "manifest.json").read_bytes()
    for _ in range(2):
        code, out, _ = run_here(capsys, "rollback", str(output), *words, "--json")
        body = json.loads(out)
        assert (code, body["generation"], body["held"]) == (0, good, "--hold" in flags)
    assert (output / "manifest.json").read_bytes() == once
    if "--hold" in flags:
        said = sentence_here(capsys, "rollback", str(output), code=1)
        assert "is held at" in said
        assert (output / "manifest.json").read_bytes() == once


def test_without_flags_a_rollback_returns_and_says_what_an_update_does(work, capsys) -> None:
    output = work / "images"
    bad = published(output).generation
    _, out, _ = run_here(capsys, "rollback", str(output))
    assert "The next build with --update may replace it: --hold prevents that." in out
    run_here(capsys, "rollback", str(output))
    assert published(output).generation == bad
    # Another version, named while the dataset is held, ends that: the operator has decided.
    run_here(capsys, "rollback", str(output), "--hold")
    run_here(capsys, "rollback", str(output), f"--to={bad}")
    assert (published(output).generation, published(output).held) == (bad, False)
    for flag in ("--hold", f"--to={bad}"):
        said = sentence_here(capsys, "rollback", str(output), "--release", flag, code=2)
        assert "has no effect with --release" in said


def test_readers_and_show_of_a_held_dataset(work, capsys) -> None:
    output = work / "images"
    main(["rollback", str(output), "--hold", "--quiet"])
    total = sum(len(shardmill.open_dataset(output, split)) for split in published(output).splits)
    assert total == 12
    _, out, _ = run_here(capsys, "show", str(output))
    assert "held by a rollback" in " ".join(out.split())
    code, out, _ = run_here(capsys, "show", str(output), "--json")
    assert (code, json.loads(out)["held"]) == (0, True)


def test_diff_of_one_dataset_compares_with_the_version_before(work, capsys) -> None:
    output = work / "images"
    before = output / published(output).previous[0]
    bodies = [
        json.loads(run_here(capsys, "diff", *words, "--json")[1])
        for words in ([str(output)], [str(before), str(output)])
    ]
    assert bodies[0] == bodies[1]
    assert bodies[0]["records"]["removed"] == 1
    said = sentence_here(capsys, "diff", str(before), code=1)
    assert "keeps no version before its own" in said
