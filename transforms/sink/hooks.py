"""BuildHooks: how a kind of input adapts a build, and the words that messages use for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shardmill.schemas.dataset.manifest import Split
from shardmill.schemas.rejects import Reject


class ExtraFiles(NamedTuple):
    """Files that are published next to the shards, and a schema instead of the encoder's.

    Attributes:
        files: Finished files: final name to path in the build folder.
        schema: Text of ``schema.pbtxt``; empty for the encoder's.
        features: Features as the manifest lists them; empty for the encoder's.
    """

    files: Mapping[str, str] = {}
    schema: str = ""
    features: Sequence[dict[str, Any]] = ()


class BuildHooks:
    """Adapts a build to one kind of input; a small picklable value. The base class adapts nothing.

    Attributes:
        reports_inputs: Whether the sink counts each input of a part in the progress of the run.
        inputs: Word for inputs in messages.
        wanted: What the names of inputs say that they are, for messages.
    """

    reports_inputs: bool = True
    inputs: str = "inputs"
    wanted: str = "an input"

    def next_step(self, name: str, default: str) -> str:  # noqa: ARG002
        """Return what to do with a file that is not of this kind.

        Args:
            name: Name of the file.
            default: What to return if the name does not say.
        """
        return default

    def remedy(self, reason: str, keys: Sequence[str]) -> str:  # noqa: ARG002
        """Return what to change if matching rejected all inputs, or nothing.

        Args:
            reason: The most frequent reason.
            keys: Some of the rejected inputs.
        """
        return ""

    def input_warnings(self, labels: Collection[str], usable: int) -> Iterator[str]:  # noqa: ARG002
        """Yield warnings about the matched inputs.

        Args:
            labels: Labels of the inputs.
            usable: Number of inputs that were not rejected.
        """
        yield from ()

    def countable(self, counted: Collection[str]) -> bool:  # noqa: ARG002
        """Return whether there are few enough labels to list and count them."""
        return True

    def labels(self, counted: Collection[str]) -> tuple[str, ...]:
        """Return the labels in the order of their class ids, where they are known from records.

        Args:
            counted: Labels of the records.
        """
        return tuple(sorted(counted, key=str.encode))

    def extra_files(self, build: str, input_id: str) -> ExtraFiles:  # noqa: ARG002
        """Return the files that are published next to the shards.

        Args:
            build: The build folder.
            input_id: Identity of the inputs.
        """
        return ExtraFiles()

    def schema(self, text: str, splits: Mapping[str, Split]) -> str:  # noqa: ARG002
        """Return the text of ``schema.pbtxt``, given that of the encoder and the written splits."""
        return text

    def why_unacceptable(self, rejects: Iterator[Reject], rows: int) -> str:  # noqa: ARG002
        """Return why a build with these rejects must not be published, as a sentence, or nothing.

        Args:
            rejects: The rejects of the build.
            rows: Number of records and rejected inputs.
        """
        return ""

    def advice(self, rejects: Iterator[Reject]) -> str:
        """Return what to change when too many inputs were rejected, as a sentence, or nothing."""
        first = next(rejects, None)
        return "" if first is None else self.next_step(first.key, "")
