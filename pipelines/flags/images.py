"""Flags of ``shardmill images``."""

from __future__ import annotations

from shardmill.pipelines.flags.building import (
    SHARED_WORDS,
    add_places,
    add_running,
    add_shards,
    build_parser,
)
from shardmill.pipelines.flags.parser import Group, Parser
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS
from shardmill.transforms.images.resize import INTERPOLATIONS, RESIZES
from shardmill.transforms.match.labels import LABEL_FROM

_EXAMPLE = """\
example, a folder with a folder for each label:
  shardmill images --input=flower_photos --output=ds --image_size=224"""


def images_parser() -> Parser:
    """Returns the parser of ``shardmill images``."""
    parser = build_parser(
        "images", "Turns a folder of images into a published GZIP TFRecord dataset.", _EXAMPLE
    )
    places = parser.add_argument_group("what is read and written")
    add_places(places, "a folder, glob, listing (.csv) or image")
    places.add_argument("--limit", type=int, metavar="N", help="take a fair sample of N images")
    _add_labels(parser.add_argument_group("labels and splits"))
    _add_pixels(parser.add_argument_group("pixels"))
    shards = parser.add_argument_group("records and shards")
    shards.add_argument(
        "--features", metavar="LIST", help="NAME=SOURCE,... chooses and renames features"
    )
    add_shards(shards)
    shards.add_argument("--shard_by", metavar="WHAT", help="label: a set of shards for each label")
    add_running(parser.add_argument_group("running"), "decoding threads a worker")
    parser.words = {
        **SHARED_WORDS,
        "--label_from": LABEL_FROM,
        "--splits": ("directory", "listing", "train:0.9,validation:0.1"),
        "--resize": RESIZES,
        "--interpolation": INTERPOLATIONS,
        "--icc": ("ignore", "srgb"),
        "--encoding": ENCODINGS,
        "--channels": ("1", "3", "4"),
        "--shard_by": ("label",),
    }
    return parser


def _add_labels(group: Group) -> None:
    add = group.add_argument
    add("--label_from", metavar="WHERE", help=f"{', '.join(LABEL_FROM)} (default: directory)")
    add("--label_pattern", metavar="REGEX", help="has a group (?P<label>...)")
    add("--labels", metavar="FILE", help="one label a line, line number = class id")
    add("--splits", metavar="SHARES",
        help="train:0.9,validation:0.1 (default), or directory, or listing")  # fmt: skip
    add("--group_pattern", metavar="REGEX", help="what it matches in keys stays in one split")
    add("--seed", type=int, metavar="N", help="another shuffle and other splits (default: 0)")


def _add_pixels(group: Group) -> None:
    add = group.add_argument
    add("--image_size", metavar="SIZE", help="224 (default) or 180x320 (height x width)")
    add("--resize", metavar="HOW", help=f"{', '.join(RESIZES)} (default: stretch)")
    add("--interpolation", metavar="FILTER",
        help=f"{', '.join(INTERPOLATIONS)} (default: bilinear)")  # fmt: skip
    add("--only_shrink", action="store_true", help="never enlarge an image")
    add("--reducing_gap", type=float, metavar="X",
        help="decode JPEGs at a fraction that stays X times larger than the target "
        "(default: 3; 0: always in full)")  # fmt: skip
    add("--icc", metavar="HOW", help="ignore colour profiles (default) or convert to srgb")
    add("--encoding", metavar="TYPE", help=f"{', '.join(ENCODINGS)} (default: jpeg)")
    add("--quality", type=int, metavar="Q", help="of JPEGs, 1 to 100 (default: 95)")
    add("--channels", type=int, metavar="N", help="3 (default), 1 (grey) or 4 (with alpha)")
