"""Signatures: each format is recognised in a real file, and text is never mistaken for one."""

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from shardmill.schemas.file_signatures import (
    SIGNATURES,
    compression_format,
    describe_format,
    image_format,
    is_heic,
)


def _image(kind: str, **options) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (5, 4)).save(target, kind, **options)
    return target.getvalue()


def _file(write) -> bytes:
    target = io.BytesIO()
    write(target)
    return target.getvalue()


def _zip(target: io.BytesIO, *names: str) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        for name in names or ["a.txt"]:
            archive.writestr(name, "a")


def _tar(target: io.BytesIO) -> None:
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))


FILES = {
    "jpeg": _image("JPEG"),
    "png": _image("PNG"),
    "gif": _image("GIF"),
    "webp": _image("WEBP"),
    "tiff": _image("TIFF"),
    "gzip": gzip.compress(b"a,b\n"),
    "bzip2": bz2.compress(b"a,b\n"),
    "xz": lzma.compress(b"a,b\n"),
    "zstd": pa.compress(b"a,b\n", "zstd", asbytes=True),
    "zip": _file(_zip),
    "npz": _file(lambda target: np.savez(target, x=np.arange(3))),
    "excel": _file(lambda target: _zip(target, "[Content_Types].xml", "xl/workbook.xml")),
    "office": _file(lambda target: _zip(target, "[Content_Types].xml")),
    "parquet": _file(lambda target: pq.write_table(pa.table({"a": [1]}), target)),
    "arrow": _file(lambda target: pa.ipc.new_file(target, pa.schema([("a", pa.int64())])).close()),
    "hdf5": _file(lambda target: h5py.File(target, "w").close()),
    "npy": _file(lambda target: np.save(target, np.arange(3))),
    "tar": _file(_tar),
    "avro": b"Obj\x01" + bytes(40),
    "pdf": b"%PDF-1.7\n%\xe2\xe3",
    "sqlite": b"SQLite format 3\0" + bytes(80),
    "ole": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(40),
    "heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "elf": b"\x7fELF\x02\x01\x01" + bytes(60),
    "7z": b"7z\xbc\xaf\x27\x1c\0\4",
    "rar": b"Rar!\x1a\x07\0",
    "lz4": b"\x04\x22\x4d\x18\x64\x40",
    "compress": b"\x1f\x9d\x90a\0",
    "lzip": b"LZIP\x01\x0c",
    "snappy": b"\xff\x06\0\0sNaPpY",
    "arff": b"@RELATION iris\n@ATTRIBUTE x NUMERIC\n",
    "matrix": b"%%MatrixMarket matrix coordinate real general\n",
    "pickle": pickle.dumps({"a": 1}),
    "html": b"\n <HTML><BODY>404",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "xml": b"<?xml version='1.0'?><Error>AccessDenied",
    "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
}


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_recognises_each_format(signature):
    data = FILES.get(signature.name, _image("BMP"))
    named = "" if signature.name == "bmp" else signature.description  # "BM" begins many files
    assert describe_format(data) == named
    wanted = {"compression": "", "image": "", signature.category: signature.name}
    assert compression_format(data) == wanted["compression"]
    assert image_format(data) == wanted["image"]


def test_heic_is_recognised_by_any_of_its_brands():
    assert is_heic(b"\0\0\0\x20ftypmif1\0\0\0\0mif1miafheic")
    assert is_heic(b"\0\0\0\x18ftyphevc\0\0\0\0msf1hevc")
    assert not is_heic(b"\0\0\0\x1cftypmif1\0\0\0\0mif1miafavif")
    assert not is_heic(b"\0\0\0\x1cftypisom\0\0\0\0heic")


def test_big_tiff_and_empty_zip_archives_are_recognised():
    assert image_format(_image("TIFF", big_tiff=True)) == "tiff"
    assert "ZIP" in describe_format(_file(lambda target: zipfile.ZipFile(target, "w").close()))
    assert compression_format(bz2.compress(b"")) == "bzip2"


@pytest.mark.parametrize(
    "start",
    ["PAR1", "GIF89a", "%PDF", "PK", "BZh9", "BM", "7z", "Rar!", "<htmlish>", "Obj", "RIFF"],
)
def test_text_that_begins_like_a_signature_is_not_described(start):
    text = f"{start},price\n1,2\n".encode()
    assert (describe_format(text), compression_format(text)) == ("", "")
