"""Position: how far an epoch was read; the state of a stream."""

from __future__ import annotations

from typing import Any, NamedTuple

from shardmill.loaders.hosts import Share
from shardmill.loaders.pieces import Deal, Reader, count
from shardmill.loaders.steps import to_int
from shardmill.schemas.errors import UsageError

COUNTS = "counts"  # in the state of a mix: examples that were read of each dataset
_WORKER = ("worker", "workers", "batch_size", "hosts", "host")


class Position(NamedTuple):
    """How far an epoch was read.

    Attributes:
        epoch: Number of the epoch.
        deals: Examples that all hosts have read; 0 hosts, workers or examples in a batch mean the
            reader's own number.
        taken: Number of records that this worker has read since.
        kept: Number of these that the predicate has kept.
    """

    epoch: int
    deals: tuple[Deal, ...] = ()
    taken: int = 0
    kept: int = 0

    def resolve(self, reader: Reader, *, by_records: bool) -> Position:
        """Returns the position for a reader, with all numbers.

        Raises:
            UsageError: The hosts of the reader cannot have read as many examples.
        """
        if by_records:  # a number of examples says it all
            read = sum(deal.examples for deal in self.deals)
            return self._replace(deals=(Deal(read, 1, 1, 1),) if read else ())
        ours = 0, reader.host.count, reader.worker.count, reader.batch
        deals = []
        for stated in self.deals:
            # ``at(epoch, examples)`` may name no hosts and workers: then they were as many as now.
            deal = Deal(*(number or own for number, own in zip(stated, ours, strict=True)))
            if deal.examples % deal.hosts:
                raise uneven_position(examples=deal.examples, hosts=deal.hosts)
            deals.append(deal)
        return self._replace(deals=tuple(deals))

    def to_state(self, reader: Reader, reads: dict[str, Any]) -> dict[str, Any]:
        """Returns the state of a stream; of a worker if there are several, or a limit.

        Args:
            reader: The worker.
            reads: The options that determine record order.
        """
        # The number of examples is the state of one worker without a limit, so that the state is
        # the same on every host. Of several, each has its own share and its own place in it.
        in_blocks, worker = reads["order"] == "blocks", None
        deals = self.resolve(reader, by_records=not in_blocks).deals
        if reader.worker.count > 1 or reads["limit"]:
            worker = [self.taken, self.kept, *_numbers_of(reader, reads)]
        elif self.taken:
            deals = (*deals, Deal(self.taken * reader.host.count, reader.host.count, 1, 1))
        state = {"epoch": self.epoch, "examples": sum(deal.examples for deal in deals)}
        # Who read them matters in blocks only.
        dealt = [list(deal) for deal in deals] if in_blocks else []
        return {**state, "deals": dealt, "worker": worker, "reads": reads}


def parse_state(state: dict[str, Any], reader: Reader, reads: dict[str, Any]) -> Position:
    """Returns the position of a state.

    Args:
        state: The state.
        reader: The worker that continues.
        reads: The options that determine its record order.

    Raises:
        UsageError: It is not a state; or of a stream that reads other records or in another order,
            or of another worker, or of another number of them.
    """
    fields = Position(0).to_state(reader, reads).keys()
    if not isinstance(state, dict) or state.keys() - {COUNTS} != fields:
        raise _stream_state_invalid(state)
    theirs, ours, counts = dict(state["reads"]), dict(reads), [0, 0]
    if state["worker"] is not None:
        counts, numbers = state["worker"][:2], state["worker"][2:]
        theirs |= zip(_WORKER, numbers, strict=False)
        ours |= zip(_WORKER, _numbers_of(reader, reads), strict=False)
    split = ours.pop("split")  # another name of the same records makes no difference
    for name, value in ours.items():
        if theirs.get(name) == value:
            continue
        both = f"{name}={theirs.get(name)!r}, and this stream has {name}={value!r}"
        if "mix" in {*theirs, *ours} and name in ("records", "mix"):
            raise UsageError(
                "the state is of a mix of other datasets, weights or epochs: continue with "
                "mix(..., after=state) to change them, or with the same version and options."
            )
        if name == "records":
            both = f"other records ({theirs['split']}) than those of this stream ({split})"
        elif name in _WORKER and not reads["limit"]:
            both += "; resume() continues with other workers"
        raise UsageError(
            f"the state is of {both}: continue with the same version of the dataset and options, "
            "or from the next epoch."
        )
    deals = [Deal(*map(to_int, Deal._fields, deal)) for deal in state["deals"]]
    read = tuple(deals or [Deal(to_int("examples", state["examples"]), 1, 1, 1)])
    epoch, taken, kept = map(to_int, ("epoch", "taken", "kept"), (state["epoch"], *counts))
    return Position(epoch, tuple(deal for deal in read if deal.examples), taken, kept)


def resume_position(state: dict[str, Any], reader: Reader, reads: dict[str, Any]) -> Position:
    """Returns the position of a state for any hosts and workers.

    Args:
        state: The state of a stream, or of the StatefulDataLoader of torchdata that read it.
        reader: The worker that continues.
        reads: The options that determine its record order.

    Raises:
        UsageError: It is not such a state; or of a stream that reads other records or in another
            order, or with a predicate.
    """
    states, batches_since, is_finished = _states_of_loader(state)
    streams = [dict(stream) for stream in states if isinstance(stream, dict)]
    shares = [stream.pop("worker", None) for stream in streams]
    if not streams or len(streams) < len(states) or any(s != streams[0] for s in streams):
        raise _stream_state_invalid(state)
    start = parse_state({**streams[0], "worker": None}, reader, reads)
    if is_finished:
        return Position(start.epoch + 1)
    if reads["where"] and (start.deals or any(shares)):
        raise UsageError(
            "a state of several workers, or of a stream with where, does not say which examples "
            "the predicate left out: load it with as many hosts and workers as before, or name "
            'columns of the catalog, as in where={"label": "roses"}.'
        )
    if shares[0] is None and not batches_since:
        return start
    if shares[0] is None:
        raise UsageError(
            f"the state is {batches_since} batches older than the DataLoader: save it with "
            "snapshot_every_n_steps=1."
        )
    deal = _deal_of(shares)
    deal = deal._replace(examples=deal.examples + batches_since * deal.batch_size * deal.hosts)
    return Position(start.epoch, (*start.deals, deal) if deal.examples else start.deals)


def _stream_state_invalid(state: object) -> UsageError:
    return UsageError(f"{state!r:.99} is not the state of a stream: give its state_dict().")


def uneven_position(examples: object, hosts: object) -> UsageError:
    """Return the error for a position that the hosts do not share evenly."""
    return UsageError(f"examples={examples} is not a multiple of hosts={hosts}.")


def _states_of_loader(state: Any) -> tuple[list[Any], int, bool]:
    """Returns states of streams, the batches taken after them, and whether the pass has ended."""
    if not isinstance(state, dict) or "_iterator_finished" not in state:
        return [state], 0, False
    if "_snapshot" not in state:  # without workers
        return [state["dataset_state"]], 0, state["_iterator_finished"]
    workers = state["_snapshot"]["_worker_snapshots"].values()
    states = [worker["dataset_state"] for worker in workers]
    return states, state["_steps_since_snapshot"], state["_iterator_finished"]


def _deal_of(shares: list[list[int]]) -> Deal:
    """Returns the deal that workers have read together.

    Args:
        shares: The entry ``worker`` of each worker's state.

    Raises:
        UsageError: They have not read batches in turn.
    """
    taken = {worker: examples for examples, _, worker, *_ in shares}
    _, _, _, workers, batch_size, hosts, *_ = shares[0]
    total = sum(taken.values())
    in_turn = {w: count(total, Share(w, workers), batch_size) for w in range(workers)}
    if taken != in_turn:
        counts = [*taken.values()]
        raise UsageError(
            f"the workers have read {counts} examples and not batches in turn, as with "
            "DataLoader(in_order=False): continue with as many workers as before, or from the next "
            "epoch."
        )
    return Deal(total * hosts, hosts, workers, batch_size)


def _numbers_of(reader: Reader, reads: dict[str, Any]) -> list[int]:
    numbers = [reader.worker.index, reader.worker.count, reader.batch, reader.host.count]
    if reads["limit"]:
        return [*numbers, reader.host.index]
    return numbers


def reads_of(state: object) -> dict[str, Any]:
    """Returns the options that determine record order, of the stream of a state.

    Raises:
        UsageError: It is not a state.
    """
    streams = _states_of_loader(state)[0]
    first = streams[0] if streams else None
    if not isinstance(first, dict) or not isinstance(first.get("reads"), dict):
        raise _stream_state_invalid(state)
    return dict(first["reads"])
