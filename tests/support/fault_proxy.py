"""A proxy between a client and a server that records calls and makes chosen or random ones fail."""

import contextlib
import http.client
import os
import random
import socket
import struct
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}

READS = ("get", "download", "list", "bucket", "GET", "HEAD")  # all other kinds change something


class Answer(NamedTuple):
    """An answer of the service."""

    status: int
    headers: dict[str, str]
    body: bytes


Forward = Callable[..., Answer]  # (method, path, body, headers)


@dataclass
class Call:
    """A call of any service; its kind is the HTTP method."""

    kind: str
    path: str
    body: bytes
    headers: dict[str, str]
    name: str = ""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.kind


@dataclass
class Fault:
    """A fault of some calls; see ``Proxy.fail``."""

    kind: str
    how: str
    times: int = 1
    name: str = ""
    skip: int = 0

    def takes(self, call: Any) -> bool:
        """Report whether the fault applies to a call, and count it."""
        kinds = (call.kind, "*", *([] if call.kind in READS else ["write"]))
        fits = self.kind in kinds and call.name.endswith(self.name) and self.times > 0
        if fits and self.skip:
            self.skip -= 1
            return False
        self.times -= fits
        return fits


@dataclass
class Storm:
    """Random faults, the same for the same seed and order of calls.

    Attributes:
        seed: Seed of the random choice.
        share: Share of calls that fail.
        hows: Possible faults; see ``Proxy.fail``.
        injected: Number of injected faults by (kind, how).
    """

    seed: int
    share: float
    hows: tuple[str, ...]
    injected: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def choose(self, call: Any) -> str:
        """Return the fault of a call; empty for none."""
        if self._random.random() >= self.share:
            return ""
        how = self._random.choice(self.hows)
        self.injected[call.kind, how] += 1
        return how


class Proxy:
    """A running proxy. A subclass knows the errors of a service, and the kinds of its calls.

    Attributes:
        url: Its URL for clients.
        calls: All calls since the last ``reset``.
        connections: Number of connections of clients since then.
        open: Number of connections that are open; one closes after its last call is executed.
        storm: Random faults, or None.
        pause: Delay of a slow or late answer, in seconds.
        hook: Called with each call before it is executed; may wait.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = urllib.parse.urlsplit(upstream).netloc
        self.server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.lock = threading.Lock()
        self.open = 0
        self.reset()
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def parse(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
        """Return a call as an object with the attributes of ``Call``."""
        return Call(method, path, body, headers)

    def carry_out(self, call: Any, headers: dict[str, str], forward: Forward) -> Answer:
        """Return the answer to a call that does not fail."""
        return forward(call.method, call.path, call.body, headers)

    def error_answer(self, how: str) -> Answer:
        """Return the service's answer for a fault that begins with a status."""
        raise NotImplementedError

    def reset(self) -> None:
        """Remove calls, faults and the hook."""
        self.calls: list[Any] = []
        self.connections = 0
        self.storm: Storm | None = None
        self.pause = 0.05
        self.hook: Callable[[Any], object] = lambda call: None
        self._faults: list[Fault] = []

    def close(self) -> None:
        """Stop the proxy."""
        self.server.shutdown()
        self.server.server_close()

    def counts(self) -> Counter[str]:
        """Return the number of calls of each kind."""
        return Counter(call.kind for call in self.calls)

    def fail(self, kind: str, how: str, times: int = 1, name: str = "", skip: int = 0) -> None:
        """Let the next calls of a kind fail.

        Args:
            kind: Kind of the calls, ``write`` for all that change anything, or ``*`` for all.
            how: ``lose`` executes the call and closes the connection without an answer; ``late``
                executes it and answers after a pause, ``slow`` pauses before; ``drop`` only closes
                the connection, ``reset`` with a TCP reset; ``truncate`` announces the whole answer
                and sends half, ``cut 9`` sends 9 bytes; ``corrupt`` changes the first byte of the
                answer, ``spoil`` a byte of the upload; a number is the status of the answer to a
                call that is not executed.
            times: Number of calls.
            name: Suffix of the object's name.
            skip: Number of such calls that succeed before.
        """
        self._faults.append(Fault(kind, how, times, name, skip))

    def take_fault(self, call: Any) -> str:
        """Return the fault of a call, and count it."""
        with self.lock:
            for fault in self._faults:
                if fault.takes(call):
                    return fault.how
            return self.storm.choose(call) if self.storm else ""

    @property
    def faults_left(self) -> int:
        """Number of calls that will still fail."""
        return sum(fault.times for fault in self._faults)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: tests kill clients on purpose."""


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.proxy.connections += 1
        with self.proxy.lock:
            self.proxy.open += 1
        self.upstream = http.client.HTTPConnection(self.proxy.upstream)

    def finish(self) -> None:
        self.upstream.close()
        with self.proxy.lock:
            self.proxy.open -= 1
        with contextlib.suppress(OSError):
            super().finish()

    def _handle(self) -> None:
        proxy, headers = self.proxy, dict(self.headers.items())
        expected = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(expected)
        if (
            len(body) < expected
        ):  # killed while it sent the body; the server would wait for the rest
            self.close_connection = True
            return
        call = proxy.parse(self.command, self.path, body, headers)
        proxy.calls.append(call)
        proxy.hook(call)
        fault = proxy.take_fault(call)
        if fault == "slow":
            time.sleep(proxy.pause)
        if fault == "spoil":
            call.body = call.body[:-60] + bytes([call.body[-60] ^ 1]) + call.body[-59:]
        if fault in ("drop", "reset"):
            self._hang_up(reset=fault == "reset")
            return
        if fault[:1].isdigit():
            self._answer(proxy.error_answer(fault))
            return
        answer = proxy.carry_out(call, headers, self._forward)
        size = len(answer.body)
        if fault == "late":
            time.sleep(proxy.pause)
        if fault == "lose":
            self._hang_up(reset=False)
        elif fault == "corrupt" and size:
            spoiled = bytes([answer.body[0] ^ 1]) + answer.body[1:]
            self._answer(answer._replace(body=spoiled))
        elif fault.startswith("cut "):
            self._answer(answer, int(fault[4:]))
        else:
            self._answer(answer, size // 2 if fault == "truncate" and size else None)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _handle  # noqa: N815

    def _forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
    ) -> Answer:
        self.upstream.request(method, path, body, headers or {})
        answer = self.upstream.getresponse()
        hop = _HOP - {"content-length"} if method == "HEAD" else _HOP
        found = {k: v for k, v in answer.getheaders() if k.lower() not in hop}
        return Answer(answer.status, found, answer.read())

    def _hang_up(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:  # the kernel sends RST at once
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())

    def _answer(self, answer: Answer, cut: int | None = None) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        is_head = self.command == "HEAD"
        if answer.status != 304 and not (is_head and "Content-Length" in answer.headers):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if not is_head:
            self.wfile.write(answer.body[:cut])
        self.close_connection |= cut is not None
