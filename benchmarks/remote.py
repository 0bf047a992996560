"""Measure reading from a bucket behind a slow network: 100 ms for each request, 200 MB/s in all.

usage: python benchmarks/remote.py DATASET

Prints how much faster ``records.read`` is than one record after the other, and a table of streams.
The bucket is on fake-gcs-server, which ``deploy/gcs/install_emulator.sh`` installs; a proxy in
another process delays requests and limits the bandwidth.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
BATCH = 64
ROUNDS = 3
INDICES = {"local": 2000, "bucket": 400}  # that are read, in a random order
ROWS = {
    "local": "on the local disk",
    "blocks": "bucket",
    "first": "bucket, `cache_dir`, first epoch",
    "second": "bucket, `cache_dir`, second epoch",
}


class Network(NamedTuple):
    """A network between a client and a bucket.

    Attributes:
        latency: Seconds that each request waits.
        bytes_per_second: Bytes that all connections together pass on in a second.
    """

    latency: float
    bytes_per_second: float


SLOW = Network(0.1, 200e6)


class Bucket(NamedTuple):
    """A running server with an empty bucket.

    Attributes:
        direct: Its URL.
        slow: Its URL through the network.
        counts: File with the number of requests and of bytes of answers, two int64.
    """

    direct: str
    slow: str
    counts: Path

    def read_counts(self) -> tuple[int, int]:
        """Returns the requests and the bytes of answers until now."""
        requests, size = np.fromfile(self.counts, np.int64)
        return int(requests), int(size)


class Link:
    """A network that all connections share.

    Args:
        network: Its latency and speed.
        counts: File of the counts; see ``Bucket``.
    """

    def __init__(self, network: Network, counts: Path) -> None:
        self._network, self._lock = network, threading.Lock()
        self._free = 0.0  # when it has passed on all bytes, in seconds of time.monotonic
        self._counts = np.memmap(counts, np.int64, "r+", shape=2)

    def wait_for_request(self) -> None:
        """Returns when a request has passed."""
        with self._lock:
            self._counts[0] += 1
        time.sleep(self._network.latency)

    def wait_for_bytes(self, size: int) -> None:
        """Returns when some more bytes of answers have passed."""
        with self._lock:
            self._counts[1] += size
            now = time.monotonic()
            self._free = max(self._free, now) + size / self._network.bytes_per_second
            delay = self._free - now
        time.sleep(max(0.0, delay))


def serve(port: int, upstream: int, link: Link) -> None:
    """Passes connections on for ever."""
    server = socket.create_server(("127.0.0.1", port))
    while True:
        client, _ = server.accept()
        remote = socket.create_connection(("127.0.0.1", upstream))
        asked = threading.Event()  # whether the last bytes were those of a request
        for source, target, is_request in ((client, remote, True), (remote, client, False)):
            arguments = (source, target, is_request, asked, link)
            threading.Thread(target=pump, args=arguments, daemon=True).start()


def pump(
    source: socket.socket,
    target: socket.socket,
    is_request: bool,
    asked: threading.Event,
    link: Link,
) -> None:
    """Passes bytes on in one direction; the first ones of each request wait."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 18):
            if is_request and not asked.is_set():
                link.wait_for_request()
                asked.set()
            if not is_request:
                asked.clear()
                link.wait_for_bytes(len(data))
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def free_port() -> int:
    """Returns a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def run_bucket(network: Network) -> Iterator[Bucket]:
    """Runs a server with an empty bucket behind a network."""
    subprocess.run([ROOT / "deploy" / "gcs" / "install_emulator.sh"], check=True)
    emulator = ROOT / ".cache" / "bin" / "fake-gcs-server"
    port, slow = free_port(), free_port()
    flags = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory"]
    flags += [f"-public-host=127.0.0.1:{slow}", "-log-level=error"]
    with contextlib.ExitStack() as stack:
        counts = Path(stack.enter_context(tempfile.NamedTemporaryFile()).name)
        np.zeros(2, np.int64).tofile(counts)
        own = [
            sys.executable,
            __file__,
            "--serve",
            str(slow),
            str(port),
            counts,
            *map(str, network),
        ]
        server = stack.enter_context(subprocess.Popen([emulator, *flags]))
        proxy = stack.enter_context(subprocess.Popen(own))
        try:
            direct, through = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{slow}"
            request = urllib.request.Request(
                f"{direct}/storage/v1/b", b'{"name": "bench"}', {"Content-Type": "text/json"}
            )
            for _ in range(100):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(request).close()
                    urllib.request.urlopen(f"{through}/storage/v1/b").close()
                    break
                time.sleep(0.1)
            yield Bucket(direct, through, counts)
        finally:
            server.kill()
            proxy.kill()


def upload(bucket: Bucket, folder: Path, name: str) -> None:
    """Copies a folder to a bucket, in a process with its URL."""
    command = [sys.executable, __file__, "--upload", folder, name]
    subprocess.run(command, check=True, env={**os.environ, "STORAGE_EMULATOR_HOST": bucket.direct})


def upload_files(folder: Path, name: str) -> None:
    """Copies a folder to the bucket of this process."""
    from shardmill.schemas.storage import open_storage

    storage = open_storage("gs://bench")
    for file in folder.rglob("*"):
        if file.is_file() and not any(part == "current" for part in file.parts):
            storage.replace(f"gs://bench/{name}/{file.relative_to(folder)}", file.read_bytes())


def read(dataset: str, cache: str) -> list[float]:
    """Returns when each batch of two epochs was there, in seconds after the imports."""
    import google.cloud.storage  # noqa: F401

    from shardmill.loaders import Stream, open_dataset

    start, found = time.perf_counter(), []
    options = {"cache_dir": cache} if cache else {}
    records = open_dataset(dataset, features=["image", "label"], **options)
    stream = Stream(records, shuffle=True, order="blocks")
    for _ in range(2):
        for number, _ in enumerate(stream):
            if number % BATCH == BATCH - 1:
                found.append(time.perf_counter() - start)
    return found


def read_indices(dataset: str, number: int) -> float:
    """Returns how many times as long one example after the other takes as reading ahead."""
    from shardmill.loaders import open_dataset

    seconds = []
    for seed in range(2 * ROUNDS):
        records = open_dataset(dataset, features=["image", "label"])  # with empty caches
        order = random.Random(seed // 2).sample(range(len(records)), min(number, len(records)))
        start = time.perf_counter()
        examples = records.read(order) if seed % 2 else map(records.__getitem__, order)
        assert sum(1 for _ in examples) == len(order)
        seconds.append(time.perf_counter() - start)
    return statistics.median(
        single / ahead for single, ahead in zip(seconds[::2], seconds[1::2], strict=True)
    )


def measure(name: str, dataset: str, url: str) -> dict[str, float]:
    """Returns records per second, and seconds to the first batch and for the slowest other one."""
    with tempfile.TemporaryDirectory() as folder:
        cache = folder if name in ("first", "second") else ""
        command = [sys.executable, __file__, "--read", dataset, cache]
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "STORAGE_EMULATOR_HOST": url},
        )
    times = json.loads(done.stdout.splitlines()[-1])
    half = len(times) // 2
    times, begin = (times[half:], times[half - 1]) if name == "second" else (times[:half], 0.0)
    waits = [after - before for before, after in itertools.pairwise(times)]
    return {
        "first": times[0] - begin,
        "rate": BATCH * len(waits) / sum(waits),
        "median": statistics.median(waits),
        "slowest": max(waits),
    }


def table(dataset: Path) -> str:
    """Returns the table of medians of the rounds, which alternate."""
    with run_bucket(SLOW) as bucket:
        upload(bucket, dataset, "ds")
        places = dict.fromkeys(ROWS, "gs://bench/ds") | {"local": str(dataset)}
        for place, number in INDICES.items():
            dataset_in = places["local" if place == "local" else "blocks"]
            command = [sys.executable, __file__, "--indices", dataset_in, str(number)]
            environment = {**os.environ, "STORAGE_EMULATOR_HOST": bucket.slow}
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, env=environment
            )
            print(f"{place}: records.read is {done.stdout.strip()} x as fast", flush=True)
        rounds = [
            {name: measure(name, places[name], bucket.slow) for name in ROWS} for _ in range(ROUNDS)
        ]
    lines = [
        f"| | first {BATCH} records, s | then records/s | a batch, median ms | slowest, ms |",
        "|---|---|---|---|---|",
    ]
    for name, title in ROWS.items():
        first, rate, median, slowest = (
            statistics.median(each[name][key] for each in rounds)
            for key in ("first", "rate", "median", "slowest")
        )
        lines.append(
            f"| {title} | {first:.2f} | {rate:,.0f} | {median * 1e3:.0f} | {slowest * 1e3:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        network_ = Network(*map(float, sys.argv[5:]))
        serve(int(sys.argv[2]), int(sys.argv[3]), Link(network_, Path(sys.argv[4])))
    elif sys.argv[1] == "--upload":
        upload_files(Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1] == "--indices":
        print(f"{read_indices(sys.argv[2], int(sys.argv[3])):.1f}")
    elif sys.argv[1] == "--read":
        print(json.dumps(read(sys.argv[2], sys.argv[3])))
    else:
        print(table(Path(sys.argv[1])))
