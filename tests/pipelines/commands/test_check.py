"""``shardmill check``: each rule, its messages, and start-up time."""

import datetime as dt
import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.pipelines import cli
from shardmill.pipelines.manifest_rules import Rules, judge, parse_time
from shardmill.schemas.dataset.manifest import Manifest
from tests.conftest import build_dataset, examples, make_photos
from tests.pipelines.commands.test_steps import body, make
from tests.support.fault_tools import sentence_here
from tests.support.rows_tools import run_here

UTC = dt.timezone.utc
NOW = dt.datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
FINISHED = "2026-11-20T02:00:00+00:00"  # 28 hours before


def changed(**changes: object) -> Manifest:
    """Return a manifest of 17 training and 6 validation examples, with changes to its JSON."""
    found = body({"train": [5, 12], "validation": [6], "test": []})
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


def counts(**changes: object) -> Manifest:
    count = {"root": "/data/ds", "build__config": {"pipeline": "count", "check": "records"}}
    return changed(**{**count, **changes})


def broken(manifest: Manifest, counted: Manifest | None = None, **rules: str) -> list[str]:
    verdicts = judge(manifest, Rules(**rules), NOW, counted)
    return [f"{each.line}: {each.remedy}" for each in verdicts if not each.holds]


# Each rule with a value that just holds, and one that just fails.
TABLE = [
    ({}, {}, ""),
    ({}, {"min_examples": "23"}, ""),
    ({}, {"min_examples": "24"}, "all splits have 23 examples, fewer than --min_examples=24 asks"),
    ({}, {"min_examples": "train:17,validation:6,test:0"}, ""),
    (
        {},
        {"min_examples": "train:18,validation:6"},
        "train has 17 examples, fewer than --min_examples=train:18",
    ),
    ({}, {"min_examples": "train:17, validation:7"}, "validation has 6 examples, fewer than"),
    ({}, {"min_examples": "test:1"}, "test has 0 examples, fewer than"),
    (
        {},
        {"min_examples": "dev:1"},
        "--min_examples=dev:1 names a split that does not exist: it has train, validation, test",
    ),
    ({}, {"max_age": "28h"}, ""),
    (
        {},
        {"max_age": "100799s"},
        "finished 28 hours ago, at 2026-11-20T02:00:00+00:00, longer ago than --max_age=100799s",
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
    (
        {"build__finished": None},
        {"finished_after": "2026-11-20T00:00:00Z"},
        "not a time with a time zone",
    ),
    ({}, {"finished_after": "2026-11-20T02:00:00Z"}, ""),
    ({}, {"finished_after": "2026-11-20T03:00:00+01:00"}, ""),
    (
        {},
        {"finished_after": "2026-11-20T02:00:01+00:00"},
        "so inputs may have been added since: build it again",
    ),
    ({}, {"finished_after": "2026-11-20T02:59:00+01:00"}, ""),
    ({}, {"max_reject_fraction": "0.08"}, ""),
    (
        {},
        {"max_reject_fraction": "0.0799"},
        "2 of 25 inputs were rejected (not_image 2), more than --max_reject_fraction=0.0799",
    ),
    ({"inputs__rejected": 1}, {"max_reject_fraction": "0"}, ""),
]


@pytest.mark.parametrize(("changes", "rules", "message"), TABLE, ids=str)
def test_each_rule_at_its_limit(changes, rules, message):
    found = broken(changed(**changes), **rules)
    assert len(found) == bool(message)
    assert message in "".join(found)


def test_rejects_an_empty_dataset() -> None:
    found = broken(make({"train": [], "validation": [0]}))
    assert found == ["0 examples in 1 shard: build it from inputs that are not empty"]


SHARD = {"file": "train-0", "records": 5, "bytes": 0, "crc32c": "00000000"}
DIFFERENT = [
    ({"splits__train__shards": [SHARD]}, "train-1 was not counted"),
    (
        {
            "splits__extra": {
                "num_examples": 5,
                "num_bytes": 0,
                "label_counts": {},
                "shards": [SHARD | {"file": "x"}],
            }
        },
        "x was counted, and is not in the manifest",
    ),
    (
        {"splits__train__shards": [SHARD | {"records": 4}, SHARD]},
        "train-0 has 5 records in the manifest, and 4 were counted",
    ),
    (
        {"splits__train__shards": [SHARD | {"bytes": 9}, SHARD]},
        "train-0 has 0 bytes in the manifest, and 9 were counted",
    ),
    (
        {"splits__train__shards": [SHARD | {"crc32c": "00000001"}, SHARD]},
        "train-0 has the CRC-32C 00000000 in the manifest, and 00000001 was counted",
    ),
    (
        {
            "damaged": [
                {
                    "file": "train-9",
                    "bytes": 1,
                    "reason": "truncated",
                    "record": 1,
                    "offset": 2,
                    "message": "it ends",
                }
            ]
            * 3
        },
        "train-9 is damaged: it ends (2 more are damaged)",
    ),
]


@pytest.mark.parametrize(("changes", "message"), DIFFERENT, ids=lambda value: str(value)[:30])
def test_reports_a_difference_from_the_count(changes, message):
    if "splits__train__shards" in changes and len(changes["splits__train__shards"]) == 2:
        changes["splits__train__shards"][1] = SHARD | {"file": "train-1", "records": 12}
    (found,) = broken(changed(), counts(**changes))
    assert message in found


def test_accepts_an_equal_count() -> None:
    assert broken(changed(), counts()) == []
    unread = counts()
    for split in unread.splits.values():
        for shard in split.shards:
            object.__setattr__(shard, "crc32c", None)  # count --check=index
    assert broken(changed(), unread) == []
    # A split without shards is in no count; a file that is read as another split's is a fault.
    renamed = counts()
    del renamed.splits["test"]
    assert broken(changed(), renamed) == []
    renamed.splits["all"] = renamed.splits.pop("validation")
    assert (
        "of the split validation in the manifest, and was counted as all"
        in broken(changed(), renamed)[0]
    )


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


# The command.


@pytest.fixture
def ds(tmp_path) -> Path:
    found = body({"train": [5, 12], "validation": [6]})
    found["build"]["finished"] = FINISHED
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "manifest.json").write_text(json.dumps(found))
    return tmp_path / "ds"


def test_prints_one_line_per_rule(ds, capsys):
    flags = ["--min_examples=train:17,validation:1", "--finished_after=2026-11-20T00:00:00Z"]
    code, out, err = run_here(capsys, "check", ds, *flags, "--max_reject_fraction=0")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"Checked {ds}",
        "  ok     23 examples in 3 shards",
        "  ok     train has 17 examples, 17 are enough",
        "  ok     validation has 6 examples, 1 are enough",
        "  ok     finished at 2026-11-20T02:00:00+00:00, not before 2026-11-20T00:00:00Z",
        "  ok     0 of 0 inputs were rejected, at most 0 of them",
    ]


def test_reports_broken_rules_in_one_sentence(ds, capsys):
    code, out, err = run_here(
        capsys, "check", ds, "--min_examples=100", "--max_age=1h", "--max_reject_fraction=0"
    )
    assert code == 1
    assert [line[:9] for line in out.splitlines()[1:]] == [
        "  ok     ",
        "  fault  ",
        "  fault  ",
        "  ok     ",
    ]
    assert err == (
        f"shardmill: {ds}: all splits have 23 examples, fewer than --min_examples=100 asks for: check "
        "whether inputs are missing and build again, or ask for fewer (1 more of the rules are "
        "broken).\n"
    )


USAGE = [
    "--min_examples=many",
    "--min_examples=-1",
    "--min_examples=1.5",
    "--min_examples=train",
    "--min_examples=train:",
    "--min_examples=:5",
    "--min_examples=train:1,train:2",
    "--min_examples=train:1,",
    "--min_examples=train:x",
    "--min_examples=\u0663",
    "--max_age=26",
    "--max_age=a day",
    "--max_age=-1h",
    "--finished_after=2026-11-20",
    "--finished_after=yesterday",
    "--finished_after=2026-11-20T00:00:00",
    "--finished_after=2026-13-20T00:00:00Z",
    "--max_reject_fraction=2",
    "--max_reject_fraction=-0.1",
    "--max_reject_fraction=nan",
    "--max_reject_fraction=5%",
    "--max_reject_fraction=1/0",
    "--min_example=3",
    "--max_ag=1h",
]


@pytest.mark.parametrize("flag", USAGE)
def test_rejects_malformed_flags_in_one_sentence(flag, ds, capsys):
    assert flag.partition("=")[0] in sentence_here(capsys, "check", ds, flag)


def test_rejects_build_rules_for_a_count(ds, capsys):
    found = json.loads((ds / "manifest.json").read_text())
    (ds / "manifest.json").rename(ds / "dataset.json")
    found["build"]["config"] = {"pipeline": "count"}
    (ds / "manifest.json").write_text(json.dumps(found | {"root": str(ds)}))
    assert run_here(capsys, "check", ds, "--min_examples=train:17")[0] == 0
    for flag in (
        "--max_age=9999d",
        "--finished_after=2026-11-20T00:00:00Z",
        "--max_reject_fraction=1",
        f"--counted={ds}/manifest.json",
    ):
        said = sentence_here(capsys, "check", ds, flag)
        assert "is the manifest of a count: give the folder of the dataset." in said
    said = sentence_here(capsys, "check", ds / "dataset.json", f"--counted={ds}/dataset.json")
    assert "is the manifest of a dataset, not of a count" in said
    damaged = {
        "file": "b",
        "bytes": 1,
        "reason": "empty",
        "record": 0,
        "offset": 0,
        "message": "it is empty",
    }
    (ds / "manifest.json").write_text(json.dumps(found | {"root": str(ds), "damaged": [damaged]}))
    code, _, err = run_here(capsys, "check", ds)
    assert code == 1
    assert "b is damaged: it is empty: restore it" in err


def test_checks_a_built_and_counted_dataset(tmp_path, capsys):
    make_photos(tmp_path / "in", {"a": 9, "b": 12}, size=(20, 16))
    (tmp_path / "in" / "a" / "bad.jpg").write_text("none")
    build_dataset(
        input=tmp_path / "in",
        output=tmp_path / "ds",
        image_size="16",
        num_shards=3,
        splits="train:0.7,test:0.3",
    )
    counted = tmp_path / "counted.json"
    assert cli.main(["count", f"--input={tmp_path}/ds", f"--manifest={counted}"]) == 0
    capsys.readouterr()
    flags = ["--max_age=1h", f"--counted={counted}", "--min_examples=train:10,test:1"]
    code, out, err = run_here(
        capsys, "check", tmp_path / "ds", *flags, "--max_reject_fraction=0.01"
    )
    assert (code, err) == (0, "")
    assert "  ok     the count found the same 21 records in 6 files\n" in out
    assert "  ok     1 of 22 inputs were rejected, at most 0.01 of them\n" in out
