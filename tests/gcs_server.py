"""An emulator of Google Cloud Storage for tests, and a strict front that counts and fails calls.

The emulator is fake-gcs-server, driven by the unmodified client library. It does not check
preconditions on download, compose, rewrite and delete, and answers a compose of missing sources
with 500; ``Front`` passes every call on to it and adds what the real service does there.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import re
import shutil
import socket
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
from conftest import ROOT

from shardmill.schemas.storage import base

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
    """Returns a port of 127.0.0.1 that nobody listens on."""
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
    """Runs an emulator that keeps all in memory, and gives its URL."""
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
    """Makes an empty bucket and returns its gs:// URI."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(
        f"{url}/storage/v1/b", json.dumps({"name": name}).encode(), {"Content-Type": "text/json"}
    )
    urllib.request.urlopen(request).close()
    return f"gs://{name}"


class Call:
    """One call of the API, as far as tests tell calls apart."""

    def __init__(self, method: str, target: str, body: bytes = b"") -> None:
        parts = urllib.parse.urlsplit(target)
        self.query = {k: v[0] for k, v in urllib.parse.parse_qs(parts.query).items()}
        found = re.fullmatch(
            r"(.*?)/b/([^/]+)/o(?:/([^/]+))?(?:/(compose|rewriteTo)(.*))?", parts.path
        )
        where, self.bucket, name, action, self.rest = (
            found.groups() if found else ("", "", "", "", "")
        )
        self.name = urllib.parse.unquote(name or "") or self.query.get("name", "")
        said = re.search(rb'"name": ?("(?:[^"\\]|\\.)*")', body[:4096])
        if where.startswith("/upload") and said:
            self.name = json.loads(said.group(1))
        self.kind = self._kind(method, where, bool(name), action)

    def _kind(self, method: str, where: str, named: bool, action: str | None) -> str:
        if action:
            return {"compose": "compose", "rewriteTo": "rewrite"}[action]
        if where.startswith("/upload"):
            return "upload" if method == "POST" else "upload_chunk"
        if method == "DELETE":
            return "delete"
        if not named:
            return "list" if self.bucket else "other"
        return "download" if self.query.get("alt") == "media" else "get"


class Front:
    """Stands between client and emulator.

    Attributes:
        url: Where clients find it.
        calls: All calls since the last ``reset``.
        connections: How many connections clients made since then.
        page_size: Objects on a page of a listing, or None for all.
        hook: Called with each call before it is carried out; may wait.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = urllib.parse.urlsplit(upstream).netloc
        self.server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"front": self}))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.lock = threading.Lock()
        self.reset()
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self) -> None:
        """Forgets calls, faults and the page size."""
        self.calls: list[Call] = []
        self.connections = 0
        self.page_size: int | None = None
        self.hook: Callable[[Call], None] = lambda call: None
        self._faults: list[tuple[str, str, str, int]] = []

    def close(self) -> None:
        """Stops it."""
        self.server.shutdown()
        self.server.server_close()

    def counts(self) -> Counter[str]:
        """Returns how many calls of each kind were made."""
        return Counter(call.kind for call in self.calls)

    def fail(self, kind: str, how: str, times: int = 1, name: str = "") -> None:
        """Makes the next calls of a kind fail.

        Args:
            kind: As ``Call.kind``.
            how: ``lose`` carries the call out and drops the answer; ``drop`` only hangs up;
                ``corrupt`` spoils the answer's first byte; a number is the status it is answered
                with, not carried out.
            times: How many calls.
            name: What the object's name ends with.
        """
        self._faults += [(kind, how, name, times)]

    def take_fault(self, call: Call) -> str:
        """Returns what befalls a call, and notes that it did."""
        with self.lock:
            for number, (kind, how, name, times) in enumerate(self._faults):
                if kind == call.kind and call.name.endswith(name) and times:
                    self._faults[number] = (kind, how, name, times - 1)
                    return how
        return ""

    @property
    def faults_left(self) -> int:
        """How many calls are yet to fail."""
        return sum(times for *_, times in self._faults)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing: clients of tests die on purpose."""


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
        self.front.calls.append(call)
        self.front.hook(call)
        fault = self.front.take_fault(call)
        if fault == "drop":
            self.close_connection = True
        elif fault.isdigit():
            self._answer(int(fault), {}, b'{"error": {"message": "injected"}}')
        else:
            answer = self._strict(call, body)
            if fault == "lose":
                self.close_connection = True
            elif fault == "corrupt":
                status, headers, data = answer
                self._answer(status, headers, bytes([data[0] ^ 1]) + data[1:])
            else:
                self._answer(*answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle  # noqa: N815 - http.server's names

    def _strict(self, call: Call, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Passes a call on if its preconditions hold; the emulator itself sees to uploads."""
        if call.kind not in ("download", "get", "compose", "rewrite", "delete"):
            path = self.path
            if call.kind == "list" and self.front.page_size and "maxResults" not in call.query:
                path += f"&maxResults={self.front.page_size}"
            return self._forward(self.command, path, body)
        with self.front.lock:
            if call.kind == "compose":
                sources = [source["name"] for source in json.loads(body)["sourceObjects"]]
                if any(self._generation(call.bucket, name) == 0 for name in sources):
                    return 404, {}, b'{"error": {"message": "No such object"}}'
            bucket, name = call.bucket, call.name
            if call.kind == "rewrite":
                bucket, name = re.fullmatch(r"/b/([^/]+)/o/(.+)", call.rest).groups()
                name = urllib.parse.unquote(name)
            wanted = call.query.get("ifGenerationMatch")
            found = 0 if wanted is None else self._generation(bucket, name)
            # What is read or deleted must be there; what is written may be new.
            missing = not found and call.kind in ("download", "get", "delete")
            if wanted is not None and found != int(wanted) and not missing:
                return 412, {}, b'{"error": {"message": "conditionNotMet"}}'
            return self._forward(self.command, self.path, body)

    def _generation(self, bucket: str, name: str) -> int:
        path = f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"
        status, _, body = self._forward("GET", path, b"", {})
        return int(json.loads(body)["generation"]) if status == 200 else 0

    def _forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        if headers is None:
            headers = dict(self.headers.items())
        self.upstream.request(method, path, body, headers)
        answer = self.upstream.getresponse()
        found = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}
        return answer.status, found, answer.read()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def _pointed_at(url: str) -> Iterator[None]:
    """Makes the client library, here and in child processes, talk to url."""
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
