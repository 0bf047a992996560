"""The inputs and the manifest that the options of ``shardmill count`` name."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.pipelines.tool_options import CountConfig
from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST
from shardmill.schemas.errors import FormatError, StorageError, UsageError
from shardmill.schemas.storage import absolute, join, open_storage
from shardmill.transforms.count.counting import CountSpec
from shardmill.transforms.match.inputs import MatchSpec, find_inputs


@dataclass(frozen=True)
class CountJob:
    """A config with its resolved input and manifest path.

    Attributes:
        match: Which files to match.
        spec: How to count, and where to write the manifest.
    """

    match: MatchSpec
    spec: CountSpec


def resolve(config: CountConfig, *, runner: str = "") -> CountJob:
    """Return the job of a config; finds the input and checks the manifest's path.

    Args:
        config: The options.
        runner: Name of the runner, for the manifest.

    Raises:
        ShardmillError: The input is missing, or the manifest would replace a file that is not a
            count's.
    """
    inputs = [*map(_current_generation, config.paths)]
    match = find_inputs(inputs, config.root, follow_links=config.follow_links, wanted="records")
    if match.kind in ("listing", "several"):
        from shardmill.transforms.sources.listings import ListingOptions, open_listings

        match, *_ = open_listings(match, ListingOptions(features="image/key"))
    manifest = absolute(config.manifest) if config.manifest else ""
    if manifest:
        _check_manifest(manifest)
    spec = CountSpec(
        root=match.root,
        check=config.check,
        manifest=manifest,
        processes=config.processes or 1,
        runner=runner,
    )
    return CountJob(match, spec)


def _current_generation(pattern: str) -> str:
    """Return the folder of the current generation if an input is a dataset, else the input."""
    if not pattern or any(character in pattern for character in "*?["):
        return pattern
    path = join(absolute(pattern), MANIFEST)
    try:
        return Manifest.from_json(read_dataset_file(path)).folder(pattern)
    except (FileNotFoundError, StorageError, FormatError):
        return pattern


def _check_manifest(path: str) -> None:
    """Check that a path is free or has the manifest of an earlier count.

    Raises:
        UsageError: It has something else, which must not be overwritten.
    """
    storage = open_storage(path)
    entry = storage.stat(path)
    if entry is None:
        return
    if entry.kind != "file":
        raise UsageError(f"--manifest={path} is a folder: name a file in it.")
    try:
        manifest = Manifest.from_json(storage.read(path))
    except FormatError as error:
        raise UsageError(
            f"--manifest={path} exists and is not a manifest: choose another file."
        ) from error
    if not manifest.root:
        raise UsageError(
            f"--manifest={path} is the manifest that a build wrote: choose another file."
        )
