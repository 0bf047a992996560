"""A power failure leaves the old or the new dataset complete, and the next run finishes.

The disk is a file, copied before each change of the file system: the copy has what the system had
written to the disk by then. Mounting the copy replays the journal, as starting the machine would.
"""

import subprocess
import time
from pathlib import Path

import pytest

from tests.support.fault_cases import Case
from tests.support.fault_tools import SOAK, Watched, zygote
from tests.support.fault_zygote import copy_disk
from tests.support.loop_disk import Disk

pytest_plugins = ["tests.support.fault_cases", "tests.support.loop_disk"]
pytestmark = pytest.mark.heavy

AFTER = (0, 1, 3)  # seconds after the end of the command
NO_SYNC = """
from shardmill.pipelines import cli
from shardmill.schemas.storage.local import LocalStorage
LocalStorage.sync = lambda self, path: None
raise SystemExit(cli.main({argv}))
"""


def moments_of(case: Case, disk: Disk, flag: str, *, commit: bool, **options: str) -> list[Path]:
    """Publish the new version over the old one; return copies of the disk in their order.

    Args:
        case: The case.
        disk: An empty disk.
        flag: Flag of the command.
        commit: Whether the names of all files are on the disk before their content.
        options: First change before which the disk is copied; other code than the command.
    """
    copies = disk.image.with_name("copies")
    copies.mkdir()
    with disk.mounted() as folder:
        output = folder / "out"
        case.publish_old(output)
        # Not os.sync(): it would write the disk of another test that runs at the same time.
        subprocess.run(["sync", "--file-system", output], check=True)
        written = folder / "commit" if commit else ""
        since, code = options.get("since", ""), options.get("code", "")
        watch = Watched(output, since, copies=copies, image=disk.image, commit=written)
        argv = case.argv(output, flag)
        ended = zygote().start(*argv, code=code.format(argv=argv), watch=watch).wait()
        assert ended.code == 0, ended.stderr
        begin = time.monotonic()
        for seconds in AFTER:
            time.sleep(max(0, begin + seconds - time.monotonic()))
            copy_disk(str(disk.image), f"{copies}/after{seconds}", str(written))
    moments = sorted(copies.iterdir())
    assert len(moments) > 20
    return moments


SOME = [
    ("images", "", "--update", True),
    ("rows", "/gen-", "--overwrite", False),
    ("arrays", "/gen-", "--update", True),
]
ALL = [(kind, "", flag, commit) for kind, _, flag, _ in SOME for commit in (False, True)]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("case", "since", "flag", "commit"), ALL if SOAK else SOME, indirect=["case"]
)
def test_old_or_new_dataset_survives_a_power_failure(case, disk, since, flag, commit):
    moments = moments_of(case, disk, flag, commit=commit, since=since)
    found = []
    for moment in moments:
        with disk.mounted(moment) as folder:
            found.append(case.version(folder / "out"))
    assert found == sorted(found, reverse=True)
    assert {*found} == {"old", "new"}
    assert {*found[-len(AFTER) :]} == {"new"}  # the command has ended with success
    for moment in moments if SOAK else moments[:: len(moments) // 3]:
        with disk.mounted(moment) as folder:
            case.finish(folder / "out", flag)


def test_dataset_is_lost_without_sync(cases, disk):
    """The test above can fail."""
    case, broken = cases.local("images"), 0
    for moment in moments_of(case, disk, "--update", commit=True, since="/gen-", code=NO_SYNC):
        with disk.mounted(moment) as folder:
            try:
                case.version(folder / "out")
            except (AssertionError, FileNotFoundError):
                broken += 1
    assert broken > 0
