"""Training processes and their workers are killed with SIGKILL and resumed from checkpoints.

The judge reads only what the processes wrote: what they were given in each step, and checkpoints.
What was given after the last checkpoint of all hosts is lost with the job, and given again.
"""

import contextlib
import json
import multiprocessing
import os
import random
import signal
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path

import psutil
import pytest

from tests.support.loader_tools import PACKS, write_numbered
from tests.support.processes import descendants
from tests.support.training_host import Plan, train

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
RUNS = 200 if os.environ.get("SHARDMILL_SOAK") else 8
SIZES = [140, 0, 95, 7, 160, 1, 230]
TOTAL = sum(SIZES)
KINDS = ["stream", "torch", "stateful", "stream", "torch", "stateful", "torch", "keras"]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ids")
    return [str(write_numbered(folder / name, SIZES, 6, PACKS[name])) for name in PACKS]


@pytest.fixture(scope="module")
def context():
    """Processes that are forked by a server which has imported the frameworks."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(
        ["torch", "torchdata.stateful_dataloader", "shardmill.loaders.torch_stream"]
    )
    return made


def workers_of(processes: list[psutil.Process]) -> list[int]:
    """Returns the workers of a DataLoader, by the name that torch gives them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [each.pid for each in processes if each.name() == "pt_data_worker"]
    return []


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run_job(context, plans: list[Plan], rng: random.Random, after: int | None) -> None:
    """Runs the hosts; kills one, all or a worker after some steps of all hosts, if ``after`` is given."""
    ends, processes = [], []
    for plan in plans:
        ours, theirs = context.Pipe(duplex=False)
        processes.append(context.Process(target=train, args=(plan, theirs)))
        processes[-1].start()
        theirs.close()
        ends.append(ours)
    steps, reading = 0, list(ends)
    while reading and (after is None or steps < after):
        for end in wait(reading):
            try:
                end.recv()
                steps += 1
            except EOFError:
                reading.remove(end)
    alive = [process.pid for process in processes if process.is_alive()]
    if after is not None and alive:
        victim = rng.choice(alive)
        # Python starts workers by a server that is a child of the host.
        below = {pid: descendants(pid) for pid in alive}
        workers = workers_of(below[victim])
        how = rng.choice(["all", "host", "worker"])
        if how == "worker" and workers:
            kill([rng.choice(workers)])
            wait([p.sentinel for p in processes if p.pid == victim], timeout=30)
        elif how != "all":
            kill([victim])
        # What starts the processes of a job ends all of them.
        kill([*alive, *(each.pid for pid in alive for each in below[pid])])
    for process in processes:
        process.join()
    assert after is not None or all(process.exitcode == 0 for process in processes)


def logs_of(folder: Path, hosts: int) -> list[list]:
    paths = [folder / f"{host}.log" for host in range(hosts)]
    lines = [path.read_bytes().splitlines() if path.exists() else [] for path in paths]
    return [[json.loads(line) for line in each] for each in lines]


def last_checkpoint(folder: Path, hosts: int) -> int:
    """Returns the last step of which all hosts have a checkpoint; 0 for none."""
    saved = [
        {int(path.name.partition("-")[2]) for path in folder.glob(f"{host}-*") if not path.suffix}
        for host in range(hosts)
    ]
    return max(set.intersection(*saved), default=0)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(RUNS))
def test_each_record_is_given_once(seed, datasets, context, tmp_path):
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    shuffle, epoch = rng.random() < 0.8, rng.randrange(3)
    remainder = rng.choice(["keep", "drop", "pad"] if kind != "keras" else ["drop", "pad"])
    options = {
        "shuffle": shuffle,
        "order": rng.choice(["records", "blocks"]),
        "seed": seed,
        "buffer": rng.choice([1, 7, 40, 1000]),
        "remainder": remainder,
    }
    most = 2 if kind == "keras" else 3

    def layout() -> tuple[int, int, int]:
        return rng.randint(1, most), rng.randint(0, 2), rng.randint(1, 5)

    given, deals, states, left = Counter(), [], None, TOTAL
    hosts, workers, batch = layout()
    legs = rng.randint(2, 4)
    for leg in range(legs):
        folder = tmp_path / str(leg)
        folder.mkdir()
        plans = [
            Plan(
                kind,
                datasets[seed % 3],
                str(folder),
                (host, hosts),
                workers,
                batch,
                1 + seed % 3,
                epoch,
                options,
                [] if states else deals,
                states and states[host % len(states)],
            )
            for host in range(hosts)
        ]
        steps = left // (hosts * batch)
        after = None if leg == legs - 1 else rng.randint(0, hosts * steps)
        run_job(context, plans, rng, after)
        logs = logs_of(folder, hosts)
        if all(log and log[-1][0] == -1 for log in logs):  # the job has ended
            break
        # Steps that are not full on each host end the epoch.
        at = min(last_checkpoint(folder, hosts), steps // plans[0].every * plans[0].every)
        given.update(
            n for log in logs for e, step, ids in log if e == epoch and step <= at for n in ids
        )
        if at:
            read = at * hosts * batch
            left -= read
            if kind == "stateful" and states:  # the same workers went on
                read += deals.pop()["examples"]
            loaders = 1 if kind == "keras" else max(1, workers)  # Keras reads in one process
            who = {"hosts": hosts, "workers": loaders, "batch_size": batch}
            deals = [*deals, {"examples": read, **who}]
            states = [(folder / f"{host}-{at}").read_bytes() for host in range(hosts)]
        if kind == "stream":  # a state of any host, for any number of hosts
            hosts, workers, batch = layout()
            states = states and [rng.choice(states)]
        elif kind == "stateful" and rng.random() < 0.5:
            pass  # the state of each host, for as many workers
        else:
            states, (hosts, workers, batch) = None, layout()
    assert all(log[-1][0] == -1 for log in logs)
    given.update(n for log in logs for e, _, ids in log if e == epoch for n in ids)
    following = Counter(n for log in logs for e, _, ids in log if e == epoch + 1 for n in ids)
    lost = {"drop": hosts * batch - 1 if kind == "keras" else hosts - 1}.get(remainder, 0)
    for found in (given, following):
        assert set(found.values()) == {1}
        assert set(found) <= set(range(TOTAL))
        assert TOTAL - len(found) <= lost
