"""``shardmill check``: each rule, its messages, and start-up time."""

import datetime as dt
import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.pipelines.limits import Rules, judge_manifest, parse_time
from shardmill.schemas.dataset.manifest import Manifest
from tests.conftest import examples
from tests.pipelines.commands.test_steps import make
from tests.support.publications import numbered_body

UTC = dt.timezone.utc
NOW = dt.datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
FINISHED = "2026-11-20T02:00:00+00:00"  # 28 hours before


def changed(**changes: object) -> Manifest:
    """Return a manifest of 17 training and 6 validation examples, with changes to its JSON."""
    found = numbered_body({"train": [5, 12], "validation": [6], "test": []})
    found["build"]["finished"] = FINISHED
    found["inputs"] |= {"matched": 25, "accepted": 23, "rejected": 2}
    found["inputs"]["rejected_by_reason"] = {"not_image": 2}
    for path, value in changes.items():
        place = found
        *above, last = path.split("__")
        for step in above:
            place = place[step]
        place[last] = value
    return Manifest.from_json(json.dumps(found))


def broken(manifest: Manifest, counted: Manifest | None = None, **rules: str) -> list[str]:
    verdicts = judge_manifest(manifest, Rules(**rules), NOW, counted)
    return [f"{verdict.line}: {verdict.remedy}" for verdict in verdicts if verdict.fails]


# The rule that depends on the time of day: values that just hold, and others that just fail.
TABLE = [
    ({}, {"max_age": "28h"}, ""),
    (
        {},
        {"max_age": "100799s"},
        "finished 28 hours ago, at 2026-11-20T02:00:00+00:00, longer ago than max_age=100799s",
    ),
    ({}, {"max_age": "1d"}, "finished 28 hours ago"),
    ({"build__finished": "2026-11-21T06:04:00+00:00"}, {"max_age": "0"}, ""),
    (
        {"build__finished": "2026-11-21T06:06:00+00:00"},
        {"max_age": "9999d"},
        "which is in the future",
    ),
    ({"build__finished": "2026-11-21T07:30:00+02:00"}, {"max_age": "30m"}, ""),
    (
        {"build__finished": "2026-11-21T07:30:00+02:00"},
        {"max_age": "29m"},
        "finished 30 minutes ago",
    ),
    (
        {"build__finished": "2026-11-21T05:30:00"},
        {"max_age": "2d"},
        "which is not a time with a time zone: build it again",
    ),
    (
        {"build__finished": ""},
        {"max_age": "2d"},
        "the manifest has finished '', which is not a time",
    ),
]


@pytest.mark.parametrize(("changes", "rules", "message"), TABLE, ids=str)
def test_the_age_at_its_limit(changes, rules, message):
    found = broken(changed(**changes), **rules)
    assert len(found) == bool(message)
    assert message in "".join(found)


@given(
    st.lists(st.integers(0, 50), max_size=4),
    st.integers(0, 200),
    st.integers(0, 300),
    st.integers(0, 40),
    st.integers(0, 400),
    st.fractions(0, 1, max_denominator=50),
)
@settings(max_examples=examples(300))
def test_rules_match_an_independent_computation(records, fewest, age, rejected, accepted, share):
    manifest = make({"train": records})
    object.__setattr__(manifest.build, "finished", (NOW - dt.timedelta(minutes=age)).isoformat())
    for name, value in (("rejected", rejected), ("accepted", accepted)):
        object.__setattr__(manifest.inputs, name, value)
    rules = {
        "min_examples": f"train:{fewest}",
        "max_age": "100m",
        "max_reject_fraction": str(share),
    }
    found = broken(manifest, **rules)
    wanted = [
        not sum(records),
        sum(records) < fewest,
        age > 100,
        rejected > 1 and rejected > (rejected + accepted) * Fraction(share),
    ]
    assert len(found) == sum(wanted)
    for wrong, words in zip(
        wanted, ("0 examples in", "train has", "was finished", "were rejected"), strict=True
    ):
        assert any(words in line for line in found) >= wrong


OFFSETS = st.integers(-1439, 1439).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))


@given(st.datetimes(timezones=OFFSETS))
def test_parses_times_with_time_zones(moment):
    assert parse_time(moment.isoformat()) == moment
    assert parse_time(moment.replace(tzinfo=None).isoformat()) is None
    assert parse_time(moment.replace(tzinfo=None).isoformat() + "Z") == moment.replace(tzinfo=UTC)
