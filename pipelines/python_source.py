"""``shardmill.write``: build a dataset from any Python source of records.

The records are written to files in the build folder, from which ``rows`` or ``images`` builds the
dataset in a child process. The files are deleted when it is published.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import fields as attributes
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardmill.pipelines.calls import BuildResult, build_result, check_names, run
from shardmill.pipelines.dataset_options import ImagesOptions, RowsOptions
from shardmill.schemas import option_types as of
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.dataset.shard_names import SPOOL_FOLDER
from shardmill.schemas.errors import OutputError, UsageError, format_names
from shardmill.schemas.numbers import human_bytes
from shardmill.schemas.option_types import Path, useless_option
from shardmill.schemas.storage import join, open_storage, scheme_of
from shardmill.schemas.user_warnings import warn_deprecated

if TYPE_CHECKING:
    from shardmill.transforms.sources.python.records import Batch
    from shardmill.transforms.sources.python.spool import ImageFiles, TableFiles

_LABELS = "labels-{}.txt"
_NAMED = {  # options that are set by parameters, or not
    "rows": frozenset({"input", "label", "key", "split_by", "dry_run"}),
    "images": frozenset(
        {
            "input",
            "label_from",
            "label_pattern",
            "dry_run",
            "image_column",
            "label_column",
            "image_suffix",
            "zip_encoding",
        }
    ),
}
_FILES = ("schema", "preprocessing")  # whose content decides the dataset


@check_arguments()
def write(  # noqa: PLR0913 - each names a part of a record
    source: Any,
    output: Path,
    *,
    key: str | Callable[[Any], Any] = "",
    label: str = "",
    split: str = "",
    image: str = "",
    fields: Sequence[str] = (),
    version: str | None = None,
    workers: int = 0,
    **options: Any,
) -> BuildResult:
    """Build a GZIP TFRecord dataset from records of Python.

    Args:
        source: A table of pandas, Polars, PyArrow or Hugging Face ``datasets``; a dict of arrays
            or lists; or dicts: a list, anything with an index and a length such as a PyTorch
            ``Dataset``, a generator, or another iterable, which is read once.
        output: Folder of the new dataset.
        key: Field that identifies a record, or a function that returns the key of a record; by
            default, its place in the source identifies it. In a dataset without images, the key of
            a function is the feature ``__key__``.
        label: Field that is the label.
        split: Field that names the split of a record.
        image: Field of images: bytes of files, images of Pillow, or arrays of pixels. The dataset
            is then one of images, with a label or none; other fields become features
            ``image/NAME``.
        fields: Names of the items of records that are tuples, such as ``("image", "label")``.
        version: Identifies the values of the source: a call with the version of the published
            dataset does not read it. By default, that of Hugging Face ``datasets``; if there is
            none, a digest of all values.
        workers: Number of processes that decode images; by default, one per core.
        options: Options of ``shardmill.rows``, or with ``image`` of ``shardmill.images``, except
            those of the input.

    Raises:
        ShardmillError: The source or an option is not valid, or the build failed.
    """
    from shardmill.transforms.sources.python.records import find_version, read_units
    from shardmill.transforms.sources.python.spool import KEY, ImageFiles

    if isinstance(source, str | os.PathLike) and not isinstance(output, str | os.PathLike):
        raise UsageError(
            f"write({source!r}, ...): the source comes first, the folder of the dataset second."
        )
    if isinstance(source, dict) and hasattr(source, "with_format"):  # Hugging Face's DatasetDict
        names = format_names([*source])
        one = next(iter(source))
        raise UsageError(
            f"The source has the splits {names}: give one of them, as in write(source[{one!r}], "
            "...)."
        )
    started = time.monotonic()
    find_key = key if callable(key) else None
    given = {"key": KEY if find_key else key, "label": label, "split": split, "image": image}
    given |= {name: "" for name in ("label", "split", "image") if given[name] is None}
    named: dict[str, str] = {name: of.text().parse(name, value) for name, value in given.items()}
    fields = of.names().parse("fields", fields)
    workers = of.whole(0).parse("workers", workers)
    if workers and not image:
        warn_deprecated(
            "write(workers=...) without image",
            instead="a DataLoader of the source, which reads it in processes",
            removed_in="0.5.0",
        )
    version = None if version is None else of.text().parse("version", version)
    kind, table, files = _prepare(output, named, options | ({"workers": workers} if image else {}))
    config = _check(kind, table)
    if isinstance(files, ImageFiles):
        files.features = config.features
    if version is None:
        version = find_version(source, [*named.values()] if image else ())
    source_id = "" if version is None else hashlib.blake2b(version.encode()).hexdigest()[:32]
    if source_id and not any(getattr(table, name, "") for name in _FILES):
        current = find_current(kind, config, source_id, time.monotonic() - started)
        if current is not None:
            return current
    absolute_output = config.absolute_output
    _check_space(absolute_output, getattr(source, "nbytes", None))
    class_names = find_class_names(source, label)
    class_label = label if class_names else ""
    with closing(read_units(source, image, fields)) as units:  # ends workers of a DataLoader
        digest = _write_files(units, absolute_output, find_key, files, class_label)
    table = _spooled(table, files, class_names, absolute_output, digest)
    body = run(kind, table, source_id=source_id or digest)
    open_storage(absolute_output).delete_tree(join(absolute_output, SPOOL_FOLDER))
    result = build_result(body | {"seconds": time.monotonic() - started})
    if result.status == "up_to_date":  # the build counted the files of the records
        result = replace(result, matched=result.manifest.inputs.matched)
    return result


def _prepare(
    output: Path, named: dict[str, str], options: dict[str, Any]
) -> tuple[str, Any, ImageFiles | TableFiles]:
    """Return the kind of input, its options without the input, and the files of the source.

    Raises:
        UsageError: The call has an option that the kind lacks.
    """
    from shardmill.transforms.sources.python.spool import LIST, ImageFiles, TableFiles

    kind, table_of = ("images", ImagesOptions) if named["image"] else ("rows", RowsOptions)
    names = {attribute.name for attribute in attributes(table_of)}
    check_names("write", options, names - _NAMED[kind])
    if kind == "images":
        for name in ("label_separator", "types"):
            if value := options.get(name):
                raise useless_option(flag=name, value=value, why="without a listing")
        more = {"label_from": "directory" if named["label"] else "none"}
        if named["split"]:
            more["splits"] = "listing"
        return kind, ImagesOptions(LIST, output, **(options | more)), ImageFiles(**named)
    more = {"label": named["label"], "split_by": named["split"], "key": named["key"]}
    return kind, RowsOptions(LIST, output, **(options | more)), TableFiles()


def _check(kind: str, table: Any) -> Any:
    """Validate options and output before reading the source; return the config."""
    from shardmill.pipelines.commands.build import configure, prepare_output
    from shardmill.pipelines.report.terminal import Answer

    config, *_ = configure(kind, vars(table) | {"source_id": "python"}, [], Answer())
    prepare_output(config.absolute_output)
    return config


def _spooled(
    table: Any, files: ImageFiles | TableFiles, names: Sequence[str], output: str, digest: str
) -> Any:
    """Return options with the files as input, and with the classes of labels that are numbers."""
    from shardmill.transforms.sources.python.spool import LIST

    spool = join(output, SPOOL_FOLDER, "spool")
    table = replace(table, input=join(spool, LIST.format(digest)))
    classes = getattr(files, "classes", 0)
    if not classes or table.labels:
        return table
    path = join(spool, _LABELS.format(digest))
    text = "".join(f"{name}\n" for name in names or map(str, range(classes)))
    open_storage(spool).replace(path, text.encode())
    return replace(table, labels=path, label_order="text")  # the numbers are the class ids


def find_class_names(source: Any, label: str) -> list[str]:
    """Return the names of the classes that Hugging Face ``datasets`` state for a field."""
    feature = (getattr(source, "features", None) or {}).get(label)
    return [*getattr(feature, "names", ())]


def _write_files(
    units: Iterable[Batch],
    output: str,
    key: Callable[[Any], Any] | None,
    files: ImageFiles | TableFiles,
    class_label: str,
) -> str:
    """Write the records to files in the output, and show the progress; return their digest."""
    from shardmill.pipelines.report.terminal import show_progress
    from shardmill.transforms.runtime import progress
    from shardmill.transforms.sources.python.spool import write_spool

    reading_progress = progress.Progress("reading", unit="records", rejects_name="")
    with progress.collect(reading_progress), show_progress(reading_progress):
        digest = write_spool(units, join(output, SPOOL_FOLDER, "spool"), key, files, class_label)
        lowest = getattr(files, "lowest_label", 0)
        if lowest < 0:
            reading_progress.notices.append(
                f"The labels are numbers from {lowest} on, so class ids are not these numbers but "
                "the places of their texts in labels.txt; for no label, give None."
            )
        for name, rounding in getattr(files, "rounded", {}).items():
            reading_progress.notices.append(
                f"float32 rounds values of the field {name!r}: {rounding}."
            )
        if unused := getattr(files, "unused", ()):
            reading_progress.notices.append(
                f"The dataset does not have the fields {format_names(unused)}: features of images "
                "hold values and lists of values, and no names such as image/height."
            )
    return digest


def find_current(kind: str, config: Any, source_id: str, seconds: float) -> BuildResult | None:
    """Return the result of a build whose dataset is published already, or None.

    Args:
        kind: Name of the kind of input.
        config: The options.
        source_id: Identity of the source.
        seconds: Duration of the call.
    """
    from shardmill.pipelines.rows_config import codec_versions
    from shardmill.schemas.schema_pbtxt.image_features import FeatureSet
    from shardmill.transforms.images.encoder import ImageEncoder
    from shardmill.transforms.publish import generation

    output = config.absolute_output
    storage = open_storage(output)
    old = generation.open_output(storage, output).manifest
    if old is None or config.overwrite or old.build.input_id != source_id:
        return None
    if kind == "rows":
        versions = codec_versions()
    else:  # the features are not known before the source is read
        versions = ImageEncoder(config.image_spec, FeatureSet(())).versions()
    if old.build.versions != versions:
        return None
    # Class ids follow from a source of this version, if they are not those of an option.
    derived = {} if getattr(config, "labels", True) else {"labels": old.build.config.get("labels")}
    if generation.find_changed_options(old, {**config.identity(), **derived}):
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
            raise OutputError(
                f"The source has {size}, and the disk of {output} only {free}: make space, or "
                "choose another output."
            )
