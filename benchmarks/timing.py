"""Time and memory of whole processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Run:
    """A finished process: wall and CPU time in seconds, peak memory in MiB."""

    wall: float
    cpu: float
    memory: float


def run(command: list[str], out: Path) -> Run:
    """Deletes the output folder, runs a command and returns its time and memory."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    if status:
        raise SystemExit(f"{command} failed: {process.stderr.read().decode()}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def folder_bytes(folder: Path) -> int:
    """Returns the total size of all files below a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
