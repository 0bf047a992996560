"""The images pipeline: a folder of images becomes a published TFRecord dataset.

Run it as ``shardmill images`` or ``python -m shardmill.pipelines.images``, or put
``build(root, config)`` into a pipeline of your own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import apache_beam as beam

from shardmill.pipelines.images_config import ImagesConfig
from shardmill.schemas.refs import InputRef
from shardmill.transforms.build.outcome import Outcome, RaiseIfFailed
from shardmill.transforms.build.placement import PlaceSpec
from shardmill.transforms.build.spec import SinkSpec
from shardmill.transforms.build.transform import WriteShards
from shardmill.transforms.match.counts import MatchCounts
from shardmill.transforms.match.transform import (
    MatchedInputs,
    MatchFiles,
    MatchSpec,
    absolute,
    find_input,
)


@dataclass(frozen=True)
class ImagesJob:
    """A config whose input and output were looked at.

    Attributes:
        config: The config.
        match: Where the images are.
        sink: What is written, and where.
    """

    config: ImagesConfig
    match: MatchSpec
    sink: SinkSpec


def resolve(config: ImagesConfig, *, runner: str = "") -> ImagesJob:
    """Returns the job of a config; finds the input and reads the labels file.

    Args:
        config: The options.
        runner: Name of the runner, for the manifest.

    Raises:
        ShardmillError: The input is missing or an option breaks a rule.
    """
    output = absolute(config.output)
    listed = "listing" in (config.label_from, config.splits)
    match = find_input(
        config.input, config.root, listing=listed, follow_links=config.follow_links, exclude=output
    )
    sink = replace(
        config.sink_spec(config.config_id(), match.root),
        labels=config.label_spec.fixed,
        config=config.identity(),
        runner=runner,
        keep_id=config.keep_id(),
    )
    return ImagesJob(config, match, sink)


def outcomes(root: beam.Pipeline | beam.pvalue.PBegin, job: ImagesJob) -> beam.PCollection[Outcome]:
    """Wires the pipeline; gives one ``Outcome``, a failure that no retry would mend included."""
    config = job.config
    matched = root | "MatchFiles" >> MatchFiles(
        job.match, config.label_spec, listed_splits=config.splits == "listing"
    )
    if config.limit is not None:
        matched = matched | "TakeFirst" >> TakeFirst(config.limit, config.place_spec)
    return matched | "WriteShards" >> WriteShards(job.sink, config.encoder)


def build(
    root: beam.Pipeline | beam.pvalue.PBegin, config: ImagesConfig
) -> beam.PCollection[Outcome]:
    """Wires the pipeline into one of your own; it fails when nothing could be published.

    Args:
        root: A pipeline, or its beginning.
        config: The options.

    Returns:
        One ``Outcome``, once the dataset is published or found up to date.

    Raises:
        ShardmillError: The input is missing or an option breaks a rule.
    """
    return outcomes(root, resolve(config)) | "RaiseIfFailed" >> RaiseIfFailed()


@dataclass(eq=False)
class TakeFirst(beam.PTransform):
    """Takes the first inputs of the global order: a fair sample, the same in every run.

    Args:
        count: How many.
        place: How refs find their places.
    """

    count: int
    place: PlaceSpec

    def expand(self, inputs: MatchedInputs) -> MatchedInputs:
        """Wires the choice."""
        place = self.place
        refs = (
            inputs.refs
            | "KeyByPosition" >> beam.Map(lambda ref: (place.position_of(ref), tuple(ref)))
            | "FindSmallest" >> beam.combiners.Top.Smallest(self.count)
            | "ListSmallest"
            >> beam.FlatMap(
                lambda found: [InputRef(*values) for _, values in found]
            ).with_output_types(InputRef)
        )
        counts = inputs.counts | "KeepFatal" >> beam.Map(
            lambda each: MatchCounts(fatal=each.fatal)
        ).with_output_types(MatchCounts)
        return MatchedInputs(refs, counts)


if __name__ == "__main__":
    import sys

    from shardmill.pipelines.cli import main

    sys.exit(main(["images", *sys.argv[1:]]))
