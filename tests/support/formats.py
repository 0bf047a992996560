"""Small datasets of each kind that all later versions must read.

usage: python -m tests.support.formats

Writes those of this version into tests/formats/VERSION, before its release and never after it.
"""

import hashlib
import json
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tests.conftest import ROOT, make_photos, shardmill
from tests.support.readers import (
    current,
    dataset_splits,
    framed_payloads,
    gzip_records,
    tf_examples,
)

FORMATS = ROOT / "tests" / "formats"
INPUTS = Path("/data")  # a name that is in the manifests, and says nothing of the machine
TABLE = "id,name,score,label\n" + "".join(
    f"{n},{f'n{n}' if n % 5 else ''},{n / 4 if n % 3 else ''},{'ab'[n % 2]}\n" for n in range(40)
)
FLAGS = {
    "photos": ["images", "--image_size=16", "--num_shards=2"],
    "pixels": ["images", "--image_size=8", "--encoding=raw", "--compression=none"],
    "table": ["rows", "--label=label", "--key=id"],
    "arrays": ["arrays"],
}


def contents(folder: Path) -> dict[str, list[list[str]]]:
    """Return, for each split, the digest of each record and of its features, by independent readers."""
    found = {}
    for name, split in dataset_splits(folder).items():
        found[name] = []
        for shard in split["shards"]:
            path = current(folder) / shard["file"]
            plain = path.suffix != ".gz"
            payloads = framed_payloads(path.read_bytes()) if plain else gzip_records(path)
            examples = tf_examples(path, "" if plain else "GZIP")
            for payload, example in zip(payloads, examples, strict=True):
                features = repr(sorted(example.items())).encode()
                digests = (hashlib.sha256(each).hexdigest()[:16] for each in (payload, features))
                found[name].append([*digests])
    return found


def main() -> None:
    """Write the datasets and what they contain."""
    target = FORMATS / version("shardmill")
    shutil.rmtree(target, ignore_errors=True)
    INPUTS.mkdir()
    try:
        inputs = make_photos(INPUTS / "photos", {"cat": 6, "dog": 7}, size=(24, 16)).parent
        shutil.copytree(inputs / "photos", inputs / "pixels")
        (inputs / "table").mkdir()
        (inputs / "table" / "table.csv").write_text(TABLE)
        (inputs / "arrays").mkdir()
        np.save(inputs / "arrays" / "x.npy", np.arange(120, dtype=np.float32).reshape(30, 2, 2))
        np.save(inputs / "arrays" / "y.npy", np.arange(30) % 3)
        for kind, (command, *flags) in FLAGS.items():
            done = shardmill(command, inputs / kind, inputs / "out" / kind, *flags)
            assert done.returncode == 0, done.stderr
        shutil.copytree(inputs / "out", target, symlinks=True)
    finally:
        shutil.rmtree(INPUTS)
    found = {kind: contents(target / kind) for kind in FLAGS}
    (target / "contents.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
