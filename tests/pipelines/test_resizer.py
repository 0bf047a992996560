"""Builds where cykooz-resizer is not installed: it is hidden from processes, and Pillow resizes."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardmill.pipelines.images_config import ImagesConfig
from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.parse import parse_example
from shardmill.transforms.images.scaling import HAS_SIMD
from tests.conftest import ROOT, make_photos
from tests.support.extras_tools import hide_modules
from tests.support.fault_tools import PROGRESS
from tests.support.readers import current, gzip_records
from tests.support.rows_tools import run_here

pytestmark = pytest.mark.skipif(not HAS_SIMD, reason="cykooz-resizer is not installed")

SIZE = (21, 13)  # width and height
FLAGS = ["--image_size=13x21", "--encoding=raw", "--reducing_gap=0", "--workers=1"]
# A worker gets its encoder from the command, as a pickle.
WORKER = """
import pickle, sys
encoder, refs = pickle.load(sys.stdin.buffer)
for call in (encoder.versions, lambda: list(encoder.encode(refs, ["cat"]))):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
"""
# The command has the resizer; the processes of its workers have not.
MIXED = """
import os, sys
from shardmill.pipelines import cli
from shardmill.transforms.images import scaling
assert scaling.HAS_SIMD
os.environ["PYTHONPATH"] = os.pathsep.join([sys.argv.pop(1), *sys.path])
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def photos(tmp_path) -> Path:
    return make_photos(tmp_path / "photos", {"cat": 3, "dog": 2})


@pytest.fixture
def hidden(tmp_path) -> dict[str, str]:
    """Environment of a machine without the wheel."""
    folder = hide_modules(tmp_path / "hidden", "cykooz_resizer")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(ROOT)])}


def run_hidden(env: dict[str, str], *args: object) -> tuple[int, str, str]:
    """Run a command on that machine."""
    done = subprocess.run(
        [sys.executable, "-m", "shardmill", *map(str, args)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, PROGRESS.sub("", done.stderr)


def pixels_of(dataset: Path) -> dict[str, np.ndarray]:
    """Return the pixels of each record by its key."""
    found = {}
    for shard in current(dataset).glob("*.tfrecord.gz"):
        for record in gzip_records(shard):
            example = parse_example(record)
            data = np.frombuffer(example["image/encoded"].values[0], np.uint8)
            found[example["image/key"].values[0].decode()] = data.reshape(SIZE[1], SIZE[0], 3)
    return found


def build_of(dataset: Path) -> dict:
    return json.loads((dataset / "manifest.json").read_text())["build"]


@pytest.mark.nightly
def test_pillow_resizes_and_the_identity_says_so(photos, hidden, tmp_path, capsys) -> None:
    dataset = tmp_path / "ds"
    code, out, _ = run_hidden(hidden, "images", photos, dataset, *FLAGS)
    assert code == 0
    assert "resizer    pillow" in out
    pixels = pixels_of(dataset)
    assert len(pixels) == 5
    for key, found in pixels.items():
        with Image.open(photos / key) as image:
            assert (found == np.asarray(image.resize(SIZE, Image.Resampling.BILINEAR))).all()
    build = build_of(dataset)
    assert build["versions"]["resizer"] == "pillow"
    assert "cykooz_resizer" not in build["versions"]
    assert "--resizer=pillow" in build["command"]
    # On the other machine:
    command = ["images", photos, dataset, *FLAGS]
    code, _, err = run_here(capsys, *command)
    assert (code, "resizer was pillow, now simd" in err) == (1, True)
    code, _, err = run_here(capsys, *command, "--update")
    assert (code, err.count("\n")) == (1, 1)
    assert "--resizer=pillow to keep" in err
    code, out, _ = run_here(capsys, *command, "--update", "--resizer=pillow")
    assert (code, "up to date" in out) == (0, True)
    assert build_of(dataset) == build
    code, out, _ = run_here(capsys, *command, "--update", "--resizer=simd")
    assert code == 0
    assert "resizer was pillow, now simd" in out
    assert "all inputs are decoded" in out
    assert "cykooz_resizer" in build_of(dataset)["versions"]


@pytest.mark.nightly
def test_an_update_without_the_wheel_names_the_option(photos, hidden, tmp_path, capsys) -> None:
    dataset = tmp_path / "ds"
    command = ["images", photos, dataset, *FLAGS]
    assert run_here(capsys, *command)[0] == 0
    before = (dataset / "manifest.json").read_bytes()
    for flags, code, said in (
        (["--update"], 1, "add --resizer=pillow to decode all images again"),
        (["--update", "--dry_run"], 1, "add --resizer=pillow to decode all images again"),
        ([], 1, "resizer was simd, now pillow"),
        (["--resizer=simd"], 2, "--resizer=simd needs cykooz-resizer"),
    ):
        found, _, err = run_hidden(hidden, *command, *flags)
        assert (found, err.count("\n")) == (code, 1), err
        assert said in err
        assert (dataset / "manifest.json").read_bytes() == before
    code, out, _ = run_hidden(hidden, *command, "--update", "--resizer=pillow")
    assert (code, "resizer was simd, now pillow" in out) == (0, True)
    code, out, _ = run_hidden(hidden, *command)
    assert (code, "up to date" in out) == (0, True)


def test_the_identity_has_the_resizer_only_if_it_is_pillow(photos, tmp_path) -> None:
    def config(**options: str) -> ImagesConfig:
        return ImagesConfig(input=photos, output=tmp_path / "ds", listed=(), **options)

    default, simd, pillow = config(), config(resizer="simd"), config(resizer="pillow")
    assert default.config_id() == simd.config_id() != pillow.config_id()
    assert default.record_id() == simd.record_id() != pillow.record_id()
    # Bodies of the digests of 0.2.0.
    for each in (default, simd, pillow):
        assert "resizer" not in each.identity()
    assert "resizer" not in default.encoder.versions()
    assert default.encoder.versions()["cykooz_resizer"]
    with pytest.raises(UsageError, match="--resizer=fast is unknown: use pillow or simd"):
        config(resizer="fast")


def test_a_worker_without_the_planned_resizer_says_so(photos, hidden, tmp_path) -> None:
    from shardmill.schemas.refs import InputRef

    encoder = ImagesConfig(input=photos, output=tmp_path / "ds", listed=()).encoder
    path = photos / "cat" / "000.jpg"
    refs = [InputRef("cat/000.jpg", str(path), path.stat().st_size, "", "cat")]
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=pickle.dumps((encoder, refs)),
        env=hidden,
        capture_output=True,
        check=True,
    )
    said = done.stdout.decode().splitlines()
    assert len(said) == 2
    for line in said:
        assert line.startswith("ResourceError cykooz-resizer is not installed here")


@pytest.mark.nightly
def test_a_job_of_workers_without_the_planned_resizer_is_one_sentence(photos, tmp_path) -> None:
    folder = hide_modules(tmp_path / "hidden", "cykooz_resizer")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            MIXED,
            folder,
            "images",
            photos,
            tmp_path / "ds",
            *FLAGS,
            "--direct_running_mode=multi_processing",
            "--direct_num_workers=2",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cykooz-resizer is not installed here" in done.stderr
    assert not (tmp_path / "ds" / "manifest.json").exists()
