"""Two processes build one gs:// output while a seeded schedule delays their calls."""

import random
import time
from pathlib import Path

import pytest

from shardmill.schemas.storage.gcs import GcsStorage
from tests.conftest import SOAK, make_photos
from tests.support.fault_proxy import Storm
from tests.support.fault_tools import check_dataset, zygote
from tests.support.gcs_builds import download
from tests.transforms.verify.test_verify import findings_of

pytest_plugins = ["tests.support.gcs_server"]

SEEDS = range(40) if SOAK else range(4)
COMMON = ("--image_size=16", "--splits=train:0.7,validation:0.3")
ONE, OTHER = ("--num_shards=2",), ("--num_shards=3", "--seed=9")


class Schedule:
    """Delays some calls before they are executed, and some responses after."""

    def __init__(self, front, seed: int) -> None:
        self.random = random.Random(seed)
        front.hook = self
        front.pause = 0.3
        front.storm = Storm(seed, 0.1, ("late", "slow"))

    def __call__(self, call) -> None:
        if self.random.random() < 0.25:
            time.sleep(self.random.uniform(0, 0.4))


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> tuple[Path, dict[tuple[str, ...], dict[str, bytes]]]:
    """Return photos, and the files that each of the two configs builds from them on disk."""
    source = tmp_path_factory.mktemp("in") / "photos"
    make_photos(source, {"cat": 9, "dog": 7}, size=(40, 30))
    found = {}
    for flags in (ONE, OTHER):
        output = tmp_path_factory.mktemp("wanted") / "out"
        ended = zygote().run("images", f"--input={source}", f"--output={output}", *COMMON, *flags)
        assert ended.code == 0, ended.stderr
        found[flags] = check_dataset(output)
    assert found[ONE] != found[OTHER]
    return source, found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", ["the same", "others", "others with --overwrite"])
def test_two_builders(who, seed, wanted, strict_bucket, front, tmp_path):
    source, sets = wanted
    output = f"{strict_bucket}/out"
    configs = [ONE, ONE if who == "the same" else OTHER]
    flags = ("--overwrite",) if who == "others with --overwrite" else ()
    Schedule(front, seed)
    argv = ["images", f"--input={source}", f"--output={output}", *COMMON]
    commands = [zygote().start(*argv, *config, *flags) for config in configs]
    ended = [command.wait() for command in commands]
    front.reset()
    for one in ended:
        if who == "others" and one.code:
            assert "holds a dataset of other inputs or options" in one.sentence
        else:
            assert (one.code, one.said) == (0, "")
    if who == "others":
        assert sorted(one.code for one in ended) == [0, 1]
    assert sum("Published" in one.stdout for one in ended) >= 1
    assert findings_of(output) == []
    # The loser without --overwrite keeps its parts for a later run with it.
    names = {e.path[len(output) + 1 :].split("/")[0] for e in GcsStorage().walk(output)}
    left = {name for name in names if name.startswith(".build-")}
    assert len(left) <= (who == "others")
    files = check_dataset(download(output, tmp_path / "out"), left)
    assert files in [sets[config] for config in configs]
