"""``shardmill steps``: loads neither Apache Beam nor TensorFlow."""

from __future__ import annotations

import json

from shardmill.loaders.steps import steps_per_epoch
from shardmill.pipelines.parser import Parser
from shardmill.schemas.errors import FormatError, InputError
from shardmill.schemas.manifest import Manifest
from shardmill.schemas.names import MANIFEST
from shardmill.schemas.storage import join, open_storage


def main(argv: list[str]) -> int:
    """Prints the number of steps; returns the exit code."""
    parser = Parser(
        prog="shardmill steps",
        description="Steps per epoch, from the manifest.",
        allow_abbrev=False,
    )
    parser.add_argument("manifest", help="manifest.json, or the folder that holds it")
    parser.add_argument("--split", default="train")
    parser.add_argument("--batch_size", type=int, required=True, help="the global batch")
    parser.add_argument("--drop_remainder", action="store_true")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args(argv)
    path = flags.manifest
    storage = open_storage(path)
    entry = storage.stat(path)
    if entry is not None and entry.kind == "dir":
        path = join(path, MANIFEST)
    try:
        manifest = Manifest.from_json(storage.read(path))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: give a dataset or its {MANIFEST}.") from error
    except FormatError as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    number = steps_per_epoch(
        manifest,
        flags.split,
        flags.batch_size,
        drop_remainder=flags.drop_remainder,
        replicas=flags.replicas,
    )
    if flags.json:
        body = {
            **vars(flags),
            "steps": number,
            "examples": manifest.splits[flags.split].num_examples,
        }
        del body["json"]
        print(json.dumps(body))
    else:
        print(number)
    return 0
