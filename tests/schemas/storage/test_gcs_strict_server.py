"""The strict front itself: it refuses what the real service refuses, and its faults are real."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import time
import urllib.parse
from collections import Counter

import google_crc32c
import pytest
from google.api_core import exceptions as api

from shardmill.schemas.storage.gcs import GcsStorage
from tests.support.gcs_faults import Storm

pytest_plugins = ["tests.support.gcs_server"]


class Raw:
    """Calls over plain HTTP: no client library that could be lenient stands in between."""

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
        """Statuses of the start and of the one piece of a resumable upload."""
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

    def rewrite(self, source: str, target: str, action: str = "rewriteTo", **query: object) -> int:
        to = f"/b/{self.bucket}/o/{urllib.parse.quote(target, safe='')}"
        return self.call("POST", f"{self.path(source)}/{action}{to}{_query(query)}")[0]


def _query(query: dict) -> str:
    return "?" + urllib.parse.urlencode(query) if query else ""


@pytest.fixture
def raw(front, strict_bucket) -> Raw:
    found = Raw(front, strict_bucket)
    assert found.upload("x", b"data") == 200
    return found


# Each call with a condition that holds and with one that does not: what is written may be new or
# there; what is read, patched or deleted is there.
ACTIONS = {
    "media upload": lambda r, **q: r.upload("x", b"new", **q),
    "start of a resumable upload": lambda r, **q: r.resumable("x", b"new", **q)[0],
    "download": lambda r, **q: r.call("GET", r.path("x", alt="media", **q))[0],
    "get": lambda r, **q: r.call("GET", r.path("x", **q))[0],
    "compose": lambda r, **q: r.compose("x", ["y", "y"], **q),
    "rewrite": lambda r, **q: r.rewrite("y", "x", **q),
    "copy": lambda r, **q: r.rewrite("y", "x", "copyTo", **q),
    "patch": lambda r, **q: r.call(
        "PATCH", r.path("x", **q), b'{"metadata": {"a": "b"}}', Content_Type="application/json"
    )[0],
    "delete": lambda r, **q: r.call("DELETE", r.path("x", **q))[0],
}


@pytest.mark.parametrize("action", ACTIONS)
def test_every_call_heeds_every_condition(raw, action):
    act = ACTIONS[action]
    for holds in (False, True):
        for name in ("Generation", "Metageneration"):
            for negated in (False, True):
                raw.upload("x", b"data")
                raw.upload("y", b"other")
                now = int(raw.get("x")[name.lower()])
                value = now if negated != holds else now + 1
                status = act(raw, **{f"if{name}{'Not' if negated else ''}Match": value})
                where = f"{action} if{name}{'Not' if negated else ''}Match holds={holds}"
                if holds:
                    assert status in (200, 204), where
                elif negated and action in ("download", "get"):
                    assert status == 304, where
                else:
                    assert status == 412, where
                    assert raw.get("x")["size"] == "4", where  # and it was not carried out


@pytest.mark.parametrize("action", [a for a in ACTIONS if "Generation" not in a])
def test_generation_zero_means_nothing_is_there(raw, action):
    raw.upload("y", b"other")
    assert ACTIONS[action](raw, ifGenerationMatch=0) == 412
    raw.call("DELETE", raw.path("x"))
    absent = ACTIONS[action](raw, ifGenerationMatch=0)
    assert absent == (404 if action in ("download", "get", "patch", "delete") else 200)


def test_a_second_exclusive_upload_is_refused_however_it_comes(raw, strict_bucket):
    assert raw.upload("new", b"first", ifGenerationMatch=0) == 200
    assert raw.upload("new", b"second", ifGenerationMatch=0) == 412
    assert raw.resumable("new", b"second", ifGenerationMatch=0) == (412, 0)
    # Both began before either ended.
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


def test_conditions_on_what_is_rewritten_or_composed(raw):
    now = int(raw.get("x")["generation"])
    for name, good, bad in (
        ("ifSourceGenerationMatch", now, now + 1),
        ("ifSourceGenerationNotMatch", now + 1, now),
        ("ifSourceMetagenerationMatch", 1, 2),
        ("ifSourceMetagenerationNotMatch", 2, 1),
    ):
        assert raw.rewrite("x", "to", **{name: good}) == 200, name
        assert raw.rewrite("x", "to", **{name: bad}) == 412, name
        assert raw.rewrite("x", "to", "copyTo", **{name: bad}) == 412, name
    good = {"name": "x", "objectPreconditions": {"ifGenerationMatch": now}}
    bad = {"name": "x", "objectPreconditions": {"ifGenerationMatch": now + 1}}
    assert raw.compose("joined", ["x", good]) == 200
    assert raw.compose("joined", ["x", bad]) == 412
    assert raw.compose("joined", [{"name": "x", "generation": str(now + 1)}]) == 404
    assert raw.rewrite("x", "to", sourceGeneration=now + 1) == 404
    assert raw.rewrite("nothing", "to") == 404
    assert raw.compose("joined", ["x", "nothing"]) == 404


def test_a_generation_that_is_gone_is_not_found(raw):
    old = raw.get("x")["generation"]
    raw.upload("x", b"newer")
    for method, query in (("GET", {}), ("GET", {"alt": "media"}), ("DELETE", {})):
        assert raw.call(method, raw.path("x", generation=old, **query))[0] == 404
    assert raw.get("x")["size"] == "5"


def test_no_more_than_32_components(raw):
    assert raw.compose("joined", ["x"] * 32) == 200
    assert raw.compose("joined", ["x"] * 33) == 400
    assert raw.compose("joined", []) == 400
    assert (
        b"exceeds the maximum (32)"
        in raw.call(
            "POST",
            raw.path("j") + "/compose",
            json.dumps({"sourceObjects": [{"name": "x"}] * 33}).encode(),
            Content_Type="application/json",
        )[1]
    )


def crc_of(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def test_checksums_of_all_objects_and_no_md5_of_composites(raw):
    raw.upload("y", b"other")
    raw.compose("joined", ["x", "y"])
    raw.compose("again", ["joined", "x"])
    raw.rewrite("again", "moved")
    for name, data, parts in (
        ("x", b"data", None),
        ("joined", b"dataother", 2),
        ("again", b"dataotherdata", 3),
        ("moved", b"dataotherdata", 3),
    ):
        listed = json.loads(raw.call("GET", f"/storage/v1/b/{raw.bucket}/o?prefix={name}")[1])
        for found in (raw.get(name), listed["items"][0]):
            assert found["crc32c"] == crc_of(data), name
            assert found.get("componentCount") == parts, name
            assert ("md5Hash" in found) == (parts is None), name
        status, body = raw.call("GET", raw.path(name, alt="media"))
        assert (status, body) == (200, data)
        assert f"crc32c={crc_of(data)}" in raw.headers["x-goog-hash"]
        assert ("md5=" in raw.headers["x-goog-hash"]) == (parts is None)


def test_an_upload_that_was_spoiled_on_its_way_is_refused(front, strict_bucket):
    storage = GcsStorage()
    front.fail("upload", "spoil")
    with pytest.raises(api.BadRequest):
        storage._blob(f"{strict_bucket}/x").upload_from_string(b"d" * 1000, checksum="crc32c")
    assert storage.stat(f"{strict_bucket}/x") is None


def test_metagenerations_count_changes_of_metadata(raw):
    change = ("PATCH", raw.path("x"), b'{"metadata": {"a": "b"}}')
    before = raw.get("x")
    for number in (2, 3):
        raw.call(*change, Content_Type="application/json")
        found = raw.get("x")
        assert found["metageneration"] == str(number)
        assert found["generation"] == before["generation"]
    raw.upload("x", b"new")
    assert raw.get("x")["metageneration"] == "1"


def test_permissions_are_asked_for(raw):
    rules = raw.front.rules
    assert raw.upload("y", b"data") == 200
    needs = {
        "download": {"get"}, "get": {"get"}, "delete": {"delete"}, "patch": {"update"},
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
    assert raw.call("GET", raw.path("nothing"))[0] == 403  # not 404: who may not list is not told
    assert raw.call("GET", f"/storage/v1/b/{raw.bucket}/o")[0] == 403


def test_pages_of_a_listing(raw):
    for number in range(7):
        raw.upload(f"n{number}", b"")
    raw.front.rules.page_size = 3
    for asked in ("", "&maxResults=100", "&maxResults=2"):
        names, token, pages = [], "", 0
        while True:
            path = f"/storage/v1/b/{raw.bucket}/o?prefix=n{asked}"
            body = json.loads(raw.call("GET", path + (f"&pageToken={token}" if token else ""))[1])
            assert len(body["items"]) <= (2 if asked.endswith("=2") else 3)
            names += [item["name"] for item in body["items"]]
            pages += 1
            token = body.get("nextPageToken")
            if not token:
                break
        assert names == [f"n{number}" for number in range(7)]
        assert pages == (4 if asked.endswith("=2") else 3)


# Faults


def exchange(front, path: str) -> tuple[bytes, str]:
    """Sends one GET by hand; returns all that came, and how the connection ended."""
    with socket.create_connection(("127.0.0.1", front.port), 30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        found = b""
        try:
            while True:
                piece = connection.recv(1 << 16)
                if not piece:
                    return found, "closed"
                found += piece
                head, _, body = found.partition(b"\r\n\r\n")
                length = [x for x in head.split(b"\r\n") if x.startswith(b"Content-Length: ")]
                if length and len(body) == int(length[0][16:]):
                    return found, "answered"
        except ConnectionResetError:
            return found, "reset"


@pytest.mark.parametrize(
    ("how", "ended"), [("drop", "closed"), ("reset", "reset"), ("lose", "closed")]
)
def test_connections_that_end_without_an_answer(raw, how, ended):
    raw.front.fail("download", how)
    assert exchange(raw.front, raw.path("x", alt="media")) == (b"", ended)
    assert exchange(raw.front, raw.path("x", alt="media"))[1] == "answered"


def test_a_truncated_answer_announces_all_of_it(raw):
    raw.front.fail("download", "truncate")
    found, ended = exchange(raw.front, raw.path("x", alt="media"))
    assert ended == "closed"
    assert b"Content-Length: 4\r\n" in found
    assert found.endswith(b"\r\n\r\nda")


def test_a_lost_answer_means_it_was_done_and_a_dropped_call_that_it_was_not(raw):
    for how, there in (("lose", 200), ("drop", 404), ("reset", 404)):
        raw.front.fail("upload", how, name=how)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            raw.upload(how, b"data")
        assert raw.call("GET", raw.path(how))[0] == there


def test_slow_calls_wait_before_and_late_ones_behind(raw):
    raw.front.pause = 0.4
    for how in ("slow", "late"):
        raw.front.fail("download", how)
        started = time.monotonic()
        assert raw.call("GET", raw.path("x", alt="media")) == (200, b"data")
        assert 0.4 <= time.monotonic() - started < 5


def test_the_nth_call_of_a_name_fails(raw):
    raw.front.fail("get", "503", times=2, name="x", skip=1)
    raw.upload("y", b"")
    statuses = [raw.call("GET", raw.path(name))[0] for name in "xyxyxxy"]
    assert statuses == [200, 200, 503, 200, 503, 200, 200]
    assert raw.front.faults_left == 0


def test_a_storm_is_the_same_for_the_same_seed(raw):
    befell = []
    for seed in (1, 1, 2):
        raw.front.storm = Storm(seed, 0.2, ("503", "429"))
        befell.append([raw.call("GET", raw.path("x"))[0] for _ in range(200)])
        assert sum(raw.front.storm.befell.values()) == sum(s != 200 for s in befell[-1])
    assert befell[0] == befell[1] != befell[2]
    assert 15 < sum(status != 200 for status in befell[0]) < 70
    assert set(Counter(befell[0])) == {200, 429, 503}
