"""``shardmill images``."""

from __future__ import annotations

from shardmill.pipelines import run
from shardmill.pipelines.flags.images import images_parser


def main(argv: list[str]) -> int:
    """Builds and publishes a dataset of images; returns the exit code."""
    images_parser().parse_known_args(argv)  # what it can tell needs no Beam
    with run.quiet_import():
        from shardmill.pipelines.options import parse_images

        config, rest, debug = parse_images(argv)
        from shardmill.pipelines import images
        from shardmill.pipelines.run_build import run_build
    return run_build(images, config, rest, debug=debug, unit="images")
