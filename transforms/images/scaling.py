"""Scale images, by one of two resizers that a build chooses when it is planned.

``simd`` is cykooz-resizer, which scales bilinear images in a quarter of Pillow's time; its pixels
are at most 2 levels from Pillow's. It has no wheels for some systems, such as Linux on ARM: there
``pillow`` is the default. By other filters, and with alpha, both resizers are Pillow, since the
pixels of cykooz-resizer would differ more.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from blake3 import blake3
from PIL import Image

from shardmill.schemas.errors import ResourceError
from shardmill.transforms.images.resize import Box, Interpolation, Resizer, Size

if TYPE_CHECKING:
    from cykooz_resizer import CpuExtensions

try:
    import cykooz_resizer as simd
except ImportError:  # there is no wheel for this system
    HAS_SIMD = False
else:
    HAS_SIMD = True

DEFAULT_RESIZER: Resizer = "simd" if HAS_SIMD else "pillow"
# What a process scales first, and the hash of the results on all machines.
_SAMPLE = Size(67, 45)
_SAMPLE_SCALES: tuple[tuple[Size, Box], ...] = (
    (Size(23, 17), (0, 0, 67, 45)),
    (Size(5, 97), (0, 0, 67, 45)),
    (Size(150, 3), (0, 0, 66.25, 44.5)),
)
_SAMPLE_HASH = "0fe4725388f4765dcd99b5b418254a6c087037cba59382aa64f05ffaa0874769"


def scale(
    image: Image.Image, size: Size, box: Box, interpolation: Interpolation, resizer: Resizer
) -> Image.Image:
    """Return a box of an image, scaled with antialiasing.

    Args:
        image: An image of mode L, RGB or RGBA.
        size: Size of the result.
        box: The box.
        interpolation: The filter.
        resizer: What scales bilinear images without alpha.

    Raises:
        ResourceError: This machine does not have the resizer.
    """
    if resizer == "simd" and interpolation == "bilinear" and image.mode != "RGBA":
        return _scale_bilinear(image, size, box, exact_extensions())
    return image.resize(size, Image.Resampling[interpolation.upper()], box=box)


def _scale_bilinear(
    image: Image.Image, size: Size, box: Box, extensions: CpuExtensions
) -> Image.Image:
    left, upper, right, lower = box
    resizer = simd.Resizer()  # one for each call: threads cannot share it, and it keeps its buffers
    resizer.cpu_extensions = extensions
    scaled = Image.new(image.mode, size)
    crop = simd.CropBox(left, upper, right - left, lower - upper)
    bilinear = simd.ResizeAlg.convolution(simd.FilterType.bilinear)
    resizer.resize_pil(image, scaled, simd.ResizeOptions(bilinear, crop_box=crop))
    return scaled


@functools.cache
def exact_extensions() -> CpuExtensions:
    """Return the CPU extensions to scale with: those of this machine, or none if pixels differ.

    Raises:
        ResourceError: The library is not installed, or does not give the pixels that it gives on
            other machines.
    """
    if not HAS_SIMD:
        raise _resizer_missing()
    for extensions in (simd.Resizer().cpu_extensions, simd.CpuExtensions.none):
        if hash_samples(extensions) == _SAMPLE_HASH:
            return extensions
    installed = version("cykooz-resizer")
    raise ResourceError(
        f"cykooz-resizer {installed} does not give the pixels here that it gives on other "
        "machines: install the version of constraints.txt, build on other machines, or set "
        "--resizer=pillow."
    )


def hash_samples(extensions: CpuExtensions) -> str:
    """Return a hash of fixed images that are scaled with CPU extensions."""
    digest = blake3()
    for mode, bands in (("L", 1), ("RGB", 3)):
        pixels = blake3(mode.encode()).digest(_SAMPLE.width * _SAMPLE.height * bands)
        image = Image.frombytes(mode, _SAMPLE, pixels)
        for size, box in _SAMPLE_SCALES:
            digest.update(_scale_bilinear(image, size, box, extensions).tobytes())
    return digest.hexdigest()


def resizer_of(versions: Mapping[str, str]) -> Resizer | None:
    """Return the resizer that the versions of codecs of a dataset name; None for an older one."""
    if versions.get("resizer") == "pillow":
        return "pillow"
    if "cykooz_resizer" in versions:
        return "simd"
    return None


def resizer_versions(resizer: Resizer) -> dict[str, str]:
    """Return the versions that identify a resizer.

    Raises:
        ResourceError: It is not installed.
    """
    if resizer == "pillow":
        return {"resizer": "pillow"}  # the version of Pillow is among the others
    if not HAS_SIMD:
        raise _resizer_missing()
    return {"cykooz_resizer": version("cykooz-resizer")}


def _resizer_missing() -> ResourceError:
    return ResourceError(
        "cykooz-resizer is not installed here, and this build resizes by it: install it on every "
        "worker, or set --resizer=pillow."
    )
