"""Outcomes: what came of a run, and how whoever started it is told."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Literal

import apache_beam as beam

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.runtime import progress

_FORGOTTEN_NS = 3600 * 10**9
Status = Literal["published", "up_to_date", "failed", "dry_run"]


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        status: ``published``, ``up_to_date``, ``failed`` or ``dry_run``.
        message: One sentence for a person when nothing was published.
        parts_made: Parts that this run made.
        parts_found: Parts that it found finished.
        matched: Inputs matched.
        series: For a dry run: split, label, refs, input bytes and parts of each series; no parts
            where its published shards would stay.
        manifest: Text of the manifest that was published; the one on the disk may be another's by
            the time that somebody reads it.
        kept: Published shards that stayed as they were, and how many examples they hold.
    """

    status: Status
    message: str = ""
    parts_made: int = 0
    parts_found: int = 0
    matched: int = 0
    series: tuple[tuple[str, str, int, int, int], ...] = ()
    manifest: str = ""
    kept: tuple[int, int] = (0, 0)

    def check(self) -> Outcome:
        """Returns the outcome unless it is a failure.

        Raises:
            ShardmillError: The run failed; the message says why.
        """
        if self.status == "failed":
            raise ShardmillError(self.message)
        return self


def deliver(outcome: Outcome, invocation: str, folder: str) -> None:
    """Tells whoever started a run what came of it: directly in this process, else by a small file.

    Args:
        outcome: What came of it.
        invocation: Identity of the run; nobody waits when it is empty.
        folder: Where the file goes; empty for nowhere.
    """
    watched = progress.progress_of(invocation)
    if watched is not None:
        watched.outcome = outcome
    elif invocation and folder:
        text = json.dumps(asdict(outcome)).encode()
        open_storage(folder).replace(outcome_path(folder, invocation), text)


def fetch(invocation: str, folder: str) -> Outcome | None:
    """Returns what ``deliver`` left in a folder and takes it away, or None."""
    storage = open_storage(folder)
    path = outcome_path(folder, invocation)
    try:
        body = json.loads(storage.read(path))
    except FileNotFoundError:
        return None
    storage.delete(path)
    body["series"] = tuple(tuple(row) for row in body["series"])
    body["kept"] = tuple(body["kept"])
    return Outcome(**body)


def sweep(folder: str) -> None:
    """Takes away outcomes that nobody fetched in an hour: whoever waited for them was killed."""
    storage = open_storage(folder)
    limit = time.time_ns() - _FORGOTTEN_NS
    for entry in storage.list_dir(folder):
        name = entry.path.rsplit("/", 1)[-1]
        if name.startswith(shard_names.OUTCOME_PREFIX) and name.endswith(".json"):
            changed = entry.changed_ns
            if changed is not None and changed < limit:
                storage.delete(entry.path)


def outcome_path(folder: str, invocation: str) -> str:
    """Returns where a worker in another process leaves the outcome of a run."""
    return join(folder, f"{shard_names.OUTCOME_PREFIX}{invocation}.json")


@dataclass(eq=False)
class RaiseIfFailed(beam.PTransform):
    """Fails the pipeline when a dataset could not be published: ``outcomes | RaiseIfFailed()``."""

    def expand(self, pcoll: beam.PCollection[Outcome]) -> beam.PCollection[Outcome]:
        """Wires the check."""
        return pcoll | "Check" >> beam.Map(Outcome.check)
