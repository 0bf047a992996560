"""Inputs that cannot be read for a moment are in the dataset of the next run that can read them."""

import errno
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import make_photos
from tests.support.fault_cases import Case, fetch
from tests.support.fault_tools import SOAK, Watched, check_published, zygote
from tests.support.gcs_builds import PIPELINES

pytest_plugins = ["tests.support.fault_cases", "tests.support.gcs_server"]
pytestmark = pytest.mark.heavy

INPUTS = {"images": "cat/003.jpg", "rows": "1.csv", "arrays": "x.npy"}
# Publishes without the input, where a part of the inputs can be published at all.
LENIENT = {"rows": {"max_rejected_files": 1, "max_reject_fraction": 1}}
ERRORS = ("ENOENT", "EACCES", "ESTALE", *("EIO", "ETIMEDOUT") * SOAK)


def copied(case: Case, folder: Path) -> Case:
    """Return the case with a copy of its inputs."""
    return replace(case, source=shutil.copytree(case.source, folder / case.kind))


def check_without(case: Case, output: Path | str, folder: Path | None = None) -> None:
    """Assert that the whole dataset of the remaining inputs is published."""
    found = check_published(fetch(output, folder))
    assert found not in case.versions.values()
    assert found["rejects.jsonl"].count(b"\n") == 1


@pytest.mark.sweep
@pytest.mark.parametrize("error", ERRORS)
def test_input_that_cannot_be_opened(case, tmp_path, error):
    output, missing = tmp_path / "out", Path(case.source) / INPUTS[case.kind]
    watch = Watched(output, deny=missing, errno=getattr(errno, error))
    case.publish_old(output)
    ended = case.run(
        output, "--overwrite", watch=watch
    )  # --update does not open an unchanged image
    if case.kind == "images":  # one reject is always allowed
        assert ended.code == 0, ended.stderr
        check_without(case, output)
    else:
        assert ended.code == 1
        assert INPUTS[case.kind] in ended.sentence
        assert case.version(output) == "old"
    case.finish(output)


@pytest.mark.sweep
@pytest.mark.parametrize("damage", [b"", b'{"key": "x"}\n', b"{"])
def test_lost_lines_of_rejects_do_not_make_rejects_permanent(tmp_path, damage):
    photos = make_photos(tmp_path / "in", {"cat": 9})
    missing, output = photos / "cat/003.jpg", tmp_path / "out"
    command = ("images", f"--input={photos}", f"--output={output}", "--image_size=8")
    watch = Watched(output, deny=missing, errno=errno.EACCES)
    assert zygote().run(*command, watch=watch).code == 0
    assert "up to date" in zygote().run(*command, "--update", watch=watch).stdout
    lines = (output / "current/rejects.jsonl").read_bytes()
    assert lines.count(b"\n") == 1
    (output / "current/rejects.jsonl").write_bytes(damage)
    ended = zygote().run(*command, watch=watch)
    assert ended.code == 1
    assert "rejects.jsonl is damaged: add --overwrite" in ended.sentence
    assert zygote().run(*command, "--overwrite").code == 0
    assert not (output / "current/rejects.jsonl").read_bytes()


def test_a_copy_that_cannot_be_read_is_not_kept_as_another_image(tmp_path):
    """The pass that finds copies rejects it in this build only."""
    photos = make_photos(tmp_path / "in", {"cat": 9})
    shutil.copy(photos / "cat/000.jpg", photos / "cat/copy.jpg")
    output = tmp_path / "out"
    command = (
        "images",
        f"--input={photos}",
        f"--output={output}",
        "--image_size=8",
        "--duplicates=drop",
    )
    watch = Watched(output, deny=photos / "cat/copy.jpg", errno=errno.EACCES)
    assert zygote().run(*command, watch=watch).code == 0
    inputs = json.loads((output / "manifest.json").read_text())["inputs"]
    assert inputs["rejected_by_reason"] == {"unreadable": 1}
    ended = zygote().run(*command)
    assert (ended.code, "run again with --update" in ended.sentence) == (1, True)
    assert zygote().run(*command, "--update").code == 0
    inputs = json.loads((output / "manifest.json").read_text())["inputs"]
    assert (inputs["accepted"], inputs["rejected"], inputs["duplicates"]) == (9, 0, 1)


AWAY = [("images", error) for error in ERRORS] + [("rows", "ENOENT"), ("rows", "EACCES")]


@pytest.mark.sweep
@pytest.mark.parametrize(("case", "error"), AWAY, indirect=["case"])
def test_input_that_stays_away_for_two_runs(case, tmp_path, error):
    """The second run looks at that input again, and changes nothing."""
    output, missing = tmp_path / "out", Path(case.source) / INPUTS[case.kind]
    watch = Watched(output, deny=missing, errno=getattr(errno, error))
    lenient = LENIENT.get(case.kind, {})
    for expected in ("Published", "up to date"):
        ended = case.run(output, watch=watch, **lenient)
        assert ended.code == 0, ended.stderr
        assert expected in ended.stdout
        check_without(case, output)
    ended = case.run(output, "", **lenient)
    assert ended.code == 1
    assert "add --update to publish a new version" in ended.sentence
    assert case.kind == "rows" or "1 of the 1 inputs that could not be read" in ended.sentence
    case.finish(output)


def vanish(path: Path) -> None:
    path.rename(path.with_suffix(".away"))


def become_other(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".away"))
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.sweep
@pytest.mark.parametrize("change", [vanish, become_other])
def test_input_that_changes_between_listing_and_reading(case, tmp_path, change):
    """It is back before the next run."""
    case, output = copied(case, tmp_path), tmp_path / "out"
    changed = Path(case.source) / INPUTS[case.kind]
    case.publish_old(output)
    stage = "/runs" if case.kind == "rows" else "/parts"
    watch = Watched(output, since=stage, at=(1,), number=signal.SIGSTOP)
    command = zygote().start(*case.argv(output), watch=watch)
    assert command.wait_stopped()
    change(changed)
    command.send(signal.SIGCONT)
    ended = command.wait()
    changed.with_suffix(".away").replace(changed)
    print(ended.code, ended.said)
    if ended.code == 0:
        assert b"\n" in check_published(output)["rejects.jsonl"] or case.version(output) == "new"
    else:
        assert ended.code == 1
        assert case.version(output) == "old"
    case.finish(output)


@pytest.mark.sweep
@pytest.mark.parametrize("status", ["403", "404"])
@pytest.mark.parametrize("kind", PIPELINES)
def test_object_that_cannot_be_read(kind, status, cases, strict_bucket, front, tmp_path):
    """It is listed, and cannot be downloaded in two runs."""
    case, output = cases.remote(kind, strict_bucket), f"{strict_bucket}/out"
    front.fail("download", status, 10**6, name=INPUTS[kind])
    case.publish_old(output)
    published = kind == "images" or (kind, status) == ("rows", "404")
    for expected in ("Published", "up to date"):
        ended = case.run(output, **LENIENT.get(kind, {}))
        if published:
            assert ended.code == 0, ended.stderr
            assert expected in ended.stdout
            check_without(case, output, tmp_path / "copy")
        else:
            assert ended.code == 1
            assert INPUTS[kind] in ended.sentence
            assert case.version(output, tmp_path / "copy") == "old"
    front.reset()
    case.finish(output, folder=tmp_path / "copy")
