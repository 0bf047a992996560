"""How often a build opens and reads its input: sampled once, scanned once, and read once."""

from functools import partial
from pathlib import Path

import pytest

from shardmill.schemas.storage.local import LocalReader
from shardmill.transforms.sources.csv import sample
from shardmill.transforms.sources.csv.source import CsvSource
from tests.support.rows_tools import build_rows

MIB = 1 << 20


class Reads:
    """Counts what is read of files with a suffix, below all layers of Shardmill."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
        self.opened = self.num_bytes = 0
        start, read_at = LocalReader.__init__, LocalReader.read_at

        def opened(reader: LocalReader, path: str, descriptor: int) -> None:
            start(reader, path, descriptor)
            reader.counts = path.endswith(suffix)
            self.opened += reader.counts

        def read(reader: LocalReader, offset: int, length: int) -> bytes:
            data = read_at(reader, offset, length)
            self.num_bytes += len(data) if reader.counts else 0
            return data

        monkeypatch.setattr(LocalReader, "__init__", opened)
        monkeypatch.setattr(LocalReader, "read_at", read)


def write_csv(path: Path, size: int) -> int:
    with path.open("w") as file:
        file.write("number,word\n")
        for number in range(size // 20 + 1):
            file.write(f"{number:09d},{number % 99:08d}x\n")
    return path.stat().st_size


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("size", "sampled", "opened"),
    [
        (1, "64KiB", 2),  # sampled, and read
        (MIB // 2, "64KiB", 2),
        (5 * MIB // 2, "16MiB", 4),  # sampled, which finds 3 ranges; these are read
        (9 * MIB // 2, "2MiB", 7),  # 2 ranges are found in the sample, and 3 by reading the rest
    ],
)
def test_a_file_is_sampled_once_and_read_at_most_twice(
    tmp_path, monkeypatch, size, sampled, opened
) -> None:
    monkeypatch.setattr("shardmill.pipelines.rows.CsvSource", partial(CsvSource, range_bytes=MIB))
    monkeypatch.setattr(sample, "read_head", partial(sample.read_head, range_bytes=MIB))
    size = write_csv(tmp_path / "in.csv", size)
    reads = Reads(monkeypatch, "in.csv")
    options = {"input": tmp_path / "in.csv", "output": tmp_path / "ds", "sample_bytes": sampled}
    outcome, manifest = build_rows(**options)
    assert outcome.status == "published"
    assert manifest.written == (size - 12) // 20
    assert reads.opened == opened
    # What is sampled is not scanned again, apart from the block that the sample ends in.
    assert size <= reads.num_bytes <= 2 * size + (MIB if opened == 7 else 0)
