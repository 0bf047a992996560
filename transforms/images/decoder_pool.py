"""The decoder processes of a worker, which all its bundles and threads share."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Sequence
from queue import LifoQueue

from shardmill.schemas.errors import ResourceError, ShardmillError
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import Reject
from shardmill.transforms.images.decoder import (
    Decoder,
    FailureError,
    FailureKind,
    ImageInput,
    open_decoders,
)
from shardmill.transforms.images.fields import DecoderOptions, Opened
from shardmill.transforms.sink.spec import Example

_IDLE_SECONDS = 60.0
_REJECTS: dict[FailureKind, tuple[str, str]] = {
    "crash": ("decoder_crashed", "decoding it ended the process twice, the second time alone"),
    "memory": ("decoder_memory", "decoding it needs more than --decoder_memory"),
    "stalled": ("decoder_timeout", "decoding it did not end"),
    "timeout": ("decoder_timeout", "decoding it takes longer than --decoder_seconds"),
}


class _State:
    """The pools of this process, and the lock of large images."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.large_image = threading.Lock()
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
        self, spec: DecoderOptions, images: Sequence[ImageInput]
    ) -> list[Example | Reject | None]:
        """Return the records and rejects of images, in order; waits for a free process.

        The result of a file that cannot be read, or has changed, is None. Where a process fails,
        the images without a result are tried again alone in new processes: the replies to some of
        them may be lost.

        Args:
            spec: What to do with them.
            images: The images.

        Raises:
            ResourceError: The memory of the machine does not suffice.
        """
        decoder = self._take()
        results: list[Example | Reject | None] = []
        failures: list[FailureKind] = []  # of the first image without a result, when it was alone
        alone = False
        try:
            while len(results) < len(images):
                if self._cancelled:
                    raise ShardmillError("The run was interrupted: no more images are decoded.")
                decoder = decoder or Decoder()
                left = images[len(results) :][: 1 if alone else None]
                try:
                    for result in decoder.make_records(spec, left, _state.large_image, alone=alone):
                        results.append(result)
                        failures.clear()
                except FailureError as failure:
                    decoder.close()
                    if len(left) == 1 and not self._cancelled:
                        failures.append(failure.kind)
                        reject = _final_reject(failures, left[0], decoder.opened)
                        if reject is not None:
                            results.append(reject)
                            failures.clear()
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


def _final_reject(failures: list[FailureKind], image: ImageInput, opened: Opened) -> Reject | None:
    """Return the reject of an image that failed, or None if it must be tried again.

    Raises:
        ResourceError: The memory of the machine does not suffice.
    """
    last = failures[-1]
    if last in ("killed", "machine"):
        if len(failures) > 1:
            needed = f"about {opened.needed / (1 << 30):.1f} GiB" if opened.needed else "more"
            why = "the process was killed" if last == "killed" else "ulimit -v"
            raise ResourceError(
                f"{image.ref.uri} ({opened.width}x{opened.height} pixels, "
                f"{plural(image.ref.size, 'byte')}) needs {needed} memory to be decoded, which "
                f"could not be allocated ({why}): add memory, or set --max_pixels below its size, "
                "so that it is rejected."
            )
    elif last == "timeout" or failures.count(last) == 2:
        return Reject(image.ref.key, image.ref.uri, "decode", *_REJECTS[last])
    return None


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
    for decoder in list(open_decoders):
        decoder.kill()


def close_all() -> None:
    """End all decoder processes of this process; a pool starts new ones when it is used again."""
    for decoder in list(open_decoders):
        decoder.close()


def _forget() -> None:
    """Leave the processes to the parent of a forked process; open sockets would keep them."""
    for decoder in open_decoders:
        decoder.close_streams()
    open_decoders.clear()
    _state.__init__()  # type: ignore[misc]


_state = _State()
