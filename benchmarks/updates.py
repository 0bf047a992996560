"""The updates that peers.py measures: photos are added to a folder and removed from it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OURS = ("new", "again", "changed", "new seed", "other seed")
# new: a build from scratch of the changed folder. changed: the same command on a dataset of the
# folder before the change. again: that command if nothing changed. TFDS has no update.
CASES = {
    "shardmill": OURS,
    "shardmill png": OURS,
    "tfds": ("new", "again"),
    "datasets": ("new", "again", "changed"),
    "litdata": ("new", "again", "changed"),
    "img2dataset": ("new", "again", "changed"),
}
RECORDS = re.compile(r"\.(gz|parquet|bin|tfrecord)(-.*)?$")


class Update:
    """Runs cases in WORK/run, from a copy of what the tool wrote before the change."""

    def __init__(self, bench: Any, photos: int, added: int, removed: int) -> None:
        self._bench, self._source = bench, bench.work / "photos-of-updates"
        self._pool = bench.work / f"photos-different-{photos + added}"
        self._states = bench.work / f"states-{photos}"
        make = [sys.executable, str(HERE / "photos.py"), str(self._pool), str(photos + added)]
        subprocess.run([*make, "500x375", "differ"], check=True)
        keys = sorted(str(path.relative_to(self._pool)) for path in self._pool.glob("*/*"))
        self._added = set(keys[:: len(keys) // added][:added])
        self._before = [key for key in keys if key not in self._added]
        gone = set(self._before[:: photos // removed][:removed])
        self._after = [key for key in keys if key not in gone]
        self._folders = bench.work / f"photos-of-updates-{photos}-{added}-{removed}"
        if not self._folders.exists():
            shutil.rmtree(self._states, ignore_errors=True)
            self._link_photos()

    def _link_photos(self) -> None:
        """Makes the folders before and after the change.

        A new link changes the ctime of a file, and Shardmill hashes files with another ctime, so
        all links are made before the first build.
        """
        made = self._folders.with_suffix(".made")
        shutil.rmtree(made, ignore_errors=True)  # of a run that was interrupted
        for name, keys in (("before", self._before), ("after", self._after)):
            for label in ("class_0", "class_1"):
                (made / name / label).mkdir(parents=True)
            for key in keys:
                os.link(self._pool / key, made / name / key)
        made.rename(self._folders)

    def run(self, tool: str, case: str) -> dict:
        """Runs a case and returns what was measured, and what the dataset then has."""
        if case.startswith("new"):
            self._bench.fresh()
        else:
            self._restore(tool)
        is_before = case == "again" or case.endswith("seed")
        keys = self._before if is_before else self._after
        done = self._build(tool, "before" if is_before else "after", case)
        return {**done, "unchanged": len(set(keys) & set(self._before)), **self._judge(tool, keys)}

    def _build(self, tool: str, folder: str, case: str) -> dict:
        """Runs a tool on a folder, whose path is the same before and after the change."""
        self._source.unlink(missing_ok=True)
        self._source.symlink_to(self._folders / folder, target_is_directory=True)
        name, *encoding = tool.split()
        flags = [f"--encoding={each}" for each in encoding]
        if name == "shardmill":
            flags += [] if case.startswith("new") else ["--update"]
            flags += ["--seed=1"] if case.endswith("seed") else []
        return self._bench.run(name, "images", self._source, flags)

    def _restore(self, tool: str) -> None:
        """Makes the folder of runs as it was after a build before the change."""
        state = self._states / tool
        if not state.exists():
            self._bench.fresh()
            self._build(tool, "before", "new")
            state.parent.mkdir(exist_ok=True)
            self._bench.run_folder.rename(state)
        shutil.rmtree(self._bench.run_folder, ignore_errors=True)
        shutil.copytree(state, self._bench.run_folder, symlinks=True)

    def _judge(self, tool: str, wanted: list[str]) -> dict:
        """Returns what is in the output: which keys, in which order, and a hash of the files."""
        name, out = tool.split(maxsplit=1)[0], self._bench.out
        keys = self._bench.keys(name)
        digest = hashlib.sha256()
        for path in sorted(out.rglob("*")):
            if RECORDS.search(path.name) and (name != "shardmill" or self._current(path)):
                digest.update(path.name.encode() + path.read_bytes())
        return {
            "digest": digest.hexdigest(),
            "missing": len(set(wanted) - set(keys)),
            "extra": len(keys) - len(set(wanted) & set(keys)),
            "order": max(abs(each) for each in _orders(keys, self._added)),
        }

    def _current(self, path: Path) -> bool:
        return path.parent == (self._bench.out / "current").resolve()


def _orders(keys: list[str], added: set[str]) -> list[float]:
    """Returns how far positions correlate with the sorted order, and with being added."""
    positions = range(len(keys))
    ranks = {key: rank for rank, key in enumerate(sorted(keys))}
    found = [statistics.correlation(positions, [ranks[key] for key in keys])]
    if added & set(keys):
        found.append(statistics.correlation(positions, [float(key in added) for key in keys]))
    return found
