"""``shardmill images``."""

from __future__ import annotations

import argparse
import sys

from shardmill.pipelines.commands import build_flags
from shardmill.pipelines.commands.build import parse_build, run_build
from shardmill.pipelines.commands.parser import Group, Parser
from shardmill.pipelines.runners import IN_MEMORY, take_runner
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS
from shardmill.transforms.build.placement import DUPLICATES
from shardmill.transforms.images.resize import INTERPOLATIONS, RESIZES
from shardmill.transforms.match.labels import LABEL_FROM

_LARGE_SIDE = 4096  # pixels; such images rarely are what --image_size should say
_EXAMPLE = """\
example, a folder with one subfolder per label:
  shardmill images --input=flower_photos --output=ds --image_size=224"""


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
        "images", "Build a GZIP TFRecord dataset from images.", _EXAMPLE
    )
    paths = parser.add_argument_group("input and output")
    build_flags.add_paths(paths, "a folder, glob, listing (.csv) or image")
    paths.add_argument("--limit", type=int, metavar="N", help="take a random sample of N images")
    _add_labels(parser.add_argument_group("labels and splits"))
    _add_pixels(parser.add_argument_group("pixels"))
    shards = parser.add_argument_group("records and shards")
    shards.add_argument(
        "--features", metavar="LIST", help="NAME=SOURCE,... chooses and renames features"
    )
    build_flags.add_shards(shards)
    shards.add_argument("--shard_by", metavar="WHAT", help="label: separate shards for each label")
    shards.add_argument("--duplicates", metavar="HOW",
        help="of files with the same content: keep all (default), drop all but one, or same_split; "
        "the latter two read all files twice")  # fmt: skip
    running = parser.add_argument_group("running")
    build_flags.add_running(running, "decoder processes per worker", "--workers")
    running.add_argument("--threads", type=int, help=argparse.SUPPRESS)  # the config explains
    _add_limits(parser.add_argument_group("limits of one image"))
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


def _add_labels(group: Group) -> None:
    add = group.add_argument
    add("--label_from", metavar="WHERE", help=f"{', '.join(LABEL_FROM)} (default: directory)")
    add("--label_pattern", metavar="REGEX", help="has a group (?P<label>...)")
    add("--labels", metavar="FILE", help="one label per line, line number = class id")
    add("--splits", metavar="SHARES",
        help="directory (default if all folders are named like splits), or listing, or shares "
        "(default: train:0.9,validation:0.1)")  # fmt: skip
    add("--group_pattern", metavar="REGEX", help="keys with the same match stay in one split")
    build_flags.add_seed(group)


def _add_pixels(group: Group) -> None:
    add = group.add_argument
    add("--image_size", metavar="SIZE", help="224 (default) or 180x320 (height x width)")
    add("--resize", metavar="HOW", help=f"{', '.join(RESIZES)} (default: stretch)")
    add("--interpolation", metavar="FILTER",
        help=f"{', '.join(INTERPOLATIONS)} (default: bilinear)")  # fmt: skip
    add("--only_shrink", action="store_true", help="never enlarge an image")
    add("--reducing_gap", type=float, metavar="X",
        help="decode JPEGs at a reduced scale that stays at least X times larger than the target "
        "(default: 3; 0: always full size)")  # fmt: skip
    add("--icc", metavar="HOW", help="ignore colour profiles (default) or convert to srgb")
    add("--encoding", metavar="TYPE", help=f"{', '.join(ENCODINGS)} (default: jpeg)")
    add("--quality", type=int, metavar="Q", help="JPEG quality, 1 to 100 (default: 95)")
    add("--channels", type=int, metavar="N", help="3 (default), 1 (grey) or 4 (with alpha)")


def _add_limits(group: Group) -> None:
    add = group.add_argument
    add("--max_pixels", type=int, metavar="N",
        help="reject images with more pixels, by their headers (default: 178956970)")  # fmt: skip
    add("--decoder_memory", metavar="SIZE",
        help="reject images whose decoding needs more memory (default: 6GiB)")  # fmt: skip
    add("--decoder_seconds", type=float, metavar="X",
        help="reject images whose decoding takes more CPU time (default: 180)")  # fmt: skip
