"""Arrays that cannot be used are rejected in one sentence with the value, the rule and the fix."""

import io
import os
import pickle
import struct
import tempfile
import zipfile
from collections.abc import Callable
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


class Trap:
    """Creates a file when it is unpickled."""

    def __reduce__(self):
        return os.system, (f"touch {TRAP}",)


TRAP = str(Path(tempfile.gettempdir()) / "shardmill-trap-sprung")  # never created


def files(content: dict[str, object]) -> Callable[[Path], dict]:
    """Return a function that writes files and returns the options of the build.

    Args:
        content: Bytes, an array (.npy) or a dict of arrays (.npz) by path. The first path, or its
            folder, is the input; y.npy holds the labels.
    """

    def write(folder: Path) -> dict:
        for name, value in content.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(value, bytes):
                path.write_bytes(value)
            elif isinstance(value, dict):
                np.savez(path, **value)
            else:
                np.save(path, np.asarray(value), allow_pickle=True)
        more = {"labels": folder / "y.npy"} if "y.npy" in content else {}
        return {"input": folder / next(iter(content)).partition("/")[0], **more}

    return write


def save(array: object) -> Callable[[Path], dict]:
    return files({"X.npy": array})


def raw(data: bytes, name: str = "X.npy") -> Callable[[Path], dict]:
    return files({name: data})


def labels(array: np.ndarray) -> Callable[[Path], dict]:
    return files({"X.npy": X, "y.npy": array})


def npz(**members: np.ndarray) -> Callable[[Path], dict]:
    return files({"data.npz": members})


def folder_of(**content: object) -> Callable[[Path], dict]:
    names = {name: name.replace("__", ".").replace("_in_", "/") for name in content}
    return files({f"arrays/{names[name]}": value for name, value in content.items()})


def with_header(text: str, *, version: int = 1) -> Callable[[Path], dict]:
    """Return a function that writes X.npy with any header."""
    head = text.encode("latin-1")
    size = struct.pack("<H" if version == 1 else "<I", len(head))
    return raw(b"\x93NUMPY" + bytes([version, 0]) + size + head)


def cut(array: np.ndarray, change: int) -> Callable[[Path], dict]:
    """Return a function that writes X.npy without its last bytes, or with more."""
    stream = io.BytesIO()
    np.save(stream, array)
    data = stream.getvalue()
    return raw(data[:change] if change < 0 else data + bytes(change))


def damaged_zip(folder: Path) -> dict:
    np.savez_compressed(folder / "data.npz", x=np.arange(100_000))
    data = bytearray((folder / "data.npz").read_bytes())
    data[60:90] = bytes(30)
    (folder / "data.npz").write_bytes(data)
    return {"input": folder / "data.npz"}


def zip_bomb(folder: Path) -> dict:
    info = zipfile.ZipInfo("x.npy")
    info.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(folder / "data.npz", "w") as archive, archive.open(info, "w") as target:
        target.write(b"\x93NUMPY")
        for _ in range(BOMB_BYTES >> 20):
            target.write(bytes(1 << 20))
    return {"input": folder / "data.npz"}


def repeated_name(folder: Path) -> dict:
    np.save(folder / "x.npy", X)
    with zipfile.ZipFile(folder / "data.npz", "w") as archive:
        archive.write(folder / "x.npy", "x.npy")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.write(folder / "x.npy", "x.npy")
    return {"input": folder / "data.npz"}


def wrong_size_in_zip(folder: Path) -> dict:
    np.savez(folder / "data.npz", x=np.arange(100))
    data = (folder / "data.npz").read_bytes()
    place = data.index(b"PK\x01\x02")
    wrong = data[: place + 24] + struct.pack("<I", 5_000) + data[place + 28 :]
    (folder / "data.npz").write_bytes(wrong)
    return {"input": folder / "data.npz"}


def option(**options: object) -> Callable[[Path], dict]:
    """Return a function that writes a valid data.npz and returns options for it."""

    def write(folder: Path) -> dict:
        np.savez(folder / "data.npz", x=X, z=X, y=np.arange(ROWS))
        np.save(folder / "y.npy", np.arange(ROWS))
        np.save(folder / "X.npy", X)
        given = {k: folder / v[1:] if str(v).startswith("/") else v for k, v in options.items()}
        return {"input": folder / "data.npz", **given}

    return write


def good_header(shape: str = "(2,)", descr: str = "'<f4'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


CASES: dict[str, tuple[Callable[[Path], dict], str]] = {
    "objects": (save(np.array([1, None], object)), "pickled Python objects .* never loaded"),
    "pickle": (raw(pickle.dumps(X)), "is not a .npy file but a pickle, which is never loaded"),
    "trap": (save(np.array([Trap(), 1], object)), "never loaded: save an array of"),
    "objects in npz": (npz(x=np.array([1, None], object)), "array 'x' holds pickled"),
    "structured": (save(np.zeros(3, [("a", "f4"), ("b", "i4")])), "structured dtype"),
    "fields by comma": (with_header(good_header(descr="'f4,f4'")), "structured dtype"),
    "subarray": (with_header(good_header(descr="'(2,3)f4'")), "structured dtype"),
    "dates": (
        save(np.zeros(3, "M8[s]")),
        r"datetime64\[s\] values, which are not numbers: save x.astype",
    ),
    "times": (save(np.zeros(3, "m8[s]")), r"timedelta64\[s\] values, which are not numbers"),
    "texts as X": (save(np.array(["a", "b"])), "texts .<U1., not numbers: name it"),
    "bytes as X": (save(np.array([b"a", b"b"])), "texts ..S1., not numbers: name it"),
    "void": (
        save(np.zeros(3, "V2")),
        r"raw bytes without a type \(NumPy saves bfloat16 this way\)",
    ),
    "long double": (save(np.zeros(3, np.longdouble)), "differs between machines"),
    "long complex": (save(np.zeros(3, np.clongdouble)), r"astype\('complex128'\)"),
    "scalar": (save(np.float32(3)), r"single value \(shape \(\)\), so it has no examples"),
    "no rows": (save(np.zeros((0, 28, 28))), r"holds no examples \(shape \(0, 28, 28\)\)"),
    "short": (
        cut(X, -5),
        r"truncated .*: its shape \(12, 2\) of float32 takes 96 bytes and it has 91",
    ),
    "long": (cut(X, 5), "data after its array: .* takes 96 bytes and it has 101"),
    "huge": (
        with_header(good_header("(9999999999, 9999999999)")),
        "truncated .*: .* takes 399,999,999,920,000,000,004 bytes and it has 0",
    ),
    "wide": (save(np.zeros((0, 1 << 30, 3), "f4")), "One example .* takes 12,884,901,888 bytes"),
    "empty file": (raw(b""), "not a .npy file but an empty file: save it with numpy.save"),
    "text file": (
        raw(b"1,2,3\n"),
        "not a .npy file but one that begins with 31 2c 32 2c 33 0a: save it",
    ),
    "lfs": (
        raw(b"version https://git-lfs.github.com/spec/v1\n"),
        "not a .npy file but a Git LFS pointer: run `git lfs pull`",
    ),
    "npz called npy": (
        lambda folder: (npz(x=X)(folder), raw((folder / "data.npz").read_bytes())(folder))[1],
        "is not a .npy file but an .npz file",
    ),
    "magic alone": (raw(b"\x93NUMPY"), r"truncated or malformed \(EOF: reading magic string"),
    "half a header": (
        raw(b"\x93NUMPY\x01\x00\x76\x00{'descr"),
        r"truncated or malformed \(EOF: reading array header",
    ),
    "version 4": (
        with_header(good_header(), version=4),
        r"malformed \(version 4.0 is not 1.0, 2.0 or 3.0\)",
    ),
    "huge header": (
        with_header(" " * 20_000),
        r"malformed \(EOF: reading array header, expected 20000",
    ),
    "no literal": (with_header("{'descr': open('x')}"), r"malformed \(malformed node"),
    "nested": (with_header("(" * 9_000), "is truncated or malformed"),
    "list": (with_header("[1, 2]"), r"malformed \(Header is not a dictionary: \[1, 2\]\)"),
    "more keys": (
        with_header(good_header()[:-1] + "'more': 1}"),
        r"malformed \(Header does not contain the correct keys",
    ),
    "descr number": (
        with_header(good_header(descr="7")),
        r"\(descr is not a valid dtype descriptor: 7\)",
    ),
    "descr unknown": (with_header(good_header(descr="'<f5'")), r"malformed \(.*'<f5'"),
    "order": (with_header(good_header(order="0")), r"\(fortran_order is not a valid bool: 0\)"),
    "shape number": (with_header(good_header("7")), r"\(shape is not valid: 7\)"),
    "negative": (with_header(good_header("(-1, 3)")), r"\(shape is not valid: \(-1, 3\)\)"),
    "shape bool": (with_header(good_header("(True,)")), r"\(shape is not valid: \(True,\)\)"),
    "endless": (with_header(good_header(f"({'9' * 4_000}, {'9' * 4_000})")), "shape is not valid"),
    "dimensions": (
        with_header(good_header("(" + "1," * 71 + ")")),
        r"\(71 dimensions are over 64\)",
    ),
    "whole floats": (
        labels(np.arange(ROWS) * 1.0),
        r"labels as float64, not as integers: save y.astype\('int64'\)",
    ),
    "complex labels": (labels(np.arange(ROWS) * 1j), "labels as complex128"),
    "one-hot": (
        labels(np.eye(ROWS, dtype=int)),
        r"shape \(12, 12\), and labels are one value for each",
    ),
    "object labels": (labels(np.array(["a", "b"] * 6, object)), r"such as y.astype\(str\)"),
    "huge labels": (
        labels(np.array([2**63 + 1] * ROWS, np.uint64)),
        "9223372036854775809 at row 0, which overflows int64",
    ),
    "other length": (
        labels(np.arange(ROWS - 1)),
        "X.npy has 12 examples and --labels=.*y.npy has 11: the first axes",
    ),
    "empty label": (labels(np.array(["a", ""] * 6)), "has the label '' at row 1, which is empty"),
    "no text": (labels(np.array([""] * ROWS)), "has the label '' at row 0"),
    "latin-1": (
        labels(np.array([b"a", b"\xe4"] * 6)),
        r"label b'\\xe4' at row 1, which is not UTF-8",
    ),
    "line break": (labels(np.array(["a", "b\nc"] * 6)), "at row 1, which has a control character"),
    "lengths in npz": (npz(x=X, z=X[:5]), "array 'x' has 12 examples and .* 'z' has 5"),
    "only a label": (npz(y=np.arange(3)), "has only the label 'y': add an array"),
    "text member": (npz(x=X, word=np.array(["a"] * ROWS)), "array 'word' holds texts"),
    "text name taken": (
        npz(**{"x": X, "y": np.array(["a"] * ROWS), "y/text": X}),
        "rename it",
    ),
    "Fortran order in npz": (
        npz(x=np.zeros((50, 40), order="F")),
        "has 16,000 bytes, over 256 MiB",
    ),
    "no members": (npz(), "holds no arrays|is not an .npz file"),
    "no zip": (raw(b"PK nothing", "data.npz"), "is not an .npz file .* begins with 50 4b 20"),
    "bomb": (zip_bomb, "claims to decompress to 4,194,310, over 500 times"),
    "damaged zip": (damaged_zip, "damaged and cannot be read"),
    "named twice": (repeated_name, "two members 'x'"),
    "lying zip": (wrong_size_in_zip, "data after its array"),
    "empty folder": (folder_of(notes__txt=b"1"), "holds no .npy files"),
    "class folders": (
        folder_of(cat_in_1__npy=X, dog_in_1__npy=X),
        "holds the folder 'cat': .* for one file an example join them with numpy.stack",
    ),
    "archives": (folder_of(a__npz=b"1", b__npy=X), "holds the archive 'a.npz'"),
    "pieces": (folder_of(a__npy=X, b__npy=X[:7]), "first axes must be equal; .* numpy.concatenate"),
    "bad file in folder": (
        folder_of(a__npy=X, b__npy=b"123"),
        "arrays, b.npy is not a .npy file but one that begins with",
    ),
    "missing": (option(input="/nothing.npy"), "does not exist: give one .npy"),
    "glob": (option(input="/*.npy"), r"does not exist \(patterns are not supported here\)"),
    "missing labels": (option(labels="/nothing.npy"), "--labels=.*nothing.npy does not exist"),
    "labels in npz": (option(labels="/data.npz"), "--labels=.*data.npz is not a .npy file"),
    "both": (option(labels="/y.npy", label="y"), "--labels=.* and --label=y cannot be combined"),
    "label unknown": (option(label="kind"), "--label=kind is not an array: .* has 'x', 'y', 'z'"),
    "label of a npy": (
        option(input="/X.npy", label="x"),
        "--label=x names a member .*: for one .npy give --labels",
    ),
    "array unknown": (option(arrays="x,w"), "--arrays=w is not an array"),
    "root": (option(root="/elsewhere"), "is not inside --root"),
    "splits": (option(splits="directory"), "--splits=directory does not work for arrays"),
    "listing": (option(splits="listing"), "--splits=listing does not work for arrays"),
    "shares": (option(splits="a:0.5"), "sums to 0.5, not 1"),
    "scheme": (option(input="ftp://b/x.npy"), "ftp:// is not supported"),
}


@pytest.mark.parametrize("case", CASES)
def test_rejects_input_in_one_sentence_before_the_build(tmp_path, monkeypatch, case) -> None:
    make, message = CASES[case]
    options = make(tmp_path)
    monkeypatch.setattr(array_file, "_BOMB_BYTES", BOMB_BYTES - 1)
    monkeypatch.setattr(resolve_input, "_MAX_FORTRAN_BYTES", 1 << 10)
    with pytest.raises(ShardmillError, match=message) as caught:
        spec_of(output=tmp_path / "ds", **options)
    text = str(caught.value)
    assert text.endswith((".", "?"))
    assert "\n" not in text
    assert len(text) < 600
    assert ": " in text
    assert not (tmp_path / "ds").exists()
    assert not Path(TRAP).exists()


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


@pytest.mark.parametrize("broken", [lambda path: path.symlink_to("/nothing.npy"), os.mkfifo])
def test_a_broken_link_among_arrays_is_not_left_out(tmp_path, broken) -> None:
    options = folder_of(a__npy=X)(tmp_path)
    broken(options["input"] / "b.npy")
    with pytest.raises(InputError, match=r"/b.npy .*: replace it by a file, or exclude it"):
        spec_of(output=tmp_path / "ds", **options)
    spec_of(output=tmp_path / "ds", arrays="a", **options)


def test_warns_of_skipped_files(tmp_path) -> None:
    for name in ("README.md", ".DS_Store", "notes.txt"):
        (tmp_path / "arrays").mkdir(exist_ok=True)
        (tmp_path / "arrays" / name).write_text("not an array")
    np.save(tmp_path / "arrays/x.npy", X)
    spec = spec_of(input=tmp_path / "arrays", output=tmp_path / "ds")
    assert spec.sink.warnings == ("skipped, not .npy files: 'README.md', 'notes.txt'",)
    assert [ref.key for ref in spec.source.input.files] == ["arrays/x.npy"]
