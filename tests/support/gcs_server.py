"""An emulator of Google Cloud Storage for tests, and a strict front that counts and fails calls.

The emulator is fake-gcs-server, driven by the unmodified client library. ``Front`` passes every
call on to it, adds what the real service does and the emulator does not (``gcs_rules``), counts
calls and makes chosen or random ones fail.
"""

import contextlib
import json
import urllib.request
import uuid
from collections.abc import Iterator

import pytest

from shardmill.schemas import storage as registry
from tests.conftest import ROOT
from tests.support.fault_proxy import Answer, Forward, Proxy
from tests.support.gcs_rules import Call, Rules, error_answer
from tests.support.servers import find_program, free_port, run_server


def find_emulator() -> str:
    """Return the emulator's program, installed once where Go is; skip the test where it is not."""
    return find_program("fake-gcs-server", [str(ROOT / "deploy" / "gcs" / "install_emulator.sh")])


@contextlib.contextmanager
def run_emulator() -> Iterator[str]:
    """Run an emulator that stores objects in memory; yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory"]
    flags += [f"-public-host=127.0.0.1:{port}", "-log-level=error"]
    with run_server([find_emulator(), *flags], f"{url}/_internal/healthcheck"):
        yield url


def make_bucket(url: str) -> str:
    """Create an empty bucket and return its gs:// URI."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(
        f"{url}/storage/v1/b", json.dumps({"name": name}).encode(), {"Content-Type": "text/json"}
    )
    urllib.request.urlopen(request).close()
    return f"gs://{name}"


class Front(Proxy):
    """A proxy between client and emulator that enforces rules and injects faults.

    Attributes:
        rules: The rules that it enforces.
    """

    def __init__(self, upstream: str) -> None:
        self.rules = Rules()
        super().__init__(upstream)
        self.rules.url = self.url

    def reset(self) -> None:
        """Remove calls, faults, permissions and the page size."""
        self.rules.reset()
        super().reset()

    def parse(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Call:
        """See ``Proxy.parse``."""
        del headers
        return Call(method, path, body)

    def error_answer(self, how: str) -> Answer:
        """See ``Proxy.error_answer``."""
        return error_answer(int(how), "injected")

    def carry_out(self, call: Call, headers: dict[str, str], forward: Forward) -> Answer:
        """See ``Proxy.carry_out``."""
        return self.rules.carry_out(call, headers, forward)


@contextlib.contextmanager
def _pointed_at(url: str) -> Iterator[None]:
    """Let the client library use a URL, in this process and in its children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        registry._storage_of.cache_clear()
        yield
    registry._storage_of.cache_clear()


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
