"""Time and memory of whole processes."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


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


class FailedError(Exception):
    """A measured command failed; the message has its last lines."""


def run_tree(command: list[str], log: Path, env: dict[str, str], limit: float) -> Run:
    """Runs a command and measures all its processes, daemons included (Linux only).

    Orphaned processes become children of this one, which stops and reaps them at the end. The CPU
    time is that of all reaped processes, or the sum of samples if that is larger: the CPU time of
    children that a daemon does not wait for is only in the samples. The memory is the largest
    sampled sum of proportional set sizes, in which shared pages are counted once, or the peak of
    the largest process if that is larger: short peaks are between samples. The ``ru_maxrss`` of a
    child would include the memory of this process, of which it is a copy until it runs the command.

    Raises:
      FailedError: the command failed, or was killed after ``limit`` seconds.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _reap_orphans()  # those of earlier processes do not count
    samples = _Samples()
    started = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)
    timer = threading.Timer(limit, process.kill)
    timer.start()
    samples.start()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    timer.cancel()
    samples.stop()
    usages = [usage, *_reap_orphans()]
    if status:
        code = os.waitstatus_to_exitcode(status)
        why = f"killed after {limit:.0f} s" if wall >= limit else f"exit code {code}"
        raise FailedError(f"{why}: {log.read_text(errors='replace').strip()[-400:]}")
    reaped = sum(each.ru_utime + each.ru_stime for each in usages)
    cpu = max(reaped, sum(samples.cpu.values()))
    return Run(wall, cpu, samples.memory)


def _reap_orphans() -> list[resource.struct_rusage]:
    found = []
    for turn in range(100):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                (process.kill if turn > 50 else process.terminate)()
        try:
            while True:
                pid, _, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    break
                found.append(usage)
        except ChildProcessError:
            break
        time.sleep(0.1)
    return found


def _peak(pid: int) -> float:
    """Returns the peak memory of a process since it began to run its program, in MiB."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


class _Samples(threading.Thread):
    """Samples the processes below this one, for at most a twentieth of a core."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.cpu: dict[psutil.Process, float] = {}
        self.memory = 0.0
        self._stopped = threading.Event()

    def run(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            started = time.thread_time()
            memory = 0.0
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    self.cpu[process] = times.user + times.system
                    memory += process.memory_full_info().pss / 2**20
                    self.memory = max(self.memory, _peak(process.pid))
            self.memory = max(self.memory, memory)
            pause = max(0.1, 20 * (time.thread_time() - started))

    def stop(self) -> None:
        """Stops sampling."""
        self._stopped.set()
        self.join()
