"""Placement is stable: the golden values must never change."""

import hashlib
from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas import InputRef, Splits
from shardmill.transforms import PlaceSpec
from shardmill.transforms.sink.placement import hash_key, part_of

SPLITS = Splits.parse("train:0.9,validation:0.1")


def golden(seed: int, key: str) -> tuple[int, int]:
    """Return the hash by its definition in docs/labels-and-splits.md."""
    raw = hashlib.blake2b(
        key.encode("utf-8"),
        digest_size=16,
        salt=seed.to_bytes(16, "little"),
        person=b"shardmill-place",
    ).digest()
    return int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:], "big")


GOLDENS = {
    (0, ""): (0xFE8453760DDB91B3, 0x429B22EA0BD602B9),
    (0, "cat/1.jpg"): (0x34A71BE8B2D833A5, 0xA2132F2A7B204A92),
    (0, "caf\u00e9/\u7332.jpg"): (0x5090517868041EE0, 0x16694EACD8FDD05B),
    (7, "cat/1.jpg"): (0x961B6DBF9D4DD884, 0x3C6A3A5E94AE5DDE),
}


@pytest.mark.parametrize(("seed", "key"), list(GOLDENS))
def test_hashes_are_stable(seed: int, key: str) -> None:
    assert tuple(hash_key(seed, key)) == GOLDENS[seed, key] == golden(seed, key)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 2**64 - 1))
def test_bounds_of_splits_are_exact(weights: list[int], hashed: int) -> None:
    total = sum(weights)
    shares = ",".join(f"s{i}:{w}/{total}" for i, w in enumerate(weights))
    splits = Splits.parse(shares)
    # By definition, the first split whose upper bound exceeds the hash.
    bounds = list(accumulate(share for _, share in splits.shares))
    wanted = next(i for i, bound in enumerate(bounds) if Fraction(hashed, 2**64) < bound)
    assert splits.of_hash(hashed) == f"s{wanted}"


@pytest.mark.parametrize(
    ("pattern", "key", "group"),
    [
        (r"patient(\d+)", "a/patient12_3.png", "12"),
        (r"(?P<group>[^/]+)_\d+\.png", "a/x_3.png", "x"),
        (r"^[^_]+", "a/x_3.png", "a/x"),
        (r"patient(\d+)", "a/other.png", "a/other.png"),
    ],
)
def test_examples_of_a_group_share_a_split(pattern: str, key: str, group: str) -> None:
    spec = PlaceSpec(SPLITS, group_pattern=pattern)
    ref = InputRef(key, "")
    assert spec.group_of(ref) == group
    assert spec.with_split(ref).split == SPLITS.of_hash(hash_key(0, group).split)
    # The position depends on the key, so a group is spread over the shards of its split.
    assert spec.position_of(ref) == hash_key(0, key).position


@pytest.mark.parametrize(
    ("key", "split"),
    [
        ("train/a.jpg", "train"),
        ("Val/x/a.jpg", "validation"),
        ("dev/a", "validation"),
        ("valid/a", "validation"),
        ("testing/a", "test"),
    ],
)
def test_splits_of_folders(key: str, split: str) -> None:
    assert PlaceSpec(Splits("directory")).with_split(InputRef(key, "")).split == split


@pytest.mark.parametrize("key", ["a.jpg", "train.jpg", "cats/a.jpg", "x/train/a.jpg"])
def test_rejects_folders_without_a_split(key: str) -> None:
    assert PlaceSpec(Splits("directory")).with_split(InputRef(key, "")).error == "no_split"


def test_splits_of_listings() -> None:
    spec = PlaceSpec(Splits("listing"))
    assert spec.with_split(InputRef("a", "", split="val")).split == "validation"
    assert spec.with_split(InputRef("a", "", split="holdout")).split == "holdout"
    assert spec.with_split(InputRef("a", "", split="")).error == "no_split"
    assert spec.with_split(InputRef("a", "", split="../x")).error == "no_split"


@given(st.integers(0, 2**64 - 1), st.integers(1, 100_000))
def test_parts_are_equal_slices(position: int, parts: int) -> None:
    part = part_of(position, parts)
    assert 0 <= part < parts
    assert Fraction(part, parts) <= Fraction(position, 2**64) < Fraction(part + 1, parts)
