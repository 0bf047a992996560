"""A cloud service's host name, answered on this machine."""

import contextlib
import selectors
import socket
import socketserver
import threading


class _Connection(socketserver.StreamRequestHandler):
    server: "Tunnel"

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split(" ", 2)
        while self.rfile.readline().strip():
            pass
        if (method, target) != ("CONNECT", f"{self.server.host}:443"):
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
    """A proxy that connects clients that ask for a host to a port of this machine.

    Clients of a cloud service need no other address: only the variable with the proxy's.

    Attributes:
        url: Its URL.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.host, self.port = host, port
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop the proxy."""
        self.shutdown()
        self.server_close()
