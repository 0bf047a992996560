"""The number of parts and shards, and the parts of each shard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas import ShardTemplate, Splits
from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE
from shardmill.transforms import PlaceSpec, ShardSpec, SinkSpec
from shardmill.transforms.sink.placement import (
    PART_BYTES,
    PART_INPUT_BYTES,
    PART_REFS,
    Series,
    count_parts,
    count_shards,
    deal_parts,
    plan_parts,
)
from shardmill.transforms.sink.plan import Plan, decide_status

TEMPLATE = ShardTemplate(DEFAULT_TEMPLATE)
counts = st.integers(0, 10**8)


def spec(**kwargs) -> ShardSpec:
    return ShardSpec(TEMPLATE, **kwargs)


sizes = st.integers(0, 10**13)


@given(counts, sizes, sizes, st.none() | st.integers(1, 5_000))
def test_parts_are_small_and_few(refs, size, read, num_shards) -> None:
    parts = count_parts(refs, size, spec(num_shards=num_shards), input_bytes=read)
    needed = (-(-refs // PART_REFS), -(-size // PART_BYTES), -(-read // PART_INPUT_BYTES))
    assert parts >= max(needed)
    wanted = max(1, num_shards or 1, *needed)
    assert parts < 2 * wanted or parts == (num_shards or 1)
    if num_shards:
        assert parts % num_shards == 0


def test_few_more_inputs_rarely_change_the_number_of_parts() -> None:
    changes = sum(
        count_parts(n, 0, spec()) != count_parts(n + 1, 0, spec()) for n in range(1, 100_000)
    )
    assert changes < 10


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.integers(1, 250))
def test_each_part_belongs_to_one_shard_in_order(sizes: list[int], shards: int) -> None:
    ranges = deal_parts(sizes, min(shards, len(sizes)))
    assert [n for r in ranges for n in r] == list(range(len(sizes)))
    assert all(ranges)
    assert len(ranges) <= shards


def test_shards_have_about_the_requested_size() -> None:
    sizes = [1_000_000 + 1_000 * (i % 7) for i in range(64)]
    wanted = spec(shard_bytes=8_000_000)
    shards = count_shards(wanted, 0, sum(sizes), len(sizes))
    made = [sum(sizes[n] for n in r) for r in deal_parts(sizes, shards)]
    assert len(made) == 8
    assert all(0.8 < size / 8_000_000 < 1.2 for size in made)


@pytest.mark.parametrize(
    ("each", "parts", "seconds"),
    [(65_000, 16, 1.3e-3), (1_000_000, 32, 0.15), (4_000_000, 128, 0.2), (12_000_000, 256, 0.5)],
)
def test_a_part_of_ordinary_photos_takes_less_than_a_minute(each, parts, seconds) -> None:
    """Small photos are divided by their number, and photos of a camera by their bytes too."""
    photos = 10_000
    (planned,) = plan_parts({Series("train", ""): (photos, photos * each)}, 30_000, spec()).values()
    assert planned == parts
    mean = photos / planned
    largest = mean + 4 * mean**0.5  # a hash spreads the photos
    assert largest * seconds < 60


def test_a_build_has_a_limited_number_of_parts(tmp_path) -> None:
    """10 GB in shards of 1 KiB would be 40 million parts; as many in shards of 1 MiB are fine."""
    series = {Series("train", ""): (1_000, 10**10)}
    for size, status in ((1024, "failed"), (1 << 20, "build")):
        shards = spec(shard_bytes=size)
        sink = SinkSpec(str(tmp_path / "ds"), "id", PlaceSpec(Splits.parse(None)), shards)
        plan = decide_status(sink, Plan("build", parts=plan_parts(series, None, shards)))
        wanted = "67,108,864 parts, more than 2,097,152: raise --shard_bytes"
        assert (plan.status, wanted in plan.message) == (status, status == "failed")
