"""A predicate with several hosts: each gets as many examples as ``limit`` says."""

import itertools
import json

import pytest

from shardmill.loaders import Stream, open_dataset
from shardmill.schemas.errors import UsageError
from tests.support.loader_tools import write_numbered

SIZES = [40, 0, 25, 7, 60, 1, 130]
TOTAL = sum(SIZES)
LAYOUTS = [(1, 1), (2, 1), (3, 1), (2, 2), (3, 4)]


def is_third(row) -> bool:
    return int(row["id"]) % 3 == 0


def is_even(row) -> bool:
    return int(row["id"]) % 2 == 0


def ids(rows) -> list[int]:
    return [int(row["id"]) for row in rows]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return open_dataset(write_numbered(tmp_path_factory.mktemp("ids") / "ds", SIZES, 6))


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


def test_a_state_belongs_to_its_host_and_limit(records):
    options = {"where": is_third, "shuffle": True}
    state = next(iter(readers(records, 2, 1, 1, limit=9, **options)))[0].state_dict()
    for hosts, limit, host, message in [
        (2, 9, 1, "host=0, and this stream has host=1"),
        (3, 9, 0, "hosts=2, and this stream has hosts=3"),
        (2, 8, 0, "limit=9, and this stream has limit=8"),
    ]:
        with pytest.raises(UsageError, match=message):
            readers(records, hosts, 1, 1, limit=limit, **options)[host][0].load_state_dict(state)


@pytest.mark.heavy
@pytest.mark.parametrize("workers", range(4))
def test_stateful_data_loaders(workers, records):
    from torchdata.stateful_dataloader import StatefulDataLoader

    from shardmill.loaders.torch_data import torch_stream

    def make(host: int) -> StatefulDataLoader:
        stream = torch_stream(
            records, where=is_third, limit=20, shuffle=True, seed=2, host=(host, 2)
        )
        return StatefulDataLoader(stream, batch_size=4, num_workers=workers)

    seen = []
    for host in range(2):
        loader = make(host)
        batches, states = [], [loader.state_dict()]
        for batch in loader:
            batches.append(batch["id"].tolist())
            states.append(loader.state_dict())
        assert len(batches) == len(loader) == 5
        for taken, state in list(enumerate(states))[:: 1 if workers < 2 else 3]:
            again = make(host)
            again.load_state_dict(state)
            assert [batch["id"].tolist() for batch in again] == batches[taken:]
        seen += itertools.chain(*batches)
    assert len(set(seen)) == len(seen) == 40
    assert all(number % 3 == 0 for number in seen)


@pytest.mark.parametrize("hosts", [1, 2])
def test_keras(hosts, records):
    from shardmill.loaders import keras_dataset

    seen = []
    for host in range(hosts):
        train = keras_dataset(
            records.source.folder, label=None, batch_size=8, shuffle=True, where=is_third,
            limit=30, host=(host, hosts), remainder="pad",
        )  # fmt: skip
        found = [(inputs["id"].numpy().ravel(), weights.numpy()) for inputs, weights in train]
        assert len(found) == len(train) == -(-30 * hosts // 8)
        seen += [int(n) for ids, weights in found for n, w in zip(ids, weights, strict=True) if w]
    assert len(set(seen)) == len(seen) == 30 * hosts
    assert all(number % 3 == 0 for number in seen)
