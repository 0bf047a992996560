"""The payload of a part stays as long as a sidecar names it; what its identity depends on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas import InputRef
from shardmill.schemas.errors import StorageError
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.publish.generation import create_sidecar, seal, unseal
from shardmill.transforms.sink.parts import part_id
from shardmill.transforms.sink.placement import PartKey


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
        create_sidecar(storage, str(tmp_path / "a.json"), b"{}", 1, lambda: None, str(payload))
    assert (tmp_path / "a.json").exists() == created
    assert payload.exists() == (created or isinstance(error, KeyboardInterrupt))


def test_any_damaged_byte_of_a_sidecar_is_noticed() -> None:
    body = {"rows": ["é", 1], "seal": 5, "next": {',"seal":': 2}}
    data = seal(body)
    assert unseal(data, lambda found: found) == body
    for at in range(len(data)):
        assert unseal(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], lambda _: 1) is None
        assert unseal(data[:at], lambda _: 1) is None


@given(
    st.sets(st.sampled_from("abcdef"), min_size=1),
    st.permutations("abcdef"),
    st.permutations("abcdef"),
)
def test_a_part_is_that_of_the_class_ids_in_its_records(classes, before, after):
    """Of one label or of several: a part of other numbers must not be used again."""
    key, several = PartKey("train", "", 0), InputRef("k", "u", classes=tuple(sorted(classes)))
    for ref in (several, InputRef("k", "u", label=min(classes))):
        equal = all(before.index(label) == after.index(label) for label in ref.labels)
        assert (part_id("c", key, [ref], before) == part_id("c", key, [ref], after)) == equal
