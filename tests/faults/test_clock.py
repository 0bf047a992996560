"""A clock that is set back or forward between commands changes no order of versions."""

import json
from pathlib import Path

import pytest

from tests.support.fault_tools import check_dataset, images, make_source, zygote

pytestmark = pytest.mark.heavy

# Runs a command with another clock; the times of files are still those of the kernel.
AT = """
import datetime, time
from shardmill.pipelines import cli
from shardmill.schemas.dataset import shard_names

DAYS = {days}

class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) + datetime.timedelta(days=DAYS)

class Module:
    datetime, timezone = Clock, datetime.timezone

shard_names.dt = Module
real = time.time_ns
time.time_ns = lambda: real() + DAYS * 86400 * 10**9
raise SystemExit(cli.main({argv}))
"""
DAYS = (0, -365, 400, -4000, 1, 399)


def run_at(days: int, *argv: str):
    """Run a command some days away from now; it must succeed."""
    ended = zygote().start(code=AT.format(days=days, argv=list(argv))).wait()
    assert ended.code == 0, ended.stderr
    return ended


def published(output: Path) -> tuple[str, list[str]]:
    """Return the current version and the earlier ones."""
    manifest = json.loads((output / "manifest.json").read_text())
    return manifest["generation"], manifest.get("previous", [])


@pytest.mark.nightly
def test_versions_stay_in_order(tmp_path):
    source, output = make_source(tmp_path / "in"), tmp_path / "out"
    versions: list[str] = []
    contents = {}
    for number, days in enumerate(DAYS):
        words = images(source, output, f"--seed={number}", "--keep=3")
        run_at(days, *words, "--overwrite")
        current, earlier = published(output)
        assert current > max(versions, default="")
        assert earlier == versions[:3]
        versions.insert(0, current)
        contents[current] = check_dataset(output)
        assert "up to date" in run_at(-days, *words).stdout
        run_at(days, "clean", "--older_than=0", str(output))  # no version is a leftover
        assert published(output) == (current, earlier)

    run_at(-9000, "rollback", str(output))
    assert published(output)[0] == versions[1]
    assert check_dataset(output) == contents[versions[1]]
    run_at(-9000, *images(source, output, "--overwrite", "--seed=99", "--keep=3"))
    assert published(output)[0] > versions[0]

    newest = published(output)[0]
    (output / "manifest.json").unlink()  # then names alone say which version is the latest
    run_at(-9000, "rollback", str(output))
    assert published(output)[0] == newest


@pytest.mark.parametrize("days", [-4000, 4000])
def test_clean_keeps_what_is_recent_if_the_clock_is_behind(days, tmp_path):
    """The parts of an unfinished build; to a clock that is ahead they are old."""
    source, output = make_source(tmp_path / "in"), tmp_path / "out"
    words = images(source, output, "--max_reject_fraction=0")
    words.remove("--max_reject_fraction=0.2")
    assert zygote().run(*words).code == 1
    run_at(days, "clean", str(output))
    assert bool(list(output.glob(".build-*"))) == (days < 0)
