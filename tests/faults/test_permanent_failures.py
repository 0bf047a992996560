"""A failure at or after any change: one sentence, a whole dataset, and the next run finishes.

Changes are counted and not named, so a new one is covered too.
"""

import errno
import itertools
import shutil
import signal
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from shardmill.schemas.storage.gcs import GcsStorage
from tests.support.fault_cases import BUCKET_KINDS, CALLS, Case, moments
from tests.support.fault_proxy import READS
from tests.support.fault_tools import SOAK, Ended, Watched, zygote
from tests.support.servers import wait_until

pytest_plugins = ["tests.support.fault_cases", "tests.support.gcs_server"]
pytestmark = pytest.mark.heavy

MANIFEST = "whole/manifest.json"
ONCE, FROM_THERE = "one", "all"


def choose(
    changes: Sequence[str], kind: str, publication: Iterable[int], in_soak: int | None = None
) -> list[tuple[int, str]]:
    """Return the numbers of changes, and whether all later changes fail too.

    Args:
        changes: Kinds of the changes, in their order.
        kind: Kind of input.
        publication: Numbers of those that publish, which are always included, as is the last.
        in_soak: See ``moments``.
    """
    publication = [*publication]
    numbers = moments(changes, kind, [*publication, len(changes)], in_soak)
    if SOAK and in_soak is None:
        return list(itertools.product(numbers, (ONCE, FROM_THERE)))
    turns = {"images": 0, "rows": 0, "arrays": 1}[kind]
    some = {(n, (ONCE, FROM_THERE)[turn % 2]) for turn, n in enumerate(numbers, turns)}
    if kind == "images":
        some |= {*itertools.product(publication, (ONCE, FROM_THERE))}
    return sorted(some)


def check_failure(case: Case, ended: Ended, version: str, *, unknown: bool = False) -> None:
    """Assert that a command that failed says so, and that one that published has succeeded.

    Args:
        case: The case.
        ended: How the command ended.
        version: The version that is published now.
        unknown: Whether the failed call may have published.
    """
    if ended.code == 0:
        assert version == "new"
    else:
        assert ended.code == 1
        assert version == "old" or unknown
        remedies = ("run again", "permission", "choose an output on a writable file system")
        assert any(remedy in ended.sentence for remedy in remedies), ended.sentence


@pytest.mark.sweep
def test_changes_of_the_disk_fail(case, tmp_path):
    """Each change raises EIO, as a broken disk does."""
    log, codes, whole = tmp_path / "log", [], tmp_path / "whole"
    assert case.run(case.publish_old(whole), watch=Watched(whole, log=log)).code == 0
    lines = log.read_text().splitlines()
    publication = [n for n, line in enumerate(lines, 1) if line.endswith(f"{whole}/manifest.json")]
    for number, how in choose([line.split()[1] for line in lines], case.kind, publication):
        output = case.publish_old(tmp_path / f"{number}{how}")
        ended = case.run(output, watch=Watched(output, at=(number,), fail=how))
        print(number, how, ended.code, ended.said)
        check_failure(case, ended, case.version(output))
        codes.append(ended.code)
        case.finish(output)
    assert {*codes} == {0, 1}


@pytest.mark.sweep
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_becomes_full_or_read_only(error, cases, tmp_path):
    """From some change on, all fail: in the first parts, and around the publication."""
    case, log, whole = cases.local("images"), tmp_path / "log", tmp_path / "whole"
    assert case.run(case.publish_old(whole), watch=Watched(whole, log=log)).code == 0
    lines = log.read_text().splitlines()
    publication = [n for n, line in enumerate(lines, 1) if line.endswith(f"{whole}/manifest.json")]
    codes = []
    for number in (5, publication[-1], publication[-1] + 1):
        output = case.publish_old(tmp_path / str(number))
        watch = Watched(output, at=(number,), fail=FROM_THERE, errno=error)
        ended = case.run(output, watch=watch)
        check_failure(case, ended, case.version(output))
        codes.append(ended.code)
        case.finish(output)
    assert {*codes} == {0, 1}


@pytest.mark.sweep
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("name", ["rollback", "clean"])
def test_changes_of_commands_that_build_nothing_fail(name, error, cases, tmp_path):
    """One sentence and a whole dataset; without the failure, the same command succeeds."""
    case, log, codes = cases.local("images"), tmp_path / "log", []
    words = [name, *(["--older_than=0"] if name == "clean" else [])]

    def prepare(output: Path) -> Path:
        """Publish two versions, and leave the parts of a build that was killed."""
        case.publish_old(output)
        assert case.run(output).code == 0
        killed = Watched(output, since="/parts/", at=(9,))
        assert case.run(output, seed=3, watch=killed).code == -signal.SIGKILL
        return output

    prepared = prepare(tmp_path / "prepared")
    whole = shutil.copytree(prepared, tmp_path / "whole", symlinks=True)
    assert zygote().run(*words, whole, watch=Watched(whole, log=log)).code == 0
    changes = len(log.read_text().splitlines())
    for number in sorted({1, 2, changes // 2, changes}):
        for how in (ONCE, FROM_THERE):
            output = tmp_path / f"{number}{how}"
            shutil.copytree(prepared, output, symlinks=True)
            watch = Watched(output, at=(number,), fail=how, errno=error)
            ended = zygote().run(*words, output, watch=watch)
            print(number, how, ended.code, ended.said)
            if ended.code:
                assert ended.code == 1
                assert ended.sentence
            case.version(output)
            codes.append(ended.code)
            assert zygote().run(*words, output).code == 0
            case.version(output)
    assert 1 in codes


AFTER = """
from shardmill.pipelines import cli
from tests.support.failing_storage import fail_after
fail_after({number}, {log!r}, rest={rest})
raise SystemExit(cli.main({argv}))
"""


@pytest.mark.sweep
def test_calls_fail_after_they_were_carried_out(case, tmp_path):
    """The disk is removed before the call returns: the caller cannot know what it has done."""

    def run(output: Path, number: int, how: str) -> tuple[Ended, list[str]]:
        argv, log = case.argv(output), output.with_suffix(".log")
        code = AFTER.format(argv=argv, number=number, log=str(log), rest=how == FROM_THERE)
        return zygote().start(code=code).wait(), log.read_text().splitlines()

    ended, calls = run(case.publish_old(tmp_path / "whole"), 0, ONCE)
    assert ended.code == 0, ended.stderr
    assert {"sync", "replace_if", "copy", "delete_tree"} <= {*calls}
    codes = []
    for number, how in choose(calls, case.kind, [calls.index("replace_if") + 1]):
        output = case.publish_old(tmp_path / f"{number}{how}")
        ended, calls = run(output, number, how)
        unknown = calls[number - 1] == "replace_if"
        print(number, how, calls[number - 1], ended.code, ended.said)
        check_failure(case, ended, case.version(output), unknown=unknown)
        codes.append(ended.code)
        case.finish(output)
    assert {*codes} == {0, 1}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", BUCKET_KINDS)
def test_calls_of_a_bucket_fail(kind, cases, strict_bucket, front, tmp_path):
    """Each call is denied once, or its answer is lost and all later ones of its kind are denied."""
    case, codes = cases.remote(kind, strict_bucket), []
    whole = case.publish_old(f"{strict_bucket}/whole")
    front.calls.clear()
    assert case.run(whole).code == 0
    calls = list(enumerate(front.calls, 1))
    publication = [n for n, call in calls if (call.kind, call.name) == ("upload", MANIFEST)]
    assert publication
    for number, how in choose([call.kind for _, call in calls], kind, publication, CALLS):
        output = case.publish_old(f"{strict_bucket}/{number}{how}")
        front.reset()
        if how == ONCE:
            front.fail("*", "403", skip=number - 1)
        else:
            kinds = [call.kind for _, call in calls[:number]]
            earlier = kinds.count(kinds[-1]) - 1
            front.fail(kinds[-1], "lose", skip=earlier)
            front.fail(kinds[-1], "403", 10**6, skip=earlier)
        ended = case.run(output)
        front.reset()
        print(number, how, ended.code, ended.said)
        check_failure(
            case, ended, case.version(output, tmp_path / "copy"), unknown=how == FROM_THERE
        )
        codes.append(ended.code)
        case.finish(output, folder=tmp_path / "copy")
    assert {*codes} == {0, 1}


def check_order(found: list[str]) -> None:
    """Assert that the old version is published until the new one is."""
    assert found == sorted(found, reverse=True)
    assert {*found} == {"old", "new"}


@pytest.mark.sweep
def test_kill_before_any_change_of_the_disk(case, tmp_path):
    """All moments are checked, and the next run of some: a copy is what a kill there leaves."""
    output, copies, log = tmp_path / "out", tmp_path / "copies", tmp_path / "log"
    case.publish_old(output)
    assert case.run(output, watch=Watched(output, copies=copies, log=log)).code == 0
    copied = sorted(copies.iterdir())
    assert len(copied) > 50
    check_order([case.version(copy) for copy in copied])
    changes = [line.split()[1] for line in log.read_text().splitlines()]
    assert len(changes) == len(copied)
    for number in moments(changes, case.kind):
        case.finish(copied[number - 1])


@pytest.mark.sweep
def test_kill_before_any_change_of_the_first_publication(case, tmp_path):
    output, copies = tmp_path / "out", tmp_path / "copies"
    watch = Watched(output, since="/gen-", copies=copies)
    assert case.run(output, watch=watch).code == 0
    copied = sorted(copies.iterdir())
    published = [(copy / "manifest.json").exists() for copy in copied]
    assert published == sorted(published)
    assert {*published} == {False, True}
    first = published.index(True)
    assert {case.version(copy) for copy in copied[first:]} == {"new"}
    for number in (1, first, first + 1):
        case.finish(copied[number - 1])


@pytest.mark.sweep
def test_repeated_kills(case, tmp_path):
    """Each run gets a little further."""
    output, kills, found = tmp_path / "out", 0, []
    case.publish_old(output)
    step = 7 if SOAK else 15
    while case.run(output, watch=Watched(output, at=(5 + step * kills,))).code:
        found.append(case.version(output))
        kills += 1
        assert kills < 40
    assert kills > 3
    assert {*found} <= {"old", "new"}
    case.finish(output)


class Hold:
    """Stops the command at its n-th call that changes something, and all later ones."""

    def __init__(self, number: int) -> None:
        self.left, self.lock = number, threading.Lock()
        self.reached, self.released = threading.Event(), threading.Event()

    def __call__(self, call) -> None:
        with self.lock:
            self.left -= call.kind not in READS
            held = self.left <= 0 and call.kind not in READS
        if held:
            self.reached.set()
            self.released.wait(60)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", BUCKET_KINDS)
def test_kill_before_any_call_of_a_bucket(kind, cases, strict_bucket, front, tmp_path):
    """The service still executes the calls that it has received."""
    case, found = cases.remote(kind, strict_bucket), []
    whole = case.publish_old(f"{strict_bucket}/whole")
    front.calls.clear()
    assert case.run(whole).code == 0
    changes = [call for call in front.calls if call.kind not in READS]
    (publication,) = [n for n, call in enumerate(changes, 1) if call.name == "whole/manifest.json"]
    around = (publication, publication + 1)
    for number in moments([call.kind for call in changes], kind, around, CALLS):
        output = case.publish_old(f"{strict_bucket}/{number}")
        front.hook, ours = (hold := Hold(number)), front.open
        command = zygote().start(*case.argv(output))
        assert hold.reached.wait(60)
        command.send(signal.SIGKILL)
        assert command.wait().code == -signal.SIGKILL
        hold.released.set()
        wait_until(lambda: front.open <= ours)  # noqa: B023 - called at once
        front.reset()
        found.append(case.version(output, tmp_path / "copy"))
        paths = [entry.path for entry in GcsStorage().walk(output)]
        finished = sum("/parts/" in path and path.endswith(".json") for path in paths)
        ended = case.finish(output, folder=tmp_path / "copy")
        assert "up to date" in ended.stdout or ended.parts()[1] == finished
    check_order(found)
