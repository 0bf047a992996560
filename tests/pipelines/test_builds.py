"""What holds for builds of each kind of input: the same bytes, and custom pipelines."""

from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from shardmill import pipelines
from shardmill.pipelines.commands import INPUT_KINDS
from shardmill.schemas.dataset.manifest import Manifest
from tests.conftest import SOAK, build_dataset, make_photos, shardmill
from tests.support.readers import dataset_files, dataset_splits
from tests.support.rows_tools import check_dataset, make_mixed_tables, make_table

HEAVY = pytest.mark.heavy
WORKERS = [
    [f"--direct_running_mode={mode}", "--direct_num_workers=2"]
    for mode in ("multi_processing", "multi_threading")[: 1 + SOAK]
]
FLAGS = [["{}=1"], ["{}=7"], *(pytest.param(f, marks=HEAVY) for f in WORKERS)]


def make_input(kind: str, folder: Path) -> dict[str, object]:
    """Write inputs with rejects; return the options of a build."""
    if kind == "rows":
        make_mixed_tables(folder)
        return {"input": folder, "label": "class", "schema": folder / "schema.pbtxt"}
    make_photos(folder, {"cat": 12, "dog": 9})
    (folder / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing more")
    return {"input": folder, "image_size": 40}


@pytest.mark.sweep
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("kind", ["images", "rows"])
def test_bytes_do_not_depend_on_processes_threads_or_workers(kind, flags, tmp_path) -> None:
    options = make_input(kind, tmp_path / "in") | {"num_shards": 3}
    build_dataset(kind, **options, output=tmp_path / "here")
    argv = [f"--{name}={value}" for name, value in options.items()]
    flags = [flag.format("--workers" if kind == "images" else "--threads") for flag in flags]
    done = shardmill(kind, *argv, f"--output={tmp_path}/there", *flags)  # has another hash seed
    assert done.returncode == 0, done.stderr
    files = dataset_files(tmp_path / "here")
    assert len(files) == 9
    assert files["rejects.jsonl"]
    assert dataset_files(tmp_path / "there") == files
    assert dataset_splits(tmp_path / "there") == dataset_splits(tmp_path / "here")


@pytest.mark.sweep
@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_builds_in_a_custom_pipeline(kind, tmp_path) -> None:
    inputs = {
        "images": lambda: make_photos(tmp_path / "in", {"cat": 5, "dog": 4}),
        "rows": lambda: make_table(tmp_path / "in.csv", ["a"], [[n] for n in range(9)]),
        "arrays": lambda: np.save(tmp_path / "in.npy", np.arange(9)) or tmp_path / "in.npy",
    }
    config = INPUT_KINDS[kind].load_config()(str(inputs[kind]()), str(tmp_path / "ds"))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = getattr(pipelines, f"build_{kind}")(pipeline, config)
    manifest = Manifest.from_json((tmp_path / "ds" / "manifest.json").read_text())
    assert len(check_dataset(tmp_path / "ds", manifest)) == 9
