"""Finds splits that the folders of an input name, as in ``train/`` and ``validation/``."""

from __future__ import annotations

from dataclasses import replace

from shardmill.pipelines.build_config import Config
from shardmill.schemas.dataset.splits import DEFAULT_SPLITS, split_of_folder
from shardmill.schemas.errors import format_names
from shardmill.schemas.storage import join
from shardmill.transforms.match.transform import MatchSpec
from shardmill.transforms.match.walk import folder_names


def resolve_splits(config: Config, match: MatchSpec) -> tuple[Config, tuple[str, ...]]:
    """Return a config with the splits of an input's folders, and warnings for the manifest.

    Folders are splits if all of them are named like splits, and name at least two: a folder of
    images that is called ``test`` next to ``cat`` and ``dog`` is a label. With labels from folders,
    split folders without subfolders have no labels.

    Args:
        config: The options; splits that it names are not changed.
        match: The input.
    """
    one_level = match.kind == "glob" and "/" not in match.input[len(match.top.rstrip("/")) + 1 :]
    inside = match.kind in ("directory", "glob") and match.root == match.top and not one_level
    if config.splits not in (None, "directory") or not inside:
        return config, ()
    names = [name for name in folder_names(match.top) if join(match.top, name) != match.exclude]
    splits = [name for name in sorted(names) if split_of_folder(name)]
    if len({split_of_folder(name) for name in splits}) < 2:
        return config, ()
    given, shown = config.splits is not None, format_names(splits)
    if not given and len(splits) < len(names):
        others = format_names(sorted(set(names) - {*splits}))
        warning = (
            f"the folders {shown} look like splits, but not {others}: all files were divided by "
            f"--splits={DEFAULT_SPLITS}; --splits=directory takes the folders as splits"
        )
        return config, (warning,)
    warning = (
        f"the folders {shown} were taken as splits; --splits={DEFAULT_SPLITS} divides all files"
    )
    found: Config = replace(config, splits="directory")
    if not any(folder_names(join(match.top, name)) for name in splits):
        unlabelled = found.without_folder_labels()
        if unlabelled != found:
            warning += "; they have no subfolders, so the images have no labels"
        found = unlabelled
    return found, () if given else (warning,)
