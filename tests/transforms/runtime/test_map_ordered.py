"""Ordered calls on threads: order of results, errors, and number of pending calls."""

import threading
import time

import apache_beam as beam
import pytest
from apache_beam.pvalue import AsSingleton
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from shardmill.schemas.storage.base import map_ordered, storage_threads
from shardmill.transforms.runtime import beam_steps
from shardmill.transforms.runtime.beam_steps import MapOrdered


@pytest.mark.parametrize(
    ("path", "threads"), [("gs://bucket/ds", 16), ("/data/ds", 0), ("s3://bucket/ds", 16)]
)
def test_threads_of_storages(path, threads) -> None:
    assert storage_threads(path) == threads


@pytest.mark.parametrize("threads", [0, 1, 16])
def test_results_and_errors_are_in_the_order_of_items(threads) -> None:
    names = set()
    barrier = threading.Barrier(threads or 1)

    def call(number: int) -> int:
        names.add(threading.current_thread().name)
        if number < threads:
            barrier.wait(60)  # all threads work at the same time
        if number == 700:
            raise FileNotFoundError(number)
        return 2 * number

    assert list(map_ordered(call, range(600), threads)) == [2 * n for n in range(600)]
    assert (threading.current_thread().name in names) == (not threads)
    found = map_ordered(call, range(1_000), threads, window=64)
    assert [next(found) for _ in range(700)] == [2 * n for n in range(700)]
    with pytest.raises(FileNotFoundError):
        next(found)
    assert list(map_ordered(call, [], threads)) == []


@pytest.mark.parametrize(
    ("options", "most"), [({"window": 5}, 5), ({"window": 99, "max_size": 30}, 3), ({}, 4)]
)
def test_read_ahead_is_limited(options, most) -> None:
    read = []

    def items():
        for number in range(40):
            read.append(number)
            yield number

    size_of = lambda number: 50 if number == 20 else 10  # noqa: E731 - item 20 is too large
    for taken, _ in enumerate(map_ordered(str, items(), 2, size_of=size_of, **options)):
        assert len(read) - taken <= most + 1  # one more is read to learn its size
    assert taken == 39


def test_closing_waits_for_running_calls() -> None:
    running = []

    def call(number: int) -> int:
        running.append(number)
        time.sleep(0.05)
        running.remove(number)
        return number

    found = map_ordered(call, range(100), 4)
    assert next(found) == 0
    found.close()
    assert not running


def test_do_fn_keeps_order_side_inputs_and_tags() -> None:
    def double(number: int, factor: int):
        time.sleep(0.02 if number == 0 else 0)  # later elements finish first
        yield number * factor
        if number % 2:
            yield beam.pvalue.TaggedOutput("odd", number)

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        factor = pipeline | "Factor" >> beam.Create([2])
        done = (
            pipeline
            | "One" >> beam.Create([0])
            | "Many" >> beam.FlatMap(lambda _: range(50))
            | beam.ParDo(MapOrdered(double, 4), AsSingleton(factor)).with_outputs("odd", main="all")
        )
        listed = done["all"] | beam.combiners.ToList()
        assert_that(listed, equal_to([[2 * n for n in range(50)]]), label="all")
        assert_that(done["odd"], equal_to([*range(1, 50, 2)]), label="odd")


def test_do_fn_counts_the_cores_of_the_machine_that_it_runs_on(monkeypatch) -> None:
    barrier = threading.Barrier(3)

    def wait(number: int):
        barrier.wait(10)
        yield number

    do_fn = MapOrdered(wait, 0)  # where the job is submitted
    monkeypatch.setattr(beam_steps, "usable_cores", lambda: 3)
    do_fn.setup()
    assert not [output for number in range(3) for output in do_fn.process(number)]
    assert [output.value for output in do_fn.finish_bundle()] == [0, 1, 2]
