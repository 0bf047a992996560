"""A Pillow plugin for files that harm their decoder, for processes with this folder on their path.

A file holds "HOSTILE", an action, and arguments. It decodes to grey pixels if the action returns.
"""

import contextlib
import ctypes
import os
import time

import numpy as np
from PIL import Image, ImageFile


def _loop() -> None:
    while True:
        pass


def _eat() -> None:
    eaten = []
    while True:
        eaten.append(np.empty(64 << 20, np.uint8))  # address space only


def _first(mark: str, *then: str) -> None:
    """Act in the first attempt only."""
    if not os.path.exists(mark):
        open(mark, "w").close()
        act(*then)


def _noise() -> None:
    for stream in (1, 2):
        for _ in range(64):
            os.write(stream, b"noise " * 10_000)


def _forge(reply: str) -> None:
    """Write to the pipe of the replies."""
    for stream in range(3, 32):
        with contextlib.suppress(OSError):
            os.write(stream, bytes.fromhex(reply) * 100)


def _environment(path: str) -> None:
    with open(path, "w") as file:
        file.write("\n".join(f"{name}={value}" for name, value in os.environ.items()))
    with open("/proc/self/environ") as started_with, open(f"{path}.proc", "w") as file:
        file.write(started_with.read())


def _log(path: str) -> None:
    for event in ("begin", "end"):
        with open(path, "a") as file:
            file.write(f"{event} {os.getpid()}\n")
        time.sleep(0.2 if event == "begin" else 0)


ACTIONS = {
    "abort": os.abort,
    "eat": _eat,
    "environment": _environment,
    "exit": lambda code: os._exit(int(code)),
    "first": _first,
    "forge": _forge,
    "log": _log,
    "loop": _loop,
    "noise": _noise,
    "segv": lambda: ctypes.string_at(0),
    "signal": lambda number: os.kill(os.getpid(), int(number)),
    "sleep": lambda seconds="3600", *_: time.sleep(float(seconds)),
}


def act(action: str, *args: str) -> None:
    ACTIONS[action](*args)


class HostileFile(ImageFile.ImageFile):
    format = "BMP"
    format_description = "A file that harms its decoder"

    def _open(self) -> None:
        _, width, height, *action = self.fp.read().decode().split()
        self._mode, self._size = "L", (int(width), int(height))
        self.tile = [ImageFile._Tile("hostile", (0, 0, *self._size), 0, tuple(action))]


class HostileDecoder(ImageFile.PyDecoder):
    _pulls_fd = True

    def decode(self, buffer: bytes) -> tuple[int, int]:
        act(*self.args)
        self.set_as_raw(bytes([7]) * (self.state.xsize * self.state.ysize))
        return 0, 0


Image.preinit()
Image.register_open("BMP", HostileFile, lambda prefix: prefix.startswith(b"HOSTILE"))
Image.register_decoder("hostile", HostileDecoder)
