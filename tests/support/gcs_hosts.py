"""Google's own host names, answered on this machine: for clients that know no emulator setting.

A client that uses ``https_proxy`` asks a proxy for a tunnel to ``storage.googleapis.com``; this
proxy connects it to a front with TLS, with a certificate of an authority that the test creates. The
client needs no change but the environment variables of ``Hosts.env``.
"""

import contextlib
import os
import selectors
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trustme

from tests.support.gcs_server import Front

NAMES = ("www.googleapis.com", "storage.googleapis.com")


class _Connection(socketserver.StreamRequestHandler):
    server: "Tunnel"

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split(" ", 2)
        while self.rfile.readline().strip():
            pass
        self.server.asked.append(target)
        host, _, port = target.partition(":")
        if method != "CONNECT" or host not in self.server.names or port != "443":
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", self.server.port)) as there:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with contextlib.suppress(OSError):
                self._pass_on(there)

    def _pass_on(self, there: socket.socket) -> None:
        # Unlike select, it has no limit of 1,024 open files.
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.connection, selectors.EVENT_READ, there)
            waiting.register(there, selectors.EVENT_READ, self.connection)
            while True:
                for key, _ in waiting.select():
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    key.data.sendall(data)


class Tunnel(socketserver.ThreadingTCPServer):
    """A proxy that connects clients that ask for some hosts to a port of this machine.

    Attributes:
        url: Its URL.
        asked: Hosts and ports that clients asked for.
    """

    daemon_threads = True

    def __init__(self, port: int, names: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.port, self.names, self.asked = port, names, list[str]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop the proxy."""
        self.shutdown()
        self.server_close()


class Hosts:
    """A proxy and a TLS front in place of Google's hosts.

    Attributes:
        front: Records and checks the calls of clients.
        tunnel: The proxy.
        env: Environment variables that a client needs.
    """

    def __init__(self, upstream: str, folder: Path) -> None:
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*NAMES).configure_cert(context)
        authority.cert_pem.write_to_path(str(folder / "authority.pem"))
        self.front = Front(upstream, context)
        self.tunnel = Tunnel(self.front.port, NAMES)
        proxy = self.tunnel.url
        self.env = {
            "https_proxy": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": "", "no_proxy": "",
            "CURL_CA_BUNDLE": str(folder / "authority.pem"), "NO_GCE_CHECK": "true",
            "CLOUDSDK_CONFIG": str(folder / "no config"),
        }  # fmt: skip

    def close(self) -> None:
        """Stop both servers."""
        self.tunnel.close()
        self.front.close()

    def client_env(self) -> dict[str, str]:
        """Return the environment of a process whose client uses this proxy."""
        hidden = ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST")
        return {**{k: v for k, v in os.environ.items() if k not in hidden}, **self.env}


@pytest.fixture
def hosts(emulator: str, tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(emulator, tmp_path)
    yield found
    found.close()
