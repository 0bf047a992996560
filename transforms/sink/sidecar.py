"""Sidecars: small JSON files that mark a file as finished, sealed with their own CRC-32C.

A sidecar is written last and create-if-absent. Of several workers that make the same file, the
first one wins, and all continue with its file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import google_crc32c

from shardmill.schemas.storage import Storage

FORMAT_VERSION = 4  # of shards and sidecars; part of every config_id
T = TypeVar("T")


def seal(body: dict[str, Any]) -> bytes:
    """Return the content of a sidecar: the body, and a CRC-32C of it."""
    return _seal(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())


def _seal(body: bytes) -> bytes:
    return b'%b,"seal":%d}' % (body[:-1], google_crc32c.value(body))


def unseal(data: bytes, load: Callable[[dict[str, Any]], T | None]) -> T | None:
    """Return what the body of a sidecar describes, or None if it is damaged.

    Args:
        data: Content of the sidecar.
        load: See ``find_sidecar``.
    """
    body = data.rpartition(b',"seal":')[0] + b"}"
    try:
        return load(json.loads(body)) if data == _seal(body) else None
    except (TypeError, KeyError, ValueError, AttributeError, FileNotFoundError):
        return None


def find_sidecar(
    storage: Storage, path: str, load: Callable[[dict[str, Any]], T | None]
) -> T | None:
    """Return what a sidecar describes, or None if that must be made.

    A sidecar that is damaged, or whose files are missing or damaged, is deleted.

    Args:
        storage: Storage of the build folder.
        path: The sidecar.
        load: Returns what a body describes. Returns None, or raises TypeError, KeyError, ValueError
            or FileNotFoundError, if the body is another version's or its files are not whole.
    """
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return None
    found = unseal(data, load)
    if found is None:
        storage.delete(path)
    return found


def create_sidecar(
    storage: Storage,
    path: str,
    data: bytes,
    own: T,
    find: Callable[[], T | None],
    payload: str = "",
) -> T:
    """Write a sidecar unless another worker was first; return what the existing one describes.

    Args:
        storage: Storage of the build folder.
        path: The sidecar.
        data: Its sealed content.
        own: What it describes.
        find: Returns what the sidecar of another worker describes, as ``find_sidecar`` does.
        payload: File of this worker, deleted if the sidecar of another worker counts or none can
            be written; empty for none. An interrupt leaves it to the clean-up after publishing.
    """
    try:
        winner = own if storage.create(path, data) else find()
        if winner is None:  # the files of the other worker are missing or damaged
            storage.create(path, data)
            winner = own
    except Exception:  # such as a full disk: leave no payload that no sidecar names
        if payload and storage.stat(path) is None:
            storage.delete(payload)
        raise
    if payload and winner is not own:
        storage.delete(payload)
    return winner
