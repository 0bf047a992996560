"""Two processes build one gs:// output while a seeded schedule delays their calls."""

import random
import time
from pathlib import Path

import pytest

from tests.conftest import SOAK, make_photos
from tests.support.fault_proxy import Storm
from tests.support.fault_tools import check_dataset, zygote
from tests.support.gcs_builds import download
from tests.support.readers import current
from tests.transforms.verify.test_verify import findings_of

pytest_plugins = ["tests.support.gcs_server"]

SEEDS = range(40) if SOAK else range(1)
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
@pytest.mark.parametrize(
    "who", ["the same", "others", "others with --update", "others with --overwrite"]
)
def test_two_builders(who, seed, wanted, strict_bucket, front, tmp_path):
    """One dataset is published whole; a builder that lost says so, and keeps its parts."""
    source, sets = wanted
    output = f"{strict_bucket}/out"
    configs = [ONE, ONE if who == "the same" else OTHER]
    flags = (who.split()[-1],) if "--" in who else ()
    Schedule(front, seed)
    argv = ["images", f"--input={source}", f"--output={output}", *COMMON]
    commands = [zygote().start(*argv, *config, *flags) for config in configs]
    ended = [command.wait() for command in commands]
    front.reset()
    for one in ended:
        if who != "the same" and one.code:
            found_at_planning = "was built from different inputs or options" in one.sentence
            assert not (found_at_planning and flags)
            lost = f"Another command has changed the dataset at {output} since this one started"
            assert found_at_planning or lost in one.sentence
        else:
            assert (one.code, one.said) == (0, "")
    lost = sum(one.code for one in ended)
    assert lost == 1 if who == "others" else lost <= 1
    published = sum("Published" in one.stdout for one in ended)
    assert published == (1 if who == "the same" else 2 - lost)
    assert findings_of(output) == []
    folder = download(output, tmp_path / "out")
    left = {path.name for path in folder.glob(".build-*")}
    assert len(left) <= lost
    (folder / "current").symlink_to(current(folder).name)  # buckets have no links
    files = check_dataset(folder, left)
    assert files in [sets[config] for config in configs]
