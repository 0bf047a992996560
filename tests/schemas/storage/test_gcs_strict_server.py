"""The strict test server rejects the calls that Google Cloud Storage rejects."""

import base64
import http.client
import json
import urllib.parse

import google_crc32c
import pytest
from google.api_core import exceptions as api

from shardmill.schemas.storage.gcs import GcsStorage

pytest_plugins = ["tests.support.gcs_server"]


class Raw:
    """Calls over plain HTTP, without a client library that could hide an error."""

    def __init__(self, front, bucket: str) -> None:
        self.front, self.bucket = front, bucket.removeprefix("gs://")
        self.headers: dict[str, str] = {}

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.front.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        data = answer.read()
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        connection.close()
        return answer.status, data

    def path(self, name: str, **query: object) -> str:
        quoted = urllib.parse.quote(name, safe="")
        return f"/storage/v1/b/{self.bucket}/o/{quoted}{_query(query)}"

    def upload(self, name: str, data: bytes, **query: object) -> int:
        where = f"/upload/storage/v1/b/{self.bucket}/o"
        query = {"uploadType": "media", "name": name, **query}
        return self.call("POST", where + _query(query), data)[0]

    def resumable(self, name: str, data: bytes, **query: object) -> tuple[int, int]:
        """Return the statuses of the start and of the only piece of a resumable upload."""
        where = f"/upload/storage/v1/b/{self.bucket}/o"
        query = {"uploadType": "resumable", "name": name, **query}
        start, _ = self.call("POST", where + _query(query), b"{}", Content_Type="application/json")
        if start != 200:
            return start, 0
        place = urllib.parse.urlsplit(self.headers["location"])
        said = f"bytes 0-{len(data) - 1}/{len(data)}"
        end, _ = self.call("PUT", f"{place.path}?{place.query}", data, Content_Range=said)
        return start, end

    def get(self, name: str, **query: object) -> dict:
        status, data = self.call("GET", self.path(name, **query))
        assert status == 200, data
        return json.loads(data)

    def compose(self, target: str, sources: list, **query: object) -> int:
        objects = [s if isinstance(s, dict) else {"name": s} for s in sources]
        path = self.path(target).partition("?")[0] + "/compose" + _query(query)
        body = json.dumps({"sourceObjects": objects, "destination": {}}).encode()
        return self.call("POST", path, body, Content_Type="application/json")[0]

    def rewrite(self, source: str, target: str, **query: object) -> int:
        to = f"/b/{self.bucket}/o/{urllib.parse.quote(target, safe='')}"
        return self.call("POST", f"{self.path(source)}/rewriteTo{to}{_query(query)}")[0]


def _query(query: dict) -> str:
    return "?" + urllib.parse.urlencode(query) if query else ""


@pytest.fixture
def raw(front, strict_bucket) -> Raw:
    found = Raw(front, strict_bucket)
    assert found.upload("x", b"data") == 200
    return found


# Calls that take a precondition; the objects x and y exist.
ACTIONS = {
    "media upload": lambda r, **q: r.upload("x", b"new", **q),
    "start of a resumable upload": lambda r, **q: r.resumable("x", b"new", **q)[0],
    "download": lambda r, **q: r.call("GET", r.path("x", alt="media", **q))[0],
    "get": lambda r, **q: r.call("GET", r.path("x", **q))[0],
    "compose": lambda r, **q: r.compose("x", ["y", "y"], **q),
    "rewrite": lambda r, **q: r.rewrite("y", "x", **q),
    "delete": lambda r, **q: r.call("DELETE", r.path("x", **q))[0],
}


@pytest.mark.parametrize("action", ACTIONS)
def test_checks_the_precondition_of_every_call(raw, action):
    raw.upload("y", b"other")
    generation = int(raw.get("x")["generation"])
    assert ACTIONS[action](raw, ifGenerationMatch=generation + 1) == 412
    assert raw.get("x")["size"] == "4"  # not carried out
    assert ACTIONS[action](raw, ifMetagenerationMatch=1) == 501
    assert ACTIONS[action](raw, ifGenerationMatch=generation) in (200, 204)


@pytest.mark.parametrize("action", ACTIONS)
def test_generation_zero_matches_a_missing_object(raw, action):
    raw.upload("y", b"other")
    assert ACTIONS[action](raw, ifGenerationMatch=0) == 412
    raw.call("DELETE", raw.path("x"))
    absent = ACTIONS[action](raw, ifGenerationMatch=0)
    assert absent == (404 if action in ("download", "get", "delete") else 200)


def test_rejects_a_second_exclusive_upload(raw, strict_bucket):
    assert raw.upload("new", b"first", ifGenerationMatch=0) == 200
    assert raw.upload("new", b"second", ifGenerationMatch=0) == 412
    assert raw.resumable("new", b"second", ifGenerationMatch=0) == (412, 0)
    # Two resumable uploads at the same time.
    where = f"/upload/storage/v1/b/{raw.bucket}/o?uploadType=resumable&name=z&ifGenerationMatch=0"
    assert raw.call("POST", where, b"{}", Content_Type="application/json")[0] == 200
    late = urllib.parse.urlsplit(raw.headers["location"])
    assert raw.resumable("z", b"first", ifGenerationMatch=0) == (200, 200)
    path = f"{late.path}?{late.query}"
    assert raw.call("PUT", path, b"second", Content_Range="bytes 0-5/6")[0] == 412
    assert raw.call("GET", raw.path("z", alt="media")) == (200, b"first")
    blob = GcsStorage()._blob(f"{strict_bucket}/new")
    with pytest.raises(api.PreconditionFailed):
        blob.upload_from_string(b"third", if_generation_match=0)


def test_rejects_missing_sources(raw):
    assert raw.rewrite("nothing", "to") == 404
    assert raw.compose("joined", ["x", "nothing"]) == 404
    assert raw.compose("joined", [{"name": "x", "generation": "1"}]) == 501


def test_does_not_find_a_replaced_generation(raw):
    old = raw.get("x")["generation"]
    raw.upload("x", b"newer")
    for method, query in (("GET", {}), ("GET", {"alt": "media"}), ("DELETE", {})):
        assert raw.call(method, raw.path("x", generation=old, **query))[0] == 404
    assert raw.get("x")["size"] == "5"


def test_composes_at_most_32_components(raw):
    for count, status in ((0, 400), (32, 200), (33, 400)):
        assert raw.compose("joined", ["x"] * count) == status


def test_composite_objects_have_a_crc32c_and_no_md5(raw):
    raw.upload("y", b"other")
    raw.compose("joined", ["x", "y"])
    raw.compose("again", ["joined", "x"])
    raw.rewrite("again", "moved")
    for name, data in (
        ("x", b"data"), ("joined", b"dataother"), ("again", b"dataotherdata"),
        ("moved", b"dataotherdata"),
    ):  # fmt: skip
        crc = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
        listed = json.loads(raw.call("GET", f"/storage/v1/b/{raw.bucket}/o?prefix={name}")[1])
        for found in (raw.get(name), listed["items"][0]):
            assert found["crc32c"] == crc, name
            assert ("md5Hash" in found) == (name == "x"), name
        assert raw.call("GET", raw.path(name, alt="media")) == (200, data)
        assert f"crc32c={crc}" in raw.headers["x-goog-hash"]
        assert ("md5=" in raw.headers["x-goog-hash"]) == (name == "x")


def test_rejects_an_upload_with_a_wrong_checksum(front, strict_bucket):
    storage = GcsStorage()
    front.fail("upload", "spoil")
    with pytest.raises(api.BadRequest):
        storage._blob(f"{strict_bucket}/x").upload_from_string(b"d" * 1000, checksum="crc32c")
    assert storage.stat(f"{strict_bucket}/x") is None


def test_checks_permissions(raw):
    rules = raw.front.rules
    assert raw.upload("y", b"data") == 200
    needs = {
        "download": {"get"}, "get": {"get"}, "delete": {"delete"},
        "media upload": {"create", "delete"}, "compose": {"create", "delete", "get"},
        "rewrite": {"create", "delete", "get"},
    }  # fmt: skip
    for action, names in needs.items():
        wanted = {f"storage.objects.{name}" for name in names}
        raw.upload("x", b"data")
        rules.needed.clear()
        for missing in sorted(wanted):
            rules.granted = wanted - {missing}
            assert ACTIONS[action](raw) == 403, (action, missing)
        rules.granted = wanted
        rules.needed.clear()
        assert ACTIONS[action](raw) in (200, 204), action
        assert rules.needed == wanted
        rules.granted = None
    rules.granted = {"storage.objects.get"}
    assert raw.call("GET", raw.path("nothing"))[0] == 403  # not 404: the caller may not list
    assert raw.call("GET", f"/storage/v1/b/{raw.bucket}/o")[0] == 403


def test_lost_calls_are_carried_out_and_dropped_ones_are_not(raw):
    for how, status in (("lose", 200), ("drop", 404), ("reset", 404)):
        raw.front.fail("upload", how, name=how)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            raw.upload(how, b"data")
        assert raw.call("GET", raw.path(how))[0] == status
    raw.front.fail("download", "truncate")
    with pytest.raises(http.client.IncompleteRead):
        raw.call("GET", raw.path("x", alt="media"))
