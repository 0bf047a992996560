"""Sidecars: small JSON files that say what a finished file is, sealed with their own CRC-32C."""

from __future__ import annotations

import json
from typing import Any

import google_crc32c


def _dump(body: dict[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def seal(body: dict[str, Any]) -> str:
    """Returns a sidecar's text: the body, and a CRC-32C of it."""
    return _dump({**body, "seal": google_crc32c.value(_dump(body).encode())})


def unseal(data: bytes) -> dict[str, Any] | None:
    """Returns the body of a sidecar, or None when it is damaged."""
    try:
        body: dict[str, Any] = json.loads(data)
        if body.pop("seal") != google_crc32c.value(_dump(body).encode()):
            return None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return body
