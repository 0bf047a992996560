"""Commands on gs:// without credentials, bucket or permission fail with one sentence, soon."""

import os
import re
import socket
import time
from pathlib import Path

import pytest

from shardmill.pipelines.cli import main
from shardmill.schemas import storage as registry
from tests.conftest import ROOT, make_photos, shardmill
from tests.support.fault_tools import PROGRESS
from tests.support.gcs_builds import build, upload

pytest_plugins = ["tests.support.gcs_server"]
pytestmark = pytest.mark.heavy

SOON = 8.0  # seconds; about 4 are waited for, and 12 by the library alone
FLAGS = ["--image_size=16", "--num_shards=1"]


@pytest.fixture
def photos(tmp_path) -> Path:
    return make_photos(tmp_path / "photos", {"cat": 5, "dog": 4}, size=(40, 30))


@pytest.fixture
def unanswered():
    """A port that accepts connections and never answers."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen(64)
        found.setblocking(False)
        yield found


@pytest.fixture
def no_credentials(monkeypatch, tmp_path, unanswered):
    """No credentials, and a metadata server that does not answer."""
    from google.auth.compute_engine import _metadata

    address = f"127.0.0.1:{unanswered.getsockname()[1]}"
    for name in (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "STORAGE_EMULATOR_HOST",
        "NO_GCE_CHECK",
        "GCE_METADATA_TIMEOUT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("GCE_METADATA_IP", address)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", address)
    registry._storage_of.cache_clear()
    yield
    registry._storage_of.cache_clear()


def timed(capsys, *argv: str) -> tuple[str, float]:
    """Run a command that fails; return its error, one sentence, and the seconds it took."""
    capsys.readouterr()
    started = time.monotonic()
    code = main(list(argv))
    seconds = time.monotonic() - started
    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    lines = PROGRESS.sub("", said.err).splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(".")
    print(f"{seconds:.1f} s: {lines[0]}")
    return lines[0], seconds


def test_reports_missing_credentials(no_credentials, photos, tmp_path, capsys, monkeypatch):
    from google.auth.compute_engine import _metadata

    for number, argv in enumerate(
        (
            ["images", f"--input={photos}", "--output=gs://a-bucket/x"],
            ["images", "--input=gs://a-bucket/x", f"--output={tmp_path}/o"],
            ["rows", "--input=gs://a-bucket/x", f"--output={tmp_path}/o"],
            ["arrays", "--input=gs://a-bucket/x", f"--output={tmp_path}/o"],
            ["count", "--input=gs://a-bucket/x"],
            ["verify", "gs://a-bucket/x"],
            ["clean", "gs://a-bucket/x"],
        )
    ):
        took = []
        for unasked in (True, False):  # without and with the search
            monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", unasked)
            registry._storage_of.cache_clear()
            said, seconds = timed(capsys, *argv)
            took.append(seconds)
            assert "gs://a-bucket/x" in said
            assert "usable Google credentials (none were found); run `gcloud auth" in said
            if number:  # the client is the same for all
                break
        assert took[-1] - took[0] < SOON


def test_build_on_disk_does_not_search_for_credentials(photos, tmp_path, unanswered):
    """Beam would search for half a minute, also for --temp_location."""
    address = f"127.0.0.1:{unanswered.getsockname()[1]}"
    hidden = ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "NO_GCE_CHECK")
    env = {k: v for k, v in os.environ.items() if k not in hidden}
    env |= {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address, "HOME": str(tmp_path)}
    args = [f"--input={photos}", f"--output={tmp_path}/o", *FLAGS]
    done = shardmill("images", *args, "--temp_location=gs://no-such-bucket/tmp", env=env)
    assert (done.returncode, PROGRESS.sub("", done.stderr)) == (0, "")
    with pytest.raises(BlockingIOError):
        unanswered.accept()


PAGE = ROOT / "docs" / "gcs.md"


def documented() -> dict[str, set[str]]:
    """Return the permissions that the page lists for each use."""
    rows = re.findall(r"^\| ([^|]+) \| (`storage[^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    found = {use.strip(): set(re.findall(r"`(storage\.[\w.]+)`", names)) for use, names in rows}
    assert set(found) == {"input", "output", "reading a dataset"}
    return found


def test_documented_permissions_are_necessary_and_sufficient(photos, front, emulator, capsys):
    from tests.support.gcs_server import make_bucket

    needs = documented()
    inputs, outputs = make_bucket(emulator), make_bucket(emulator)
    source, output = upload(photos, f"{inputs}/in"), f"{outputs}/out"
    by_bucket: dict[str, set[str]] = {inputs[5:]: set(), outputs[5:]: set()}
    ask = front.rules.permissions

    def note(call, found):
        for permission, bucket in ask(call, found):
            by_bucket[bucket].add(permission)
            yield permission, bucket

    front.rules.permissions = note
    try:
        for options in ({}, {"num_shards": 1, "overwrite": True}):
            assert build("images", source, output, **options).status == "published"
        assert by_bucket[inputs[5:]] == needs["input"]
        assert by_bucket[outputs[5:]] == needs["output"]
        by_bucket[outputs[5:]].clear()
        assert main(["verify", output]) == 0
        assert main(["count", f"--input={output}"]) == 0
        assert by_bucket[outputs[5:]] == needs["reading a dataset"]
    finally:
        del front.rules.permissions
    # Each of them is necessary.
    for missing in sorted(needs["output"]):
        front.rules.granted = needs["output"] - {missing}
        argv = [f"--input={photos}", f"--output={output}", "--image_size=24", "--overwrite"]
        said, seconds = timed(capsys, "images", *argv)
        assert seconds < 60  # retries would take two minutes
        assert missing in said
        assert "ask for that permission" in said
        front.rules.granted = None
