"""Arrays that cannot be used are rejected in one sentence with the value, the rule and the fix."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from shardmill.schemas.errors import InputError, ShardmillError
from shardmill.transforms.sources.arrays import array_file, array_source, resolve_input
from shardmill.transforms.tables.transform import write_runs
from tests.support.array_tools import run_spec, spec_of

ROWS = 12
BOMB_BYTES = 4 << 20  # the limit in these tests
X = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)


def zip_bomb(folder: Path) -> None:
    info = zipfile.ZipInfo("x.npy")
    info.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(folder / "data.npz", "w") as archive, archive.open(info, "w") as target:
        target.write(b"\x93NUMPY")
        for _ in range(BOMB_BYTES >> 20):
            target.write(bytes(1 << 20))


def fortran_order(folder: Path) -> None:
    np.savez(folder / "data.npz", x=np.zeros((50, 40), order="F"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (fortran_order, "has 16,000 bytes, over 256 MiB"),
        (zip_bomb, "claims to decompress to 4,194,310, over 500 times"),
    ],
)
def test_rejects_what_would_exhaust_the_memory(tmp_path, monkeypatch, make, message) -> None:
    make(tmp_path)
    monkeypatch.setattr(array_file, "_BOMB_BYTES", BOMB_BYTES - 1)
    monkeypatch.setattr(resolve_input, "_MAX_FORTRAN_BYTES", 1 << 10)
    with pytest.raises(ShardmillError, match=message) as caught:
        spec_of(input=tmp_path / "data.npz", output=tmp_path / "ds")
    text = str(caught.value)
    assert text.endswith((".", "?"))
    assert "\n" not in text
    assert len(text) < 600
    assert ": " in text
    assert not (tmp_path / "ds").exists()


@pytest.mark.parametrize("kind", ["longer", "rewritten", "gone", "deflated"])
def test_rejects_input_that_changes_during_the_build(tmp_path, kind) -> None:
    path = tmp_path / ("X.npz" if kind == "deflated" else "X.npy")
    np.savez_compressed(path, x=X) if kind == "deflated" else np.save(path, X)
    spec = spec_of(input=path, output=tmp_path / "ds")
    if kind == "gone":
        path.unlink()
    elif kind == "longer":
        path.write_bytes(path.read_bytes() + b"more")
    else:
        os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match=r"changed while it was read|is gone") as caught:
        run_spec(spec)
    assert str(caught.value).endswith("run again.")
    assert not (tmp_path / "ds/manifest.json").exists()


@pytest.mark.sweep
@pytest.mark.parametrize("shape", [(200_000,), (4, 50_000)], ids=["regrouped", "by offset"])
@pytest.mark.parametrize("pack", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("damaged", ["values", "checksum"])
def test_rejects_member_with_a_changed_byte(tmp_path, pack, shape, damaged) -> None:
    pack(tmp_path / "data.npz", x=np.arange(200_000).reshape(shape) % 977)
    data = bytearray((tmp_path / "data.npz").read_bytes())
    at = len(data) // 2 if damaged == "values" else data.index(b"PK\x01\x02") + 16
    data[at] ^= 0x10
    (tmp_path / "data.npz").write_bytes(data)
    spec = spec_of(input=tmp_path / "data.npz", output=tmp_path / "ds")
    with pytest.raises(ShardmillError, match=r"damaged .*: copy it or save it again") as caught:
        run_spec(spec).check()
    assert "array 'x'" in str(caught.value)
    assert not (tmp_path / "ds/manifest.json").exists()


@pytest.mark.parametrize("name", ["stream.npz", "slices.npy"])
def test_rejects_input_that_changes_while_it_is_read(tmp_path, name) -> None:
    path = tmp_path / name
    np.savez_compressed(path, x=X) if name == "stream.npz" else np.save(path, X)
    (array,) = spec_of(input=path, output=tmp_path / "ds").source.input.arrays
    rows = array_source.read_rows(array, 0, len(X), 1)
    next(rows)
    os.utime(path, ns=(5, 5))
    with pytest.raises(InputError, match="changed while it was read"):
        next(rows)


def test_does_not_reuse_parts_of_a_changed_input(tmp_path) -> None:
    np.save(tmp_path / "X.npy", X)
    found = []
    for array in (X, X[::-1]):  # of the same size
        np.save(tmp_path / "X.npy", array)
        os.utime(tmp_path / "X.npy", ns=(len(found), len(found)))
        spec = spec_of(input=tmp_path / "X.npy", output=tmp_path / "ds")
        (unit,) = spec.source.units(spec.source.inspect(spec.source.input.files[0]))
        runs = write_runs(tuple(unit), spec)
        found.append({path for _, path, _ in (run for run in runs if isinstance(run, tuple))})
    assert not found[0] & found[1]
