"""A kill at any change leaves a whole dataset, and the next run finishes without leftovers."""

import signal
import threading

import pytest

from shardmill.schemas.storage.gcs import GcsStorage
from tests.support.fault_cases import BUCKET_KINDS, CALLS, moments
from tests.support.fault_proxy import READS
from tests.support.fault_tools import SOAK, Watched, zygote
from tests.support.servers import wait_until

pytest_plugins = ["tests.support.fault_cases", "tests.support.gcs_server"]
pytestmark = pytest.mark.heavy


def check_order(found: list[str]) -> None:
    """Assert that the old version is published until the new one is."""
    assert found == sorted(found, reverse=True)
    assert {*found} == {"old", "new"}


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
