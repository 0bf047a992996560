"""Write a table similar to that of the KDD Cup 1999, as CSV or Parquet: ``tables.py PATH ROWS``.

42 columns: connection counts with few distinct values, rates with two decimals, byte counts with a
wide range, four categories. Value frequencies are similar to the original. Each block of rows has
a seed, so a larger table begins with the rows of a smaller one.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

BLOCK = 250_000
FLAGS = {"SF": 0.766, "S0": 0.176, "REJ": 0.0544, "RSTR": 0.0018, "RSTO": 0.0012, "SH": 0.0006}
LABELS = {"smurf.": 0.568, "neptune.": 0.217, "normal.": 0.197, "back.": 0.0045, "satan.": 0.0135}
PROTOCOLS = {"icmp": 0.574, "tcp": 0.385, "udp": 0.041}
# Columns that are mostly 0: fraction of other values, and upper bound of values.
RARE = {
    "land": (0.00005, 2),
    "wrong_fragment": (0.0025, 4),
    "urgent": (0.00001, 4),
    "hot": (0.0065, 22),
    "num_failed_logins": (0.0001, 6),
    "logged_in": (0.148, 2),
    "num_compromised": (0.0045, 98),
    "root_shell": (0.0001, 2),
    "su_attempted": (0.00002, 3),
    "num_root": (0.0006, 20),
    "num_file_creations": (0.0005, 18),
    "num_shells": (0.0001, 3),
    "num_access_files": (0.0009, 7),
    "num_outbound_cmds": (0, 2),
    "is_host_login": (0, 2),
    "is_guest_login": (0.0014, 2),
}
RATES = (
    "serror_rate",
    "srv_serror_rate",
    "rerror_rate",
    "srv_rerror_rate",
    "same_srv_rate",
    "diff_srv_rate",
    "srv_diff_host_rate",
)
HOST_RATES = (
    "same_srv_rate",
    "diff_srv_rate",
    "same_src_port_rate",
    "srv_diff_host_rate",
    "serror_rate",
    "srv_serror_rate",
    "rerror_rate",
    "srv_rerror_rate",
)


def make_block(rows: int, seed: int) -> pa.Table:
    """Returns a block of rows."""
    rng = np.random.default_rng(seed)

    def choose(shares: dict[str, float]) -> pa.Array:
        total = sum(shares.values())
        drawn = rng.choice(len(shares), rows, p=[share / total for share in shares.values()])
        return pa.DictionaryArray.from_arrays(drawn, list(shares)).cast(pa.string())

    def mostly(value: int, share: float, other: np.ndarray) -> np.ndarray:
        return np.where(rng.random(rows) < share, value, other)

    def rate(zero: float, one: float) -> pa.Array:
        drawn = rng.random(rows)
        hundredths = np.where(
            drawn < zero, 0, np.where(drawn < zero + one, 100, rng.integers(1, 100, rows))
        )
        texts = [f"{number / 100:.2f}" for number in range(101)]
        return pa.DictionaryArray.from_arrays(hundredths, texts).cast(pa.string())

    services = {f"service_{number}": 1 / (number + 1) ** 1.8 for number in range(66)}
    columns = {
        "duration": mostly(0, 0.975, rng.integers(1, 58_329, rows)),
        "protocol_type": choose(PROTOCOLS),
        "service": choose(services),
        "flag": choose(FLAGS),
        "src_bytes": mostly(1_032, 0.46, mostly(0, 0.43, rng.integers(0, 60_000, rows))),
        "dst_bytes": mostly(0, 0.83, rng.integers(0, 30_000, rows)),
    }
    for name, (share, values) in RARE.items():
        columns[name] = mostly(0, 1 - share, rng.integers(1, values, rows))
    for name in ("count", "srv_count"):
        columns[name] = mostly(511, 0.46, rng.integers(0, 512, rows))
    columns |= {name: rate(0.75, 0.2) for name in RATES}
    columns["dst_host_count"] = mostly(255, 0.83, rng.integers(0, 256, rows))
    columns["dst_host_srv_count"] = mostly(255, 0.6, rng.integers(0, 256, rows))
    columns |= {f"dst_host_{name}": rate(0.6, 0.25) for name in HOST_RATES}
    columns["label"] = choose(LABELS)
    return pa.table(columns)


def write_parquet(path: str, rows: int) -> None:
    """Writes the table as Parquet, with its rates as numbers."""
    writer = None
    for start in range(0, rows, BLOCK):
        block = make_block(BLOCK, start).slice(0, min(BLOCK, rows - start))
        for number, name in enumerate(block.column_names):
            if name.endswith("_rate"):
                block = block.set_column(number, name, block[name].cast(pa.float64()))
        writer = writer or pq.ParquetWriter(path, block.schema)
        writer.write_table(block)
    if writer is not None:
        writer.close()


def main() -> None:
    """Writes the table."""
    path, rows = sys.argv[1], int(sys.argv[2])
    if path.endswith(".parquet"):
        write_parquet(path, rows)
        return
    options = pa.csv.WriteOptions(quoting_style="none")
    with open(path, "wb") as file:
        for start in range(0, rows, BLOCK):
            block = make_block(BLOCK, start).slice(0, min(BLOCK, rows - start))
            options.include_header = start == 0
            pa.csv.write_csv(block, file, options)


if __name__ == "__main__":
    main()
