"""Store the TensorFlow Transform graph of a build; the first builder's graph is used by all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import Storage, join, open_storage
from shardmill.transforms.sink.sidecar import create_sidecar, find_sidecar, seal
from shardmill.transforms.sink.spec import ExtraFiles
from shardmill.transforms.tables.table_source import list_features
from shardmill.transforms.tables.tft.transformer import transformed_features, transformed_schema

FOLDER = "transforms"


@dataclass(frozen=True)
class StoredGraph:
    """The graph of a build.

    Two analyses of the same rows may give graphs that differ in bytes, and in the last bits of
    float sums. The name of the folder is unique and identifies the graph: runs that were encoded
    with another graph are not reused.

    Attributes:
        folder: Path of its folder, relative to the build folder.
        files: Paths of its files, relative to its folder.
        schema: Text of the schema.pbtxt of the transformed features.
    """

    folder: str
    files: tuple[str, ...]
    schema: str

    def extra_files(self) -> ExtraFiles:
        """Return the files that are published, their schema and features."""
        files = {f"{shard_names.TRANSFORM}/{file}": f"{self.folder}/{file}" for file in self.files}
        return ExtraFiles(files, self.schema, list_features(transformed_features(self.schema)))


def find_graph(build: str, input_id: str) -> StoredGraph | None:
    """Return the graph of a build, or None if there is none.

    A graph with missing files is forgotten, so that the analysis runs again.
    """
    storage = open_storage(build)

    def load(body: dict[str, Any]) -> StoredGraph | None:
        graph = StoredGraph(**{**body, "files": tuple(body["files"])})
        present = set(_list_files(storage, join(build, graph.folder)))
        return graph if present >= set(graph.files) else None

    return find_sidecar(storage, sidecar_path(build, input_id), load)


def read_graph(build: str, input_id: str) -> StoredGraph:
    """Return the graph of a build.

    Raises:
        OutputError: There is none.
    """
    graph = find_graph(build, input_id)
    if graph is None:
        raise OutputError("part-gone", path=sidecar_path(build, input_id))
    return graph


def store_graph(build: str, input_id: str, path: str) -> StoredGraph:
    """Make a finished graph the graph of a build, unless another builder was first.

    Args:
        build: The build folder; its name covers the preprocessing source and all versions.
        input_id: Identity of the inputs and of their ctimes.
        path: Folder of the graph in the build folder; deleted if another graph is used.

    Returns:
        The graph that all builders use.
    """
    storage = open_storage(build)
    folder = path[len(build.rstrip("/")) + 1 :]
    graph = StoredGraph(folder, tuple(_list_files(storage, path)), transformed_schema(path))
    winner = create_sidecar(
        storage, sidecar_path(build, input_id), seal(asdict(graph)), graph,
        lambda: find_graph(build, input_id),
    )  # fmt: skip
    if winner.folder != folder:
        storage.delete_tree(path)
    return winner


def sidecar_path(build: str, input_id: str) -> str:
    """Return the path of the sidecar that names the graph of a build."""
    return join(build, f"transform-{input_id}.json")


def _list_files(storage: Storage, folder: str) -> list[str]:
    root = len(folder.rstrip("/")) + 1
    return sorted(entry.path[root:] for entry in storage.walk(folder) if entry.kind == "file")
