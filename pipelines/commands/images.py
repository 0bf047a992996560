"""``shardmill images``."""

from __future__ import annotations

import argparse
import sys

from shardmill.pipelines.commands import build_flags
from shardmill.pipelines.commands.build import parse_build, run_build
from shardmill.pipelines.commands.parser import Parser
from shardmill.pipelines.dataset_options import ImagesOptions
from shardmill.pipelines.runners import IN_MEMORY, take_runner
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS
from shardmill.transforms.images.resize import INTERPOLATIONS, RESIZES
from shardmill.transforms.match.labels import LABEL_FROM
from shardmill.transforms.sink.placement import DUPLICATES

_LARGE_SIDE = 4096  # pixels; such images rarely are what --image_size should say
_EXAMPLE = """\
example, a folder with one subfolder per label:
  shardmill images --input=flower_photos --output=ds --image_size=224"""

_GROUPS = {
    "input and output": f"{build_flags.PLACES} limit",
    "labels and splits": "label_from label_pattern labels splits group_pattern seed",
    "pixels": "image_size resize interpolation only_shrink reducing_gap icc encoding quality "
    "channels",
    "records and shards": f"features {build_flags.SHARDS} shard_by duplicates",
    "running": "max_reject_fraction workers",
    "limits of one image": "max_pixels decoder_memory decoder_seconds",
}


def main(argv: list[str]) -> int:
    """Build and publish a dataset of images; return the exit code."""
    options = parse_build("images", argv)
    size = options.config.image_spec.resize.size
    if options.config.resize != "none" and max(size) > _LARGE_SIDE and not options.answer.quiet:
        print(
            f"shardmill: --image_size={options.config.image_size} makes records of "
            f"{size.height}x{size.width} pixels, which take seconds each.",
            file=sys.stderr,
        )
    if not options.config.dry_run and take_runner(options.beam_flags)[0] == IN_MEMORY:
        _start_decoder(options.config.workers)
    return run_build("images", *options)


def _start_decoder(workers: int) -> None:
    """Start a decoder process, which takes as long as importing a fifth of Beam does."""
    from shardmill.transforms.images.decoder_pool import use_pool
    from shardmill.transforms.runtime.process_pool import usable_cores

    with use_pool(workers or usable_cores()) as pool:
        pool.start_one()


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = build_flags.build_parser(
        "images", "Build a GZIP TFRecord dataset from images.", _EXAMPLE, ImagesOptions, _GROUPS
    )
    # The config explains which flag images have instead.
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.suggestions = {
        **build_flags.SHARED_SUGGESTIONS,
        "--label_from": LABEL_FROM,
        "--splits": ("directory", "listing", "train:0.9,validation:0.1"),
        "--resize": RESIZES,
        "--interpolation": INTERPOLATIONS,
        "--icc": ("ignore", "srgb"),
        "--encoding": ENCODINGS,
        "--channels": ("1", "3", "4"),
        "--shard_by": ("label",),
        "--duplicates": DUPLICATES,
    }
    return parser
