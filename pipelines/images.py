"""The images pipeline: a folder of images becomes a published TFRecord dataset.

Run it as ``shardmill images``, or use ``build_images(root, config)`` in a custom pipeline.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

import apache_beam as beam

from shardmill.pipelines.build_config import resolve_splits
from shardmill.pipelines.images_config import ImagesConfig
from shardmill.pipelines.split_places import why_unused
from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import useless_option
from shardmill.schemas.refs import InputRef, MatchCounts
from shardmill.schemas.storage import absolute, join
from shardmill.transforms.images.containers import Spool
from shardmill.transforms.images.encoder import ImagesHooks
from shardmill.transforms.match.annotations.annotation_spec import AnnotationSpec
from shardmill.transforms.match.annotations.layouts import warn_of_layout
from shardmill.transforms.match.annotations.transform import AttachAnnotations
from shardmill.transforms.match.containers.expand import MemberOptions
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.transform import MatchedInputs, MatchFiles
from shardmill.transforms.publish.generation import has_catalogs
from shardmill.transforms.runtime.beam_steps import RaiseIfFailed
from shardmill.transforms.sink.placement import PlaceSpec, check_unlabeled
from shardmill.transforms.sink.spec import Outcome, SinkSpec, delete_unused_build
from shardmill.transforms.sink.transform import WriteShards
from shardmill.transforms.sources.listings import open_listings
from shardmill.transforms.sources.python.spool import read_columns


@dataclass(frozen=True)
class ImagesJob:
    """A config with its resolved input and output.

    Attributes:
        config: The config.
        match: Which files to match.
        sink: What the build writes, and where.
        annotations: What the images have besides.
    """

    config: ImagesConfig
    match: MatchSpec
    sink: SinkSpec
    annotations: tuple[AnnotationSpec, ...] = ()

    def spool(self) -> Spool:
        """Return where archives without random access are spooled: a dry run writes no output."""
        folder, config = join(self.sink.build, "spool"), self.config
        if config.dry_run:
            folder = tempfile.mkdtemp(prefix="shardmill-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        labels = config.label_column if config.reads_archive_labels else None
        members = MemberOptions(
            labels or "", config.image_endings, config.zip_encoding, by_path=labels is None
        )
        may_lack = bool(config.unlabeled_splits)
        order = config.label_order if config.label_spec.fixed is None else None
        return Spool(folder, config.image_column, labels, may_lack, members, order)


def _check_without_archives(config: ImagesConfig) -> None:
    """Check that no option of archives is given.

    Raises:
        UsageError: One is.
    """
    for flag in ("image_column", "label_column"):
        if value := getattr(config, flag):
            raise UsageError(
                f"--{flag}={value} names a column of archives, and the input has none: leave it "
                "out; the labels of a listing are in its column label."
            )
    for flag, value in _archive_options(config):
        raise useless_option(flag=flag, value=value, why="without archives")


def _useless_options(config: ImagesConfig) -> Iterator[str]:
    """Yield a warning for each option that another one leaves no use.

    They are not errors: datasets have been built with them, whose identity they are a part of.
    """
    if config.quality != ImagesConfig.quality and config.encoding in ("png", "raw"):
        yield f"--quality={config.quality} had no effect: --encoding={config.encoding} is lossless"
    if config.label_column and config.label_from != "directory":
        yield (
            f"--label_column={config.label_column} had no effect: --label_from={config.label_from} "
            "gives the labels"
        )


def _archive_options(config: ImagesConfig) -> tuple[tuple[str, str], ...]:
    """Return the names and values of the options about the content of archives that are given."""
    options = {
        "image_column": config.image_column,
        "image_suffix": ",".join(config.image_suffix),
        "zip_encoding": config.zip_encoding,
    }
    return tuple((name, value) for name, value in options.items() if value)


def _check_one_label(config: ImagesConfig) -> None:
    """Check that the labels of archives are not named twice; a pattern is one for files, too.

    Raises:
        UsageError: They are.
    """
    if config.label_column and config.label_pattern:
        raise UsageError(
            f"--label_column={config.label_column} and --label_pattern={config.label_pattern} "
            "cannot be combined for archives, whose labels either has: leave one of them out."
        )


def resolve(config: ImagesConfig, *, runner: str = "") -> ImagesJob:
    """Return the job of a config; finds the input and reads the labels file.

    Args:
        config: The options.
        runner: Name of the runner, for the manifest.

    Raises:
        ShardmillError: The input is missing or an option breaks a rule.
    """
    listing = "listing" in (config.label_source, config.shares.mode)
    useless = tuple(_useless_options(config))
    if config.source_id:
        path = absolute(config.sources[0])
        match = MatchSpec("listing", path, path.rpartition("/")[0], archives=True)
    else:
        match = config.find_inputs(
            wanted="images", listing=listing, follow_links=config.follow_links
        )
    parts = match.parts or (match,)
    if not match.archives:
        _check_without_archives(config)
    elif all(part.archives for part in parts):
        _check_one_label(config)
    config, warnings = resolve_splits(config, match)
    check_unlabeled(config.unlabeled_splits, config.shares)
    has_listing = any(part.kind == "listing" and not part.archives for part in parts)
    if config.duplicates != "keep" and has_listing:
        raise UsageError(
            f"--duplicates={config.duplicates} and a listing cannot be combined, since both say "
            "what belongs together: remove the copies from the listing."
        )
    if not config.source_id:
        layout = warn_of_layout(match, annotations=config.annotations, masks=config.masks)
        warnings = (*warnings, *layout)
    match, listed, listing_warnings = open_listings(match, config.listing_options)
    tables = [part.table for part in match.parts or (match,) if part.table]
    if config.null_values is not None and not tables:
        value, why = ",".join(config.null_values), "without a listing"
        raise useless_option(flag="null_values", value=value, why=why)
    config.check_kinds([table.kind for table in tables])
    if config.source_id:
        listed = read_columns(match.input)
    config, warnings = replace(config, listed=listed), (*warnings, *listing_warnings, *useless)
    sink = config.sink_spec(
        config.config_id(),
        match.root,
        labels=config.label_spec.fixed,
        config=config.identity(),
        label_order=config.label_order,
        runner=runner,
        record_id=config.record_id(),
        command=config.command("images"),
        duplicates=config.duplicates,
        compares=not config.overwrite and has_catalogs(config.absolute_output),
        warnings=warnings,
        hooks=ImagesHooks(
            config.label_source == "filename",
            config.image_spec.resizer,
            bool(config.resizer),
            config.image_endings,
            archive_options=_archive_options(config),
            from_python=bool(config.source_id),
            annotations="".join(config.annotations[:1]).partition(":")[0],
        ),
    )
    return ImagesJob(config, match, sink, config.annotation_specs(match))


def outcomes(root: beam.Pipeline | beam.pvalue.PBegin, job: ImagesJob) -> beam.PCollection[Outcome]:
    """Wire the pipeline; it emits one ``Outcome``, also for failures that a retry cannot fix."""
    config = job.config
    matched = root | "MatchFiles" >> MatchFiles(
        job.match,
        config.label_spec,
        spool=job.spool() if job.match.archives else None,
    )
    if config.shares.named:
        matched = matched | "CheckPlaces" >> CheckPlaces(config, job.match)
    for annotation in job.annotations:
        matched = matched | f"Attach_{annotation.kind}" >> AttachAnnotations(annotation)
    if config.limit is not None:
        matched = matched | "TakeFirst" >> TakeFirst(config.limit, config.place_spec)
    outcome = matched | "WriteShards" >> WriteShards(job.sink, config.encoder)
    if job.match.archives:
        outcome = outcome | "DeleteSpool" >> beam.Map(delete_unused_build, job.sink)
    return outcome


def build_images(
    root: beam.Pipeline | beam.pvalue.PBegin, config: ImagesConfig
) -> beam.PCollection[Outcome]:
    """Wire the pipeline into a custom one, which fails if nothing can be published.

    Args:
        root: A pipeline, or its beginning.
        config: The options.

    Returns:
        One ``Outcome``, when the dataset is published or up to date.

    Raises:
        ShardmillError: The input is missing or an option breaks a rule.
    """
    return outcomes(root, resolve(config)) | "RaiseIfFailed" >> RaiseIfFailed()


@dataclass(eq=False)
class CheckPlaces(beam.PTransform):
    """Makes inputs unusable if a place that ``--splits`` names has none of them.

    Args:
        config: The options, whose places are relative to the root.
        match: The input.
    """

    config: ImagesConfig
    match: MatchSpec

    def expand(self, inputs: MatchedInputs) -> MatchedInputs:
        """Wire the transform."""
        place, match, sources = self.config.place_spec, self.match, self.config.sources

        def check(used: set[str]) -> MatchCounts:
            # Without any input, another message says so.
            problem = why_unused(place.splits, used, match, sources) if used else ""
            return MatchCounts(fatal=problem)

        checked = (
            inputs.refs
            | "FindPlaces" >> beam.FlatMap(lambda ref: ["", *place.places_of(ref.key)])
            | "ListPlaces" >> beam.combiners.ToSet()
            | "FindUnused" >> beam.Map(check).with_output_types(MatchCounts)
        )
        counts = (inputs.counts, checked) | "AllCounts" >> beam.Flatten()
        return MatchedInputs(inputs.refs, counts)


@dataclass(eq=False)
class TakeFirst(beam.PTransform):
    """Takes the first inputs of the global order: a random sample, equal in every run.

    Args:
        count: Maximum number of inputs.
        place: How inputs are assigned to splits and positions.
    """

    count: int
    place: PlaceSpec

    def expand(self, inputs: MatchedInputs) -> MatchedInputs:
        """Wire the transform."""
        place = self.place
        refs = (
            inputs.refs
            | "FindSmallest"
            >> beam.combiners.Top.Of(
                self.count, key=lambda ref: (place.position_of(ref), ref), reverse=True
            )
            | "ListSmallest" >> beam.FlatMap(list).with_output_types(InputRef)
        )
        counts = inputs.counts | "KeepFatal" >> beam.Map(
            lambda counts: MatchCounts(fatal=counts.fatal)
        ).with_output_types(MatchCounts)
        return MatchedInputs(refs, counts)
