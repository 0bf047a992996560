"""Peak memory of a build of rows does not depend on the number of rows."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.fault_tools import SOAK, zygote

pytestmark = pytest.mark.heavy

COLUMNS = 42
LIMIT = 1024  # MiB
KINDS = [b"tcp", b"udp", b"icmp"]
CHUNK = 5_000


def write_table(path: Path, rows: int) -> Path:
    """Write a table of numbers, fractions and categories; chunks of rows differ."""
    rng = np.random.default_rng(7)
    texts = []
    for number in range(4):
        columns = [
            rng.choice(KINDS, CHUNK),
            *(rng.integers(0, 10 ** (1 + k % 6), CHUNK).astype("S") for k in range(26)),
            *((rng.integers(0, 100, CHUNK) / 100).astype("S4") for _ in range(14)),
        ]
        lines = columns[0]
        for column in columns[1:]:
            lines = np.char.add(np.char.add(lines, b","), column)
        texts.append(
            b"".join(b"%d,%s\n" % (k + number * CHUNK, line) for k, line in enumerate(lines))
        )
    with path.open("wb") as target:
        target.write(b"n,kind," + b",".join(b"c%d" % k for k in range(COLUMNS - 2)) + b"\n")
        for turn in range(rows // CHUNK):
            text = texts[turn % len(texts)]
            target.write(text.replace(b"tcp", b"t%02d" % (turn % 70)))
    return path


SIZES = (500_000, 3_000_000) if SOAK else (100_000, 300_000)


@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_rows(tmp_path):
    peaks = []
    for rows in SIZES:
        path = write_table(tmp_path / f"{rows}.csv", rows)
        output = tmp_path / f"out{rows}"
        ended = zygote().run("rows", f"--input={path}", f"--output={output}", "--label=kind")
        assert ended.code == 0, ended.stderr
        assert f"matched    {rows:,} rows" in ended.stdout
        assert (output / "manifest.json").exists()
        peaks.append(ended.peak)
        path.unlink()
    print(f"peak memory: {dict(zip(SIZES, peaks, strict=True))} MiB")
    assert max(peaks) < LIMIT
    assert peaks[1] < peaks[0] * 1.35, peaks
