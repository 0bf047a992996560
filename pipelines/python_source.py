"""``shardmill.write``: build a dataset from any Python source of records.

The records are written to files in the build folder, from which ``rows`` or ``images`` builds the
dataset in a child process. The files are deleted when it is published.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from shardmill.pipelines.calls import BuildResult, build_result, check_names, run
from shardmill.pipelines.dataset_options import RowsOptions
from shardmill.schemas.dataset.shard_names import SPOOL_FOLDER
from shardmill.schemas.errors import OutputError, UsageError
from shardmill.schemas.numbers import human_bytes
from shardmill.schemas.option_types import Path
from shardmill.schemas.storage import join, open_storage, scheme_of

_NAMED = frozenset({"input", "label", "key", "split_by", "dry_run"})  # set by parameters, or not
_FILES = ("schema", "preprocessing")  # whose content decides the dataset


def write(
    source: Any, output: Path, *, key: str | Callable[[Any], Any] = "", label: str = "",
    split: str = "", version: str | None = None, **options: Any,
) -> BuildResult:  # fmt: skip
    """Build a GZIP TFRecord dataset from records of Python.

    Args:
        source: A table of pandas, Polars, PyArrow or Hugging Face ``datasets``; a dict of arrays
            or lists; or dicts: a list, anything with an index and a length such as a PyTorch
            ``Dataset``, a generator, or another iterable, which is read once.
        output: Folder of the new dataset.
        key: Field that identifies a record, or a function that returns the key of a record; by
            default, its place in the source identifies it. The key of a function is the feature
            ``__key__``.
        label: Field that is the label.
        split: Field that names the split of a record.
        version: Identifies the values of the source: a call with the version of the published
            dataset does not read it. By default, that of Hugging Face ``datasets``; if there is
            none, a digest of all values.
        options: Options of ``shardmill.rows``, except those of the input.

    Raises:
        ShardmillError: The source or an option is not valid, or the build failed.
    """
    if "image" in options:
        raise UsageError("source-image")
    check_names("write", options, {each.name for each in fields(RowsOptions)} - _NAMED)
    from shardmill.pipelines.commands.build import configure, prepare_output
    from shardmill.pipelines.report.answer import Answer
    from shardmill.transforms.sources.python.spool import KEY, LIST

    started = time.monotonic()
    named = {"label": label, "split_by": split, "key": KEY if callable(key) else key}
    table = RowsOptions(LIST, output, **(options | named))
    config, *_ = configure("rows", vars(table) | {"source_id": "python"}, [], Answer())
    found = config.absolute_output
    prepare_output(found)
    version = getattr(source, "_fingerprint", None) if version is None else version
    source_id = "" if version is None else hashlib.blake2b(version.encode()).hexdigest()[:32]
    if source_id and not any(getattr(table, name) for name in _FILES):
        current = find_current(config, source_id, time.monotonic() - started)
        if current is not None:
            return current
    digest = _write_files(source, found, key if callable(key) else None)
    table = replace(table, input=join(found, SPOOL_FOLDER, "spool", LIST))
    body = run("rows", table, source_id=source_id or digest)
    open_storage(found).delete_tree(join(found, SPOOL_FOLDER))
    return build_result(body | {"seconds": time.monotonic() - started})


def _write_files(source: Any, output: str, key: Callable[[Any], Any] | None) -> str:
    """Write the records to files in the output, and show the progress; return their digest."""
    from shardmill.pipelines.input_kinds import ProgressUnit
    from shardmill.pipelines.report.progress_display import show_progress
    from shardmill.transforms.runtime import progress
    from shardmill.transforms.sources.python.spool import write_spool

    _check_space(output, getattr(source, "nbytes", None))
    shown = ProgressUnit("records", rejected="").new_progress()
    shown.phase = "reading"
    with progress.collect(shown), show_progress(shown):
        return write_spool(source, join(output, SPOOL_FOLDER, "spool"), key)


def find_current(config: Any, source_id: str, seconds: float) -> BuildResult | None:
    """Return the result of a build whose dataset is published already, or None.

    Args:
        config: The options.
        source_id: Identity of the source.
        seconds: Duration of the call.
    """
    from shardmill.pipelines.rows_config import codec_versions
    from shardmill.transforms.publish import generation

    output = config.absolute_output
    storage = open_storage(output)
    old = generation.open_output(storage, output).manifest
    if old is None or config.overwrite or old.build.input_id != source_id:
        return None
    if old.build.versions != codec_versions():
        return None
    if generation.find_changed_options(old, config.identity()):
        return None
    if generation.find_damage(storage, old.folder(output), old):
        return None
    return BuildResult("up_to_date", output, seconds, old.inputs.matched)


def _check_space(output: str, num_bytes: Any) -> None:
    """Check that a local disk has space for a source that says how large it is.

    Raises:
        OutputError: It has not.
    """
    folder = output
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    if isinstance(num_bytes, int) and not scheme_of(output):
        space = shutil.disk_usage(folder).free
        if space < num_bytes:
            size, free = human_bytes(num_bytes), human_bytes(space)
            raise OutputError("source-space", output=output, size=size, free=free)
