"""The turns of the datasets of a mix: a pure function of the number of an example."""

import time
from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.loaders.mixture import MAX_PERIOD, Mixture

WEIGHTS = st.lists(st.integers(1, 120), min_size=1, max_size=9).map(tuple)


def draws_of(weights, examples: int) -> list[tuple[int, int]]:
    datasets, draws = Mixture(weights).at(np.arange(examples))
    return list(zip(datasets.tolist(), draws.tolist(), strict=True))


@given(WEIGHTS)
def test_each_prefix_is_within_one_example_of_the_weights(weights) -> None:
    total, counts = sum(weights), Counter()
    for number, (dataset, draw) in enumerate(draws_of(weights, 2 * total + 3), 1):
        assert draw == counts[dataset]
        counts[dataset] += 1
        for at, weight in enumerate(weights):
            assert abs(counts[at] - Fraction(number * weight, total)) < 1


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


@given(WEIGHTS, st.data())
def test_the_lengths_of_an_epoch(weights, data) -> None:
    """Judged by a loop over the turns."""
    sizes = [data.draw(st.integers(1, 40)) for _ in weights]
    mixture, counts, first, whole = Mixture(weights), Counter(), None, None
    number = 0
    while whole is None or first is None:
        dataset = int(mixture.at(np.array([number]))[0][0])
        if counts[dataset] == sizes[dataset] and first is None:
            first = number
        counts[dataset] += 1
        number += 1
        if whole is None and all(counts[at] >= size for at, size in enumerate(sizes)):
            whole = number
    assert mixture.length(sizes, "first") == first
    assert mixture.length(sizes, "all") == whole
    assert mixture.length(sizes, 17) == 17


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
