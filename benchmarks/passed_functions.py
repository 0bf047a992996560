"""Count the functions and value types of Shardmill that one image, and one table, pass in a build.

usage: python benchmarks/passed_functions.py [--list]

Two builds run in this process, one with more inputs. An input passes a function if the larger
build makes one more call of it, or several, for every additional input. Types are counted among the
arguments and results of these functions. The work of a decoder process is done here too. Functions
take rows by the thousand, never one by one, so files of rows are counted.
"""

# ruff: noqa: SLF001 - it does what a decoder process does
from __future__ import annotations

import argparse
import contextlib
import io
import os
import select
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from shardmill.pipelines import run
from shardmill.pipelines.commands import INPUT_KINDS
from shardmill.pipelines.runners.base import IN_MEMORY
from shardmill.transforms.images import decoder_pool, decoder_process
from shardmill.transforms.images.decoder_protocol import RequestedImage

FEW, MANY = 20, 60
ROOT = str(Path(sys.modules["shardmill"].__file__).parent)


class Calls:
    """Calls of functions of Shardmill, in all threads, and the types that they pass."""

    def __init__(self) -> None:
        self.numbers: Counter[CodeType] = Counter()
        self.types: dict[CodeType, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Count an event of the interpreter: see ``sys.setprofile``."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(ROOT):
            return
        if code.co_name.startswith("<"):  # a comprehension belongs to its function
            return
        types = self.types.setdefault(code, set())
        if event == "return":
            types.update(own_types([value]))
            return
        self.numbers[code] += 1
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        types.update(own_types(frame.f_locals.get(name) for name in names if name != "self"))


def own_types(values: Any) -> Iterator[str]:
    """Yields the names of Shardmill's types among values."""
    for value in values:
        if type(value).__module__.startswith("shardmill."):
            yield type(value).__name__


@contextlib.contextmanager
def counted() -> Iterator[Calls]:
    """Counts calls until the block ends."""
    calls = Calls()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def build(kind: str, source: Path, output: Path) -> Calls:
    """Builds a dataset and returns the calls."""
    pipeline = INPUT_KINDS[kind].load_pipeline()
    config = INPUT_KINDS[kind].load_config()(input=str(source), output=str(output))
    job = pipeline.resolve(config, runner=IN_MEMORY)
    with counted() as calls:
        run.run_pipeline(
            lambda root: pipeline.outcomes(root, job),
            IN_MEMORY,
            [],
            job.sink.output,
            build=job.sink.build,
        )
    return calls


def decode(requests: list[tuple[Any, RequestedImage]]) -> Calls:
    """Answers requests as a decoder process does, and returns the calls."""
    ours, theirs = socket.socketpair()
    with ours, theirs, counted() as calls:
        server = decoder_process.Server(ours)
        server._limit = 1 << 40
        for options, image in requests:
            server._send(server._answer(image, options, announce=False))
            server._flush()
            while select.select([theirs], [], [], 0)[0]:
                theirs.recv(1 << 16)
    return calls


def write_images(folder: Path, count: int) -> Path:
    """Writes photos in two classes."""
    from photos import write_photos

    return write_photos(folder / f"photos-{count}", count, size=(64, 48), all_differ=True)


def write_tables(folder: Path, count: int) -> Path:
    """Writes CSV files of ten rows with a number, a text and a label."""
    tables = folder / f"rows-{count}"
    tables.mkdir()
    for number in range(count):
        lines = [f"{number}{row},text {number},{row % 2}" for row in range(10)]
        (tables / f"{number}.csv").write_text("\n".join(["a,b,label", *lines, ""]))
    return tables


def passed(few: Calls, many: Calls, more: int) -> set[CodeType]:
    """Returns the functions that each additional input calls."""
    return {code for code, number in many.numbers.items() if number - few.numbers[code] >= more}


def trace(kind: str, write: Callable[[Path, int], Path], work: Path) -> tuple[list[str], set[str]]:
    """Returns the functions that one input of a kind passes, and the types."""
    requests: list[tuple[Any, RequestedImage]] = []
    make_records = decoder_pool.Decoder.make_records

    def remember(decoder: Any, options: Any, images: Any, **more: Any) -> Any:
        for ref, fields, data in images:
            where = (ref.uri, ref.size, ref.version, ref.member)
            requests.append((options, RequestedImage(*where, fields, data)))
        return make_records(decoder, options, images, **more)

    decoder_pool.Decoder.make_records = remember
    found: list[Calls] = []
    decoded: list[Calls] = []
    try:
        for count in (FEW, MANY):
            requests.clear()
            found.append(build(kind, write(work, count), work / f"{kind}-of-{count}"))
            decoded.append(decode(requests))
    finally:
        decoder_pool.Decoder.make_records = make_records
    names, types = set(), set()
    for few, many in (found, decoded):
        for code in passed(few, many, MANY - FEW):
            module = os.path.relpath(code.co_filename, ROOT)
            names.add(f"{module}: {getattr(code, 'co_qualname', code.co_name)}")
            types |= many.types[code]
    return sorted(names), types


def main() -> None:
    """Prints the table, or the functions too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the functions and types")
    flags = parser.parse_args()
    print("| | functions | modules | value types |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="shardmill-bench-") as work:
        for kind, write in (("images", write_images), ("rows", write_tables)):
            with contextlib.redirect_stderr(io.StringIO()):
                names, types = trace(kind, write, Path(work))
            modules = {name.partition(":")[0] for name in names}
            print(f"| {kind} | {len(names)} | {len(modules)} | {len(types)} |")
            if flags.list:
                print("", *names, *sorted(types), sep="\n    ")


if __name__ == "__main__":
    main()
