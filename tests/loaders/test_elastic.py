"""Hosts and workers are stopped in mid-epoch, and others continue: each example is read once."""

import itertools
import json
import os
import random
from collections import Counter

import pytest

from shardmill.loaders import Stream, open_dataset
from shardmill.schemas.errors import UsageError
from tests.support.loader_tools import write_numbered
from tests.support.training_jobs import Job

RUNS = 200 if os.environ.get("SHARDMILL_SOAK") else 12
SIZES = [40, 0, 25, 7, 60, 1, 130]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return open_dataset(write_numbered(tmp_path_factory.mktemp("ids") / "ds", SIZES, 6))


def layout(rng: random.Random) -> tuple[int, int, int]:
    return rng.randint(1, 8), rng.randint(1, 4), rng.randint(1, 5)


@pytest.mark.parametrize("seed", range(RUNS))
def test_jobs_that_are_killed_and_resumed_read_each_example_once(seed, records):
    """With other numbers of hosts, workers and examples in a batch at each start, by ``at``."""
    rng = random.Random(seed)
    options = {
        "shuffle": rng.random() < 0.8,
        "order": rng.choice(["records", "blocks"]),
        "seed": seed,
        "buffer": rng.choice([1, 7, 40, 1000]),
        "remainder": rng.choice(["keep", "pad"]),
    }
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


@pytest.mark.parametrize("seed", range(RUNS))
def test_states_are_the_same_on_all_hosts_and_fit_any_number(seed, records):
    """Hosts without workers, by ``state_dict``; records of the last, uneven step are read too."""
    rng = random.Random(seed)
    options = {
        "shuffle": rng.random() < 0.8,
        "order": rng.choice(["records", "blocks"]),
        "seed": seed,
        "buffer": rng.choice([1, 7, 40, 1000]),
        "remainder": rng.choice(["keep", "pad"]),
        "epoch": rng.randrange(3),
    }
    read, state = Counter(), None
    for leg in range(5):
        hosts = rng.randint(1, 9)
        job = Job(records, hosts, 1, 1, **options)
        if state:
            job.each(lambda stream, state=state: stream.load_state_dict(state))
            assert all(stream.state_dict() == state for (stream,) in job.streams)
        steps = None if leg == 4 else rng.randint(0, (TOTAL - read.total()) // hosts)
        read.update(itertools.chain.from_iterable(itertools.islice(job.steps(), steps)))
        states = [json.loads(json.dumps(stream.state_dict())) for (stream,) in job.streams]
        assert leg == 4 or all(each == states[0] for each in states)
        state = states[0]
    assert sorted(read) == list(range(TOTAL))
    assert set(read.values()) == {1}


def test_steps_of_all_hosts_do_not_depend_on_their_number(records):
    """In the order of records: the same examples in each step, at any number of hosts."""
    steps = {
        (hosts, workers): [
            sorted(numbers)
            for numbers in Job(
                records,
                hosts,
                workers,
                12 // hosts,
                shuffle=True,
                order="records",
                remainder="keep",
            ).steps()
        ]
        for hosts, workers in [(1, 1), (2, 3), (3, 2), (4, 1), (12, 2)]
    }
    first = steps[1, 1]
    assert len(first) == -(-TOTAL // 12)
    assert all(each == first for each in steps.values())


@pytest.mark.parametrize("order", ["records", "blocks"])
def test_only_the_last_batch_of_an_epoch_is_not_full(order, records):
    for workers in (1, 2, 3):
        job = Job(records, 1, workers, 10, shuffle=True, order=order)
        assert [len(numbers) for numbers in job.steps()] == [10] * (TOTAL // 10) + [TOTAL % 10]


LAYOUTS = [(1, 1), (2, 1), (3, 1), (2, 2), (3, 4)]


def is_third(row) -> bool:
    return int(row["id"]) % 3 == 0


def is_even(row) -> bool:
    return int(row["id"]) % 2 == 0


def ids(rows) -> list[int]:
    return [int(row["id"]) for row in rows]


def readers(records, hosts: int, workers: int, batch: int, /, **options) -> list[list[Stream]]:
    """Return a stream for each worker of each host."""
    made = [
        [Stream(records, host=(h, hosts), worker=(w, workers), **options) for w in range(workers)]
        for h in range(hosts)
    ]
    for stream in itertools.chain(*made):
        stream._batch = batch  # which a worker of a DataLoader finds
    return made


@pytest.mark.parametrize("order", ["records", "blocks", None])
@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
@pytest.mark.parametrize(("hosts", "workers"), LAYOUTS)
def test_each_host_gets_the_first_ones_of_its_share(hosts, workers, remainder, order, records):
    """As counted in what a stream without the predicate reads."""
    batch, limit = 4, 62 // hosts
    options = {"shuffle": order is not None, "order": order, "remainder": remainder, "seed": 3}
    limited = readers(records, hosts, workers, batch, where=is_third, limit=limit, **options)
    whole = readers(records, hosts, workers, batch, **options)
    seen = []
    for streams, all_of in zip(limited, whole, strict=True):
        found = [ids(stream) for stream in streams]
        sizes = [sum(n // batch % workers == w for n in range(limit)) for w in range(workers)]
        assert [len(each) for each in found] == sizes
        assert sum(sizes) == limit == len(streams[0])
        for each, stream in zip(found, all_of, strict=True):
            kept = [n for n in ids(r for r in stream if r.get("weight", 1)) if n % 3 == 0]
            assert each == kept[: len(each)]
        seen += itertools.chain(*found)
    assert len(set(seen)) == len(seen) == limit * hosts


@pytest.mark.sweep
@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize(("hosts", "workers"), LAYOUTS)
def test_a_state_continues_at_every_position(hosts, workers, threads, records):
    limit = 12 if workers < 4 else 6
    options = {"where": is_even, "limit": limit, "shuffle": True, "seed": 1, "workers": threads}
    for host, worker in itertools.product(range(hosts), range(workers)):

        def make(host=host, worker=worker):
            return readers(records, hosts, workers, 4, **options)[host][worker]

        for epoch in range(2):
            stream = make()
            stream.set_epoch(epoch)
            rows, found, states = iter(stream), [], [stream.state_dict()]
            for row in rows:
                found.append(int(row["id"]))
                states.append(stream.state_dict())
            for taken, state in enumerate(states):
                again = make()
                again.load_state_dict(json.loads(json.dumps(state)))
                if hosts == workers == 1:
                    assert len(again) == limit
                    assert again.num_left == limit - taken
                assert ids(again) == found[taken:]
                again.set_epoch(epoch + 1)
                following = make()
                following.set_epoch(epoch + 1)
                assert ids(again) == (expected := ids(following))
                assert expected != found or not found


def test_a_host_that_has_fewer_is_an_error_after_them(records):
    streams = readers(records, 2, 1, 1, where=is_third, limit=60, shuffle=True)
    for (stream,) in streams:
        found = []
        with pytest.raises(
            UsageError, match=r"^where keeps \d\d examples of this worker, .* 60 "
        ) as error:
            found.extend(int(row["id"]) for row in stream)
        assert len(set(found)) == len(found) > 35
        assert f"keeps {len(found)} examples" in str(error.value)
