"""ImagesHooks: how images adapt a build."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from shardmill.transforms.match.next_steps import next_step, remedy_of
from shardmill.transforms.sink.hooks import BuildHooks


@dataclass(frozen=True)
class ImagesHooks(BuildHooks):
    """The ``BuildHooks`` of images.

    Attributes:
        labels_are_names: Whether labels are the names of files.
        inputs: See ``BuildHooks``.
        wanted: See ``BuildHooks``.
    """

    labels_are_names: bool = False
    inputs: str = "images"
    wanted: str = "an image"

    def next_step(self, name: str, default: str) -> str:
        """Return what to do with a file that is not an image."""
        return next_step(name, "images", default)

    def remedy(self, reason: str, keys: Sequence[str]) -> str:
        """Return what to change if matching rejected all images, or nothing."""
        return remedy_of(reason, keys)

    def input_warnings(self, labels: Collection[str], usable: int) -> Iterator[str]:
        """Yield a warning if each file has another label."""
        if self.labels_are_names and len(labels) == usable > 1:
            yield (
                f"each of the {usable:,} files has another label, such as {min(labels)!r}: set a "
                "--label_pattern that takes the class out of the name, or --label_from=none"
            )
