"""Builds of each kind of input that replace a published dataset, for the tests of failures."""

import functools
import os
import shutil
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.fault_tools import (
    SOAK,
    Ended,
    Watched,
    check_dataset,
    check_published,
    zygote,
)
from tests.support.gcs_builds import PIPELINES, download, flags_of, make_inputs, upload

KINDS = PIPELINES
BUCKET_KINDS = PIPELINES if SOAK else PIPELINES[:2]  # calls of arrays are those of other parts
OLD, NEW = {"seed": 1, "num_shards": 2}, {"seed": 2, "num_shards": 3}


@dataclass(frozen=True)
class Case:
    """A dataset that is published, and the command that publishes a new version of it.

    Attributes:
        kind: The command.
        source: Its inputs, on disk or in a bucket.
        old: The published dataset, to be copied.
        versions: Files of the two versions, built without failures.
    """

    kind: str
    source: Path | str
    old: Path
    versions: dict[str, dict[str, bytes]]

    def argv(self, output: Path | str, flag: str = "--update", **options: object) -> list[str]:
        """Return the command of the new version."""
        flags = flags_of(self.kind, self.source, output, **{**NEW, **options})
        return [*flags, flag] if flag else flags

    def publish_old(self, output: Path | str) -> Path | str:
        """Copy the old version to an output, on disk or in a bucket; return the output."""
        if isinstance(output, str):
            return upload(self.old, output)
        return shutil.copytree(self.old, output, symlinks=True)

    def run(
        self,
        output: Path | str,
        flag: str = "--update",
        watch: Watched | None = None,
        **options: object,
    ) -> Ended:
        """Run the command of the new version."""
        return zygote().run(*self.argv(output, flag, **options), watch=watch)

    def version(self, output: Path | str, folder: Path | None = None) -> str:
        """Return the version that is published; assert that it is whole.

        Args:
            output: The output, on disk or in a bucket.
            folder: Empty folder for a copy of a bucket.
        """
        found = check_published(fetch(output, folder))
        (name,) = [name for name, files in self.versions.items() if files == found]
        return name

    def check_new(self, output: Path | str, folder: Path | None = None) -> None:
        """Assert that an output has the new version and no other files."""
        local = isinstance(output, Path)
        assert check_dataset(fetch(output, folder), link=local) == self.versions["new"]

    def finish(
        self, output: Path | str, flag: str = "--update", folder: Path | None = None
    ) -> Ended:
        """Run the command without failures, then `clean`; assert that only its dataset is left."""
        ended = self.run(output, flag)
        assert ended.code == 0, ended.stderr
        clean = zygote().run("clean", output, "--older_than=0")
        assert clean.code == 0, clean.stderr
        self.check_new(output, folder)
        return ended


def fetch(output: Path | str, folder: Path | None) -> Path:
    """Return an output on disk, or a copy of one in a bucket."""
    if isinstance(output, Path):
        return output
    assert folder is not None
    shutil.rmtree(folder, ignore_errors=True)
    return download(output, folder)


def moments(
    changes: Sequence[str], kind: str, always: Iterable[int] = (), in_soak: int | None = None
) -> list[int]:
    """Return the numbers, from 1, of the changes of a build at which a test injects a failure.

    They are all changes in `make soak`. Else a hash chooses one of each kind of change: of all
    kinds for images, and of every other kind for rows, the rest for arrays.

    Args:
        changes: Kinds of the changes, in their order.
        kind: Kind of input.
        always: Numbers of changes that are always included.
        in_soak: How many in `make soak`, at equal distances; None for all.
    """
    if SOAK:
        step = 1 if in_soak is None else max(1, len(changes) // in_soak)
        return sorted({*range(1, len(changes) + 1, step), *always})
    names = sorted({*changes})
    start, step = {"images": (0, 1), "rows": (0, 2), "arrays": (1, 2)}[kind]
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
    chosen = {*always}
    for name in names[start::step]:
        numbers = [number for number, change in enumerate(changes, 1) if change == name]
        chosen.add(numbers[zlib.crc32(f"{test} {name}".encode()) % len(numbers)])
    return sorted(chosen)


CALLS = 40  # of a bucket at which a test injects a failure, in `make soak`


@dataclass(frozen=True)
class Cases:
    """Makes one case of each kind when it is needed first.

    Attributes:
        folder: Folder for inputs and datasets.
    """

    folder: Path

    @functools.cache  # noqa: B019 - one object a session
    def local(self, kind: str) -> Case:
        """Return a case whose inputs are on disk."""
        if not (self.folder / "in").exists():
            make_inputs(self.folder / "in")
        case = Case(kind, self.folder / "in" / kind, self.folder / f"{kind}-old", {})
        old = zygote().run(*case.argv(case.old, **OLD))
        new = zygote().run(*case.argv(self.folder / f"{kind}-new"))
        assert old.code == new.code == 0, old.stderr + new.stderr
        case.versions["old"] = check_dataset(case.old)
        case.versions["new"] = check_dataset(self.folder / f"{kind}-new")
        assert case.versions["old"].keys() != case.versions["new"].keys()
        return case

    def remote(self, kind: str, bucket: str) -> Case:
        """Return a case whose inputs are in a bucket."""
        case = self.local(kind)
        zygote().ask(order="import", module="google.cloud.storage")
        return replace(case, source=upload(Path(case.source), f"{bucket}/in/{kind}"))


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"))


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, cases: Cases) -> Case:
    """A case of each kind, whose inputs are on disk."""
    return cases.local(request.param)
