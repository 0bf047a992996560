"""Servers of the S3 protocol for tests: moto, and the stricter Versity S3 Gateway.

Moto is a test dependency and checks no keys. The gateway is a Go program that serves a folder; it
checks keys and signatures, and is fast.
"""

import contextlib
import os
import sys
import urllib.parse
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardmill.schemas import storage as registry
from shardmill.schemas.storage.s3 import S3Storage
from tests.support.fault_proxy import Answer, Call, Proxy
from tests.support.servers import find_program, free_port, run_server

GATEWAY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret"}
# Settings of the machine that would change the client.
OTHERS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_MAX_ATTEMPTS")
# The main function of moto.server, with a lock: moto checks the condition of a write and then
# writes, so two requests at a time could both meet it.
SERVE = """
import sys, threading
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def serve(environ, start_response):
    with lock:
        return list(moto(environ, start_response))

run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True, request_handler=MotoRequestHandler)
"""


@contextlib.contextmanager
def run_moto() -> Iterator[str]:
    """Run a server that stores objects in memory; yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with run_server([sys.executable, "-c", SERVE, str(port)], f"{url}/moto-api/data.json"):
        yield url


def attributes_of(folder: Path) -> list[str]:
    """Return the gateway's flags for the storage of ETags.

    Extended attributes change atomically with the file, but not every file system has them. With
    separate files, a reader may get the ETag of one version and the bytes of another.
    """
    try:
        os.setxattr(folder, "user.test", b"x")
    except (AttributeError, OSError):
        (folder / "attributes").mkdir()
        return ["--sidecar", str(folder / "attributes")]
    return []


def gateway() -> str:
    """Return the path of the gateway; install it if it is missing, which takes minutes."""
    return find_program("versitygw", ["go", "install", GATEWAY])


@contextlib.contextmanager
def run_gateway(folder: Path) -> Iterator[str]:
    """Run a gateway to a folder; yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (folder / "buckets").mkdir()
    command = [gateway(), "--port", f"127.0.0.1:{port}", "--health", "/health", "posix"]
    command += [*attributes_of(folder), str(folder / "buckets")]
    key, secret = KEYS.values()
    with run_server(command, f"{url}/health", ROOT_ACCESS_KEY=key, ROOT_SECRET_KEY=secret):
        yield url


def client(url: str):
    """Return a boto3 client, which is independent of Shardmill."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )


def make_bucket(url: str) -> str:
    """Create an empty bucket and return its s3:// URI."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    client(url).create_bucket(Bucket=name)
    return f"s3://{name}"


@contextlib.contextmanager
def environment(url: str) -> Iterator[None]:
    """Set the AWS variables of this process and its children to a server."""
    with pytest.MonkeyPatch.context() as patch:
        for name in OTHERS:
            patch.delenv(name, raising=False)
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}.items():
            patch.setenv(name, value)
        registry._storage_of.cache_clear()
        yield
    registry._storage_of.cache_clear()


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """A running server."""
    with run_moto() as url:
        yield url


@pytest.fixture(scope="module")
def s3_environment(s3_url) -> Iterator[None]:
    """Environment variables with the address and keys of the server."""
    with environment(s3_url):
        yield


@pytest.fixture
def s3(s3_url, s3_environment):
    """A boto3 client of the server."""
    return client(s3_url)


@pytest.fixture(scope="module")
def s3_storage(s3_environment) -> S3Storage:
    """A storage that is created once: its client takes a third of a second."""
    return S3Storage()


@pytest.fixture
def s3_bucket(s3_url, s3_environment) -> str:
    """An empty bucket."""
    return make_bucket(s3_url)


class S3Proxy(Proxy):
    """A proxy to a server of s3://."""

    def parse(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Call:
        """See ``Proxy.parse``; the name is that of the object, after its bucket."""
        return Call(method, path, body, headers, urllib.parse.unquote(path.partition("?")[0]))

    def error_answer(self, how: str) -> Answer:
        """See ``Proxy.error_answer``; the code of the error follows the status."""
        status, _, code = how.partition(" ")
        text = f"<Error><Code>{code}</Code><Message>broken</Message></Error>"
        return Answer(int(status), {}, text.encode())


@pytest.fixture
def proxy(s3_url, s3_environment, monkeypatch) -> Iterator[S3Proxy]:
    """A proxy to the server, which the clients use."""
    proxy = S3Proxy(s3_url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def gateway_url(tmp_path_factory) -> Iterator[str]:
    """A running gateway."""
    with run_gateway(tmp_path_factory.mktemp("gateway")) as url:
        yield url


if __name__ == "__main__":  # before the tests, whose time is limited
    print(gateway())
