"""Looking before leaping: whether the output can be written, before any work starts."""

from __future__ import annotations

import os
import uuid

from shardmill.schemas.errors import OutputError, StorageError
from shardmill.schemas.storage import open_storage, scheme_of
from shardmill.schemas.storage.local import storage_error
from shardmill.transforms.publish import check_output, recover


def check_writable(output: str) -> None:
    """Completes an unfinished publication and checks that a dataset may be built at output.

    Leaves nothing behind.

    Raises:
        OutputError: The output is foreign or cannot be written.
    """
    storage = open_storage(output)
    recover(storage, output)
    check_output(storage, output)
    if scheme_of(output):
        return
    made: list[str] = []
    folder = output
    while not os.path.isdir(folder):
        made.append(folder)
        folder = os.path.dirname(folder)
    probe = os.path.join(output, f".probe-{uuid.uuid4().hex}")
    try:
        os.makedirs(output, exist_ok=True)
        with open(probe, "xb"):
            pass
        os.unlink(probe)
    except OSError as error:
        failed: StorageError = storage_error("write to", f"--output={output}", error)
        raise OutputError(str(failed)) from error
    finally:
        for folder in made:
            if os.path.isdir(folder):
                os.rmdir(folder)
