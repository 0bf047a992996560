"""Look again at published rejects that depend on the time of reading.

An input that was missing, unreadable or changing is rejected in one build only. The next run of the
same build looks at exactly these inputs again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import TRANSIENT
from shardmill.schemas.storage import Storage, join, open_storage

CanUse: TypeAlias = Callable[[InputRef], bool]


def can_read(ref: InputRef) -> bool:
    """Return whether the first byte of an input can be read."""
    with open_storage(ref.uri).open_at(ref.uri) as reader:
        return bool(reader.read_at(0, 1))


def find_usable(storage: Storage, output: str, published: Manifest, can_use: CanUse) -> str:
    """Return why a dataset is not up to date, or an empty text if its transient rejects stay.

    Args:
        storage: Storage of the output.
        output: The output folder.
        published: The published dataset.
        can_use: Returns whether an input can be used now.
    """
    counted = published.inputs.rejected_by_reason
    if not TRANSIENT & counted.keys():
        return ""
    try:
        lines = storage.read(join(published.folder(output), shard_names.REJECTS)).splitlines()
        rejects = [json.loads(line) for line in lines]
        found = [(each["key"], each["uri"]) for each in rejects if each["error"] in TRANSIENT]
        listed = Counter(each["error"] for each in rejects)
        if any(listed[error] != counted.get(error, 0) for error in TRANSIENT):
            raise ValueError("lines are missing")
    except (ValueError, TypeError, KeyError):
        return f"{shard_names.REJECTS} is damaged: add --overwrite to build the dataset again."
    usable = [key for key, uri in found if _is_usable(key, uri, can_use)]
    if not usable:
        return ""
    return (
        f"{len(usable):,} of the {len(found):,} inputs that could not be read when {output} was "
        f"built can be read now, such as {usable[0]!r}: add --update to publish a new version."
    )


def _is_usable(key: str, uri: str, can_use: CanUse) -> bool:
    try:
        entry = open_storage(uri).stat(uri)
        if entry is None or entry.kind != "file":
            return False
        return can_use(InputRef(key, uri, entry.size, entry.version))
    except (ShardmillError, OSError):
        return False
