"""A proxy in front of a server of s3:// that records calls and makes some of them fail."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ERROR = "<Error><Code>{}</Code><Message>{}</Message></Error>"


@dataclass
class Call:
    """A request that reached the proxy."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Fault:
    """What happens to some calls.

    Attributes:
        method: Of the calls.
        times: How many of them fail.
        lose: The server carries the call out, and the connection breaks before its answer.
        cut: The connection breaks after this many bytes of the answer.
        status: The proxy answers itself, with this status.
        code: The error code of that answer.
    """

    method: str
    times: int = 1
    lose: bool = False
    cut: int = -1
    status: int = 0
    code: str = ""


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        url: Where it listens.
        faults: Are used up in order; set by tests.
        calls: Every call that it received.
        before: Is called before a call is passed on.
    """

    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    before: Callable[[Call], None] = lambda call: None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def take(self, call: Call) -> Fault:
        """Records a call and returns what happens to it."""
        with self._lock:
            self.calls.append(call)
            for fault in self.faults:
                if fault.method == call.method and fault.times > 0:
                    fault.times -= 1
                    return fault
        return Fault(call.method)

    def methods(self) -> list[str]:
        return [call.method for call in self.calls]


class Handler(BaseHTTPRequestHandler):
    """Passes calls on to a server, or makes them fail."""

    protocol_version = "HTTP/1.1"
    proxy: Proxy
    upstream: str  # host:port

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def pass_on(self) -> None:
        """Handles one call."""
        call = Call(self.command, self.path, dict(self.headers))
        self.proxy.before(call)
        fault = self.proxy.take(call)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault.status:
            text = b"" if call.method == "HEAD" else _ERROR.format(fault.code, "broken").encode()
            self.answer(fault.status, [("Content-Length", str(len(text)))], text)
            return
        status, headers, data = self.forward(call, body)
        if not fault.lose:
            self.answer(status, headers, data if fault.cut < 0 else data[: fault.cut])
        if fault.lose or fault.cut >= 0:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def forward(self, call: Call, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Sends a call to the server; returns its status, headers and body."""
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        connection.putrequest(call.method, call.path, skip_host=True, skip_accept_encoding=True)
        for name, value in call.headers.items():
            if name.lower() != "expect":  # answered here
                connection.putheader(name, value)
        connection.endheaders()
        connection.send(body)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        kept = [
            (name, value)
            for name, value in answer.getheaders()
            if name.lower() not in ("connection", "date", "server", "transfer-encoding")
        ]
        if "content-length" not in {name.lower() for name, _ in kept}:
            kept.append(("Content-Length", str(len(data))))
        return answer.status, kept, data

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        """Sends an answer to the client."""
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815


@contextlib.contextmanager
def run_proxy(server: str) -> Iterator[Proxy]:
    """Runs a proxy to a server of s3://."""
    proxy = Proxy()
    bound = type("Bound", (Handler,), {"proxy": proxy, "upstream": server.partition("://")[2]})
    listener = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    listener.daemon_threads = True
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    proxy.url = f"http://127.0.0.1:{listener.server_port}"
    try:
        yield proxy
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
