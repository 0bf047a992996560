"""Faults of a network and a service, chosen or random."""

import random
from collections import Counter
from dataclasses import dataclass, field

from tests.support.gcs_rules import Call


@dataclass
class Fault:
    """A fault of some calls; see ``Front.fail``."""

    kind: str
    how: str
    times: int = 1
    name: str = ""
    skip: int = 0

    def takes(self, call: Call) -> bool:
        """Report whether the fault applies to a call, and count it."""
        fits = self.kind in ("*", call.kind) and call.name.endswith(self.name) and self.times > 0
        if fits and self.skip:
            self.skip -= 1
            return False
        self.times -= fits
        return fits


@dataclass
class Storm:
    """Random faults, the same for the same seed and order of calls.

    Attributes:
        seed: Seed of the random choice.
        share: Share of calls that fail.
        hows: Possible faults; see ``Front.fail``.
        injected: Number of injected faults by (kind, how).
    """

    seed: int
    share: float
    hows: tuple[str, ...]
    injected: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def choose(self, call: Call) -> str:
        """Return the fault of a call; empty for none."""
        if self._random.random() >= self.share:
            return ""
        how = self._random.choice(self.hows)
        self.injected[call.kind, how] += 1
        return how
