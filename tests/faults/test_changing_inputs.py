"""Inputs that change while a build reads them: no build remembers what it read of them.

A build is stopped at a moment, inputs change, and the build continues. It may publish the old or
the new input, reject it, or fail. The next build must publish the bytes of one that starts then.
"""

import contextlib
import gzip
import json
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import make_image, make_photos
from tests.support.fault_tools import SOAK, Watched, check_published, zygote

pytestmark = pytest.mark.heavy

ROWS = [{"id": number, "word": f"word {number % 3}"} for number in range(400)]
OTHERS = [{"id": 9000 + number, "word": f"word {number % 2}"} for number in range(400)]


def write_csv(path: Path, rows: list[dict]) -> None:
    lines = "".join(f"{row['id']},{row['word']}\n" for row in rows)
    path.write_text(f"id,word\n{lines}")


def write_gz(path: Path, rows: list[dict]) -> None:
    lines = "".join(f"{row['id']},{row['word']}\n" for row in rows)
    path.write_bytes(gzip.compress(f"id,word\n{lines}".encode()))


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path: Path, rows: list[dict]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)


TABLES: dict[str, Callable[[Path, list[dict]], None]] = {
    "csv": write_csv,
    "csv.gz": write_gz,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


def make(kind: str, folder: Path, *, other: bool = False) -> list[Path]:
    """Write three inputs, or the other version of them; return them."""
    folder.mkdir(exist_ok=True)
    if kind in TABLES:
        paths = [folder / f"{number}.{kind}" for number in range(3)]
        for number, path in enumerate(paths):
            rows = (OTHERS if other else ROWS)[number * 100 : number * 100 + 200]
            TABLES[kind](path, rows)
        return paths
    photos = folder if kind == "images" else folder.parent / "photos"
    make_photos(photos, {"cat": 9, "dog": 9}, size=(40, 30))
    paths = sorted(photos.rglob("*.jpg"))
    if other:
        for number, path in enumerate(paths):
            make_image(1000 + number, 40, 30).save(path, quality=80)
    if kind == "images":
        return paths
    archive = folder / f"a.{kind}"
    with tarfile.open(archive, "w:gz" if kind.endswith("gz") else "w") as file:
        for path in paths:
            file.add(path, path.relative_to(photos))
    shutil.rmtree(photos)
    return [archive]


KINDS = ["images", "tar", "tar.gz", *TABLES]


def replace(path: Path, new: Path) -> None:
    os.replace(new, path)


def overwrite(path: Path, new: Path) -> None:
    """Write into the file, whose modification time stays; readers may have it open."""
    status = path.stat()
    path.write_bytes(new.read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def truncate(path: Path, new: Path) -> None:
    del new
    os.truncate(path, path.stat().st_size // 2)


def delete(path: Path, new: Path) -> None:
    del new
    path.unlink()


CHANGES = {"replace": replace, "overwrite": overwrite, "truncate": truncate, "delete": delete}
# The folder in the output that is about to change, and the number of changes from there.
MOMENTS = [("/out", 1), ("/runs/", 1), ("/runs/", 9), ("/parts/", 1), ("/parts/", 9), ("/gen-", 3)]
SOME = [
    (kind, change, MOMENTS[(2 * row + column) % len(MOMENTS)])
    for row, kind in enumerate(KINDS)
    for column, change in enumerate(CHANGES)
    if (row + column) % 3 == 0
]
EVERY = [(kind, change, moment) for kind in KINDS for change in CHANGES for moment in MOMENTS]


def command(kind: str, source: Path, output: Path, *flags: str) -> list[str]:
    """Return a build whose inputs may all be rejected."""
    words = [f"--input={source}", f"--output={output}", "--max_reject_fraction=1", *flags]
    if kind in TABLES:
        return ["rows", *words, "--label=word", "--max_rejected_files=3", "--shard_examples=50"]
    return ["images", *words, "--image_size=8", "--shard_examples=4"]


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "change", "moment"), EVERY if SOAK else SOME)
def test_the_next_build_is_right(kind, change, moment, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    paths = make(kind, source)
    others = make(kind, tmp_path / "other", other=True)
    since, number = moment
    if kind not in TABLES:
        since = since.replace("/runs/", "/parts/")
    watch = Watched(output, since=since, at=(number,), number=signal.SIGSTOP)
    build = zygote().start(*command(kind, source, output), watch=watch)
    assert build.wait_stopped()
    chosen = slice(0, 1) if change == "delete" else slice(0, None, 2)
    last = len(paths) == 1 and change == "delete"
    for path, other in zip(paths[chosen], others[chosen], strict=True):
        CHANGES["truncate" if last else change](path, other)
    build.send(signal.SIGCONT)
    ended = build.wait()
    assert ended.code in (0, 1), ended.stderr
    if ended.code:
        assert ended.sentence  # and nothing else
    else:
        check_published(output)

    fresh = zygote().run(*command(kind, source, tmp_path / "fresh"))
    again = zygote().run(*command(kind, source, output, "--update"))
    assert again.code == fresh.code, (again.stderr, fresh.stderr)
    if fresh.code == 0:
        assert check_published(output) == check_published(tmp_path / "fresh")
    else:  # no input is left
        assert not (tmp_path / "fresh" / "manifest.json").exists()
    with contextlib.suppress(FileNotFoundError):
        assert not list(output.glob(".build-*")) or again.code
