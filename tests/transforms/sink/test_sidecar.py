"""The payload of a part stays as long as a sidecar names it."""

import pytest

from shardmill.schemas.errors import StorageError
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.sink.sidecar import create_sidecar


class FailingStorage(LocalStorage):
    """Raises an error before or after it creates a file."""

    def __init__(self, error: BaseException, *, created: bool) -> None:
        super().__init__()
        self.error, self.created = error, created

    def create(self, path: str, data: bytes) -> bool:
        if self.created:
            super().create(path, data)
        raise self.error


@pytest.mark.parametrize("created", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("no space left")], ids=repr)
def test_an_error_keeps_a_payload_that_a_sidecar_names(error, created, tmp_path) -> None:
    payload = tmp_path / "a.part"
    payload.write_bytes(b"records")
    storage = FailingStorage(error, created=created)
    with pytest.raises(type(error)):
        create_sidecar(storage, str(tmp_path / "a.json"), "{}", 1, lambda: None, str(payload))
    assert (tmp_path / "a.json").exists() == created
    assert payload.exists() == (created or isinstance(error, KeyboardInterrupt))
