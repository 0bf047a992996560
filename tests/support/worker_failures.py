"""Builds whose workers run out of disk or memory: one sentence, and no retries of the runner."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import make_photos
from tests.support.hostile_files import write_hostile

FAILURES = ("images on a full disk", "rows on a full disk", "images without memory")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def failing_build(failure: str, folder: Path, disk: Path) -> tuple[list[str], str]:
    """Return the arguments of a build of several parts that fails, and words of its sentence.

    Args:
        failure: One of ``FAILURES``; that of the memory needs ``hostile_environment``.
        folder: Folder of the inputs.
        disk: A disk of 1 MiB.
    """
    full = f"{disk}/out", "No space left on device"
    if failure == "rows on a full disk":
        lines = "".join(f"{number},{os.urandom(400).hex()}\n" for number in range(6_000))
        (folder / "in.csv").write_text("id,text\n" + lines)
        return ["rows", f"--input={folder / 'in.csv'}", f"--output={full[0]}"], full[1]
    make_photos(folder / "in", {"cat": 24, "dog": 16}, size=(200, 150))
    args = ["images", f"--input={folder / 'in'}", "--encoding=png", "--shard_examples=8"]
    if failure == "images on a full disk":
        return [*args, f"--output={full[0]}", "--image_size=256"], full[1]
    # As the system does when it runs out of memory: it kills the decoder.
    write_hostile(folder / "in" / "cat" / "big.bmp", "signal", 9, size=(8000, 5000))
    output = f"--output={folder / 'out'}"
    return [*args, output, "--image_size=32", "--workers=1"], "cat/big.bmp (8000x5000 pixels"
