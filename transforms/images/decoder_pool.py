"""The decoder processes of a worker, which all its bundles and threads share."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from queue import LifoQueue
from typing import IO, Any, Literal, NamedTuple, cast

from shardmill.schemas.dataset.catalog import CatalogRow
from shardmill.schemas.errors import ResourceError, ShardmillError
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import REASONS, InputRef, Reject
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES
from shardmill.transforms.images.decoder_protocol import (
    GO,
    LENGTH,
    NO_MEMORY_EXIT,
    Bug,
    DecoderOptions,
    Encoded,
    NoMemory,
    Opened,
    Rejected,
    Reply,
    Request,
    RequestedImage,
    Unread,
    parse_reply,
)
from shardmill.transforms.images.image_options import MAX_RECORD_BYTES
from shardmill.transforms.sink.spec import Example

FailureKind = Literal["crash", "killed", "machine", "memory", "stalled", "timeout"]

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
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_MAX_REPLY = MAX_RECORD_BYTES + (1 << 20)
_CRASHES = frozenset(
    -number
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
)
_IDLE_SECONDS = 60.0
_REJECTS: dict[FailureKind, tuple[str, str]] = {
    "crash": ("decoder_crashed", "decoding it ended the process twice, the second time alone"),
    "memory": ("decoder_memory", "decoding it needs more than --decoder_memory"),
    "stalled": ("decoder_timeout", "decoding it did not end"),
    "timeout": ("decoder_timeout", "decoding it takes longer than --decoder_seconds"),
}


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


class FailureError(Exception):
    """A decoder process failed."""

    def __init__(self, kind: FailureKind) -> None:
        super().__init__(kind)
        self.kind = kind


class _State:
    """The decoders and pools of this process, and the lock of large images."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.large_image = threading.Lock()
        self.decoders: set[Decoder] = set()
        self.pools: dict[int, DecoderPool] = {}


class DecoderPool:
    """Decoder processes, which are started when they are needed and shared by all threads.

    Args:
        size: Number of processes.

    Attributes:
        users: Number of calls that use the pool.
    """

    def __init__(self, size: int) -> None:
        self.users = 0
        self._cancelled = False
        self._idle_timer: threading.Timer | None = None
        self._slots: LifoQueue[Decoder | None] = LifoQueue()  # processes that run are used first
        self._size = size
        for _ in range(size):
            self._slots.put(None)

    def make_records(
        self, options: DecoderOptions, images: Sequence[ImageInput]
    ) -> list[Example | Reject | None]:
        """Return the records and rejects of images, in order; waits for a free process.

        The result of a file that cannot be read, or has changed, is None. Where a process fails,
        the images without a result are requested alone: the replies to some of them may be lost.
        An image that fails alone is tried again once, in a new process; a timeout is final.

        Args:
            options: What to do with them.
            images: The images.

        Raises:
            ResourceError: The memory of the machine does not suffice.
        """
        decoder = self._take()
        results: list[Example | Reject | None] = []
        alone = False
        is_retry = False  # of the first image without a result
        try:
            while len(results) < len(images):
                if self._cancelled:
                    raise ShardmillError("The run was interrupted: no more images are decoded.")
                decoder = decoder or Decoder()
                left = images[len(results) :][: 1 if alone else None]
                try:
                    for result in decoder.make_records(options, left, alone=alone):
                        results.append(result)
                        is_retry = False
                except FailureError as failure:
                    decoder.close()
                    is_final = is_retry or failure.kind == "timeout"
                    if len(left) == 1 and not self._cancelled:
                        if is_final:
                            results.append(_final_reject(failure.kind, left[0], decoder.opened))
                        is_retry = not is_final
                    alone, decoder = True, None
                except BaseException:
                    decoder.close()
                    raise
            return results
        finally:
            self._slots.put(None if decoder is None or decoder.is_dead() else decoder)

    def start_one(self) -> None:
        """Start a process, if it can be started, before there are images for it."""
        decoder = self._take()
        with contextlib.suppress(ShardmillError):  # reported if an image needs the process
            decoder = decoder or Decoder()
        self._slots.put(decoder)

    def _take(self) -> Decoder | None:
        """Wait for a free slot; return its process, unless that was killed while it was idle."""
        decoder = self._slots.get()
        if decoder is None or not decoder.is_dead():
            return decoder
        decoder.close()
        return None

    def cancel(self) -> None:
        """Make all calls fail until none is left."""
        self._cancelled = self.users > 0

    def add_user(self, change: int) -> None:
        """Count the users; end the processes when there was none for a minute."""
        self.users += change
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if not self.users:
            self._cancelled = False
            self._idle_timer = threading.Timer(_IDLE_SECONDS, self._close_idle)
            self._idle_timer.daemon = True
            self._idle_timer.start()

    def _close_idle(self) -> None:
        with _state.lock:
            for decoder in [self._slots.get() for _ in range(0 if self.users else self._size)]:
                if decoder is not None:
                    decoder.close()
                self._slots.put(None)


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
        _state.decoders.add(self)
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

    def close(self) -> None:
        """End the process."""
        _state.decoders.discard(self)
        self._process.kill()
        self.close_streams()
        self._process.wait()

    def close_streams(self) -> None:
        """Close the streams, so that the process ends.

        The reader of replies is not closed: in a forked process its lock may never be released.
        """
        with contextlib.suppress(OSError):  # it is closed
            os.close(self._socket.detach())
        self._errors.close()

    def make_records(
        self, options: DecoderOptions, images: Sequence[ImageInput], *, alone: bool
    ) -> Iterator[Example | Reject | None]:
        """Yield the record or reject of each image, in order, as soon as the process sends it.

        It yields None for a file that cannot be read, or has changed.

        Args:
            options: What to do with them.
            images: The images.
            alone: Whether to treat every image as a large one.

        Raises:
            FailureError: The process failed at one of the images without a result: close it.
            ShardmillError: The process did not start: close it.
        """
        self._wait_until_ready()
        self._socket.settimeout(_PATIENCE * options.limits.decoder_seconds)
        requested = [
            RequestedImage(ref.uri, ref.size, ref.version, ref.member, fields, data)
            for ref, fields, data in images
        ]
        pickle.dump(Request(options.pickled, alone, requested), self)  # no copy of the contents
        for image in images:
            self.opened = Opened()
            reply = self._receive()
            if isinstance(reply, Opened):
                self.opened = reply
                with _state.large_image:
                    self.write(GO)
                    reply = self._receive()
            yield self._result(reply, image.ref, options)

    def _result(
        self, reply: Reply, ref: InputRef, options: DecoderOptions
    ) -> Example | Reject | None:
        """Return the result of an image, or raise its failure."""
        match reply:
            case Encoded(image, record) if options.can_have_made(image):
                row = CatalogRow.of(ref, image, FRAME_BYTES + len(record))
                return Example(record, ref.labels, row)
            case Rejected(stage, error, message) if error in REASONS:
                return Reject(ref.key, ref.uri, stage, error, message)
            case Unread():
                return None
            case NoMemory(inherited=True):
                raise FailureError("machine")
            case NoMemory():
                raise FailureError("memory")
            case Bug(traceback):
                raise RuntimeError(f"a decoder failed: {traceback}")
        raise FailureError("crash")

    def write(self, data: bytes) -> None:
        """Write a part of a request.

        Raises:
            FailureError: The process failed.
        """
        with self._failures():
            self._socket.sendall(data)

    def _receive(self) -> Reply:
        """Return the next reply."""
        with self._failures():
            (size,) = LENGTH.unpack(self._read(LENGTH.size))
            # A codec may have written to the memory of the process, or to its socket.
            if size > _MAX_REPLY:
                raise FailureError("crash")
            message = self._read(size)
        try:
            return parse_reply(message)
        except ValueError:
            raise FailureError("crash") from None

    def _read(self, size: int) -> bytes:
        data: bytes = self._replies.read(size)
        if len(data) < size:
            raise EOFError
        return data

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise errors of the socket as failures of the process."""
        try:
            yield
        except TimeoutError:
            raise FailureError("stalled") from None
        except (ConnectionError, EOFError):
            try:
                code = self._process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                raise FailureError("crash") from None
            raise FailureError(_failure_kind(code, self.opened)) from None


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
    if opened.fits:
        return "crash"
    if opened.inherited:
        return "machine"
    return "memory"


def _not_started(reason: str) -> ShardmillError:
    return ShardmillError(
        f"The process that decodes images did not start ({reason}): check memory, the limits of "
        f"processes (ulimit -u) and that {sys.executable} can import shardmill."
    )


def _final_reject(kind: FailureKind, image: ImageInput, opened: Opened) -> Reject:
    """Return the reject of an image that failed for the last time.

    Raises:
        ResourceError: The memory of the machine does not suffice.
    """
    if kind in _REJECTS:
        return Reject(image.ref.key, image.ref.uri, "decode", *_REJECTS[kind])
    needed = f"about {opened.needed / (1 << 30):.1f} GiB" if opened.needed else "more"
    why = "the process was killed" if kind == "killed" else "ulimit -v"
    raise ResourceError(
        f"{image.ref.uri} ({opened.width}x{opened.height} pixels, "
        f"{plural(image.ref.size, 'byte')}) needs {needed} memory to be decoded, which "
        f"could not be allocated ({why}): add memory, or set --max_pixels below its size, "
        "so that it is rejected."
    )


@contextlib.contextmanager
def use_pool(size: int) -> Iterator[DecoderPool]:
    """Give this process's pool of a size, whose processes end when it has not been used for long.

    Args:
        size: Number of processes.
    """
    _end_with_this_process()
    with _state.lock:
        pool = _state.pools.setdefault(size, DecoderPool(size))
        pool.add_user(1)
    try:
        yield pool
    finally:
        with _state.lock:
            pool.add_user(-1)


@functools.cache
def _end_with_this_process() -> None:
    atexit.register(close_all)
    os.register_at_fork(after_in_child=_forget)


def cancel_all() -> None:
    """Make running calls fail at once, as after Ctrl-C; safe in a signal handler."""
    for pool in list(_state.pools.values()):
        pool.cancel()
    for decoder in list(_state.decoders):
        decoder.kill()


def close_all() -> None:
    """End all decoder processes of this process; a pool starts new ones when it is used again."""
    for decoder in list(_state.decoders):
        decoder.close()


def _forget() -> None:
    """Leave the processes to the parent of a forked process; open sockets would keep them."""
    for decoder in _state.decoders:
        decoder.close_streams()
    _state.decoders.clear()
    _state.__init__()  # type: ignore[misc]


_state = _State()
