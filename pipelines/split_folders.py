"""Finds splits that the folders of an input name, as in ``train/`` and ``validation/``."""

from __future__ import annotations

from dataclasses import replace

from shardmill.pipelines.build_config import Config
from shardmill.schemas.dataset.splits import DEFAULT_SPLITS, Splits, split_of_folder
from shardmill.schemas.errors import UsageError, format_names
from shardmill.schemas.storage import absolute, join, open_storage
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.walk import folder_names

_MAX_DEPTH = 4  # a link may lead to a folder above it


def resolve_splits(config: Config, match: MatchSpec) -> tuple[Config, tuple[str, ...]]:
    """Return a config with the splits of an input's folders, and warnings for the manifest.

    Folders are splits if all of them are named like splits, and name at least two: a folder of
    images that is called ``test`` next to ``cat`` and ``dog`` is a label. With labels from folders,
    split folders without subfolders have no labels.

    Args:
        config: The options; splits that it names are not changed.
        match: The input.
    """
    if config.splits and config.splits.named:
        return replace(config, splits=_relative_places(config.splits, match)), ()
    one_level = match.kind == "glob" and "/" not in match.input[len(match.top.rstrip("/")) + 1 :]
    inside = match.kind in ("directory", "glob") and match.root == match.top and not one_level
    if (config.splits and config.splits.mode != "directory") or not inside:
        return config, ()
    names = sorted(folder_names(match.top))
    splits = [name for name in names if split_of_folder(name)]
    several = len({split_of_folder(name) for name in splits}) > 1
    if config.splits is None and not (several and splits == names):
        warning = _warn_of_labels(config, match.top, names, splits)
        return config, (warning,) if warning else ()
    if not several:
        return config, ()
    warning = (
        f"the folders {format_names(splits)} were taken as splits; --splits={DEFAULT_SPLITS} "
        "divides all files"
    )
    found: Config = replace(config, splits=Splits("directory"))
    flat = [name for name in splits if not folder_names(join(match.top, name))]
    unlabelled = found.without_folder_labels()
    if flat and unlabelled != found:
        what = "they have" if flat == splits else f"{format_names(flat)} has"
        warning += (
            f"; {what} no subfolders, so the images have no labels: --label_from=filename takes "
            "labels from file names"
        )
    found = unlabelled if flat == splits else found
    return found, () if config.splits else (warning,)


def _relative_places(splits: Splits, match: MatchSpec) -> Splits:
    """Return splits whose files and folders are relative to the root.

    Raises:
        UsageError: One does not exist.
    """
    named, root = [], match.root
    for name, place in splits.named:
        path, inside = absolute(place), join(root, "")
        relative = path[len(inside) :] if path.startswith(inside) else place
        glob = any(character in place for character in "*?[")
        if (
            not (glob or (match.archives and not match.parts))
            and open_storage(root).stat(join(root, relative.rstrip("/"))) is None
        ):
            raise UsageError("splits-place-missing", splits=splits, place=place, root=root)
        named.append((name, relative))
    return replace(splits, named=tuple(named))


def _warn_of_labels(config: Config, top: str, names: list[str], splits: list[str]) -> str:
    """Return a warning about folders that are named like splits but not taken as splits.

    Args:
        config: The options.
        top: Folder of the input.
        names: All folders in it.
        splits: Those that are named like splits.
    """
    if not splits:
        return _warn_of_deeper_splits(top, names)
    shown = format_names(splits)
    divided = f"all files were divided by --splits={DEFAULT_SPLITS}"
    if len(splits) < len(names):
        others = format_names([name for name in names if name not in splits])
        return (
            f"the folders {shown} look like splits, but not {others}: {divided}; "
            "--splits=directory takes the folders as splits"
        )
    labelled = config.without_folder_labels() != config
    if labelled and not any(folder_names(join(top, name)) for name in splits):
        return (
            f"the folders {shown} look like splits and became labels: set --label_from=filename "
            f"or none; {divided}"
        )
    return ""


def _warn_of_deeper_splits(top: str, names: list[str]) -> str:
    """Return a warning if the only folder of an input holds folders that are named like splits."""
    folder = ""
    for _ in range(_MAX_DEPTH):
        if len(names) != 1:
            break
        folder = join(folder, names[0]) if folder else names[0]
        names = folder_names(join(top, folder))
        splits = [join(folder, name) for name in sorted(names) if split_of_folder(name)]
        if len({split_of_folder(name.rpartition("/")[2]) for name in splits}) > 1:
            return f"{format_names(splits)} look like splits: use --input={join(top, folder)}"
    return ""
