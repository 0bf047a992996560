"""``shardmill steps``: imports neither Apache Beam nor TensorFlow, and NumPy only for a mix."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from shardmill.loaders.counting import count_mix, steps_per_epoch
from shardmill.loaders.selection import select
from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.read_manifest import open_manifest


@dataclass(kw_only=True)
class StepsOptions:
    """Options of ``shardmill steps``.

    Attributes:
        manifest: ``DIR``: folder of a dataset, a manifest, or the TOML file of a mix
        split: ``SPLIT``: a split, or several as in train+validation, or train[:10%%]
        batch_size: ``N``: the global batch size
        drop_remainder: drop a last batch that is not full
        hosts: ``N``: hosts that read equal shares: count the full batches of each
        whole_shards: each host reads whole shards, round-robin: count the batches of the smallest
            share
    """

    usage = "DIR --batch_size=N [FLAGS]"
    summary = "Steps per epoch, from the manifest."
    example = """\
example:
  shardmill steps ds --split=train --batch_size=32"""
    manifest: str
    split: of.Text = of.text("train")
    batch_size: of.Int = of.whole(None, 1, required=True)
    drop_remainder: of.Switch = of.switch()
    hosts: of.Int = of.whole(1, 1)
    whole_shards: of.Switch = of.switch()


def run(flags: StepsOptions, answer: Answer) -> int:
    """Print the number of steps; return the exit code."""
    dataset: str | Manifest = flags.manifest
    if flags.manifest.endswith(".toml"):
        name, path = f"the mix {flags.manifest}", flags.manifest
        examples = count_mix(flags.manifest, flags.split)
    else:
        _, path, _, dataset = open_manifest(flags.manifest)
        selection = select(dataset, flags.split)
        name, examples = selection.split, selection.num_examples
    steps = steps_per_epoch(
        dataset,
        flags.split,
        flags.batch_size,
        remainder="drop" if flags.drop_remainder else None,
        hosts=flags.hosts,
        whole_shards=flags.whole_shards,
    )
    body = {"examples": examples, "steps": steps}
    answer.give({**body, **vars(flags), "manifest": path})
    if not answer.json:
        print(steps)
    if not steps and not answer.quiet:
        print(f"shardmill: {_explain_zero(name, examples, flags.hosts)}", file=sys.stderr)
    return 0


def _explain_zero(name: str, examples: int, hosts: int) -> str:
    if not examples:
        return f"0 steps: {name} is empty."
    subject = "the share of a host" if hosts > 1 else name
    return f"0 steps: {subject} does not fill a batch; give a smaller --batch_size."
