"""Outcomes: the results of runs, and how they reach the process that started the run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Literal

import apache_beam as beam

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.sink.spec import SinkSpec

_reported: dict[str, Outcome] = {}  # by run, of runs whose workers are threads of this process
Status = Literal["published", "up_to_date", "failed", "dry_run", "verified"]


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        status: ``published``, ``up_to_date``, ``failed``, ``dry_run`` or ``verified``.
        message: One sentence for a person when nothing was published.
        parts_made: Number of parts that this run made.
        parts_reused: Number of finished parts that it reused.
        matched: Number of inputs matched now; those of the manifest may be older.
        skipped: Number of files that were skipped by their names.
        duplicates: Number of inputs that repeat another, as far as they were not read.
        series: For a dry run: split, label, references, input bytes and parts of each series.
        manifest: Text of the published manifest; another builder may replace the file before the
            caller reads it.
        reused: Number of records that were taken from the published dataset.
        changes: For a dry run: what changed since the published dataset, a line for each kind; for
            ``verified``: the findings, each as JSON.
        labels: For a dry run: all labels, where they are known before the build.
    """

    status: Status
    message: str = ""
    parts_made: int = 0
    parts_reused: int = 0
    matched: int = 0
    skipped: int = 0
    duplicates: int = 0
    series: tuple[tuple[str, str, int, int, int], ...] = ()
    manifest: str = ""
    reused: int = 0
    changes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def check(self) -> Outcome:
        """Return the outcome unless it is a failure.

        Raises:
            ShardmillError: The run failed; the message says why.
        """
        if self.status == "failed":
            raise ShardmillError(self.message)
        return self


def report(outcome: Outcome, run_id: str, pid: int, folder: str) -> Outcome:
    """Hand an outcome to the process that started the run; return the outcome.

    Args:
        outcome: The outcome.
        run_id: Identity of the run.
        pid: Process that started the run; 0 if the runner works on other machines. Beam's
            in-memory runner may work in child processes
            (``--direct_running_mode=multi_processing``).
        folder: Folder of the small file that another process writes; empty for no file.
    """
    if pid == os.getpid():
        _reported[run_id] = outcome
    elif folder:
        text = json.dumps(asdict(outcome)).encode()
        open_storage(folder).replace(outcome_path(folder, run_id), text)
    return outcome


def take_reported(run_id: str) -> Outcome | None:
    """Return the outcome that this process reported, and forget it; None when there is none."""
    return _reported.pop(run_id, None)


def fetch(run_id: str, folder: str) -> Outcome | None:
    """Return the outcome that another process wrote to a file, or None; delete the file."""
    storage = open_storage(folder)
    path = outcome_path(folder, run_id)
    try:
        body = json.loads(storage.read(path))
    except FileNotFoundError:
        return None
    storage.delete(path)
    body["series"] = tuple(tuple(row) for row in body["series"])
    return Outcome(**body)


def outcome_path(folder: str, run_id: str) -> str:
    """Return the path of the file with the outcome of a run."""
    return join(folder, f"{shard_names.OUTCOME_PREFIX}{run_id}.json")


@dataclass(eq=False)
class RaiseIfFailed(beam.PTransform):
    """Fails the pipeline if no dataset was published: ``outcomes | RaiseIfFailed()``."""

    def expand(self, pcoll: beam.PCollection[Outcome]) -> beam.PCollection[Outcome]:
        """Wires the check."""
        return pcoll | "Check" >> beam.Map(Outcome.check)


def delete_unused_build(outcome: Outcome, spec: SinkSpec) -> Outcome:
    """Return an outcome; of a dataset that is up to date, delete what was written for it."""
    if outcome.status == "up_to_date":
        open_storage(spec.output).delete_tree(spec.build)
    return outcome
