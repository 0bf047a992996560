"""Run another tool as its documentation describes: python tool_runners.py TOOL INPUT OUTPUT.

This script runs in the environment of the tool, without Shardmill; see tool_comparison.py.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SIZE = 64


class _SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def tfds(source: Path, target: Path) -> None:
    """Writes TFRecords with a TFDS builder that has an Image feature."""
    import tensorflow_datasets as tfds_

    class Photos(tfds_.core.GeneratorBasedBuilder):
        """Photos in class folders."""

        VERSION = tfds_.core.Version("1.0.0")

        def _info(self):  # noqa: ANN202
            labels = sorted(path.name for path in source.iterdir())
            features = {
                "image": tfds_.features.Image(shape=(None, None, 3)),
                "label": tfds_.features.ClassLabel(names=labels),
                "name": tfds_.features.Text(),
            }
            return tfds_.core.DatasetInfo(
                builder=self, features=tfds_.features.FeaturesDict(features)
            )

        def _split_generators(self, _manager):  # noqa: ANN001, ANN202
            return {"train": self._generate_examples()}

        def _generate_examples(self):  # noqa: ANN202
            for path in sorted(source.glob("*/*")):
                key = f"{path.parent.name}/{path.name}"
                yield key, {"image": str(path), "label": path.parent.name, "name": key}

    builder = Photos(data_dir=str(target), file_format="tfrecord")
    builder.download_and_prepare()


def img2dataset(source: Path, target: Path) -> None:
    """Writes TFRecords with img2dataset, which downloads from a web server on this machine."""
    from img2dataset import download

    handler = partial(_SilentHandler, directory=str(source))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    listing = target.parent / f"{target.name}.txt"
    base = f"http://127.0.0.1:{server.server_port}"
    paths = sorted(source.glob("*/*"))
    listing.write_text("".join(f"{base}/{path.relative_to(source)}\n" for path in paths))
    download(
        url_list=str(listing), output_folder=str(target), output_format="tfrecord",
        image_size=SIZE, resize_mode="no",
        number_sample_per_shard=500, processes_count=2, thread_count=16, retries=1,
        enable_wandb=False, incremental_mode="incremental",
    )  # fmt: skip


if __name__ == "__main__":
    tool, where, to = sys.argv[1:]
    {"tfds": tfds, "img2dataset": img2dataset}[tool](Path(where), Path(to))
