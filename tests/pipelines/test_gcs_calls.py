"""A build makes exactly the number of API calls that docs/gcs.md states."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from shardmill.schemas.storage.gcs import GcsStorage
from tests.conftest import ROOT
from tests.pipelines.test_images_gcs import command

pytest_plugins = ["tests.support.gcs_server", "tests.support.gcs_builds"]
pytestmark = pytest.mark.heavy

CLASS_A = {"upload", "compose", "rewrite", "list"}
CLASS_B = {"get", "download"}
FOLDERS = 2  # of the images


def table() -> dict[str, Counter[str]]:
    """Returns the page's table: what each thing costs, by class."""
    text = (ROOT / "docs" / "gcs.md").read_text().partition("| per |")[2]
    found = {}
    for name, *numbers in re.findall(
        r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE
    ):
        found[name] = Counter(dict(zip("ABD", map(int, numbers), strict=True)))
    assert len(found) == 10
    return found


def by_class(front) -> Counter[str]:
    found: Counter[str] = Counter()
    for kind, count in front.counts().items():
        found["A" if kind in CLASS_A else "B" if kind in CLASS_B else "D"] += count
    assert front.counts().keys() <= CLASS_A | CLASS_B | {"delete"}
    return found


def expected(**things: int) -> Counter[str]:
    costs = table()
    total: Counter[str] = Counter()
    for name, count in things.items():
        for cost, number in costs[name.replace("_", " ")].items():
            total[cost] += number * count
    return total


@pytest.mark.parametrize("pipeline", ["images", "rows"])
def test_a_build_makes_the_calls_that_the_page_says(pipeline, album, strict_bucket, front, capsys):
    inputs = f"{album.upload(strict_bucket)}/{pipeline}"
    for shards in (1, 3):
        output = f"{strict_bucket}/out{shards}"
        args = [pipeline, f"--input={inputs}", f"--output={output}", f"--num_shards={shards}"]
        args += ["--splits=train:0.8,validation:0.2"]
        args += ["--image_size=16"] if pipeline == "images" else ["--label=word"]
        front.calls.clear()
        code, said, _ = command(capsys, *args)
        assert code == 0
        found = by_class(front)
        tails = sum(c.kind == "upload" and c.name.endswith(".tail") for c in front.calls)
        made = {c.name for c in front.calls if c.kind == "upload" and c.name.endswith(".part")}
        parts = int(re.search(r"parts +(\d+)", said).group(1))
        assert len(made) == parts
        segments = sum(c.kind == "download" and c.name.endswith(".run") for c in front.calls)
        things = {"build": 1, "part": parts, "shard": 2 * shards, "empty_shard,_in_addition": tails}
        if pipeline == "images":
            things["image"] = 24
        else:
            things |= {"build_of_rows,_in_addition": 1, "CSV_file": 3, "segment_of_rows": segments}
        wanted = expected(**things)
        wanted["A"] += FOLDERS if pipeline == "images" else 0
        print(pipeline, shards, dict(found), dict(wanted), things)
        assert found == wanted
        front.calls.clear()
        assert command(capsys, *args)[1].endswith("is up to date: nothing was written.\n")
        again = by_class(front)
        wanted = expected(run_that_is_up_to_date=1)
        if pipeline == "images":
            wanted["A"] += FOLDERS
        else:
            wanted += expected(**{"build_of_rows,_in_addition": 1, "CSV_file_of_such_a_run": 3})
        assert again == wanted
    assert GcsStorage().stat(f"{strict_bucket}/out1/manifest.json") is not None
