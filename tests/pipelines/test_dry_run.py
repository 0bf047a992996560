"""``--dry_run`` estimates the size and the time of a build, and writes nothing."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from shardmill.pipelines import cli
from shardmill.schemas.dataset.splits import Splits
from shardmill.transforms.sink import estimate
from shardmill.transforms.sink.division import ShardSpec
from shardmill.transforms.sink.encoder import Example
from shardmill.transforms.sink.estimate import BuildSample, add_estimate
from shardmill.transforms.sink.outcome import Outcome
from shardmill.transforms.sink.placement import PlaceSpec
from shardmill.transforms.sink.spec import SinkSpec
from tests.conftest import make_photos
from tests.support.rows_tools import make_table


def photos(folder) -> str:
    make_photos(folder / "in" / "a", {"cat": 40, "dog": 20})
    make_photos(folder / "in" / "b", {"owl": 12}, size=(300, 200))
    (folder / "in" / "b" / "owl" / "bad.jpg").write_bytes(b"\xff\xd8\xff no image")
    return str(folder / "in")


def rows(folder) -> str:
    random = np.random.default_rng(5)
    lines = zip(random.normal(size=9_000), random.choice(["Bern", "Genf"], 9_000), strict=True)
    make_table(folder / "in.csv", ["id", "x", "city"], [(n, *line) for n, line in enumerate(lines)])
    return str(folder / "in.csv")


def compressed(folder) -> str:
    (folder / "in.csv.gz").write_bytes(gzip.compress(Path(rows(folder)).read_bytes()))
    return str(folder / "in.csv.gz")


def arrays(folder) -> str:
    values = np.random.default_rng(6).integers(0, 9, (3_000, 20, 20))
    np.savez(folder / "in.npz", x=values, y=np.array(["no", "yes"])[values[:, 0, 0] % 2])
    return str(folder / "in.npz")


def answer(capsys, *flags: str) -> dict:
    assert cli.main([*flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("kind", "make", "flags"),
    [
        ("images", photos, ["--max_reject_fraction=0.5", "--num_shards=3"]),
        ("images", photos, ["--max_reject_fraction=0.5", "--image_size=32", "--encoding=png"]),
        ("rows", rows, ["--shard_bytes=100KiB"]),
        ("rows", rows, ["--compression=none"]),
        ("rows", compressed, []),
        ("arrays", arrays, ["--splits=train:0.5,test:0.5"]),
    ],
)
def test_the_estimate_is_near_the_dataset(kind, make, flags, tmp_path, capsys) -> None:
    """Within a factor of two; the estimated time is not compared, which depends on the load."""
    command = [kind, make(tmp_path), str(tmp_path / "ds"), *flags]
    before = sorted(tmp_path.rglob("*"))
    planned = answer(capsys, *command, "--dry_run")
    assert sorted(tmp_path.rglob("*")) == before
    answer(capsys, *command)
    manifest = json.loads((tmp_path / "ds" / "manifest.json").read_text())
    splits = manifest["splits"].values()
    size = sum(split["num_bytes"] for split in splits)
    shards = sum(len(split["shards"]) for split in splits)
    found = planned["estimate"]
    assert size / 2 < found["num_bytes"] < size * 2
    assert shards / 2 <= found["num_shards"] <= shards * 2
    assert 0 < found["seconds"] < 600
    assert planned["labels"] == manifest["labels"]


def test_prints_labels_size_and_time(tmp_path, capsys) -> None:
    assert cli.main(["images", photos(tmp_path), str(tmp_path / "ds"), "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "\n  labels     3: cat, dog, owl\n" in out
    assert "KiB in 2 shards\n" in out
    assert " on " in out.split("\n  time       about ")[1].splitlines()[0]


def test_warns_of_rejects_in_the_sample(tmp_path, capsys) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "in" / "a" / f"{number}.jpg").write_text("not a photo")
    flags = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'ds'}", "--dry_run"]
    body = answer(capsys, "images", *flags)
    assert body["estimate"] == {}
    assert body["message"].startswith("3 of 3 sampled inputs would be rejected, such as a/")
    assert body["message"].endswith(".jpg (not_an_image)")


def test_splits_that_rows_name_have_no_number_of_shards(tmp_path, capsys) -> None:
    make_table(
        tmp_path / "in.csv", ["id", "split"], [(n, "test" if n % 3 else "train") for n in range(9)]
    )
    flags = [
        "rows",
        str(tmp_path / "in.csv"),
        str(tmp_path / "ds"),
        "--split_by=split",
        "--dry_run",
    ]
    assert answer(capsys, *flags)["estimate"]["num_shards"] == 0
    assert cli.main(flags) == 0
    assert " B\n  time " in capsys.readouterr().out


def sink(shards: ShardSpec = ShardSpec()) -> SinkSpec:  # noqa: B008 - it is frozen
    return SinkSpec("", "", PlaceSpec(Splits.parse(None)), shards, "none")


def test_the_time_is_divided_among_the_workers(monkeypatch) -> None:
    monkeypatch.setattr(estimate, "usable_cores", lambda: 4)
    clock = [100.0]
    monkeypatch.setattr(estimate.time, "monotonic", lambda: clock[0])
    planned = Outcome("dry_run", series=(("train", "", 10, 1000, 2), ("test", "", 5, 500, 1)))

    def encode():
        clock[0] += 0.2
        return [Example(b"x" * 100)] * 3

    def seconds(workers: int) -> float:
        take = lambda _: BuildSample(encode, 15, workers)  # noqa: E731
        found = add_estimate(planned, sink(ShardSpec(shard_examples=4)), take).estimate
        # 15 records of 116 bytes; 10 of them in shards of 4, as far as two parts make them.
        assert (found["num_bytes"], found["num_shards"], found["cores"]) == (15 * 116, 3, 4)
        return found["seconds"]

    one = seconds(1)
    assert one >= 1
    # More workers than cores are not faster.
    assert [seconds(n) for n in (2, 4, 9)] == pytest.approx([one / 2, one / 4, one / 4])


def test_other_outcomes_are_not_estimated() -> None:
    failed = Outcome("failed", "why")
    assert add_estimate(failed, sink(), lambda _: pytest.fail("took a sample")) is failed
