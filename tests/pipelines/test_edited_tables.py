"""Tables and arrays that are edited in place, and keep their size and modification time."""

import gzip
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from shardmill.schemas.errors import StorageError
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.transforms.publish.publish import Publisher
from shardmill.transforms.sources.arrays import array_source
from shardmill.transforms.sources.csv import sample
from shardmill.transforms.sources.csv.source import CsvSource
from shardmill.transforms.tables import transform
from tests.conftest import SOAK, build_dataset
from tests.support.readers import dataset_files

ROWS = 3_000


def text_of(edit: int, header: str = "number,word") -> bytes:
    """Return a table whose cell in the last row depends on the edit."""
    rows = [f"{n},{n % 7}x" for n in range(1_000, 1_000 + ROWS)]
    return "\n".join([header, *rows, f"9,{edit}y", ""]).encode()


def array_of(edit: int) -> np.ndarray:
    array = np.arange(ROWS * 4).reshape(ROWS, 4)
    array[-1, -1] = edit
    return array


def save(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        (np.save if path.suffix == ".npy" else np.savez)(file, array)


# What is built, and a function that writes it as it is before (0) or after (1) the edit.
TABLES: dict[str, tuple[str, int, Callable[[Path, int], object]]] = {
    "in.csv": ("rows", 1 << 12, lambda path, edit: path.write_bytes(text_of(edit))),
    "header.csv": (
        "rows",
        1 << 20,
        lambda path, edit: path.write_bytes(text_of(0, ("ab,cd", "cd,ab")[edit])),
    ),
    "in.csv.gz": (
        "rows",
        1 << 12,
        lambda path, edit: path.write_bytes(gzip.compress(text_of(edit), 0, mtime=0)),
    ),
    "in.npy": ("arrays", 1 << 12, lambda path, edit: save(path, array_of(edit))),
    "dtype.npy": (
        "arrays",
        1 << 20,
        lambda path, edit: save(path, array_of(0).view(("<i8", "<u8")[edit])),
    ),
    "in.npz": ("arrays", 1 << 12, lambda path, edit: save(path, array_of(edit))),
}


@pytest.fixture(params=TABLES)
def work(request, tmp_path, monkeypatch):
    """A function that builds, one that edits the input, and the input."""
    kind, size, write = TABLES[request.param]
    monkeypatch.setattr("shardmill.pipelines.rows.CsvSource", partial(CsvSource, range_bytes=size))
    monkeypatch.setattr(sample, "read_head", partial(sample.read_head, range_bytes=size))
    monkeypatch.setattr(array_source, "_BATCH_BYTES", size)
    path = tmp_path / request.param
    write(path, 0)
    options = {"input": path, "splits": "train:1"}
    if path.name == "header.csv":  # a schema hides that other columns have the names
        columns = [Column(each, "bytes") for each in ("ab", "cd")]
        options["schema"] = tmp_path / "schema.pbtxt"
        options["schema"].write_text(format_schema(columns))

    def build(output: str = "ds", **more):
        return build_dataset(kind, output=tmp_path / output, **options, **more)

    def edit() -> None:
        before = path.stat()
        write(path, 1)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)

    return build, edit, path


def same_as_from_scratch(path: Path, build) -> bool:
    build("scratch")
    return dataset_files(path.parent / "ds") == dataset_files(path.parent / "scratch")


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize(
    "work",
    TABLES
    if SOAK
    else [
        "in.csv",
        *(pytest.param(each, marks=pytest.mark.heavy) for each in ("dtype.npy", "in.npz")),
    ],
    indirect=True,
)
def test_a_table_of_which_the_ctime_alone_differs_is_read(work) -> None:
    build, edit, path = work
    _, first = build()
    path.chmod(0o600)
    assert build()[0].status == "up_to_date"
    edit()
    outcome, _ = build()
    assert outcome.status == "failed"
    assert "of equal size and modification time has other content" in outcome.message
    outcome, second = build(update=True)
    assert outcome.status == "published"
    assert first.build.input_id == second.build.input_id
    assert first.build.content_id != second.build.content_id
    assert same_as_from_scratch(path, build)
    assert build()[0].status == "up_to_date"


@pytest.mark.sweep
@pytest.mark.heavy
def test_a_resumed_build_takes_the_runs_of_what_the_file_holds(work, monkeypatch) -> None:
    build, edit, path = work
    made, make_run = [], transform.make_run
    monkeypatch.setattr(transform, "make_run", lambda *args: made.append(0) or make_run(*args))
    with monkeypatch.context() as killed:
        error = StorageError("the disk is full.")
        killed.setattr(Publisher, "publish", lambda *_: (_ for _ in ()).throw(error))
        for change in (lambda: None, lambda: path.chmod(0o600)):
            change()
            assert build()[0].status == "failed"
    before = len(made)
    edit()
    assert build()[0].status == "published"
    assert same_as_from_scratch(path, build)
    changed = len(made) - 2 * before
    all_changed = path.name in ("header.csv", "dtype.npy", "in.csv.gz")
    assert changed == (before if all_changed else 1)


@pytest.mark.nightly
@pytest.mark.parametrize("work", ["in.csv", "in.npy"][: 1 + SOAK], indirect=True)
def test_content_is_read_by_request_where_no_ctime_is_kept(work, monkeypatch) -> None:
    build, edit, _ = work
    monkeypatch.setattr("shardmill.schemas.refs.InputRef.ctime_digest", lambda _: 1)
    build()
    assert build(update="content")[0].status == "up_to_date"
    edit()
    assert build(update=True)[0].status == "up_to_date"
    for dry_run, status in ((True, "dry_run"), (False, "published")):
        assert build(update="content", dry_run=dry_run)[0].status == status
