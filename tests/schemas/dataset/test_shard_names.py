"""Shard names: patterns, and names that are safe on every file system."""

import datetime as dt
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardmill.schemas import ShardTemplate
from shardmill.schemas.dataset.shard_names import (
    DEFAULT_TEMPLATE,
    check_file_names,
    is_generation,
    new_generation,
    quote_label,
)
from shardmill.schemas.errors import OutputError


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


def test_names_that_one_disk_could_not_hold_together() -> None:
    """Such as those of macOS and Windows, which ignore case and the form of Unicode text."""
    check_file_names(["train-a.gz", "train-b.gz", "validation-\u00e9.gz", "ss.gz"])
    for names in (
        ["US.gz", "us.gz"],
        ["e\u0301.gz", "\u00e9.gz"],
        ["E\u0301.gz", "\u00e9.gz"],
        ["stra\u00dfe.gz", "STRASSE.gz"],
        ["x.gz", "Labels.TXT"],
        ["manifest.json"],
        ["a.gz", "b.gz", "a.gz"],
        ["a", "a.gz"],
        ["a.tfrecord", "A.tfrecord.gz"],
    ):
        with pytest.raises(OutputError, match="would be one file on disks that ignore case"):
            check_file_names(names)
    for name in ("con", "NUL.gz", "Com1.tfrecord.gz", "aux.a.b"):
        with pytest.raises(OutputError, match="name of a device on Windows"):
            check_file_names([name])
    check_file_names(["conference.gz", "com10.gz", "a" * 243 + ".tfrecord.gz", "labels.txt.gz"])
    with pytest.raises(OutputError, match="a name of 263 bytes"):  # of its catalog
        check_file_names(["a" * 255])
    with pytest.raises(OutputError, match="a name of 256 bytes, and file systems allow 255"):
        check_file_names(["a" * 250 + "\u00e9\u00e9\u00e9"])


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
