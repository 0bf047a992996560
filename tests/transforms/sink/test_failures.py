"""A worker without memory ends the build with a sentence, not with endless retries."""

import pytest

from shardmill.schemas.errors import ResourceError, StorageError
from shardmill.transforms.runtime import progress
from shardmill.transforms.sink.transform import failure_of


def test_other_runners_get_the_sentence_as_a_value():
    assert failure_of(StorageError("The disk is full.")) == "The disk is full."
    assert "cannot have more memory: use" in failure_of(MemoryError())


def test_the_own_process_of_the_command_raises_it():
    with progress.collect(progress.Progress()), pytest.raises(ResourceError, match="more memory"):
        failure_of(MemoryError())
