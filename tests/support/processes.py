"""Processes of other programs, which may end at any moment."""

import psutil


def runs(process: psutil.Process, word: str) -> bool:
    """Return whether the command line of a process has a word; False if the process has ended."""
    try:
        return word in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int, word: str = "") -> list[psutil.Process]:
    """Return the processes below one whose command lines have a word; none if it has ended."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in below if not word or runs(process, word)]
