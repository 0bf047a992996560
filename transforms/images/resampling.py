"""Scale pixels: bilinear by cykooz-resizer, which takes a quarter of Pillow's time, or by Pillow.

Bilinear pixels are at most 2 levels from Pillow's. With alpha, and by other filters, they would
differ more.
"""

from __future__ import annotations

import functools
from importlib.metadata import version

from blake3 import blake3
from cykooz_resizer import CpuExtensions, CropBox, FilterType, ResizeAlg, ResizeOptions, Resizer
from PIL import Image

from shardmill.schemas.errors import ShardmillError
from shardmill.transforms.images.resize import Box, Interpolation, Size

_BILINEAR = ResizeAlg.convolution(FilterType.bilinear)
# What a process scales at its start, and the hash of the results on all machines.
_SAMPLE = Size(67, 45)
_SAMPLE_SCALES: tuple[tuple[Size, Box], ...] = (
    (Size(23, 17), (0, 0, 67, 45)),
    (Size(5, 97), (0, 0, 67, 45)),
    (Size(150, 3), (0, 0, 66.25, 44.5)),
)
_SAMPLE_HASH = "0fe4725388f4765dcd99b5b418254a6c087037cba59382aa64f05ffaa0874769"


def scale(image: Image.Image, size: Size, box: Box, interpolation: Interpolation) -> Image.Image:
    """Return a box of an image, scaled with antialiasing.

    Args:
        image: An image of mode L, RGB or RGBA.
        size: Size of the result.
        box: The box.
        interpolation: The filter.
    """
    if interpolation == "bilinear" and image.mode != "RGBA":
        return _scale_bilinear(image, size, box, exact_extensions())
    return image.resize(size, Image.Resampling[interpolation.upper()], box=box)


def _scale_bilinear(
    image: Image.Image, size: Size, box: Box, extensions: CpuExtensions
) -> Image.Image:
    left, upper, right, lower = box
    resizer = Resizer()  # one for each call: threads cannot share it, and it keeps its buffers
    resizer.cpu_extensions = extensions
    scaled = Image.new(image.mode, size)
    crop = CropBox(left, upper, right - left, lower - upper)
    resizer.resize_pil(image, scaled, ResizeOptions(_BILINEAR, crop_box=crop))
    return scaled


@functools.cache
def exact_extensions() -> CpuExtensions:
    """Return the CPU extensions to scale with: those of this machine, or none if pixels differ.

    Raises:
        ShardmillError: The library does not give the pixels that it gives on other machines.
    """
    for extensions in (Resizer().cpu_extensions, CpuExtensions.none):
        if hash_samples(extensions) == _SAMPLE_HASH:
            return extensions
    raise ShardmillError("resizer-differs", version=version("cykooz-resizer"))


def hash_samples(extensions: CpuExtensions) -> str:
    """Return a hash of fixed images that are scaled with CPU extensions."""
    digest = blake3()
    for mode, bands in (("L", 1), ("RGB", 3)):
        pixels = blake3(mode.encode()).digest(_SAMPLE.width * _SAMPLE.height * bands)
        image = Image.frombytes(mode, _SAMPLE, pixels)
        for size, box in _SAMPLE_SCALES:
            digest.update(_scale_bilinear(image, size, box, extensions).tobytes())
    return digest.hexdigest()
