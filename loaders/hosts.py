"""Which share of a dataset this process reads: given, or found from the training framework."""

from __future__ import annotations

import json
import operator
import os
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardmill.schemas.errors import UsageError

# Variables with the number of processes and this process's rank. A launcher sets them for any
# job, so they do not say that the processes train together.
_LAUNCHERS = {
    "Slurm": ("SLURM_NTASKS", "SLURM_PROCID"),
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "MPI": ("PMI_SIZE", "PMI_RANK"),
}


@dataclass(frozen=True)
class Share:
    """One of several equal shares of the work.

    Attributes:
        index: Number of the share, from 0.
        count: Number of shares.
    """

    index: int
    count: int


def parse_share(name: str, value: tuple[int, int]) -> Share:
    """Returns an argument such as ``host=(0, 2)`` as a share.

    Args:
        name: Name of the argument, for the message.
        value: Index and count.

    Raises:
        UsageError: It is not a pair of integers with 0 <= index < count.
    """
    try:
        index, count = map(operator.index, value)
    except (TypeError, ValueError):
        index = count = 0
    if not 0 <= index < count:
        raise UsageError(
            f"{name}={value!r} must be (index, count) with 0 <= index < count, as in {name}=(0, 2)."
        )
    return Share(index, count)


class UnknownHostError(UsageError):
    """A launcher started several processes, and the number of this one is not known yet."""


def find_host() -> Share:
    """Returns the share of this host in a distributed training job.

    The job is found from torch.distributed, JAX, TensorFlow's TF_CONFIG, or the variables RANK and
    WORLD_SIZE of torchrun. Without any of them this process reads everything.

    Raises:
        UnknownHostError: A launcher started several processes that none of these knows: each of
            them would read everything.
    """
    share = _from_torch() or _from_jax() or _from_tensorflow()
    if share is not None:
        return share
    rank, size, local = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if rank.isdecimal() and size.isdecimal() and int(rank) < int(size):
        return Share(int(rank), int(size))
    for launcher, (total, number) in _LAUNCHERS.items():
        tasks = os.environ.get(total, "")
        if tasks.isdecimal() and int(tasks) > 1 and number in os.environ:
            raise UnknownHostError(
                f"{launcher} started {tasks} tasks, and each would read the whole split: "
                "initialize torch.distributed or jax.distributed before reading, or give "
                "host=(index, count); host=(0, 1) reads everything."
            )
    if size.strip() != "1" and (size or local):
        raise UnknownHostError(
            f"WORLD_SIZE={size!r}, LOCAL_RANK={local!r} and RANK={rank!r} do not number this "
            "process, and each would read the whole split: initialize torch.distributed or "
            "jax.distributed before reading, or give host=(index, count); host=(0, 1) reads "
            "everything."
        )
    return Share(0, 1)


class HostFinder:
    """Finds the hosts of a stream: the given ones, else the hosts of the current training job.

    Args:
        given: Number of this host, and number of hosts; None to find them.
    """

    def __init__(self, given: tuple[int, int] | None) -> None:
        self._given = None if given is None else parse_share("host", given)
        self._job_share: Share | None = None  # in the process that made or pickled the stream
        self._is_divided = False  # by a prepared loader

    def find_host(self) -> Share:
        """Returns this host.

        Raises:
            UsageError: It is unknown; see ``find_host``.
        """
        self._is_divided = self._is_divided or find_loader().is_divided
        if self._is_divided and self._given is not None and self._given.count > 1:
            raise UsageError(
                "Accelerate divides the batches of a prepared DataLoader among the processes, and "
                f"host=({self._given.index}, {self._given.count}) does it too: omit host, or do "
                "not prepare the DataLoader."
            )
        if self._given is not None or self._is_divided:
            return self._given or Share(0, 1)
        if self._job_share is not None and find_worker() is not None:
            return self._job_share  # a spawned worker is not in the job
        share = find_host()
        self._job_share = share if share.count > 1 else None
        return share


def find_worker() -> Share | None:
    """Returns the share of this process if it is a worker of a torch DataLoader."""
    torch = sys.modules.get("torch.utils.data")  # every worker has imported it
    info = None if torch is None else torch.get_worker_info()
    if info is None:
        return None
    return Share(info.id, info.num_workers)


class DataLoaderOptions(NamedTuple):
    """Options of the DataLoader that reads a stream.

    Attributes:
        is_divided: Whether Accelerate divides the examples.
        batch_size: Its batch size; 0 without a loader, or if it makes no batches.
        in_order: Whether it yields the batches of its workers in turn.
        state: The state that torchdata's StatefulDataLoader restores, or empty.
    """

    is_divided: bool
    batch_size: int
    in_order: bool
    state: dict[str, Any]


def find_loader() -> DataLoaderOptions:
    """Returns options of the DataLoader that reads, if there is one.

    Accelerate divides the batches of one process among all, or skips the others' in each process.
    Nothing in the interfaces of both says so to the dataset, but the loader is on the stack
    whenever it asks for the length, sets an epoch, begins to read or starts a worker; a forked
    worker has it on its stack too.
    """
    data = sys.modules.get("torch.utils.data")
    frame = None if data is None else sys._getframe()  # noqa: SLF001
    divided, batch, in_order, state = False, 0, True, dict[str, Any]()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        divided = divided or module == "accelerate.data_loader"
        if module.startswith(("torch.", "torchdata.", "accelerate.")):
            loader = frame.f_locals.get("self")
            batch = batch or _batch_of(loader, data)
            in_order = in_order and getattr(loader, "in_order", True)
            state = state or getattr(loader, "next_iter_state", None) or {}
        frame = frame.f_back
    return DataLoaderOptions(divided, batch, in_order, state)


def _batch_of(loader: Any, data: Any) -> int:
    if type(loader).__name__ == "IterableDatasetShard":  # of Accelerate: it skips within batches
        return int(loader.batch_size * (1 if loader.split_batches else loader.num_processes))
    if isinstance(loader, data.DataLoader):
        return loader.batch_size or 0
    return 0


def _from_torch() -> Share | None:
    torch = sys.modules.get("torch.distributed")
    if torch is None or not torch.is_available() or not torch.is_initialized():
        return None
    return Share(torch.get_rank(), torch.get_world_size())


def _from_jax() -> Share | None:
    jax = sys.modules.get("jax")
    # JAX before 0.5 cannot be asked.
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", lambda: False)
    if jax is None or not is_initialized():
        return None
    return Share(jax.process_index(), jax.process_count())


def _from_tensorflow() -> Share | None:
    text = os.environ.get("TF_CONFIG", "").strip() or "{}"
    try:
        cluster, task = map(json.loads(text).get, ("cluster", "task"))
        if not cluster or task["type"] not in ("chief", "worker"):
            return None
        sizes = [(name, len(cluster.get(name, ()))) for name in ("chief", "worker")]
        tasks = [(name, index) for name, size in sizes for index in range(size)]
        return Share(tasks.index((task["type"], int(task["index"]))), len(tasks))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownHostError(
            f"TF_CONFIG={text!r:.120} does not give a cluster and one of its tasks: repair it, or "
            "give host=(index, count); host=(0, 1) reads everything."
        ) from error
