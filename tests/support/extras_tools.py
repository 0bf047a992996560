"""Extras that are not installed: packages hidden from processes, and files that show what is missing."""

import io
import json
from pathlib import Path

from tests.conftest import make_image
from tests.support.readers import current

# What each extra for users installs, by its modules.
EXTRAS = {
    "gcs": ["google.cloud.storage"],
    "dataflow": ["apitools", "google.cloud", "googleapiclient"],
    "s3": ["boto3", "botocore"],
    "tensorflow": ["keras", "tensorflow"],
    "tft": ["tensorflow_transform", "tfx_bsl"],
    "heic": ["pillow_heif"],
    "torch": ["torch", "torchdata"],
    "jax": ["grain", "jax"],
    "examples": ["sklearn"],
}
# Other libraries of the tests, which users may not have either.
OTHERS = ["datasets", "duckdb", "h5py", "pandas", "polars", "psutil"]
SITE = """
import sys
from importlib.machinery import PathFinder

HIDDEN = {hidden!r}


class HidingFinder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in HIDDEN else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = HidingFinder
"""
HTML = b"<!DOCTYPE html><html><body>404</body></html>"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
NO_FORMAT = "no image format is recognized; the file begins "
_HEIC = "HEIC needs shardmill[heic]"


def hide_modules(folder: Path, *names: str) -> str:
    """Write a module that hides others; return its folder, for the PYTHONPATH of a process.

    Decoders get the path of their worker, so it hides them there too.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE.format(hidden=sorted(names)))
    return str(folder)


def saved_photo(name: str) -> bytes:
    """Return a photo in a format; for HEIF, pillow-heif must be there."""
    if name == "HEIF":
        import pillow_heif

        pillow_heif.register_heif_opener()
    buffer = io.BytesIO()
    make_image(5, 64, 48).save(buffer, name)
    return buffer.getvalue()


def odd_files() -> dict[str, tuple[bytes, str, str, str]]:
    """Return files by name: content, reason of their reject, how its message begins, and without heic.

    The last text is the message if the extra is missing and that matters; a reason is empty for an
    image.
    """
    photo = saved_photo("JPEG")
    heic = saved_photo("HEIF")
    brands = b"\0\0\0\x20ftypmif1\0\0\0\0mif1miafheic" + bytes(99)
    return {
        "good.jpg": (photo, "", "", ""),
        "good.png": (saved_photo("PNG"), "", "", ""),
        "good.webp": (saved_photo("WEBP"), "", "", ""),
        "good.avif": (saved_photo("AVIF"), "", "", ""),
        "phone.heic": (heic, "", "", _HEIC),
        "phone.jpg": (heic, "", "", _HEIC),
        "damaged.heic": (heic[:60], "not_an_image", f"{NO_FORMAT}like an HEIC image", _HEIC),
        "brands.heic": (brands, "not_an_image", f"{NO_FORMAT}like an HEIC image", _HEIC),
        "page.jpg": (HTML, "not_an_image", f"{NO_FORMAT}like a web page", ""),
        "drawing.png": (
            b"<svg xmlns='http://www.w3.org/2000/svg'/>",
            "not_an_image",
            f"{NO_FORMAT}like an SVG drawing",
            "",
        ),
        "drawing2.png": (
            b"<?xml version='1.0'?><svg/>",
            "not_an_image",
            f"{NO_FORMAT}like an XML document",
            "",
        ),
        "empty.jpg": (b"", "empty", "the file has no bytes", ""),
        "cut.jpg": (photo[: len(photo) // 2], "decode", "OSError: ", ""),
        "start.jpg": (photo[:3], "not_an_image", NO_FORMAT, ""),
        "pointer.jpg": (LFS, "not_an_image", f"{NO_FORMAT}like a Git LFS pointer", ""),
        "zeros.jpg": (bytes(1000), "not_an_image", f"{NO_FORMAT}with b'\\x00", ""),
        "text.jpg": (b"not found\n", "not_an_image", f"{NO_FORMAT}with b'not found", ""),
        "paper.jpg": (b"%PDF-1.7\n%\xe2\xe3", "not_an_image", f"{NO_FORMAT}like a PDF", ""),
    }


def expected_rejects(*, heic: bool) -> dict[str, tuple[str, str]]:
    """Return reason, and begin of the message, of each file that is not an image."""
    expected = {}
    for name, (_, reason, message, without_heic) in odd_files().items():
        if without_heic and not heic:
            expected[name] = ("missing_extra", without_heic)
        elif reason:
            expected[name] = (reason, message)
    return expected


def write_odd_files(folder: Path) -> Path:
    """Write the files into a folder that is called photos."""
    photos = folder / "photos"
    photos.mkdir(parents=True)
    for name, (content, *_) in odd_files().items():
        (photos / name).write_bytes(content)
    return photos


def check_rejects(dataset: Path, *, heic: bool) -> None:
    """Check a dataset of these files, as the manifest and rejects.jsonl describe it."""
    expected = expected_rejects(heic=heic)
    lines = (current(dataset) / "rejects.jsonl").read_text().splitlines()
    rejects = {line["key"]: line for line in map(json.loads, lines)}
    assert {key: line["error"] for key, line in rejects.items()} == {
        key: reason for key, (reason, _) in expected.items()
    }
    for key, (_, message) in expected.items():
        assert rejects[key]["message"].startswith(message), rejects[key]
    inputs = json.loads((dataset / "manifest.json").read_text())["inputs"]
    assert inputs["accepted"] == len(odd_files()) - len(expected)
