"""Keeping what TensorFlow Transform learnt: one graph for a build, whoever made it first."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import Storage, join, open_storage
from shardmill.transforms.build.encoder import Beside
from shardmill.transforms.build.sidecar import seal, unseal
from shardmill.transforms.rows.tft.apply import (
    transform_digest,
    transformed_features,
    transformed_schema,
)

FOLDER = "transforms"
_TYPES = {"int64": "int64", "float32": "float", "bytes": "bytes"}


@dataclass(frozen=True)
class Pointer:
    """Which graph a build uses.

    Attributes:
        folder: Its folder, relative to the build folder.
        digest: What it makes of rows, as ``transform_digest`` tells.
        files: Its files, relative to its folder.
        schema: Text of the schema.pbtxt of the transformed features.
    """

    folder: str
    digest: str
    files: tuple[str, ...]
    schema: str

    def beside(self) -> Beside:
        """Returns what is published."""
        files = {f"{shard_names.TRANSFORM}/{file}": f"{self.folder}/{file}" for file in self.files}
        features = [
            {"name": feature.name, "type": _TYPES[feature.kind]}
            for feature in transformed_features(self.schema)
        ]
        return Beside(files, self.schema, features)


def find_pointer(build: str, input_id: str) -> Pointer | None:
    """Returns the graph that a build uses, or None when none was kept yet.

    One that is not whole is taken away, so that it can be made anew.
    """
    storage = open_storage(build)
    path = pointer_path(build, input_id)
    try:
        body = unseal(storage.read(path))
    except FileNotFoundError:
        return None
    if body is not None:
        pointer = Pointer(**{**body, "files": tuple(body["files"])})
        present = set(_files(storage, join(build, pointer.folder)))
        if present >= set(pointer.files):
            return pointer
    storage.delete(path)
    return None


def read_pointer(build: str, input_id: str) -> Pointer:
    """Returns the graph that a build uses.

    Raises:
        OutputError: It is gone.
    """
    pointer = find_pointer(build, input_id)
    if pointer is None:
        raise OutputError(f"{pointer_path(build, input_id)} is gone: run again.")
    return pointer


def keep(build: str, input_id: str, path: str) -> Pointer:
    """Makes a finished graph the one that a build uses, unless another one is.

    Args:
        build: The build folder.
        input_id: Identity of the inputs.
        path: The finished graph, in the build folder; deleted when another one was first.
    """
    storage = open_storage(build)
    folder = path[len(build.rstrip("/")) + 1 :]
    mine = Pointer(
        folder, transform_digest(path), tuple(_files(storage, path)), transformed_schema(path)
    )
    body = {**asdict(mine), "files": list(mine.files)}
    if storage.create(pointer_path(build, input_id), seal(body).encode()):
        return mine
    winner = read_pointer(build, input_id)
    if winner.folder != folder:
        storage.delete_tree(path)
    return winner


def pointer_path(build: str, input_id: str) -> str:
    """Returns where it is written which graph a build uses."""
    return join(build, f"transform-{input_id}.json")


def _files(storage: Storage, folder: str) -> list[str]:
    root = len(folder.rstrip("/")) + 1
    return sorted(entry.path[root:] for entry in storage.walk(folder) if entry.kind == "file")
