"""The strict test server rejects the calls that Google Cloud Storage rejects."""

import io
import socket

import pytest
import requests
from google.api_core import exceptions as api

from shardmill.schemas.storage.gcs import GcsStorage

pytest_plugins = ["tests.support.gcs_server"]


def status(call, *args, **options) -> int:
    """Return the HTTP status of a call of the client library, which sends it once."""
    try:
        call(*args, **options, retry=None)
    except api.GoogleAPICallError as error:
        return error.code
    return 200


@pytest.fixture
def blob(strict_bucket):
    """A function that returns the client's handle of an object; "x" exists."""
    bucket = GcsStorage()._client().bucket(strict_bucket.removeprefix("gs://"))
    bucket.blob("x").upload_from_string(b"data")
    return bucket.blob


def current(blob, name: str):
    """Return the handle of an object with its metadata."""
    found = blob(name)
    found.reload()
    return found


# Calls that take a precondition; the objects x and y exist.
ACTIONS = {
    "upload": lambda blob, **how: blob("x").upload_from_string(b"new", **how),
    "resumable": lambda blob, **how: blob("x").upload_from_file(io.BytesIO(b"new"), **how),
    "download": lambda blob, **how: blob("x").download_as_bytes(**how),
    "get": lambda blob, **how: blob("x").reload(**how),
    "compose": lambda blob, **how: blob("x").compose([blob("y")] * 2, **how),
    "rewrite": lambda blob, **how: blob("x").rewrite(blob("y"), **how),
    "delete": lambda blob, **how: blob("x").delete(**how),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_checks_the_precondition_of_every_call(blob, action):
    blob("y").upload_from_string(b"other")
    old = current(blob, "x").generation
    call = ACTIONS[action]
    assert status(call, blob, if_generation_match=old + 1) == 412
    assert current(blob, "x").generation == old  # not carried out
    assert status(call, blob, if_metageneration_match=1) == 501
    assert status(call, blob, if_generation_match=old) == 200
    # Generation 0 matches a missing object.
    blob("x").upload_from_string(b"again")
    assert status(call, blob, if_generation_match=0) == 412
    blob("x").delete()
    absent = 404 if action in ("download", "get", "delete") else 200
    assert status(call, blob, if_generation_match=0) == absent


def test_rejects_missing_sources(blob):
    assert status(blob("to").rewrite, blob("nothing")) == 404
    assert status(blob("to").compose, [blob("x"), blob("nothing")]) == 404
    assert status(blob("to").compose, [blob("x")], if_source_generation_match=[1]) == 501
    for count, expected in ((0, 400), (32, 200), (33, 400)):
        assert status(blob("to").compose, [blob("x")] * count) == expected


def test_rejects_an_upload_with_a_wrong_checksum(blob, front):
    front.fail("upload", "spoil")
    assert status(blob("new").upload_from_string, b"d" * 1000, checksum="crc32c") == 400
    assert not blob("new").exists()


def test_a_client_that_dies_while_it_sends_a_body_blocks_no_other(front, blob):
    """Without its own check, the proxy would wait for the rest while it holds a lock."""
    bucket = blob("x").bucket.name
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=half"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", front.port)) as client:
        client.sendall(head.encode() + b"half of it")
    url = f"{front.url}/download/storage/v1/b/{bucket}/o/x?alt=media"
    for _ in range(20):
        assert requests.get(url, timeout=10).content == b"data"
    assert not blob("half").exists()
