"""Decoder: a process that decodes images for this one, and why it failed."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Literal, NamedTuple, NoReturn, TypeVar, cast

from shardmill.schemas.dataset.catalog import CatalogRow
from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.refs import REASONS, InputRef, Reject
from shardmill.schemas.schema_pbtxt.image_features import DEPTH_REDUCED
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES
from shardmill.transforms.images.fields import (
    GO,
    HEAD,
    LENGTH,
    MAX_FIELDS,
    NO_MEMORY_EXIT,
    DecoderOptions,
    Opened,
    ReplyKind,
    Request,
    RequestedImage,
)
from shardmill.transforms.images.image_options import MAX_RECORD_BYTES
from shardmill.transforms.sink.spec import Example

_MODULE = "shardmill.transforms.images.decoder_process"
# No secrets: what a hostile file makes of a decoder could send them away.
_ENVIRONMENT = frozenset(
    {
        "DYLD_LIBRARY_PATH",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "PATH",
        "PYTHONHOME",
        "TMPDIR",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONPYCACHEPREFIX",
    }
)
# Threads and memory of a process depend on the image alone, not on the cores of the machine.
_SETTINGS = {
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONSAFEPATH": "1",
    # Small blocks are filled too where pillow_fixes.load_pixels fills memory.
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    # Freed pixels are kept for the next image: page faults would take 10 % of the time.
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
}
_START_SECONDS = 120.0
_PATIENCE = 10  # wall-clock time that an image may take, in units of its CPU time
_EXIT_SECONDS = 5.0
_BUFFER_BYTES = 1 << 20  # most requests, and the replies to most, are one call
_KINDS = frozenset(map(int, ReplyKind))
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_MAX_PAYLOAD = MAX_RECORD_BYTES + (1 << 20)
_CRASHES = frozenset(
    -number
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
)

FailureKind = Literal["crash", "killed", "machine", "memory", "stalled", "timeout"]
open_decoders: set[Decoder] = set()
T = TypeVar("T")


class ImageInput(NamedTuple):
    """An image to make a record of.

    Attributes:
        ref: Where it comes from.
        fields: Values of features that do not come from the file, by ``Feature.field``.
        data: Content of the file; None to let the process read a local file.
    """

    ref: InputRef
    fields: dict[str, Any]
    data: bytes | None = None


class _Reply(NamedTuple):
    """A reply of a decoder process, which a hostile file may have written."""

    kind: int
    fields: bytes
    payload: bytes


class FailureError(Exception):
    """A decoder process failed."""

    def __init__(self, kind: FailureKind) -> None:
        super().__init__(kind)
        self.kind = kind


class Decoder:
    """A decoder process, which starts while this one continues.

    Raises:
        ShardmillError: It cannot be started.
    """

    def __init__(self) -> None:
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        self._socket, theirs = socket.socketpair()
        theirs.setblocking(True)  # also if new sockets have a default timeout
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        kept = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-m", _MODULE],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**kept, **_SETTINGS, "PYTHONPATH": path},
                cwd=os.sep,
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            raise _not_started(str(error)) from error
        finally:
            theirs.close()
        open_decoders.add(self)
        self.opened = Opened()
        self._ready = False
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._errors = cast("IO[bytes]", self._process.stderr)
        self._replies = self._socket.makefile("rb", _BUFFER_BYTES)

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        self._socket.settimeout(_START_SECONDS)
        try:
            self._receive()
        except FailureError as error:
            if error.kind == "killed":  # such as by the kernel, which needed the memory: try again
                raise
            self._process.kill()
            text = os.read(self._errors.fileno(), 1 << 16).decode(errors="replace").strip()
            raise _not_started(text.rpartition("\n")[2] or "it gives no reason") from error
        self._errors.close()
        self._ready = True

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
        self.close_streams()
        return self._process.wait()

    def close_streams(self) -> None:
        """Close the streams, so that the process ends.

        The reader of replies is not closed: in a forked process its lock may never be released.
        """
        with contextlib.suppress(OSError):  # it is closed
            os.close(self._socket.detach())
        self._errors.close()

    def make_records(
        self,
        spec: DecoderOptions,
        images: Sequence[ImageInput],
        large: threading.Lock,
        *,
        alone: bool,
    ) -> Iterator[Example | Reject | None]:
        """Yield the record or reject of each image, in order, as soon as the process sends it.

        It yields None for a file that cannot be read, or has changed.

        Args:
            spec: What to do with them.
            images: The images.
            large: Held while a large image is decoded.
            alone: Whether to treat every image as a large one.

        Raises:
            FailureError: The process failed at one of the images without a result: close it.
            ShardmillError: The process did not start: close it.
        """
        self._wait_until_ready()
        self._socket.settimeout(_PATIENCE * spec.limits.decoder_seconds)
        self._request(spec, images, alone=alone)
        for image in images:
            self.opened = Opened()
            reply = self._receive()
            if reply.kind == ReplyKind.OPENED:
                self.opened = _parse(Opened.unpack, reply)
                with large:
                    self._write(GO)
                    reply = self._receive()
            yield self._result(reply, image.ref, spec)

    def _request(self, spec: DecoderOptions, images: Sequence[ImageInput], *, alone: bool) -> None:
        inputs = [
            RequestedImage(fields, ref.size, ref.version, ref.uri)
            if data is None
            else RequestedImage(fields, len(data), ref.version, "")
            for ref, fields, data in images
        ]
        request = pickle.dumps(Request(spec.pickled, alone, inputs))
        self._write(LENGTH.pack(len(request)) + request)
        for image in images:
            if image.data:
                self._write(image.data)

    def _result(
        self, reply: _Reply, ref: InputRef, spec: DecoderOptions
    ) -> Example | Reject | None:
        """Return the result of an image, or raise its failure."""
        if reply.kind == ReplyKind.UNREAD:
            return None
        if reply.kind == ReplyKind.NO_MEMORY:
            self.opened = _parse(Opened.unpack, reply)
            raise FailureError("machine" if self.opened.inherited else "memory")
        if reply.kind == ReplyKind.REJECTED:
            texts = reply.fields.decode(errors="replace").split("\0", 2)
            if len(texts) < 3 or texts[1] not in REASONS:
                raise FailureError("crash")
            return Reject(ref.key, ref.uri, texts[0], texts[1], texts[2])
        if reply.kind == ReplyKind.BUG:
            raise RuntimeError(f"a decoder failed: {reply.payload.decode(errors='replace')}")
        if reply.kind not in (ReplyKind.ENCODED, ReplyKind.ENCODED_DEEP):
            raise FailureError("crash")
        image = _parse(spec.unpack, reply)
        if reply.kind == ReplyKind.ENCODED_DEEP:
            image = image._replace(features={**image.features, DEPTH_REDUCED: 1})
        row = CatalogRow.of(ref, image, FRAME_BYTES + len(reply.payload))
        return Example(reply.payload, ref.labels, row)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise FailureError("stalled") from None
        except ConnectionError:
            self._fail()

    def _receive(self) -> _Reply:
        """Return the next reply."""
        kind, fields, size = HEAD.unpack(self._read(HEAD.size))
        # A codec may have written to the memory of the process, or to its socket.
        if kind not in _KINDS or fields > MAX_FIELDS or size > _MAX_PAYLOAD:
            raise FailureError("crash")
        return _Reply(kind, self._read(fields), self._read(size))

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._replies.read(size)
        except TimeoutError:
            raise FailureError("stalled") from None
        except ConnectionError:
            self._fail()
        return data if len(data) == size else self._fail()

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


def _parse(unpack: Callable[[bytes], T], reply: _Reply) -> T:
    try:
        return unpack(reply.fields)
    except struct.error as error:
        raise FailureError("crash") from error
