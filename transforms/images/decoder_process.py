"""A process that decodes images: ``python -m shardmill.transforms.images.decoder_process``.

It answers requests on a socket, its standard input, and ends when that is closed, so it never
outlives the worker that started it. A file that crashes a codec, or takes too much memory or time,
ends this process and not the worker. It imports neither Beam nor TensorFlow and starts in about
0.2 s.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

from blake3 import blake3
from PIL import AvifImagePlugin, Image

from shardmill.schemas.errors import ChangedError, StorageError
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.refs import EncodedImage, RejectedError
from shardmill.schemas.schema_pbtxt.image_features import DEPTH_REDUCED
from shardmill.transforms.images.convert import ConvertedImage, convert_image
from shardmill.transforms.images.decoder_protocol import (
    GO,
    NO_MEMORY_EXIT,
    Bug,
    DecoderOptions,
    Encoded,
    NoMemory,
    Opened,
    Ready,
    Rejected,
    Reply,
    Request,
    RequestedImage,
    Unread,
    append_reply,
)
from shardmill.transforms.images.fields import MASK_FORMAT, convert_mask, place_boxes
from shardmill.transforms.match.read_input import read_content

LARGE = 320 << 20  # bytes of memory (16 million pixels in color); decoded one at a time
_ONE_BYTE = frozenset({"1", "L", "P"})  # Pillow's other modes have 4 bytes per pixel, or few have 2
_COPIES = 5  # of the pixels at a time: decoded, composited over white, encoded; 2 for most files
_COEFFICIENTS = 6  # bytes per pixel of a progressive JPEG, whose coefficients are all kept
# Replies are collected, since each write wakes the worker; for so short a time that the worker
# parses most of them while the next images are decoded.
_PENDING_BYTES = 1 << 18
_PENDING_SECONDS = 0.004
_DAMAGE = frozenset({"color", "decode", "encode"})


class Server:
    """Answers requests.

    Args:
        channel: Socket of requests and replies.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._socket = channel
        self._requests = open(channel.fileno(), "rb", 1 << 16, closefd=False)  # noqa: SIM115
        self._pending = bytearray()  # replies that are not sent yet
        self._sent = time.monotonic()
        self._soft_limit, self._hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        self._limit = 0  # that applies now
        self._opened = Opened()

    def run(self) -> int:
        """Answer requests until the stream ends; return the exit code."""
        self._send(Ready())
        self._flush()
        while True:
            try:
                request: Request = pickle.load(self._requests)  # noqa: S301 - of the worker
            except EOFError:
                return 0
            except MemoryError:
                return NO_MEMORY_EXIT
            options = _parse_options(request.options)
            self._set_limits(options)
            self._sent = time.monotonic()
            for source in request.images:
                self._opened = Opened(inherited=self._opened.inherited)
                signal.setitimer(signal.ITIMER_PROF, options.limits.decoder_seconds)
                self._send(self._answer(source, options, announce=request.announce))
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._flush()

    def _set_limits(self, options: DecoderOptions) -> None:
        memory = options.limits.decoder_memory
        inherited = resource.RLIM_INFINITY != self._soft_limit < memory
        self._opened = Opened(inherited=inherited)
        self._limit = self._soft_limit if inherited else memory
        Image.MAX_IMAGE_PIXELS = -(-options.limits.max_pixels // 2)  # Pillow allows twice as many
        with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (self._limit, self._hard_limit))

    def _answer(self, source: RequestedImage, options: DecoderOptions, *, announce: bool) -> Reply:
        """Return the record of an image, or the reason that there is none."""
        announced = functools.partial(self._announce, always=announce)
        try:
            content = _read(source)
            if content is None:
                return Unread()
            image = convert_image(content, options.image, announced, options.limits.max_pixels)
            return make_record(image, content, source.fields, options)
        except RejectedError as error:
            if error.error in _DAMAGE and not self._opened.fits:
                return NoMemory(self._opened.inherited)
            message = error.message.encode(errors="replace").decode()
            return Rejected(error.stage, error.error, message)
        except MemoryError:
            return NoMemory(self._opened.inherited)
        except Exception:  # noqa: BLE001 - the worker raises it again
            text = traceback.format_exc()
            return Bug(text.encode(errors="replace").decode())

    def _announce(self, image: Image.Image, *, always: bool) -> None:
        """Report an image that needs much memory, and wait until it may be decoded."""
        scale = (*getattr(image, "decoderconfig", ()), 1)[0]  # of a JPEG
        width, height = image.width * scale, image.height * scale
        needed = _memory_needed(image, width * height)
        fits = _address_space() + needed <= self._limit
        self._opened = Opened(width, height, needed, fits, self._opened.inherited)
        if always or needed > LARGE:
            self._send(self._opened)
            self._flush()
            self._requests.read(len(GO))

    def _send(self, reply: Reply) -> None:
        append_reply(self._pending, reply)
        if len(self._pending) > _PENDING_BYTES or time.monotonic() > self._sent + _PENDING_SECONDS:
            self._flush()

    def _flush(self) -> None:
        self._socket.sendall(self._pending)
        self._pending.clear()
        self._sent = time.monotonic()


_parse_options = functools.lru_cache(pickle.loads)


def _read(source: RequestedImage) -> bytes | None:
    """Return the content of an image; None if the worker has to find out why it is not read."""
    if source.data is not None:
        return source.data
    try:
        return read_content(source.uri, source.size, source.version, source.member)
    except (ChangedError, FileNotFoundError, RejectedError, StorageError):
        return None
    except MemoryError:
        if not source.member:
            raise
        return None  # decompression takes twice the size of a member: more than the limit, perhaps


def make_record(
    image: ConvertedImage, content: bytes, input_fields: Mapping[str, Any], options: DecoderOptions
) -> Encoded:
    """Return the record of a converted image, and its facts for the catalog.

    Args:
        image: The image.
        content: Content of the file that it was converted from.
        input_fields: Values of features that do not come from the file, by ``Feature.field``.
        options: Which features the record has.
    """
    geometry, channels = image.geometry, image.channels
    fields = {
        "data": image.data,
        "format": image.format.encode(),
        "height": geometry.size.height,
        "width": geometry.size.width,
        "source_height": geometry.upright.height,
        "source_width": geometry.upright.width,
        "orientation": geometry.orientation,
        "multi_frame": int(image.multi_frame),
        "kept": int(image.original.startswith("kept")),
        "kept_with_position": int(image.original == "kept_with_position"),
        "converted": int(image.original == "converted"),
        **input_fields,
    }
    if options.features.boxes:
        fields |= place_boxes(fields, geometry, options.boxes_frame)
    if "mask/data" in fields:
        mask = convert_mask(fields["mask/data"], geometry, options.boxes_frame)
        fields |= {"mask": mask, "mask_format": MASK_FORMAT.encode()}
    columns = options.features.columns(fields)
    if image.deep:
        columns[DEPTH_REDUCED] = 1
    facts = EncodedImage(
        blake3(content).hexdigest(),
        *geometry.upright,
        image.multi_frame,
        channels[0].values,
        [channel.total for channel in channels],
        [channel.squares for channel in channels],
        columns,
    )
    return Encoded(facts, encode_example(options.features.values(fields)))


def _memory_needed(image: Image.Image, pixels: int) -> int:
    """Return an estimate of the memory that decoding and converting an image need, in bytes.

    Args:
        image: The image, whose header is read; a JPEG may be decoded at a reduced size.
        pixels: Pixels of the file.
    """
    pixel_bytes = 1 if image.mode in _ONE_BYTE else 4
    coefficients = _COEFFICIENTS * pixels if image.info.get("progressive") else 0
    return image.width * image.height * pixel_bytes * _COPIES + coefficients


@functools.cache
def _memory_file() -> int:
    return os.open("/proc/self/statm", os.O_RDONLY)


def _address_space() -> int:
    """Return the bytes of address space that this process uses; 0 if the system hides them."""
    try:
        return int(os.pread(_memory_file(), 64, 0).split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _exit_with_worker(requests: int) -> None:
    """End this process when the worker closes the stream or dies, also during a request."""
    poll = select.poll()
    poll.register(requests, 0)  # waits for the end of the stream only
    poll.poll()
    os._exit(0)


def main() -> int:
    """Serve the socket that is standard input; codecs must not use the standard streams."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides what an interrupt ends
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    warnings.simplefilter("ignore")  # of large images and damaged metadata
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # each core has a process, and stacks take memory
    with socket.socket(fileno=os.dup(0)) as channel:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        threading.Thread(target=_exit_with_worker, args=(channel.fileno(),), daemon=True).start()
        return Server(channel).run()


if __name__ == "__main__":
    sys.exit(main())
