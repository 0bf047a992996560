"""A generator of semantic edits: each is found by verify or verify --deep, or listed as unprovable.

Edits are made in both manifests, and all checksums are computed again, as by a person who wants to
hide them. An edit of one manifest alone is found by comparing both.
"""

import copy
import io
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.schemas import ShardmillError
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.verify.verify import find_dataset, verify_dataset
from tests.conftest import ROOT, SOAK, build_dataset, make_photos
from tests.support.formats import TABLE

# As listed in docs/counting.md, which a test compares: paths of the manifest, and columns.
DOCS = (ROOT / "docs" / "counting.md").read_text()
KINDS = ["images", "clean", "rows", "arrays"]
OF_OPTIONS = {"build.config", "build.config_id", "build.versions", "features.N.source"}
# Listed, but proved of some datasets: the docs say of which.
PROVED = {
    "images": OF_OPTIONS,
    "clean": OF_OPTIONS | {"build.input_id"},
    "rows": set(),
    "arrays": set(),
}
CLEAN_COLUMNS = {"input_bytes", "input_version"}
SUMS = {"multi_frame", "pixel_sums", "pixel_squares"}  # of which only the sum is proved


def unprovable() -> tuple[list[str], set[str]]:
    """Return the fields of manifests and the columns of catalogs that the docs call unprovable."""
    section = DOCS.split("### What no check proves")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    fields: list[str] = []
    columns: set[str] = set()
    for names, _ in rows:
        for name in re.findall(r"`([^`]+)`", names):
            if name.startswith("catalog."):
                columns.add(name.removeprefix("catalog."))
            else:
                fields.append(name)
    return fields, columns


def is_listed(path: tuple[Any, ...], kind: str) -> bool:
    text = ".".join("N" if isinstance(step, int) else str(step) for step in path)
    fields = [field for field in unprovable()[0] if field not in PROVED[kind]]
    return any(text == field or text.startswith(f"{field}.") for field in fields)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[str, Path]:
    """A dataset of images, one of rows, and one of arrays, each with an earlier version."""
    folder = tmp_path_factory.mktemp("edits")
    photos = make_photos(folder / "photos", {"cat": 9, "dog": 7}, size=(24, 16))
    for number in range(2):  # two copies of one image with other labels
        shutil.copyfile(photos / "cat" / "000.jpg", photos / "dog" / f"copy{number}.jpg")
    (photos / "cat" / "broken.jpg").write_bytes(b"not an image")
    options: dict[str, Any] = {
        "image_size": "8",
        "num_shards": 2,
        "splits": "train:0.7,validation:0.3",
    }
    clean = make_photos(folder / "clean", {"cat": 5, "dog": 6}, size=(24, 16))
    (folder / "table.csv").write_text(TABLE)
    (folder / "arrays").mkdir()
    np.save(folder / "arrays" / "x.npy", np.arange(60, dtype=np.float32).reshape(15, 4))
    found = {}
    for kind, command, source, more in (
        ("images", "images", photos, {**options, "max_reject_fraction": 0.5}),
        ("clean", "images", clean, options),
        ("rows", "rows", folder / "table.csv", {"label": "label", "key": "id"}),
        ("arrays", "arrays", folder / "arrays", {}),
    ):
        output = folder / "out" / kind
        for seed in (1, 2):
            build_dataset(command, input=source, output=output, seed=seed, update=True, **more)
        found[kind] = output
    return found


@pytest.fixture
def dataset(datasets, tmp_path) -> Callable[[str], Path]:
    return lambda kind: shutil.copytree(datasets[kind], tmp_path / kind, symlinks=True)


def manifests_of(output: Path) -> tuple[Path, Path]:
    outer = output / "manifest.json"
    return outer, output / json.loads(outer.read_text())["generation"] / "manifest.json"


def write_both(output: Path, body: dict) -> None:
    """Write what an editor made of the inner manifest, and an outer one that agrees with it."""
    outer, inner = manifests_of(output)
    published = json.loads(outer.read_text())
    generation = published["generation"]
    text = json.dumps(body, ensure_ascii=False, indent=1) + "\n"
    new = copy.deepcopy(body)
    for path, value in containers(new.get("splits")):
        if isinstance(value, dict) and isinstance(value.get("file"), str) and len(path) > 2:
            value["file"] = f"{generation}/{value['file']}"
    new["generation"], new["previous"] = generation, published["previous"]
    new["manifests"] = {**published["manifests"], generation: f"{crc32c(text.encode()):08x}"}
    inner.write_text(text)
    outer.write_text(json.dumps(new, ensure_ascii=False, indent=1) + "\n")


def is_detected(output: Path, *, deep: bool = True) -> bool:
    try:
        return bool(verify_dataset(find_dataset(str(output)), deep=deep))
    except ShardmillError:
        return True  # it cannot be opened


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path and the value of each leaf; empty containers are leaves."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from leaves(below, (*path, name))
    elif isinstance(value, list) and value:
        for number, below in enumerate(value):
            yield from leaves(below, (*path, number))
    else:
        yield path, value


def containers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict | list):
        yield path, value
        for name, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from containers(below, (*path, name))


def changed(value: Any) -> Any:
    """Return a plausible other value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.01 + 0.01
    if isinstance(value, str):
        if re.fullmatch(r"[0-9a-f]{8,}", value):
            return value[:-1] + ("0" if value[-1] != "0" else "1")
        return value + "x"
    return {"x": 1} if value == {} else ["x"] if value == [] else "x"


def at(body: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        body = body[step]
    return body


def edits(body: dict) -> Iterator[tuple[str, tuple[Any, ...], dict]]:
    """Yield the kind, the path and the result of each edit of a manifest."""
    for path, value in leaves(body):
        new = copy.deepcopy(body)
        at(new, path[:-1])[path[-1]] = changed(value)
        yield "changed", path, new
    for path, value in containers(body):
        names = [*value] if isinstance(value, dict) else [*range(len(value))]
        for name in names:
            if isinstance(value, dict):
                renamed = {(f"{key}x" if key == name else key): each for key, each in value.items()}
                new = copy.deepcopy(body)
                if path:
                    at(new, path[:-1])[path[-1]] = renamed
                else:
                    new = renamed
                yield "renamed", (*path, name), new
            new = copy.deepcopy(body)
            del at(new, path)[name]
            yield "deleted", (*path, name), new
        for first, second in itertools.pairwise(names):
            if value[first] != value[second]:
                new = copy.deepcopy(body)
                place = at(new, path)
                place[first], place[second] = place[second], place[first]
                yield "exchanged", (*path, first), new


# Without effect: what is missing has the same meaning as what was there.
def has_no_effect(kind: str, path: tuple[Any, ...], body: dict) -> bool:
    value = at(body, path)
    if (kind, path) == ("deleted", ("checksums",)):
        return True  # as the docs say, then it is like a dataset of 0.2.0
    if kind == "exchanged" and path[0] == "features" and len(path) == 2:
        return True  # they are looked up by name
    is_optional_default = kind == "deleted" and value in (0, {}, [], "", None)
    return is_optional_default and path[0] in ("inputs", "checksums", "warnings")


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.heavy
def test_each_edit_of_a_manifest_is_found_or_listed(dataset, kind) -> None:
    output = dataset(kind)
    assert not is_detected(output)
    outer, inner = manifests_of(output)
    whole = outer.read_bytes(), inner.read_bytes()
    missed = []
    number = 0
    for edit, path, new in edits(json.loads(whole[1])):
        if is_listed(path, kind):
            continue
        number += 1
        if number % 3 and not SOAK:
            continue
        write_both(output, new)
        if not is_detected(output) and not has_no_effect(edit, path, json.loads(whole[1])):
            missed.append((edit, ".".join(map(str, path))))
        outer.write_bytes(whole[0])
        inner.write_bytes(whole[1])
    assert number > 100
    assert not missed


@pytest.mark.sweep
@pytest.mark.parametrize("which", ["outer", "inner"])
@pytest.mark.heavy
def test_each_edit_of_one_manifest_is_found_by_default(dataset, which) -> None:
    output = dataset("clean")
    outer, inner = manifests_of(output)
    path = outer if which == "outer" else inner
    whole = path.read_bytes()
    missed = []
    body = json.loads(whole)
    # Of the many fields of both manifests, a third.
    for number, (edit, place, new) in enumerate(edits(body)):
        if number % 3:
            continue
        path.write_text(json.dumps(new))
        if not is_detected(output, deep=False) and not has_no_effect(edit, place, body):
            missed.append((edit, ".".join(map(str, place))))
    assert not missed


@pytest.mark.parametrize("kind", ["images", "clean"])
@pytest.mark.heavy
def test_each_edit_of_a_column_is_found_or_listed(dataset, kind) -> None:
    output = dataset(kind)
    _, inner = manifests_of(output)
    text = inner.read_bytes()
    entry = json.loads(text)["splits"]["train"]["shards"][0]["catalog"]
    path = inner.parent / entry["file"]
    whole = path.read_bytes()
    table = pq.read_table(path)
    missed, listed = [], unprovable()[1]
    assert len(table) > 2
    for name in table.column_names:
        for edit, values in column_edits(table[name].to_pylist()):
            is_proved = kind == "clean" and name in CLEAN_COLUMNS
            is_proved = is_proved or (name in SUMS and edit == "changed")
            if name in listed and not is_proved:
                continue
            column = pa.array(values, table.schema.field(name).type)
            target = io.BytesIO()
            pq.write_table(table.set_column(table.column_names.index(name), name, column), target)
            path.write_bytes(target.getvalue())
            body = json.loads(text)
            crc = {"bytes": len(target.getvalue()), "crc32c": f"{crc32c(target.getvalue()):08x}"}
            body["splits"]["train"]["shards"][0]["catalog"].update(crc)
            write_both(output, body)
            if not is_detected(output):
                missed.append((name, edit))
    path.write_bytes(whole)
    assert not missed


def column_edits(values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield edits of a column: of one value, and of two that are exchanged."""
    first = values[0]
    if isinstance(first, list):
        yield "changed", [[each + 1 for each in first], *values[1:]]
    elif first is not None:
        yield "changed", [changed(first), *values[1:]]
    else:
        return  # a column without values
    other = next((n for n, value in enumerate(values) if value != first), 0)
    if other:
        exchanged = [*values]
        exchanged[0], exchanged[other] = values[other], first
        yield "exchanged", exchanged
