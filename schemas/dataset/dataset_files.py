"""Read the small files of a dataset, which may be another person's.

A manifest, a schema or a catalog may be a pipe, which is never answered, or a device, which never
ends. So the type and the size are checked before a byte is read.
"""

from __future__ import annotations

from shardmill.schemas.errors import FormatError
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage import open_storage, scheme_of

MAX_BYTES = 1 << 30  # a manifest of a million shards has a third of it


def check_dataset_file(path: str) -> None:
    """Check that a local path is a file that can be read into memory.

    Raises:
        FileNotFoundError: It does not exist.
        FormatError: It is not a regular file, or is too large.
        StorageError: The storage failed, such as at a link to itself.
    """
    if scheme_of(path):  # an object is neither a pipe nor endless, and each look is a request
        return
    entry = open_storage(path).stat(path)
    if entry is None:
        raise FileNotFoundError(path)
    if entry.kind != "file":
        raise FormatError("it is a pipe, device or folder, not a file")
    if entry.size > MAX_BYTES:
        raise FormatError(
            f"it has {plural(entry.size, 'byte')}, more than the {plural(MAX_BYTES, 'byte')} that "
            "such a file may have"
        )


def read_dataset_file(path: str) -> bytes:
    """Return the content of a file of a dataset; see ``check_dataset_file``."""
    check_dataset_file(path)
    return open_storage(path).read(path)
