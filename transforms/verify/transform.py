"""Read and check the shards of a dataset on the workers of any runner."""

from __future__ import annotations

import functools
import json

import apache_beam as beam
from apache_beam.pvalue import AsList

from shardmill.transforms.sink.spec import Outcome
from shardmill.transforms.verify.verify import check_shard, find_dataset, make_checker


def verify_shards(root: beam.Pipeline, folder: str, number: int) -> beam.PCollection[Outcome]:
    """Verify the shards of a dataset, each in a task; give one outcome with the findings.

    Args:
        root: A pipeline.
        folder: Folder with the files of one version and their manifest, which never change.
        number: Number of shards.
    """
    findings = (
        root
        | "ListShards" >> beam.Create(range(number))
        | "SpreadShards" >> beam.Reshuffle()
        | "VerifyShards" >> beam.FlatMap(_check, folder)
    )
    return root | "Start" >> beam.Impulse() | "Report" >> beam.Map(_report, AsList(findings))


_find = functools.lru_cache(maxsize=4)(find_dataset)


def _check(shard: int, folder: str) -> list[tuple[int, str, str]]:
    dataset = _find(folder)
    entry, (checker, _) = dataset.manifest.shards[shard], make_checker(dataset)
    return [
        (shard, *finding) for finding in check_shard(entry, dataset.root, checker, counted=False)
    ]


def _report(_: bytes, findings: list[tuple[int, str, str]]) -> Outcome:
    return Outcome(
        "verified", changes=tuple(json.dumps(finding[1:]) for finding in sorted(findings))
    )
