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
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.gcs_server import Front

NAMES = ("www.googleapis.com", "storage.googleapis.com")


class _Tunnel(socketserver.StreamRequestHandler):
    port: int
    asked: list[str]

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split(" ", 2)
        while self.rfile.readline().strip():
            pass
        self.asked.append(target)
        host, _, port = target.partition(":")
        if method != "CONNECT" or host not in NAMES or port != "443":
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", self.port)) as there:
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


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True


class Hosts:
    """A proxy and a TLS front in place of Google's hosts.

    Attributes:
        front: Records and checks the calls of clients.
        asked: Hosts and ports that clients asked the proxy for.
        env: Environment variables that a client needs.
    """

    def __init__(self, upstream: str, folder: Path) -> None:
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*NAMES).configure_cert(context)
        authority.cert_pem.write_to_path(str(folder / "authority.pem"))
        self.front = Front(upstream, context)
        self.asked: list[str] = []
        handler = type("Tunnel", (_Tunnel,), {"port": self.front.port, "asked": self.asked})
        self._proxy = _Proxy(("127.0.0.1", 0), handler)
        threading.Thread(target=self._proxy.serve_forever, args=(0.05,), daemon=True).start()
        proxy = f"http://127.0.0.1:{self._proxy.server_address[1]}"
        self.env = {
            "https_proxy": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": "", "no_proxy": "",
            "CURL_CA_BUNDLE": str(folder / "authority.pem"), "NO_GCE_CHECK": "true",
            "CLOUDSDK_CONFIG": str(folder / "no config"),
        }  # fmt: skip

    def close(self) -> None:
        """Stop both servers."""
        self._proxy.shutdown()
        self._proxy.server_close()
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
