"""Object stores whose answers are lost: the service has made the change, the client does not know.

Each change of a command loses its answer once. What is published must be the same as without.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from shardmill.schemas import ShardmillError
from shardmill.schemas import storage as registry
from shardmill.schemas.dataset.read_manifest import load_manifest
from shardmill.schemas.storage import Storage, open_storage, s3
from shardmill.transforms.publish.cleanup import find_leftovers, remove
from shardmill.transforms.publish.generation import find_damage, read_published
from shardmill.transforms.publish.publish import roll_back
from tests.support.fault_proxy import READS, Proxy
from tests.support.publications import OTHER, make_manifest, publish_by_hand, stage

pytest_plugins = ["tests.support.s3_server", "tests.support.gcs_server", "tests.support.gcs_builds"]
pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("s3")]

ONE, NEW = make_manifest(), make_manifest(input_id="k")


@dataclass
class Store:
    """A bucket behind a proxy."""

    proxy: Proxy
    bucket: str

    @property
    def storage(self) -> Storage:
        return open_storage(self.bucket)

    def changes(self) -> int:
        """Return the number of calls since the last reset that change something."""
        return sum(call.kind not in READS for call in self.proxy.calls)


@pytest.fixture(params=["s3", "gs"])
def store(request, monkeypatch) -> Store:
    if request.param == "gs":
        request.getfixturevalue("quick")
        front = request.getfixturevalue("front")
        return Store(front, request.getfixturevalue("strict_bucket"))
    monkeypatch.setattr(s3, "_LONGEST_PAUSE", 0.01)
    bucket = request.getfixturevalue("s3_bucket")
    proxy = request.getfixturevalue("proxy")
    registry._storage_of.cache_clear()  # its client is that of another server
    return Store(proxy, bucket)


def publish_first(output: str) -> None:
    assert publish_by_hand(output, ONE) is not None


def update(output: str) -> None:
    assert publish_by_hand(output, NEW) is not None


def rollback(output: str) -> None:
    roll_back(open_storage(output), output)


def clean(output: str) -> None:
    storage = open_storage(output)
    stage(output)
    for item in find_leftovers(storage, output).leftovers:
        remove(storage, output, item, 0, 0)


COMMANDS: dict[str, tuple[list[Callable[[str], None]], Callable[[str], None]]] = {
    "publish": ([], publish_first),
    "update": ([publish_first], update),
    "rollback": ([publish_first, update], rollback),
    "clean": ([publish_first], clean),
}


def check(output: str) -> tuple[str, int, list[str]]:
    """Assert that all versions are whole; return what is published, independent of names."""
    storage = open_storage(output)
    manifest = read_published(storage, output).manifest
    assert manifest is not None
    assert manifest == load_manifest(output)
    for name in (manifest.generation, *manifest.previous):
        folder = f"{output}/{name}"
        version = read_published(storage, folder).manifest
        assert version is not None
        assert not find_damage(storage, folder, version)
    entries = {entry.path[len(output) + 1 :].split("/")[0] for entry in storage.walk(output)}
    generations = {name for name in entries if name.startswith("gen-")}
    assert generations == {manifest.generation, *manifest.previous}
    others = sorted(entries - generations)
    return manifest.build.input_id, len(manifest.previous), others


@pytest.mark.sweep
@pytest.mark.parametrize("name", COMMANDS)
def test_each_lost_answer(name, store):
    before, command = COMMANDS[name]

    def run(output: str, lost: int) -> tuple[str, int, list[str]]:
        for earlier in before:
            earlier(output)
        store.proxy.reset()
        if lost >= 0:
            store.proxy.fail("write", "lose", skip=lost)
        command(output)
        assert store.proxy.faults_left == 0
        return check(output)

    wanted = run(f"{store.bucket}/wanted", -1)
    changes = store.changes()
    assert changes
    for lost in range(changes):
        assert run(f"{store.bucket}/{lost}", lost) == wanted, lost


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_lost_answer_and_another_builder(keep, store):
    """The other builder publishes between the call and its retry, and keeps the version, or not."""
    output = f"{store.bucket}/out"
    publish_first(output)
    store.proxy.reset()
    store.proxy.fail("write", "lose", name="/manifest.json", skip=1)
    manifests = []

    def publish_other(call):
        if call.kind not in READS and call.name.endswith("out/manifest.json"):
            manifests.append(call)
            if len(manifests) == 2:
                assert publish_by_hand(output, OTHER, keep=keep) is not None

    store.proxy.hook = publish_other
    with contextlib.suppress(ShardmillError):  # it may say that the other one was faster
        publish_by_hand(output, NEW)
    assert len(manifests) > 2
    manifest = read_published(store.storage, output).manifest
    assert manifest.build.input_id == "j"
    assert len(manifest.previous) == keep
    check(output)
