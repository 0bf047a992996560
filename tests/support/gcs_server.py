"""An emulator of Google Cloud Storage for tests, and a strict front that counts and fails calls.

The emulator is fake-gcs-server, driven by the unmodified client library. ``Front`` passes every
call on to it, adds what the real service does and the emulator does not (``gcs_rules``), counts
calls and makes chosen or random ones fail.
"""

import contextlib
import email
import fcntl
import http.client
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shardmill.schemas.storage import base
from tests.conftest import ROOT
from tests.support.gcs_faults import Fault, Storm
from tests.support.gcs_rules import Answer, Call, Rules, error_answer

CACHE = ROOT / ".cache" / "bin"
INSTALLER = ROOT / "deploy" / "gcs" / "install_emulator.sh"
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


def find_emulator() -> str:
    """Returns the emulator's program, installed once where Go is; skips the test where it is not."""
    binary = CACHE / "fake-gcs-server"
    found = shutil.which("fake-gcs-server", path=str(CACHE)) or shutil.which("fake-gcs-server")
    if found:
        return found
    if shutil.which("go") is None:
        pytest.skip("neither fake-gcs-server nor Go is installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:  # one of several test processes installs
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([str(INSTALLER)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"fake-gcs-server could not be installed: {done.stderr.strip()[-200:]}")
    return str(binary)


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _wait_until_up(process: subprocess.Popen, url: str) -> None:
    for _ in range(200):
        if process.poll() is not None:
            raise RuntimeError(f"fake-gcs-server ended with {process.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/_internal/healthcheck"):
            return
        time.sleep(0.05)
    raise RuntimeError("fake-gcs-server did not start")


@contextlib.contextmanager
def run_emulator() -> Iterator[str]:
    """Run an emulator that stores objects in memory; yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory"]
    flags += [f"-public-host=127.0.0.1:{port}", "-log-level=error"]
    process = subprocess.Popen([find_emulator(), *flags], stdout=subprocess.DEVNULL)
    try:
        _wait_until_up(process, url)
        yield url
    finally:
        process.kill()
        process.wait()


def make_bucket(url: str) -> str:
    """Create an empty bucket and return its gs:// URI."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(
        f"{url}/storage/v1/b", json.dumps({"name": name}).encode(), {"Content-Type": "text/json"}
    )
    urllib.request.urlopen(request).close()
    return f"gs://{name}"


class Front:
    """A proxy between client and emulator that enforces rules and injects faults.

    Attributes:
        url: Its URL for clients.
        rules: The rules that it enforces.
        calls: All calls since the last ``reset``.
        connections: Number of connections of clients since then.
        storm: Random faults, or None.
        pause: Delay of a slow or late answer, in seconds.
        hook: Called with each call before it is executed; may wait.
    """

    def __init__(self, upstream: str, context: ssl.SSLContext | None = None) -> None:
        self.upstream = urllib.parse.urlsplit(upstream).netloc
        self.server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"front": self}))
        if context is not None:
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self.server.server_address[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self.lock = threading.Lock()
        self.rules = Rules(self.url)
        self.reset()
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self) -> None:
        """Remove calls, faults, permissions and the page size."""
        self.rules.reset()
        self.calls: list[Call] = []
        self.connections = 0
        self.storm: Storm | None = None
        self.pause = 0.05
        self.hook: Callable[[Call], None] = lambda call: None
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
            kind: As ``Call.kind``, or ``*`` for all.
            how: ``lose`` executes the call and closes the connection without an answer; ``late``
                executes it and answers after a pause, ``slow`` pauses before; ``drop`` only closes
                the connection, ``reset`` with a TCP reset; ``truncate`` announces the whole answer
                and sends half; ``corrupt`` changes the first byte of the answer, ``spoil`` a byte
                of the upload; a number is the status of the answer to a call that is not executed.
            times: Number of calls.
            name: Suffix of the object's name.
            skip: Number of such calls that succeed before.
        """
        self._faults.append(Fault(kind, how, times, name, skip))

    def take_fault(self, call: Call) -> str:
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
    front: Front
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.front.connections += 1
        self.upstream = http.client.HTTPConnection(self.front.upstream)

    def finish(self) -> None:
        self.upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call = Call(self.command, self.path, body)
        if call.kind == "batch":
            self._answer(self._batch(body))
        else:
            self._one(call)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle  # noqa: N815 - http.server's names

    def _one(self, call: Call) -> None:
        front = self.front
        front.calls.append(call)
        front.hook(call)
        fault = front.take_fault(call)
        if fault == "slow":
            time.sleep(front.pause)
        if fault == "spoil":
            call.body = call.body[:-60] + bytes([call.body[-60] ^ 1]) + call.body[-59:]
        if fault in ("drop", "reset"):
            self._hang_up(reset=fault == "reset")
        elif fault.isdigit():
            self._answer(error_answer(int(fault), "injected"))
        else:
            answer = front.rules.carry_out(call, dict(self.headers.items()), self._forward)
            if fault == "late":
                time.sleep(front.pause)
            if fault == "lose":
                self._hang_up(reset=False)
            elif fault == "corrupt" and answer.body:
                spoiled = bytes([answer.body[0] ^ 1]) + answer.body[1:]
                self._answer(answer._replace(body=spoiled))
            else:
                self._answer(answer, cut=fault == "truncate")

    def _batch(self, body: bytes) -> Answer:
        """Execute each call of a batch."""
        message = email.message_from_bytes(
            b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body
        )
        answers = []
        for part in message.get_payload():
            head, _, rest = part.get_payload(decode=True).partition(b"\r\n\r\n")
            if not _:
                head, _, rest = head.partition(b"\n\n")
            method, target, _ = head.splitlines()[0].decode().split(" ", 2)
            path = urllib.parse.urlunsplit(("", "", *urllib.parse.urlsplit(target)[2:]))
            call = Call(method, path, rest.strip())
            self.front.calls.append(call)
            headers = {"Content-Type": "application/json"} if call.body else {}
            status, found, data = self.front.rules.carry_out(call, headers, self._forward)
            lines = [f"HTTP/1.1 {status} {http.client.responses[status]}"]
            lines += [f"{name}: {value}" for name, value in found.items()]
            lines += [f"Content-Length: {len(data)}", "", ""]
            answers.append("\r\n".join(lines).encode() + data)
        head = b"--answers\r\nContent-Type: application/http\r\n\r\n"
        joined = b"".join(head + answer + b"\r\n" for answer in answers) + b"--answers--\r\n"
        return Answer(200, {"Content-Type": 'multipart/mixed; boundary="answers"'}, joined)

    def _forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
    ) -> Answer:
        self.upstream.request(method, path, body, headers or {})
        answer = self.upstream.getresponse()
        found = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}
        return Answer(answer.status, found, answer.read())

    def _hang_up(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:  # the kernel sends RST at once
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())

    def _answer(self, answer: Answer, *, cut: bool = False) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 304:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if cut and answer.body:
            self.wfile.write(answer.body[: len(answer.body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(answer.body)


@contextlib.contextmanager
def _pointed_at(url: str) -> Iterator[None]:
    """Let the client library use a URL, in this process and in its children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        base._storage_of.cache_clear()
        yield
    base._storage_of.cache_clear()


@pytest.fixture(scope="session")
def emulator() -> Iterator[str]:
    """The URL of an emulator that all tests of a process share."""
    with run_emulator() as url:
        yield url


@pytest.fixture(scope="session")
def shared_front(emulator: str) -> Iterator[Front]:
    front = Front(emulator)
    yield front
    front.close()


@pytest.fixture
def bucket(emulator: str) -> Iterator[str]:
    """An empty bucket on the emulator itself; the client library talks to it."""
    with _pointed_at(emulator):
        yield make_bucket(emulator)


@pytest.fixture
def front(shared_front: Front) -> Iterator[Front]:
    """The strict front, its counts at zero; the client library talks to it."""
    shared_front.reset()
    with _pointed_at(shared_front.url):
        yield shared_front


@pytest.fixture
def strict_bucket(front: Front, emulator: str) -> str:
    """An empty bucket behind the strict front."""
    return make_bucket(emulator)
