"""A failure at or after any change: one sentence, a whole dataset, and the next run finishes.

Changes are counted and not named, so a new one is covered too.
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.support.fault_cases import BUCKET_KINDS, CALLS, Case, moments
from tests.support.fault_tools import SOAK, Ended, Watched, zygote

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
        assert "run again" in ended.sentence or "permission" in ended.sentence, ended.sentence


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


AFTER = """
from shardmill.pipelines import cli
from tests.support.failing_storage import fail_after
fail_after({number}, {log!r}, rest={rest})
raise SystemExit(cli.main({argv}))
"""


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
