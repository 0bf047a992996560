"""PyTorch's DataLoader and Grain read each record once from the loaders."""

import copy
import itertools
import json
import pickle
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from shardmill.loaders import open_dataset
from shardmill.schemas.errors import UsageError
from tests.support.loader_tools import ID, ONE, import_for_workers, write_numbered
from tests.support.record_tools import deflated_member

pytestmark = pytest.mark.heavy

SCHEMA = f"""{ID}
feature {{ name: "text" type: BYTES {ONE} }}
feature {{ name: "x" type: BYTES {ONE}
  annotation {{ tag: "encoding=raw" tag: "dtype=float32" tag: "shape=2,3" }} }}
"""
TOTAL = 101


def array(number: int) -> np.ndarray:
    return (np.arange(6, dtype=np.float32) + number).reshape(2, 3)


@pytest.fixture(scope="module")
def ds(tmp_path_factory) -> Path:
    return write_numbered(
        tmp_path_factory.mktemp("torch") / "ds",
        [30, 30, 30, 11],
        7,
        deflated_member,
        SCHEMA,
        lambda n: {"id": n, "text": b"%d" % n, "x": array(n).tobytes()},
    )


def via(module):
    """Return a function that copies an object by a module like pickle."""
    return lambda thing: module.loads(module.dumps(thing))


def stream_of(ds: Path, split: str = "train", **options):
    """Return the shuffled stream of a split for torch."""
    from shardmill.loaders import torch_dataset

    return torch_dataset(open_dataset(ds, split), **{"shuffle": True, "seed": 4, **options})


def loader_of(stream, batch_size: int | None = None, **options):
    """Return a DataLoader, by default without batches."""
    from torch.utils.data import DataLoader

    import_for_workers()
    return DataLoader(stream, batch_size, **options)


def stateful_loader(ds: Path, host: tuple[int, int], workers: int):
    """Return a StatefulDataLoader of 59 examples."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    import_for_workers()
    stream = stream_of(ds, "train[:59]", host=host)
    return StatefulDataLoader(stream, batch_size=4, num_workers=workers)


def ids_of(rows) -> list[int]:
    return [int(row["id"]) for row in rows]


def checked_ids(batches) -> list[int]:
    """Checks the content of batches and returns the numbers of their records."""
    found = []
    for batch in batches:
        ids = np.asarray(batch["id"]).tolist()
        assert [int(text) for text in batch["text"]] == ids
        x = np.asarray(batch["x"])
        assert (x.dtype, x.shape) == (np.float32, (len(ids), 2, 3))
        for row, number in zip(x, ids, strict=True):
            np.testing.assert_array_equal(row, array(number))
        found += ids
    return found


# PyTorch.


def test_another_number_of_workers(ds):
    stream = stream_of(ds)
    orders = []
    for workers in (1, 2, 3, 2, 0, 3):
        loader = loader_of(stream, num_workers=workers)
        orders.append(ids_of(loader))
        assert sorted(orders[-1]) == list(range(TOTAL))
    assert len(set(map(tuple, orders))) == 6
    assert stream.epoch == 6


@pytest.mark.sweep
@pytest.mark.parametrize("host", [(0, 1), (1, 2)])
@pytest.mark.parametrize("workers", range(5))
def test_stateful_data_loader_continues_at_every_position(workers, host, ds):
    """Also when some workers have ended, and after the end; the next epoch is the right one."""
    make = partial(stateful_loader, ds, host, workers)

    def read(loader, epoch: int | None = None) -> list[list[int]]:
        if epoch is not None and host[1] > 1:
            loader.dataset.set_epoch(epoch)
        return [checked_ids([batch]) for batch in loader]

    loader = make()
    states, whole = [loader.state_dict()], []
    for batch in loader:
        whole.append(checked_ids([batch]))
        states.append(loader.state_dict())
    states.append(loader.state_dict())
    following = read(loader, 1)
    assert following != whole
    for taken, state in enumerate(states):
        again = make()
        again.load_state_dict(state)
        if taken <= len(whole):  # else the epoch has ended, and the loader begins the next one
            assert whole[:taken] + read(again) == whole
        assert read(again, 1) == following


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("copy", [copy.copy, copy.deepcopy, via(pickle), via(cloudpickle)])
def test_copies_count_epochs_separately(copy, workers, ds):
    """Also if nothing is asked of a copy before a DataLoader forks its workers."""
    stream = stream_of(ds)
    orders = []
    for each in (copy(stream), copy(copy(stream)), stream):
        loader = loader_of(each, num_workers=workers)
        orders.append([ids_of(loader) for _ in range(3)])
    assert len({tuple(order) for order in orders[0]}) == 3
    assert orders[0] == orders[1] == orders[2]
    assert stream.epoch == 3


def read_passes(stream, queue) -> None:
    """Read three epochs in another process, with its own workers."""
    loader = loader_of(stream, 10, num_workers=2, multiprocessing_context="fork")
    queue.put([checked_ids(loader) for _ in range(3)])


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_count_epochs_separately(method, ds):
    """Two processes of one stream, which the parent made, and which they do not touch before."""
    import torch.multiprocessing as mp

    stream = stream_of(ds)
    context = mp.get_context(method)
    queue = context.Queue()
    others = [context.Process(target=read_passes, args=(stream, queue)) for _ in range(2)]
    for other in others:
        other.start()
    found = [queue.get(timeout=120) for _ in others]
    for other in others:
        other.join(60)
    assert found[0] == found[1]
    assert [sorted(order) for order in found[0]] == [[*range(TOTAL)]] * 3
    assert len({tuple(order) for order in found[0]}) == 3
    assert stream.epoch == 0


@pytest.mark.parametrize("method", ["at", "load_state_dict"])
def test_a_position_that_persistent_workers_do_not_see_is_an_error(method, ds):
    stream = stream_of(ds)
    state = stream_of(ds).at(3, 40).state_dict()
    options = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}
    loader = loader_of(stream, 10, **options)
    list(loader)
    stream.at(3, 40) if method == "at" else stream.load_state_dict(state)
    with pytest.raises(Exception, match="make a new DataLoader after it"):
        list(loader)
    loader = loader_of(stream, 10, **options)
    assert len(checked_ids(loader)) == TOTAL - 40
    assert len(checked_ids(loader)) == TOTAL
    stream.at(3, 40)
    stream.set_epoch(5)
    assert len(checked_ids(loader)) == TOTAL


@pytest.mark.sweep
@pytest.mark.parametrize("host", [(0, 1), (0, 2)])
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_an_epoch_that_is_set_counts_more_than_a_state(workers, host, ds):
    """Which torchdata loads when the iteration begins; at the end of an epoch and inside it.

    Without workers torchdata restores that the fetcher has ended, and then reads nothing.
    """
    make = partial(stateful_loader, ds, host, workers)

    loader, states, epochs = make(), [], []
    for epoch in range(3):
        loader.dataset.set_epoch(epoch)
        epochs.append([])
        for batch in loader:
            epochs[-1] += checked_ids([batch])
            states.append((epoch, loader.state_dict()))
        states.append((epoch, loader.state_dict()))
    last = len(states) // 3
    for epoch, state in [*states[0:last:3], *states[last - 2 : last + 1], *states[-2:]]:
        for following in range(3):
            finished = state["_iterator_finished"]  # torchdata then begins another pass
            if following == epoch and not finished:
                continue
            again = make()
            again.load_state_dict(state)
            again.dataset.set_epoch(following)
            if not workers and state["fetcher_state"]["fetcher_ended"] and not finished:
                with pytest.raises(
                    UsageError, match=rf"set_epoch\({epoch}\) before the first pass"
                ):
                    next(iter(again))
                again = make()
                again.load_state_dict(state)
                again.dataset.set_epoch(epoch)
                assert not checked_ids(again)
                again.dataset.set_epoch(following)
            order = checked_ids(again)
            assert sorted(order) == sorted(epochs[following])
            assert order == epochs[following] or not finished
            again.dataset.set_epoch(1)
            assert checked_ids(again) == epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_several_hosts_stay_in_an_epoch_until_it_is_set(workers, ds):
    """Also if one has looked at a batch; a pass that repeats the order warns."""
    streams = [stream_of(ds, host=(h, 2)) for h in range(2)]
    loaders = [loader_of(stream, 4, num_workers=workers) for stream in streams]
    with pytest.warns(UserWarning, match="epoch 0 is read again") if not workers else nullcontext():
        next(iter(loaders[0]))
        list(loaders[0])
    for epoch in range(2):
        for stream in streams:
            stream.set_epoch(epoch)
        found = [number for loader in loaders for number in checked_ids(loader)]
        assert len(set(found)) == len(found) == 100


def test_the_epoch_after_a_position_is_whole(ds):
    """The main process does not see that its workers have read the rest of the epoch."""
    stream = stream_of(ds)
    stream.at(3, 40)
    loader = loader_of(stream, 4, num_workers=2)
    assert len(checked_ids(loader)) < TOTAL
    assert len(checked_ids(loader)) == TOTAL


def test_the_state_of_a_stream_that_workers_read_is_an_error(ds):
    stream = stream_of(ds, shuffle=False)
    stream.state_dict()
    next(iter(loader_of(stream, 4, num_workers=2)))
    with pytest.raises(UsageError, match="use the state_dict of torchdata's StatefulDataLoader"):
        stream.state_dict()


# Grain.


@pytest.mark.parametrize("threads", [0, 4])
def test_a_state_of_grain_continues(threads, ds):
    """Records have no position: Grain's iterators are restored exactly, in any epoch."""
    import grain

    def make():
        epoch = grain.MapDataset.source(open_dataset(ds)).seed(3).shuffle().batch(8)
        reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
        return iter(epoch.repeat(2).to_iter_dataset(reading))

    whole = [checked_ids([batch]) for batch in make()]
    assert len(whole) == 2 * 13
    for taken in (0, 3, 12, 13, 20):
        begun = make()
        first = [checked_ids([next(begun)]) for _ in range(taken)]
        state = json.loads(json.dumps(begun.get_state()))
        rest = make()
        rest.set_state(state)
        assert first + [checked_ids([batch]) for batch in rest] == whole


def test_a_state_of_the_data_loader_of_grain_continues(ds):
    import grain

    def make():
        sampler = grain.samplers.IndexSampler(
            TOTAL, shuffle=True, num_epochs=2, seed=4, shard_options=grain.sharding.NoSharding()
        )
        return iter(
            grain.DataLoader(
                data_source=open_dataset(ds),
                sampler=sampler,
                worker_count=0,
                operations=[grain.transforms.Batch(8, drop_remainder=False)],
            )
        )

    whole = [checked_ids([batch]) for batch in make()]
    assert sorted(itertools.chain(*whole)) == sorted([*range(TOTAL)] * 2)
    begun = make()
    first = [checked_ids([next(begun)]) for _ in range(5)]
    state = begun.get_state()
    rest = make()
    rest.set_state(state)
    assert first + [checked_ids([batch]) for batch in rest] == whole
