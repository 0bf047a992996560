"""Every pass over a DataLoader reads one whole epoch, after any disturbance of the pass before."""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter

import pytest

from shardmill.loaders import Stream, open_dataset
from shardmill.schemas.errors import UsageError
from tests.support.loader_tools import import_for_workers, write_numbered

SOAK = bool(os.environ.get("SHARDMILL_SOAK"))
SIZES = [40, 0, 25, 7, 31]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return write_numbered(tmp_path_factory.mktemp("passes") / "ds", SIZES, 6)


@pytest.fixture(autouse=True)
def _impatient_torch(monkeypatch):
    """torch ends workers that do not stop in time; five seconds are too long for a test."""
    from torch.utils.data import _utils

    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    yield
    multiprocessing.active_children()  # reaps workers that have ended; torch does not


def stream_of(ds, **options):
    from shardmill.loaders import torch_dataset

    return torch_dataset(open_dataset(ds), **{"shuffle": True, "seed": 4, **options})


def loader_of(stream, workers: int, method: str = "fork", *, stateful: bool = False, **options):
    from torch.utils.data import DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader

    if workers:
        options["multiprocessing_context"] = method
    import_for_workers()
    kind = StatefulDataLoader if stateful else DataLoader
    return kind(stream, batch_size=options.pop("batch_size", 5), num_workers=workers, **options)


def ids_of(batches) -> list[int]:
    return [number for batch in batches for number in batch["id"].flatten().tolist()]


def order_of(ds, epoch: int, workers: int) -> list[int]:
    """Return the ids of an epoch, in a new DataLoader whose epoch is set first."""
    stream = stream_of(ds)
    stream.set_epoch(epoch)
    return ids_of(loader_of(stream, workers))


def start_slowly(worker: int) -> None:
    time.sleep(worker * 0.6)


def look(loader) -> None:
    next(iter(loader))


def begin_only(loader) -> None:
    iter(loader)


def leave_in_the_middle(loader) -> None:
    for step, _ in enumerate(loader):
        if step == 4:
            break


def fail_in_the_loop(loader) -> None:
    with contextlib.suppress(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError


def kill_and_read(batches) -> None:
    """Kill a worker, and read so slowly that torch notices it before the last batch."""
    worker = batches._workers[-1]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()  # else torch may report it a second time, in the next pass
    for _ in batches:
        time.sleep(0.2)


def kill_a_worker(loader) -> None:
    batches = iter(loader)
    next(batches)
    with pytest.raises((RuntimeError, ConnectionError), match=r"killed|exited|reset by peer"):
        kill_and_read(batches)
    loader._iterator = None  # of persistent workers


def read_in_a_thread(loader) -> None:
    thread = threading.Thread(target=ids_of, args=[loader])
    thread.start()
    thread.join()


def read_two_passes_in_turn(loader) -> None:
    first, second = iter(loader), iter(loader)
    for _ in range(3):
        next(first), next(second)


DISTURBANCES = [
    look,
    begin_only,
    leave_in_the_middle,
    fail_in_the_loop,
    kill_a_worker,
    read_in_a_thread,
    read_two_passes_in_turn,
]


def check_passes(ds, disturb, method: str, *, persistent: bool, stateful: bool, slow: bool):
    stream = stream_of(ds)
    loader = loader_of(
        stream,
        2,
        method,
        stateful=stateful,
        persistent_workers=persistent,
        worker_init_fn=start_slowly if slow else None,
    )
    orders = []
    for _ in range(2):
        disturb(loader)
        orders.append(ids_of(loader))
    orders.append(ids_of(loader))
    for order in orders:
        assert sorted(order) == list(range(TOTAL))
    assert len(set(map(tuple, orders))) == 3
    stream.set_epoch(1)
    assert ids_of(loader) == order_of(ds, 1, 2)


@pytest.mark.heavy
def test_a_slow_worker_reads_the_epoch_of_the_others(ds) -> None:
    check_passes(ds, look, "fork", persistent=False, stateful=False, slow=True)


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("disturb", "persistent"),
    [
        *itertools.product(DISTURBANCES, [False, True]),
        (read_two_passes_in_turn, False),  # persistent workers have one iterator
    ],
)
@pytest.mark.parametrize("stateful", [False, True])
def test_every_disturbance(disturb, persistent, stateful, ds) -> None:
    check_passes(ds, disturb, "fork", persistent=persistent, stateful=stateful, slow=True)


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_methods_of_starting_workers(method, ds) -> None:
    check_passes(ds, look, method, persistent=False, stateful=False, slow=True)


def test_two_loaders_of_one_stream_read_whole_epochs(ds) -> None:
    stream = stream_of(ds)
    loaders = [loader_of(stream, workers) for workers in (2, 0, 1)]
    begun = [iter(loader) for loader in loaders]
    orders = [[] for _ in loaders]
    for batches in itertools.zip_longest(*begun):
        for order, batch in zip(orders, batches, strict=True):
            order.extend(ids_of([batch] if batch else []))
    assert [sorted(order) for order in orders] == [list(range(TOTAL))] * 3
    assert len(set(map(tuple, orders))) == 3


class Wrapped:
    """A dataset of a user that reads a stream that is not an IterableDataset."""

    def __new__(cls, ds):
        from torch.utils.data import IterableDataset

        class Reader(IterableDataset):
            def __init__(self) -> None:
                self.stream = Stream(open_dataset(ds), shuffle=True)

            def __iter__(self):
                yield from self.stream

        return Reader()


def test_a_plain_stream_in_a_dataset_of_the_user(ds) -> None:
    loader = loader_of(Wrapped(ds), 2, worker_init_fn=start_slowly)
    look(loader)
    orders = [ids_of(loader) for _ in range(2)]
    assert [sorted(order) for order in orders] == [list(range(TOTAL))] * 2
    assert orders[0] != orders[1]


# set_epoch after iter.


def wait_until_workers_read(stream, epoch: int) -> None:
    while stream.epoch == epoch:
        time.sleep(0.01)


LAUNCHES = [
    (workers, stateful, persistent, late)
    for workers, persistent, late in [(0, 0, 0), (2, 0, 0), (2, 0, 1), (2, 1, 0), (2, 1, 1)]
    for stateful in (0, 1)
]
QUICK = [(0, 0, 0, 0), (0, 1, 0, 0), (2, 0, 0, 1)]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("workers", "stateful", "persistent", "late"),
    [
        pytest.param(*launch, marks=[] if launch in QUICK else [pytest.mark.heavy])
        for launch in LAUNCHES
    ],
)
def test_set_epoch_may_come_after_iter(workers, stateful, persistent, late, ds) -> None:
    """As Lightning calls them in the first epoch of a fit; also after workers have begun."""
    for epoch in (0, 2):
        stream = stream_of(ds)
        loader = loader_of(
            stream, workers, stateful=bool(stateful), persistent_workers=bool(persistent)
        )
        batches = iter(loader)
        if late:
            wait_until_workers_read(stream, 0)
        stream.set_epoch(epoch)
        assert ids_of(batches) == order_of(ds, epoch, workers)
        assert ids_of(loader) == order_of(ds, epoch + 1, workers)
        stream.set_epoch(7)
        assert ids_of(loader) == order_of(ds, 7, workers)


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first", ["iter", "set_epoch"])
def test_a_state_fits_after_either_order(workers, first, ds) -> None:
    stream = stream_of(ds)
    loader = loader_of(stream, workers, stateful=True)
    if first == "set_epoch":
        stream.set_epoch(3)
    batches = iter(loader)
    if first == "iter":
        stream.set_epoch(3)
    read = ids_of(itertools.islice(batches, 7))
    state = loader.state_dict()
    for order in ("iter", "set_epoch"):
        again = stream_of(ds)
        rest = loader_of(again, workers, stateful=True)
        rest.load_state_dict(state)
        if order == "set_epoch":
            again.set_epoch(3)
        batches = iter(rest)
        if order == "iter":
            again.set_epoch(3)
        assert read + ids_of(batches) == order_of(ds, 3, workers)


# States.


@pytest.mark.parametrize("look_first", [False, True])
def test_the_state_after_a_look_is_not_that_of_workers(look_first, ds) -> None:
    stream = stream_of(ds)
    loader = loader_of(stream, 2)
    if look_first:
        next(iter(stream))
    batches = iter(loader)
    next(batches)
    if not look_first:
        next(iter(stream))
    with pytest.raises(UsageError, match="workers of the DataLoader read this stream"):
        stream.state_dict()


@pytest.mark.parametrize("torch", [False, True])
def test_two_iterations_in_turn_have_no_state(torch, ds) -> None:
    stream = stream_of(ds) if torch else Stream(open_dataset(ds), shuffle=True)
    first, second = iter(stream), iter(stream)
    for _ in range(3):
        next(first), next(second)
    with pytest.raises(UsageError, match="an earlier iteration of this stream went on"):
        stream.state_dict()
    read = [int(row["id"]) for row in itertools.islice(iter(stream), 9)]
    again = Stream(open_dataset(ds), shuffle=True, seed=4) if torch else stream_of(ds, seed=0)
    again.load_state_dict(stream.state_dict())
    assert sorted(read + [int(row["id"]) for row in again]) == list(range(TOTAL))


def test_a_position_needs_batches_in_order(ds) -> None:
    stream = stream_of(ds).at(0, 20, workers=2, batch_size=5)
    with pytest.raises(UsageError, match=r"in_order=False"):
        ids_of(loader_of(stream, 2, in_order=False))
    assert len(ids_of(loader_of(stream_of(ds), 2, in_order=False))) == TOTAL


@pytest.mark.parametrize("order", ["records", "blocks"])
def test_an_iteration_with_threads_does_not_go_on_in_a_fork(order, ds) -> None:
    rows = iter(Stream(open_dataset(ds), shuffle=True, order=order, workers=3))
    first = next(rows)
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                list(rows)
            except UsageError as error:
                code = 0 if "another process" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len([first, *rows]) == TOTAL


# Other numbers of workers.


def check_resumed_run(ds, rng: random.Random) -> None:
    """Read an epoch in several runs with other workers each time, from states in JSON."""
    options = {"order": rng.choice(["records", "blocks"]), "buffer": rng.choice([1, 7, 1000])}
    read, epoch, state = Counter(), rng.randrange(3), None
    for leg in range(4):
        stream = stream_of(ds, **options)
        if state is None:
            stream.set_epoch(epoch)
        else:
            stream.resume(json.loads(json.dumps(state)))
            assert stream.epoch == epoch
        workers, batch = rng.randint(0, 3), rng.randint(1, 6)
        every = rng.choice([1, 3]) if workers > 1 else 1
        loader = loader_of(
            stream, workers, stateful=True, batch_size=batch, snapshot_every_n_steps=every
        )
        batches = iter(loader)
        left = TOTAL - read.total()
        steps = None if leg == 3 else rng.randint(0, left // batch)
        read.update(ids_of(itertools.islice(batches, steps)))
        state = loader.state_dict()
    assert sorted(read.elements()) == list(range(TOTAL))
    following = stream_of(ds, **options).resume(state)
    assert following.epoch == epoch + 1
    assert sorted(ids_of(loader_of(following, 2))) == list(range(TOTAL))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(3))
def test_states_of_torchdata_continue_in_any_topology(seed, ds) -> None:
    check_resumed_run(ds, random.Random(seed))


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3, 300 if SOAK else 15))
def test_more_states_of_torchdata(seed, ds) -> None:
    check_resumed_run(ds, random.Random(seed))


@pytest.mark.sweep
@pytest.mark.parametrize("hosts", [2, 3])
def test_a_state_of_one_host_continues_on_others(hosts, ds) -> None:
    read = Counter()
    for host in range(2):
        stream = stream_of(ds, host=(host, 2), remainder="keep")
        loader = loader_of(stream, 2, stateful=True)
        read.update(ids_of(itertools.islice(iter(loader), 5)))
        state = loader.state_dict()
    for host in range(hosts):
        stream = stream_of(ds, host=(host, hosts), remainder="keep").resume(state)
        read.update(ids_of(loader_of(stream, 3)))
    assert sorted(read.elements()) == list(range(TOTAL))


def is_even(row) -> bool:
    return int(row["id"]) % 2 == 0


def test_states_that_cannot_continue_elsewhere_are_errors(ds) -> None:
    loader = loader_of(stream_of(ds, where=is_even), 2, stateful=True)
    next(iter(loader))
    with pytest.raises(UsageError, match="the predicate left out"):
        stream_of(ds, where=is_even).resume(loader.state_dict())
    loader = loader_of(stream_of(ds), 1, stateful=True, snapshot_every_n_steps=4)
    ids_of(itertools.islice(iter(loader), 6))
    with pytest.raises(UsageError, match="snapshot_every_n_steps=1"):
        stream_of(ds).resume(loader.state_dict())
    for state in ({}, {"_iterator_finished": False, "dataset_state": None}, 5):
        with pytest.raises(UsageError, match="is not the state of a stream"):
            stream_of(ds).resume(state)
