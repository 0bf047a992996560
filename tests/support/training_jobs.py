"""Hosts and workers that read one dataset together, in one process."""

import itertools

from shardmill.loaders import Stream


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
