"""An interrupt whose exception Python drops, as in a destructor, ends a build all the same."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import make_photos

CODE = """
import os, signal, sys
from shardmill.pipelines import cli
from shardmill.transforms.sink import parts

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGNAL)

plain, made = parts.create_sidecar, []
def create(*args, **options):
    made.append(plain(*args, **options))
    if len(made) == 2:
        Dropped()  # deleted at once; Python ignores what its destructor raises
    return made[-1]

parts.create_sidecar = create
code = cli.main(sys.argv[1:])
if "AGAIN" == "yes":
    Dropped()
sys.exit(code)
"""


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("again", ["no", "yes"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_it_ends_the_build(tmp_path, name, again):
    """Another one, until the process exits, ends it at once."""
    photos = make_photos(tmp_path / "photos", {"a": 40}, size=(20, 20))
    flags = [f"--input={photos}", f"--output={tmp_path / 'ds'}", "--image_size=8"]
    code = CODE.replace("SIGNAL", name).replace("AGAIN", again)
    words = [sys.executable, "-c", code, "images", *flags]
    done = subprocess.run(
        [*words, "--shard_examples=5"], capture_output=True, text=True, check=False, timeout=120
    )
    number = signal.Signals[name]
    assert done.returncode == (-number if again == "yes" else 128 + number)
    assert done.stderr.endswith("shardmill: interrupted; run again to resume.\n")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ds" / "manifest.json").exists()
    assert len(list(tmp_path.glob("ds/.build-*/parts/*.json"))) == 2
