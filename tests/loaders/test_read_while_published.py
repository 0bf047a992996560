"""Readers during publications, updates, rollbacks and cleaning see one whole version."""

import signal
import threading
from pathlib import Path

import pytest

from shardmill.loaders import open_dataset
from shardmill.pipelines.cli import main
from shardmill.schemas import ShardmillError
from shardmill.schemas.storage import open_storage
from shardmill.transforms.publish.publish import roll_back
from tests.conftest import make_photos
from tests.support.fault_tools import SOAK, Watched, zygote

pytestmark = pytest.mark.heavy

FLIPS = 300 if SOAK else 20
CLASSES = {"cat": 30, "dog": 20}


def arguments(source: Path, output: Path, size: int, *flags: str) -> list[str]:
    """Return a build of images of another size in each version."""
    words = [f"--input={source}", f"--output={output}", f"--image_size={size}", "--splits=train:1"]
    return ["images", *words, "--shard_examples=8", "--overwrite", *flags]


@pytest.fixture
def dataset(tmp_path) -> tuple[Path, Path]:
    """Return images, and a dataset of them with one earlier version."""
    source, output = make_photos(tmp_path / "in", CLASSES, size=(20, 20)), tmp_path / "out"
    for size in (8, 9):
        assert zygote().run(*arguments(source, output, size)).code == 0
    return source, output


class Reader(threading.Thread):
    """Reads the dataset until it is stopped.

    Attributes:
        sizes: The size of the images of each pass.
        problems: What was read of passes that mixed versions or lost records.
        errors: Messages of passes that failed.
    """

    def __init__(self, output: Path) -> None:
        super().__init__()
        self.output = output
        self.done = threading.Event()
        self.sizes: list[int] = []
        self.problems: list[object] = []
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.done.is_set():
            try:
                records = [*open_dataset(self.output, "train")]
            except ShardmillError as error:
                self.errors.append(str(error))
                continue
            except Exception as error:  # noqa: BLE001 - the test reports it
                self.problems.append(error)
                continue
            sizes = {record["image"].shape[0] for record in records}
            keys = {record["image/key"] for record in records}
            if len(sizes) != 1 or not len(keys) == len(records) == sum(CLASSES.values()):
                self.problems.append((sizes, len(keys), len(records)))
            self.sizes += sizes


@pytest.fixture
def readers(dataset):
    threads = [Reader(dataset[1]) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.done.set()
        thread.join()


def check(readers: list[Reader]) -> None:
    """Stop readers, and assert that they saw several versions, each of them whole."""
    for reader in readers:
        reader.done.set()
        reader.join()
    assert not [reader.problems for reader in readers if reader.problems]
    assert len({size for reader in readers for size in reader.sizes}) > 1


def wait_for_passes(readers: list[Reader], number: int = 1) -> None:
    """Wait until each reader has ended more passes, so that they see each version."""
    for reader in readers:
        before = len(reader.sizes) + len(reader.errors) + len(reader.problems)
        while len(reader.sizes) + len(reader.errors) + len(reader.problems) < before + number:
            reader.done.wait(0.001)


def test_rollbacks_and_cleaning(dataset, readers):
    """Both versions stay, so no pass may fail."""
    _, output = dataset
    for flip in range(FLIPS):
        roll_back(open_storage(str(output)), str(output))
        if flip % 10 == 0:
            assert main(["clean", "--older_than=0", "--quiet", str(output)]) == 0
            wait_for_passes(readers)
    check(readers)
    assert not [reader.errors for reader in readers if reader.errors]


@pytest.mark.nightly
def test_updates_that_keep_the_earlier_version(dataset, readers):
    """A version that a reader has opened may go two builds later; then the reader says so."""
    source, output = dataset
    for size in (10, 11, 12):
        assert zygote().run(*arguments(source, output, size)).code == 0
        wait_for_passes(readers)
    check(readers)
    for reader in readers:
        for error in reader.errors:
            assert "deleted" in error


@pytest.mark.sweep
@pytest.mark.parametrize("keep", [0, 1])
def test_each_moment_of_a_publication(dataset, keep):
    """The publisher is stopped before each change of the published files."""
    source, output = dataset
    words = arguments(source, output, 10, f"--keep={keep}")
    open_before = open_dataset(output, "train")
    watch = Watched(output, since="/gen-", at=tuple(range(1, 400)), number=signal.SIGSTOP)
    build = zygote().start(*words, watch=watch)
    seen = []
    while build.wait_stopped():
        records = [*open_dataset(output, "train")]
        assert len(records) == sum(CLASSES.values())
        (size,) = {record["image"].shape[0] for record in records}
        seen.append(size)
        build.send(signal.SIGCONT)
    assert build.ended.code == 0, build.ended.stderr
    assert seen == sorted(seen)
    assert {*seen} == {9, 10}
    if keep:
        assert len([*open_before]) == len(records)
    else:
        with pytest.raises(ShardmillError, match="deleted"):
            list(open_before)
