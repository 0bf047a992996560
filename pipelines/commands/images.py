"""``shardmill images``."""

from __future__ import annotations

import sys

from shardmill.pipelines.commands.build import BuildOptions
from shardmill.pipelines.commands.parser import PLACES, SHARDS, Parser, build_parser
from shardmill.pipelines.dataset_options import ImagesOptions
from shardmill.pipelines.runners import IN_MEMORY, take_runner

_LARGE_SIDE = 4096  # pixels; such images rarely are what --image_size should say
_EXAMPLE = """\
example, a folder with one subfolder per label:
  shardmill images --input=flower_photos --output=ds --image_size=224"""

_GROUPS = {
    "input and output": f"{PLACES} follow_links limit",
    "labels and splits": "label_from label_pattern labels splits group_pattern seed",
    "pixels": "image_size resize interpolation only_shrink reducing_gap icc encoding quality "
    "channels",
    "records and shards": f"features {SHARDS} shard_by duplicates",
    "running": "max_reject_fraction workers beam_options",
    "limits of one image": "max_pixels decoder_memory decoder_seconds",
}


def start(options: BuildOptions) -> None:
    """Print a note about very large images, and start a decoder while Beam is imported."""
    config = options.config
    size = config.image_size
    if config.resize != "none" and max(size) > _LARGE_SIDE and not options.answer.quiet:
        print(
            f"shardmill: --image_size={size} makes records of {size.height}x{size.width} pixels, "
            "which take seconds each.",
            file=sys.stderr,
        )
    if not config.dry_run and take_runner(options.beam_flags)[0] == IN_MEMORY:
        _start_decoder(config.workers)


def _start_decoder(workers: int) -> None:
    """Start a decoder process, which takes as long as importing a fifth of Beam does."""
    from shardmill.transforms.images.decoder_pool import use_pool
    from shardmill.transforms.runtime.process_pool import usable_cores

    with use_pool(workers or usable_cores()) as pool:
        pool.start_one()


def make_parser() -> Parser:
    """Return the parser of the command."""
    what = "Build a GZIP TFRecord dataset from images."
    return build_parser("images", what, _EXAMPLE, ImagesOptions, _GROUPS)
