"""The options of ``shardmill count`` and ``verify``; see ``dataset_options.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, cast

from shardmill.pipelines.dataset_options import BeamOptions
from shardmill.schemas import option_types as of
from shardmill.schemas.option_types import Choice, File, MaybeInt, Options, Switch, empty_input

if TYPE_CHECKING:
    from shardmill.schemas.tfrecord.reader import Check


@dataclass
class CountConfig(Options):
    """Options of ``shardmill count``.

    Attributes:
        input: ``PATH``: folders, globs, files, or lists of paths (.txt, .csv)
        manifest: ``FILE``: write a manifest to this file
        check: ``HOW``: records: read all and check every CRC (default); index: trust sound member
            indexes, read as little as counting needs
        root: ``DIR``: names are relative to it (default: the input's folder)
        follow_links: follow links that lead outside the root
        processes: ``N``: concurrent readers per worker (default: one per core)
        beam_options: ``NAME=VALUE``: an option of Apache Beam whose name a flag of Shardmill has;
            may be repeated
    """

    usage = "--input PATH [PATH ...] [FLAGS]"
    summary = "Count the records of any TFRecord files, and check them."
    example = """\
example:
  shardmill count --input=taxi --manifest=taxi.json

Every Apache Beam pipeline option works too. Exit codes: 0 all counted, 1 a
file is damaged or the run failed, 2 usage error, 130 or 143 interrupted."""
    input: of.Path | Sequence[of.Path] = of.required_paths()
    _: KW_ONLY
    manifest: File = of.file()
    check: Choice[Check] = of.choice(("records", "index"), "records")
    root: File = of.file()
    follow_links: Switch = of.switch()
    processes: MaybeInt = of.whole(None, 1)
    beam_options: BeamOptions = of.beam_options()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.paths or not all(self.paths):
            raise empty_input()

    @property
    def paths(self) -> tuple[str, ...]:
        """The inputs."""
        return cast("tuple[str, ...]", self.input)


@dataclass
class VerifyOptions(Options):
    """Options of ``shardmill verify``.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest of shardmill count
        deep: also compare records with catalogs, label counts and statistics
        processes: ``N``: concurrent readers (default: one per core)
    """

    usage = "DIR [FLAGS]"
    summary = """\
Check every byte of a dataset against its manifest, and every example against
its schema."""
    example = """\
example:
  shardmill verify ds

With --runner, workers of that runner read the shards: every Apache Beam
pipeline option works too. Exit codes: 0 sound, 1 damaged, 2 usage error, 130
or 143 interrupted."""
    dataset: of.Path = of.required_path()
    _: KW_ONLY
    deep: Switch = of.switch()
    processes: MaybeInt = of.whole(None, 1)
