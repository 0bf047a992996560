"""TFRecord files for tests, packed in every way by other people's code."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Sequence
from pathlib import Path

from shardmill.schemas.framing import frame


def payloads(count: int, size: int = 60, seed: int = 0) -> list[bytes]:
    """Returns payloads of random bytes and of lengths about a size."""
    rng = random.Random(seed)
    return [rng.randbytes(rng.randrange(size // 2, size * 2)) for _ in range(count)]


def write_records(path: Path, records: Sequence[bytes], packing: str = "none") -> Path:
    """Writes a TFRecord file: ``none``, ``gzip`` or ``zlib``, whatever its name says."""
    data = b"".join(map(frame, records))
    packed = {"none": bytes, "gzip": gzip.compress, "zlib": zlib.compress}[packing](data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed)
    return path
