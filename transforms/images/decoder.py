"""Decoder: a process that decodes images for this one, and why it failed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Literal, NamedTuple, NoReturn

from shardmill.schemas.dataset.catalog import CatalogRow
from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import REASONS, Reject
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES
from shardmill.transforms.build.encoder import Example
from shardmill.transforms.images.convert import MAX_RECORD_BYTES
from shardmill.transforms.images.decoder_protocol import (
    CHANNEL,
    INPUT,
    NO_MEMORY_EXIT,
    OPENED,
    REPLY,
    REQUEST,
    DecoderSpec,
    Kind,
    Opened,
)
from shardmill.transforms.statistics.sums import pixel_summary

_MODULE = "shardmill.transforms.images.decoder_process"
# No secrets: what a hostile file makes of a decoder could send them away.
_ENVIRONMENT = frozenset(
    {"DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PYTHONHOME", "TMPDIR",
     "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
)  # fmt: skip
# Threads and memory of a process depend on the image alone, not on the cores of the machine.
_SETTINGS = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
             "PYTHONSAFEPATH": "1",
             # Freed pixels are kept for the next image: page faults would take 10 % of the time.
             "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
             "MALLOC_MMAP_THRESHOLD_": str(16 << 20)}  # fmt: skip
_START_SECONDS = 120.0
_PATIENCE = 10  # wall-clock time that an image may take, in units of its CPU time
_EXIT_SECONDS = 5.0
_PIPE_BYTES = 1 << 20  # most requests are written with one call
_CHUNK = 1 << 16  # the C library maps and unmaps larger buffers
_KINDS = frozenset(map(int, Kind))
_FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_MAX_PAYLOAD = MAX_RECORD_BYTES + (1 << 20)
_CRASHES = frozenset(
    -number
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
)

FailureKind = Literal["crash", "killed", "machine", "memory", "stalled", "timeout"]
open_decoders: set[Decoder] = set()


class Item(NamedTuple):
    """An image to encode.

    Attributes:
        ref: Where it comes from.
        data: Content of the file.
        class_id: Number of the label; -1 for none.
    """

    ref: InputRef
    data: bytes
    class_id: int = -1


class _Reply(NamedTuple):
    """A reply; see ``REPLY``."""

    kind: int
    frames: int
    width: int
    height: int
    digest: bytes
    channels: bytes
    payload: bytes


class FailureError(Exception):
    """A decoder process failed."""

    def __init__(self, kind: FailureKind) -> None:
        super().__init__(kind)
        self.kind = kind


class Decoder:
    """A decoder process.

    Raises:
        ShardmillError: It does not start.
    """

    def __init__(self) -> None:
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        kept = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                env={**kept, **_SETTINGS, "PYTHONPATH": path}, cwd=os.sep, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise _not_started(str(error)) from error
        open_decoders.add(self)
        self.opened = Opened()
        self._received = bytearray()
        self._deadline = time.monotonic() + _START_SECONDS
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        self._pipes: list[IO[bytes]] = [pipe for pipe in pipes if pipe]
        self._input, self._output, errors = (pipe.fileno() for pipe in self._pipes)
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(self._input, select.POLLOUT)
        self._readable.register(self._output, select.POLLIN)
        os.set_blocking(self._input, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # the pipes of all processes of a user are limited
                fcntl.fcntl(self._input, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            self._receive()
        except FailureError as error:
            self._process.kill()
            text = os.read(errors, _CHUNK).decode(errors="replace").strip()
            self.close()
            raise _not_started(text.rpartition("\n")[2] or "it gives no reason") from error
        self._pipes[2].close()

    def is_dead(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill the process; its caller finds out and closes it."""
        self._process.kill()

    def close(self) -> int:
        """End the process; return its exit code, which is negative for a signal."""
        open_decoders.discard(self)
        self._process.kill()
        self.close_pipes()
        return self._process.wait()

    def close_pipes(self) -> None:
        """Close the pipes, so that the process ends."""
        for pipe in self._pipes:
            pipe.close()

    def encode(
        self, spec: DecoderSpec, items: Sequence[Item], large: threading.Lock, *, alone: bool
    ) -> Iterator[Example | Reject]:
        """Yield the record or reject of each image, in order, as soon as it is there.

        Args:
            spec: What to do with them.
            items: The images.
            large: Held while a large image is decoded.
            alone: Whether to treat every image as a large one.

        Raises:
            FailureError: The process failed at the first image without a result: close it.
        """
        head = [REQUEST.pack(len(spec.json), len(items), alone), spec.json]
        body: list[bytes] = []
        for item in items:
            key, label = item.ref.key.encode(), (item.ref.label or "").encode()
            head.append(INPUT.pack(len(key), len(label), len(item.data), item.class_id))
            body += (key + label, item.data)
        patience = _PATIENCE * spec.limits.seconds
        for number, item in enumerate(items):
            self.opened = Opened()
            self._deadline = time.monotonic() + patience
            if not number:
                self._write([b"".join(head), *body])
            reply = self._receive(spec.image.channels)
            if reply.kind == Kind.OPENED:
                self.opened = Opened(*OPENED.unpack(reply.payload))
                with large:
                    self._deadline = time.monotonic() + patience
                    self._write([bytes(REQUEST.size)])
                    reply = self._receive(spec.image.channels)
            yield self._parse(reply, item.ref)

    def _parse(self, reply: _Reply, ref: InputRef) -> Example | Reject:
        """Return the result of an image, or raise its failure."""
        if reply.kind == Kind.NO_MEMORY:
            self.opened = Opened(*OPENED.unpack(reply.payload))
            raise FailureError("machine" if self.opened.inherited else "memory")
        if reply.kind == Kind.REJECTED:
            return _parse_reject(reply.payload, ref)
        if reply.kind == Kind.BUG:
            raise RuntimeError(f"a decoder failed: {reply.payload.decode(errors='replace')}")
        if reply.kind != Kind.ENCODED:
            raise FailureError("crash")
        numbers, sums, squares = zip(*CHANNEL.iter_unpack(reply.channels), strict=True)
        if max(*numbers, *sums, *squares) >> 63 or max(reply.width, reply.height) >> 31:
            raise FailureError("crash")
        size = _FRAME_BYTES + len(reply.payload)
        row = CatalogRow(
            ref.key, ref.uri, ref.size, ref.version, reply.digest.hex(), ref.label, reply.width,
            reply.height, reply.frames > 1, numbers[0], sums, squares, size,
        )  # fmt: skip
        return Example(reply.payload, ref.label, row.multi_frame, pixel_summary(row), row)

    def _write(self, pieces: list[bytes]) -> None:
        views = [memoryview(piece) for piece in pieces if piece]
        while views:
            try:
                written = os.writev(self._input, views)
            except BlockingIOError:
                self._wait(self._writable)
                continue
            except BrokenPipeError:
                self._fail()
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]

    def _receive(self, channels: int = 0) -> _Reply:
        """Return the next reply."""
        data = self._received
        while len(data) < REPLY.size:
            data += self._read()
        kind, frames, found, size, width, height, digest = REPLY.unpack_from(data)
        # A codec may have written to the memory of the process, or to its pipe.
        wanted = channels if kind == Kind.ENCODED else 0
        fixed = kind in (Kind.OPENED, Kind.NO_MEMORY) and size != OPENED.size
        if kind not in _KINDS or found != wanted or size > _MAX_PAYLOAD or fixed:
            raise FailureError("crash")
        middle = REPLY.size + found * CHANNEL.size
        end = middle + size
        while len(data) < end:
            data += self._read()
        with memoryview(data) as view:
            sums, payload = bytes(view[REPLY.size : middle]), bytes(view[middle:end])
        del data[:end]
        return _Reply(kind, frames, width, height, digest, sums, payload)

    def _read(self) -> bytes:
        self._wait(self._readable)
        return os.read(self._output, _CHUNK) or self._fail()

    def _wait(self, poll: select.poll) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise FailureError("stalled")

    def _fail(self) -> NoReturn:
        """Raise the failure of a process that has ended."""
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise FailureError("crash") from None
        raise FailureError(_failure_kind(code, self.opened))


def _failure_kind(code: int, opened: Opened) -> FailureKind:
    """Return why a process ended.

    Args:
        code: Its exit code.
        opened: What it sent of the image.
    """
    if code == -signal.SIGPROF:
        return "timeout"
    if code == NO_MEMORY_EXIT:
        return "machine"
    if code < 0 and code not in _CRASHES:
        return "killed"
    # Codecs crash, or call exit(), where an allocation fails.
    return "crash" if opened.fits else "machine" if opened.inherited else "memory"


def _not_started(reason: str) -> ShardmillError:
    return ShardmillError(
        f"The process that decodes images did not start ({reason}): check memory, the limits of "
        f"processes (ulimit -u) and that {sys.executable} can import shardmill."
    )


def _parse_reject(data: bytes, ref: InputRef) -> Reject:
    with contextlib.suppress(ValueError, TypeError):
        stage, reason, message = json.loads(data)
        if reason in REASONS and isinstance(stage, str) and isinstance(message, str):
            return Reject(ref.key, ref.uri, stage, reason, message)
    raise FailureError("crash")
