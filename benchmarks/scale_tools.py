"""Inputs, an encoder and measurements that the stages of scale_stages.py share."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.schemas.dataset.catalog import CatalogRow
from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE, ShardTemplate
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.refs import EncodedImage, InputRef
from shardmill.schemas.storage import Storage
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.runtime import progress
from shardmill.transforms.sink.placement import PlaceSpec, ShardSpec
from shardmill.transforms.sink.spec import EncoderOutput, Example, SinkSpec

FOLDERS = 1_000  # labels
ROOT = "gs://some-bucket/imagenet/train"
RECORD = 100  # bytes
PIXELS = 224 * 224
_PAGE = os.sysconf("SC_PAGE_SIZE")


def make_ref(number: int) -> InputRef:
    """Return a reference as from matching, with names as long as those of ImageNet."""
    folder = f"n{1_440_764 + number % FOLDERS:08d}"
    key = f"{folder}/{folder}_{number:09d}.JPEG"
    return InputRef(
        key, f"{ROOT}/{key}", 110_000 + number % 9_973, f"{1_700_000_000_000_000 + number}"
    )


@dataclass(frozen=True)
class TinyEncoder:
    """Encodes a reference to a record without reading a file."""

    packing: Packing = "stored"
    expected_bytes: int | None = RECORD

    def encode(self, refs: Sequence[InputRef], labels: Sequence[str]) -> Iterator[EncoderOutput]:  # noqa: ARG002
        """Yields an example for each reference."""
        EVENTS.setdefault("parts begin", now())
        for ref in refs:
            if ref.error:
                yield ref.to_reject()
            else:
                record = ref.key.encode().ljust(RECORD - 16)
                digest = hashlib.blake2b(record, digest_size=32).hexdigest()
                image = EncodedImage(
                    digest,
                    500,
                    375,
                    False,
                    PIXELS,
                    [110 * PIXELS] * 3,
                    [14_000 * PIXELS] * 3,
                    {"image_hash": digest},
                )
                yield Example(record, ref.labels, CatalogRow.of(ref, image, RECORD))
        EVENTS["parts end"] = now()

    def versions(self) -> dict[str, str]:
        """Return as many versions as the encoder of images."""
        return {"pillow": "1", "jpeg": "1", "deflate": "1", "zlib": "1"}

    def schema(self, labels: Sequence[str]) -> str:  # noqa: ARG002
        """Return a schema."""
        EVENTS["publishing begins"] = now()
        return 'feature { name: "key" type: BYTES }\n'

    def features(self) -> list[dict[str, str]]:
        """Return a feature."""
        return [{"name": "key", "type": "bytes"}]


EVENTS: dict[str, tuple[float, float]] = {}


def now() -> tuple[float, float]:
    """Return wall and CPU time in seconds."""
    return time.perf_counter(), time.process_time()


def memory() -> float:
    """Return this process's memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * _PAGE / 2**20


def timed(call: Callable[[], object]) -> tuple[object, dict[str, float]]:
    """Return the result of a call, and its wall and CPU seconds."""
    gc.collect()
    wall, cpu = now()
    result = call()
    after = now()
    return result, {"wall": after[0] - wall, "cpu": after[1] - cpu}


def make_sink(output: str) -> SinkSpec:
    """Return a sink that makes shards of 1 MiB."""
    return SinkSpec(
        output=output,
        config_id="00000000000c0de5",
        place=PlaceSpec(Splits.parse("train:0.9,validation:0.1")),
        shards=ShardSpec(ShardTemplate(DEFAULT_TEMPLATE), shard_bytes=1 << 20),
        record_id="00000000000c0de5",
        root=ROOT,
    )


class MemoryMonitor(threading.Thread):
    """Records peak memory and the time of the plan; exits above a memory limit."""

    def __init__(self, shown: progress.Progress, limit: float) -> None:
        super().__init__(daemon=True)
        self.shown, self.limit = shown, limit
        self.peaks: dict[str, float] = {}
        self.ended = threading.Event()

    def phase(self) -> str:
        """Return the current phase of the build."""
        for event, name in (
            ("publishing begins", "publish"),
            ("parts begin", "parts and shards"),
            ("plan", "group"),
        ):
            if event in EVENTS:
                return name
        return "census"

    def run(self) -> None:
        """Sample memory until the build has ended."""
        while not self.ended.wait(0.05):
            if self.shown.total is not None:
                EVENTS.setdefault("plan", now())
            phase, used = self.phase(), memory()
            self.peaks[phase] = max(self.peaks.get(phase, 0.0), used)
            if used > self.limit * 1024:
                print(f"stopped: {used:,.0f} MiB in {phase}", file=sys.stderr)
                os._exit(3)


class ShuffleMonitor:
    """Counts the bytes that each step groups, on the in-memory runner: its GroupByKeys encode them.

    Counts a process once: what it replaces in Beam is not put back.
    """

    def __init__(self) -> None:
        from apache_beam.runners.portability.fn_api_runner import execution

        self.sizes: Counter[str] = Counter()
        names: dict[int, str] = {}
        get_buffer = execution.BundleContextManager.get_buffer
        append = execution.GroupingBuffer.append

        def named(manager: Any, buffer_id: bytes, transform_id: str) -> object:
            buffer = get_buffer(manager, buffer_id, transform_id)
            kind, name = execution.split_buffer_id(buffer_id)
            if kind == "group":
                steps = manager.execution_context.pipeline_components.transforms
                names[id(buffer)] = steps[name].unique_name
            return buffer

        def counted(buffer: object, data: bytes) -> None:
            self.sizes[names[id(buffer)]] += len(data)
            append(buffer, data)

        execution.BundleContextManager.get_buffer = named
        execution.GroupingBuffer.append = counted

    def bytes_of(self, step: str) -> int:
        """Return the bytes that all steps whose names contain a text have grouped."""
        return sum(size for name, size in self.sizes.items() if step in name)


class CountingStorage:
    """A storage that counts calls."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        call = getattr(self._storage, name)

        def counted(*args: object, **kwargs: object) -> object:
            self.calls[name] += 1
            return call(*args, **kwargs)

        return counted
