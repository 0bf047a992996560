"""A small disk in a file, to look at what a power failure would leave on it."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Disk:
    """An ext4 file system in a file, mounted through a loop device.

    Attributes:
        image: The file.
        folder: Where it is mounted.
    """

    image: Path
    folder: Path

    @contextlib.contextmanager
    def mounted(self, copy: Path | None = None) -> Iterator[Path]:
        """Mount the disk, or a copy of it, whose journal is then replayed; yield the folder.

        The file system commits nothing by itself, so that what is not synced is lost.
        """
        options = ["-t", "ext4", "-o", "loop,commit=300", copy or self.image, self.folder]
        subprocess.run(["mount", *options], check=True, capture_output=True)
        try:
            yield self.folder
        finally:
            subprocess.run(["umount", self.folder], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """An empty disk; skips the test where the tests may not mount one."""
    if os.geteuid() or not shutil.which("mkfs.ext4"):
        pytest.skip("loop devices need root and mkfs.ext4")
    made = Disk(tmp_path / "image", tmp_path / "disk")
    made.folder.mkdir()
    with made.image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "1024", made.image], check=True)
    try:
        with made.mounted() as folder:
            (folder / "commit").touch()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"loop devices cannot be mounted here: {error.stderr.decode().strip()}")
    return made
