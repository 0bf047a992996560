"""``shardmill steps``: loads neither Apache Beam nor TensorFlow nor NumPy."""

from __future__ import annotations

import argparse
import json
import sys

from shardmill.loaders.steps import Selection, count_steps, find_manifest, load_manifest, select
from shardmill.pipelines.flags.steps import steps_parser
from shardmill.schemas.dataset.shard_names import JOURNAL
from shardmill.schemas.storage import join, open_storage


def main(argv: list[str]) -> int:
    """Prints the number of steps; returns the exit code."""
    flags = steps_parser().parse_args(argv)
    folder, path = find_manifest(flags.manifest)
    if folder:
        complete_publish(folder)
    selection = select(load_manifest(path), flags.split)
    steps = count_steps(
        selection,
        flags.batch_size,
        drop_remainder=flags.drop_remainder,
        replicas=flags.replicas,
    )
    if flags.json:
        body = {
            "examples": selection.num_examples,
            "steps": steps,
            "split": flags.split,
            "batch_size": flags.batch_size,
            "drop_remainder": flags.drop_remainder,
            "replicas": flags.replicas,
            "manifest": path,
        }
        print(json.dumps(body))
    else:
        print(steps)
    if not steps:
        print(f"shardmill: {_why_none(selection, flags)}", file=sys.stderr)
    return 0


def complete_publish(folder: str) -> None:
    """Completes an unfinished publication, as every command does that meets one."""
    storage = open_storage(folder)
    if storage.stat(join(folder, JOURNAL)) is not None:
        from shardmill.transforms.publish.publish import settle  # seldom needed, and not light

        settle(storage, folder)


def _why_none(selection: Selection, flags: argparse.Namespace) -> str:
    if not selection.num_examples:
        return f"0 steps: {selection.split} is empty."
    who = "the smallest replica's share" if flags.replicas > 1 else selection.split
    return f"0 steps: {who} does not fill a batch; give a smaller --batch_size."
