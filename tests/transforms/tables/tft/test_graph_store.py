"""All builders of an output use one TensorFlow Transform graph, that of the first."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardmill.schemas.errors import OutputError
from shardmill.transforms.tables.tft.build_graph import (
    FOLDER,
    find_graph,
    read_graph,
    sidecar_path,
    store_graph,
)

FILES = (
    "transform_fn/saved_model.pb",
    "transform_fn/assets/words",
    "transformed_metadata/schema.pbtxt",
)


def make_graph(build: Path, name: str) -> str:
    """Write the files of a graph with distinct contents; return its folder."""
    for file in FILES:
        path = build / FOLDER / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name if file.endswith(("pb", "words")) else "")
    return str(build / FOLDER / name)


def test_concurrent_builders_use_the_graph_of_the_first(tmp_path) -> None:
    folders = [make_graph(tmp_path, f"transform-{number}") for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        used = set(threads.map(lambda path: store_graph(str(tmp_path), "id", path), folders))
    (graph,) = used
    assert graph == find_graph(str(tmp_path), "id") == read_graph(str(tmp_path), "id")
    assert graph.files == tuple(sorted(FILES))
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [Path(graph.folder).name]
    assert find_graph(str(tmp_path), "other inputs") is None


@pytest.mark.parametrize("damage", ["file missing", "sidecar cut", "other version"])
def test_forgets_a_damaged_graph_and_identifies_its_successor(damage, tmp_path) -> None:
    build, sidecar = str(tmp_path), Path(sidecar_path(str(tmp_path), "id"))
    first = store_graph(build, "id", make_graph(tmp_path, "transform-1"))
    if damage == "file missing":
        (tmp_path / first.folder / FILES[1]).unlink()
    elif damage == "sidecar cut":
        sidecar.write_bytes(sidecar.read_bytes()[:-9])
    else:
        from shardmill.transforms.publish.generation import seal

        sidecar.write_bytes(seal({"folder": first.folder, "digest": "0", "files": list(FILES)}))
    assert find_graph(build, "id") is None
    assert not sidecar.exists()
    with pytest.raises(OutputError, match="is gone: run again"):
        read_graph(build, "id")
    second = store_graph(build, "id", make_graph(tmp_path, "transform-2"))
    assert second.folder != first.folder  # so that no run of the first graph is reused
