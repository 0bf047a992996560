"""Hosts and workers are stopped in mid-epoch, and others continue: each example is read once."""

import itertools
import json
import os
import random
from collections import Counter

import pytest

from shardmill.loaders import Stream, open_dataset
from tests.support.loader_tools import PACKS, write_numbered

RUNS = 200 if os.environ.get("SHARDMILL_SOAK") else 12
SIZES = [40, 0, 25, 7, 60, 1, 130]
TOTAL = sum(SIZES)


class Job:
    """Hosts with the workers of DataLoaders, which yield batches of their workers in turn."""

    def __init__(self, records, hosts: int, workers: int, batch: int, **options) -> None:
        self.layout, self.batch = {"hosts": hosts, "workers": workers, "batch_size": batch}, batch
        self.streams = []
        for host in range(hosts):
            self.streams.append([])
            for worker in range(workers):
                stream = Stream(records, host=(host, hosts), worker=(worker, workers), **options)
                stream._batch = batch  # which a worker of a DataLoader finds
                self.streams[-1].append(stream)

    def each(self, change) -> "Job":
        for stream in itertools.chain(*self.streams):
            change(stream)
        return self

    def steps(self):
        """Yield the real examples of all hosts, step by step."""
        rows = [list(map(iter, streams)) for streams in self.streams]
        for step in itertools.count():
            batches = []
            for workers in rows:
                # A DataLoader goes on to the next worker if one has ended.
                for number in range(len(workers)):
                    worker = workers[(step + number) % len(workers)]
                    if batch := list(itertools.islice(worker, self.batch)):
                        batches.append(batch)
                        break
            if not any(batches):
                return
            yield [int(row["id"]) for batch in batches for row in batch if row.get("weight", 1)]


@pytest.fixture(scope="module", params=PACKS)
def records(request, tmp_path_factory):
    return open_dataset(
        write_numbered(tmp_path_factory.mktemp("ids") / "ds", SIZES, 6, PACKS[request.param])
    )


def layout(rng: random.Random) -> tuple[int, int, int]:
    return rng.randint(1, 8), rng.randint(1, 4), rng.randint(1, 5)


@pytest.mark.parametrize("seed", range(RUNS))
def test_jobs_that_are_killed_and_resumed_read_each_example_once(seed, records):
    """With other numbers of hosts, workers and examples in a batch at each start, by ``at``."""
    rng = random.Random(seed)
    options = {
        "shuffle": rng.random() < 0.8, "order": rng.choice(["records", "blocks"]), "seed": seed,
        "buffer": rng.choice([1, 7, 40, 1000]), "remainder": rng.choice(["keep", "pad"]),
    }  # fmt: skip
    epoch, read, deals = rng.randrange(3), Counter(), []
    while True:
        hosts, workers, batch = layout(rng)
        job = Job(records, hosts, workers, batch, **options)
        for each in itertools.chain(*job.streams):
            each.at(epoch, 0)
            for deal in deals:
                each.then(deal["examples"], **deal["layout"])
        last = len(deals) == 4
        # Only whole steps: those that every host has taken.
        whole = (TOTAL - read.total()) // (hosts * batch)
        steps = None if last else rng.randint(0, whole)
        taken = 0
        for numbers in itertools.islice(job.steps(), steps):
            read.update(numbers)
            taken += 1
        if last:
            break
        deals.append({"examples": taken * hosts * batch, "layout": job.layout})
    assert sorted(read) == list(range(TOTAL))
    assert set(read.values()) == {1}
