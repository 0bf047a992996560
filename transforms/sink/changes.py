"""Changes: which inputs are new, changed or removed since a dataset was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["new", "changed", "removed"]
_EXAMPLES = 10


@dataclass
class Changes:
    """What changed since the dataset was published; independent of the order of adding.

    Attributes:
        counts: Number of inputs by kind of change.
        examples: The smallest keys of each kind.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, change: tuple[Kind, str]) -> None:
        """Add one input."""
        kind, key = change
        self._add(kind, 1, [key])

    def merge(self, other: Changes) -> None:
        """Add other changes."""
        for kind, count in other.counts.items():
            self._add(kind, count, other.examples[kind])

    def _add(self, kind: str, count: int, keys: list[str]) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        # The smallest keys of all are among the smallest of each part, in any order of merging.
        self.examples[kind] = sorted([*self.examples.get(kind, []), *keys])[:_EXAMPLES]

    def lines(self) -> tuple[str, ...]:
        """Return a line for each kind of change, with its number and some keys."""
        return tuple(
            f"{count:,} {kind}: {', '.join(self.examples[kind])}"
            + (", ..." if count > len(self.examples[kind]) else "")
            for kind, count in sorted(self.counts.items())
        )

    def __str__(self) -> str:
        """Return the numbers, as in ``12 new, 3 changed, 1 removed``; empty for none."""
        kinds = ("new", "changed", "removed")
        return ", ".join(f"{self.counts[kind]:,} {kind}" for kind in kinds if kind in self.counts)


def compare_files(old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
    """Return which files changed, given the identity of each by its key; none if there are none."""
    changes = Changes()
    for key in old.keys() | new.keys() if old and new else ():
        if key not in old:
            changes.add(("new", key))
        elif old[key] != new.get(key):
            changes.add(("changed" if key in new else "removed", key))
    return changes
