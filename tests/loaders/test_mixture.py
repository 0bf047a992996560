"""The turns of the datasets of a mix: a pure function of the number of an example."""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.loaders.mixture import MAX_PERIOD, Mixture

WEIGHTS = st.lists(st.integers(1, 120), min_size=1, max_size=9).map(tuple)


def draws_of(weights, examples: int) -> list[tuple[int, int]]:
    datasets, draws = Mixture(weights).at(np.arange(examples))
    return list(zip(datasets.tolist(), draws.tolist(), strict=True))


@given(WEIGHTS, st.integers(0, 10**12))
def test_counts_at_and_number_of_agree_anywhere(weights, number) -> None:
    mixture = Mixture(weights)
    datasets, draws = mixture.at(np.array([number]))
    dataset, draw = int(datasets[0]), int(draws[0])
    assert mixture.number_of(dataset, draw) == number
    before, after = mixture.counts(number), mixture.counts(number + 1)
    assert before[dataset] == draw
    assert sum(before) == number
    assert [b - a for a, b in zip(before, after, strict=True)] == [
        int(at == dataset) for at in range(len(weights))
    ]


def test_two_datasets_take_the_turns_that_a_reader_expects() -> None:
    assert [dataset for dataset, _ in draws_of((3, 1), 8)] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert draws_of((300, 100), 8) == draws_of((3, 1), 8)
    assert draws_of((5,), 3) == [(0, 0), (0, 1), (0, 2)]


def test_a_far_example_takes_less_than_a_millisecond() -> None:
    mixture = Mixture((MAX_PERIOD - 1000, 700, 299, 1))
    mixture.at(np.array([0]))  # makes the table
    times = []
    for number in range(10**9, 10**9 + 20):
        begin = time.perf_counter()
        mixture.at(np.array([number]))
        times.append(time.perf_counter() - begin)
    assert min(times) < 1e-3
