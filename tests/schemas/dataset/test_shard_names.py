"""Shard names: patterns, and names that are safe on every file system."""

import datetime as dt
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardmill.schemas import ShardTemplate
from shardmill.schemas.dataset.shard_names import (
    DEFAULT_TEMPLATE,
    is_generation,
    new_generation,
    quote_label,
)


@given(st.text(max_size=20))
@example("..")
@example(".")
@example("../../etc/passwd")
@example("a\\b")
@example("a\0b")
def test_labels_are_distinct_and_cannot_leave_the_folder(label: str) -> None:
    quoted = quote_label(label)
    assert not {"/", "\\", "\0"} & set(quoted)
    assert not quoted.startswith(".")
    assert unquote(quoted) == label  # so labels have distinct names


def test_known_names() -> None:
    usual = ShardTemplate(DEFAULT_TEMPLATE)
    assert usual.format("train", 0, 8) == "train-00000-of-00008.tfrecord.gz"
    classic = ShardTemplate("cat_dog{index:02d}-{records}.tfrec")
    assert classic.format("train", 0, 8, 1250) == "cat_dog00-1250.tfrec"


@pytest.mark.parametrize("years", [-30, -1, 0, 1, 900])
def test_a_new_generation_sorts_after_all_others(years) -> None:
    """The clock may be behind those of other builders, or may have been set back."""
    now = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=365 * years)
    names = [f"gen-{now:%Y%m%dT}{time}Z-ffffffffffff" for time in ("000000", "235959", "999999")]
    for _ in range(20):
        names.append(new_generation(names))
        assert is_generation(names[-1])
        assert names[-1] == max(names)
    assert len({new_generation(names) for _ in range(100)}) == 100
    last = names[-1]
    for other in ("gen-1", last[:-1], f"{last}0", last.upper(), f"{last}\n", "", "current"):
        assert not is_generation(other)
