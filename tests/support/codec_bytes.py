"""Print the hash of each image record of a folder, to compare versions of codecs.

usage: python -m tests.support.codec_bytes FOLDER > VERSION.txt

Run it in an environment with each version; `diff` shows the images whose bytes differ. See "Bounds
of codecs" in docs/releasing.md.
"""

import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from tests.conftest import shardmill

OPTIONS = {
    "jpeg": ("--image_size=224",),
    "enlarged": ("--image_size=600", "--resize=crop", "--interpolation=bicubic"),
    "grey": ("--image_size=64", "--channels=1", "--encoding=png", "--reducing_gap=0"),
    "alpha": ("--image_size=96x64", "--channels=4", "--encoding=png", "--resize=pad"),
    "full": ("--resize=none", "--encoding=png"),
    "nearest": ("--image_size=50", "--interpolation=nearest", "--encoding=png"),
}


def main(source: str) -> None:
    """Build a dataset for each group of options, and print what its catalogs say."""
    for name, flags in OPTIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            common = ("--label_from=none", "--splits=train:1", "--max_reject_fraction=1")
            done = shardmill("images", source, f"{folder}/ds", *common, *flags)
            assert done.returncode == 0, done.stderr
            rows = pq.read_table(Path(folder, "ds", "current", "catalog")).to_pylist()
            rejects = Path(folder, "ds", "current", "rejects.jsonl").read_text()
        for row in sorted(rows, key=lambda row: row["key"]):
            print(name, row["key"], row["image_hash"])
        for line in sorted(rejects.splitlines()):
            print(name, line)


if __name__ == "__main__":
    main(*sys.argv[1:])
