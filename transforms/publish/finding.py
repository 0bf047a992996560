"""A difference between a dataset and its manifest or schema."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """A difference between a dataset and its manifest or schema.

    Attributes:
        file: Name relative to the dataset's folder.
        message: The difference, without a full stop.
    """

    file: str
    message: str
