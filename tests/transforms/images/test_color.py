"""Color conversion of generated images whose values are known."""

import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from tests.conftest import make_image
from tests.support.pixel_tools import (
    over_white,
    pixels,
    png,
    png_chunk,
    rejection,
    saved,
    tiff,
)

RAMP_16 = np.array([[0, 1, 128, 129, 257, 32767, 32768, 65278, 65534, 65535]], np.uint16)
RAMP_8 = [0, 0, 0, 1, 1, 127, 128, 254, 255, 255]  # v * 255 / 65535, rounded


def grey(data: bytes) -> list[int]:
    """Return a row of grey values; check that R = G = B and that 1 and 4 channels agree."""
    rgb = pixels(data)
    assert np.ptp(rgb, axis=-1).max() == 0
    assert (pixels(data, 1)[..., 0] == rgb[..., 0]).all()
    assert (pixels(data, 4)[..., :3] == rgb).all()
    return rgb[..., 0].ravel().tolist()


# Grey of every depth


def one_bit(kind: str, **options) -> bytes:
    picture = Image.new("1", (9, 1))
    picture.putdata(BITS)
    return saved(picture, kind, **options)


BITS = [0, 255, 0, 0, 255, 255, 0, 255, 255]
LEVELS = np.arange(256)
TWELVE = np.array([[0, 1, 8, 9, 2047, 2048, 4094, 4095]], "<u2")
GREYS = {
    "16-bit PNG": (png(10, 1, 16, 0, b"\0" + RAMP_16.astype(">u2").tobytes()), RAMP_8),
    **{f"16-bit TIFF {o}": (tiff(RAMP_16.astype(o + "u2"), 16), RAMP_8) for o in "<>"},
    **{
        kind: (saved(Image.fromarray(RAMP_16), "TIFF", compression=kind), RAMP_8)
        for kind in ("tiff_lzw", "tiff_adobe_deflate", "packbits")
    },
    "16-bit inverted": (tiff(RAMP_16.astype("<u2"), 16, photometric=0), [255 - v for v in RAMP_8]),
    "8-bit inverted": (tiff(np.array([[0, 100, 255]], np.uint8), 8, photometric=0), [255, 155, 0]),
    "floats inverted": (
        tiff(np.array([[0, 0.25, 1]], "<f4"), 32, sample_format=3, photometric=0),
        [255, 191, 0],
    ),
    "12-bit TIFF": (tiff(TWELVE, 12), [0, 0, 0, 1, 127, 128, 255, 255]),
    "PGM 65535": (b"P5 3 1 65535\n" + struct.pack(">3H", 0, 32768, 65535), [0, 128, 255]),
    "PGM 1023": (b"P5 3 1 1023\n" + struct.pack(">3H", 0, 512, 1023), [0, 128, 255]),
    **{
        f"floats {o}": (
            tiff((LEVELS[None] / 255).astype(o + "f4"), 32, sample_format=3),
            LEVELS.tolist(),
        )
        for o in "<>"
    },
    **{f"1-bit {kind}": (one_bit(kind), BITS) for kind in ("PNG", "BMP", "TIFF", "GIF", "PPM")},
    "1-bit group 4": (one_bit("TIFF", compression="group4"), BITS),
    "PNG of 1 bit": (png(2, 1, 1, 0, bytes([0, 0b01000000])), [0, 255]),
    "PNG of 2 bits": (png(4, 1, 2, 0, bytes([0, 0b00011011])), [0, 85, 170, 255]),
    "PNG of 4 bits": (png(2, 1, 4, 0, bytes([0, 0x3F])), [51, 255]),
    # A set bit is the foreground, black.
    "X bitmap": (
        b"#define a_width 8\n#define a_height 1\nstatic char a_bits[] = {\n0x05};\n",
        [0, 255, 0, 255, 255, 255, 255, 255],
    ),
}


@pytest.mark.parametrize("case", GREYS)
def test_scales_grey_to_8_bits(case):
    data, expected = GREYS[case]
    assert grey(data) == expected


@pytest.mark.parametrize(
    ("samples", "bits", "sample_format", "error"),
    [
        *(
            ([0.0, value], 32, 3, "float_range")
            for value in (np.nan, np.inf, -np.inf, -0.01, 1.01, 255.0)
        ),
        (np.array([0, 7], "<u4"), 32, 1, "int_range"),
        (np.array([0, 70000], "<u4"), 32, 1, "int_range"),
        (np.array([0, 7], "<i4"), 32, 2, "int_range"),
        (np.array([-5, 7], ">i4"), 32, 2, "int_range"),
        (np.array([-5, 7], "<i2"), 16, 2, "int_range"),
        (np.array([5, 7], "<i2"), 16, 2, "int_range"),  # the type decides, not the values
        (np.array([5, 7], ">i2"), 16, 2, "int_range"),
    ],
)
def test_rejects_numbers_without_a_defined_white(samples, bits, sample_format, error):
    array = np.array([samples], "<f4") if error == "float_range" else samples[None]
    assert rejection(tiff(array, bits, sample_format=sample_format)).error == error


@pytest.mark.parametrize(("bitpix", "kind"), [(16, ">i2"), (32, ">i4"), (-32, ">f4")])
def test_rejects_fits_unless_it_has_8_bits(bitpix, kind):
    def fits(bitpix: int, samples: np.ndarray) -> bytes:
        cards = [("SIMPLE", "T"), ("BITPIX", bitpix), ("NAXIS", 2), ("NAXIS1", 2), ("NAXIS2", 1)]
        lines = [f"{name:8}= {value!s:>20}".ljust(80) for name, value in cards] + ["END".ljust(80)]
        header = "".join(lines).ljust(2880).encode()
        return header + samples.tobytes().ljust(2880, b"\0")

    assert rejection(fits(bitpix, np.array([0, 1], kind))).error == "color"
    assert grey(fits(8, np.array([0, 200], "u1"))) == [0, 200]


# Palettes


PALETTE = [(10, 20, 30), (200, 0, 0), (0, 150, 250), (10, 20, 30)]


def palette_image() -> Image.Image:
    picture = Image.new("P", (4, 1))
    picture.putpalette([value for color in PALETTE for value in color])
    picture.putdata([0, 1, 2, 3])
    return picture


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF", "TGA"])
def test_converts_palettes(kind):
    assert pixels(saved(palette_image(), kind))[0].tolist() == [list(c) for c in PALETTE]
    alpha = pixels(saved(palette_image(), kind), 4)[0, :, 3]
    assert alpha.tolist() == [255] * 4


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_only_the_transparent_palette_index_is_transparent(kind):
    data = saved(palette_image(), kind, transparency=0)
    assert pixels(data)[0].tolist() == [[255] * 3, *map(list, PALETTE[1:])]
    assert pixels(data, 4)[0, :, 3].tolist() == [0, 255, 255, 255]


def test_composites_palette_alpha_over_white():
    data = saved(palette_image(), "PNG", transparency=bytes([0, 51, 128, 255]))
    assert pixels(data, 4)[0, :, 3].tolist() == [0, 51, 128, 255]
    expected = over_white(np.array(PALETTE), np.array([0, 51, 128, 255]))
    assert np.abs(pixels(data)[0] - expected).max() <= 0.51


# Alpha


def all_alphas() -> tuple[np.ndarray, np.ndarray]:
    alpha, value = np.meshgrid(np.arange(256), np.arange(0, 256, 5), indexing="ij")
    return np.stack([value, 255 - value, value // 2], axis=-1).astype(np.uint8), alpha


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "TGA"])
def test_composites_rgba_over_white(kind):
    color, alpha = all_alphas()
    data = saved(Image.fromarray(np.dstack([color, alpha.astype(np.uint8)])), kind)
    assert np.abs(pixels(data) - over_white(color, alpha)).max() <= 1
    four = pixels(data, 4)
    assert (four[..., :3] == color).all()
    assert (four[..., 3] == alpha).all()


def test_composites_la_and_pa_over_white():
    color, alpha = all_alphas()
    la = Image.fromarray(np.dstack([color[..., 0], alpha.astype(np.uint8)]), "LA")
    expected = over_white(color[..., :1].repeat(3, -1), alpha)
    for kind in ("PNG", "TIFF", "TGA"):
        assert np.abs(pixels(saved(la, kind)) - expected).max() <= 1
        assert np.abs(pixels(saved(la, kind), 1) - expected[..., :1]).max() <= 1
        assert (pixels(saved(la, kind), 4)[..., 3] == alpha).all()
    pa = Image.merge("LA", (palette_image().convert("L"), Image.new("L", (4, 1), 51)))
    assert pixels(saved(pa, "TIFF"), 4)[0, :, 3].tolist() == [51] * 4


def test_applies_associated_alpha_once():
    # ExtraSamples is 1, associated alpha: the stored colors are already multiplied by alpha.
    stored = Image.new("RGBA", (2, 2), (100, 50, 0, 128))
    data = saved(stored, "TIFF")
    tag = struct.pack("<HHI", 338, 3, 1)
    assert data.count(tag) == 1
    data = data.replace(tag + b"\2\0", tag + b"\1\0")
    expected = np.array([100, 50, 0]) + 255 - 128
    assert np.abs(pixels(data)[0, 0] - expected).max() <= 1


def test_16_bit_alpha_pngs():
    samples = np.array([[0x8000, 0x4000, 0xFFFF, 0x3333]], ">u2")
    [[pixel]] = pixels(png(1, 1, 16, 6, b"\0" + samples.tobytes()))
    expected = over_white(np.array([128, 64, 255]), np.array(51))
    assert np.abs(pixel - expected).max() <= 1
    [[pixel]] = pixels(png(1, 1, 16, 4, b"\0" + samples[:, 2:].tobytes()), 4)
    assert pixel.tolist() == [255, 255, 255, 51]


# Transparent colors of PNGs of every depth


def trns(*values: int) -> bytes:
    return png_chunk(b"tRNS", struct.pack(f">{len(values)}H", *values))


@pytest.mark.parametrize(
    ("depth", "row", "key", "expected", "alpha"),
    [
        (1, bytes([0b01100000]), 1, [0, 255, 255, 0], [255, 0, 0, 255]),
        (1, bytes([0b01100000]), 0, [255, 255, 255, 255], [0, 255, 255, 0]),
        (2, bytes([0b00011011]), 2, [0, 85, 255, 255], [255, 255, 0, 255]),
        (4, bytes([0x03, 0x4F]), 3, [0, 255, 68, 255], [255, 0, 255, 255]),
        (8, bytes([0, 3, 4, 255]), 3, [0, 255, 4, 255], [255, 0, 255, 255]),
        (16, bytes.fromhex("123312343412ffff"), 0x1234, [18, 255, 52, 255], [255, 0, 255, 255]),
    ],
)
def test_transparent_grey_of_each_depth(depth, row, key, expected, alpha):
    data = png(4, 1, depth, 0, b"\0" + row, trns(key))
    assert pixels(data)[0, :, 0].tolist() == expected
    assert pixels(data, 4)[0, :, 3].tolist() == alpha


def test_transparent_color_of_8_and_16_bits():
    eight = bytes([9, 8, 7, 9, 8, 6])
    found = pixels(png(2, 1, 8, 2, b"\0" + eight, trns(9, 8, 7)), 4)[0]
    assert found.tolist() == [[9, 8, 7, 0], [9, 8, 6, 255]]
    key = (0x1234, 0x5678, 0x9ABC)
    for other in [(0x1235, *key[1:]), (0x1334, *key[1:]), (*key[:2], 0x9ABB)]:
        row = struct.pack(">6H", *key, *other)
        data = png(2, 1, 16, 2, b"\0" + row, trns(*key))
        assert pixels(data, 4)[0, :, 3].tolist() == [0, 255]
        assert pixels(data)[0, 0].tolist() == [255, 255, 255]
        assert pixels(data)[0, 1].tolist() == [value >> 8 for value in other]


@pytest.mark.parametrize("interlace", [False, True])
def test_compares_all_bits_of_a_transparent_16_bit_color(interlace):
    rng = np.random.default_rng(5)
    # Many pixels have the transparent color.
    samples = rng.integers(1, 4, (16, 16, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in samples)
    data = png(16, 16, 16, 2, rows, trns(1, 2, 3))
    if interlace:
        data = interlaced_16_bit(samples, trns(1, 2, 3))
    keyed = (samples == [1, 2, 3]).all(axis=-1)
    assert 0 < keyed.sum() < keyed.size
    assert (pixels(data, 4)[..., 3] == np.where(keyed, 0, 255)).all()
    assert (pixels(data) == np.where(keyed, 255, 0)[..., None]).all()


def interlaced_16_bit(samples: np.ndarray, *extra: bytes) -> bytes:
    """Return an Adam7 PNG (ISO/IEC 15948 section 8.2)."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2)]
    passes.append((1, 0, 2, 1))
    rows = b""
    for top, left, down, right in passes:
        part = samples[top::down, left::right]
        rows += b"".join(b"\0" + row.tobytes() for row in part if part.shape[1])
    height, width = samples.shape[:2]
    plain = bytearray(png(width, height, 16, 2, rows, *extra))
    header = bytes(plain[16:28]) + b"\1"
    plain[8:33] = png_chunk(b"IHDR", header)
    return bytes(plain)


# Other color spaces

INKS = [(0,) * 4, (255, 0, 0, 0), (0, 255, 0, 0), (0, 0, 255, 0), (0, 0, 0, 255), (0, 0, 0, 128)]
INK_COLORS = [(255,) * 3, (0, 255, 255), (255, 0, 255), (255, 255, 0), (0,) * 3, (127,) * 3]


def ink_patches() -> Image.Image:
    picture = Image.new("CMYK", (16 * len(INKS), 16))
    for number, ink in enumerate(INKS):
        picture.paste(ink, (16 * number, 0, 16 * number + 16, 16))
    return picture


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_converts_cmyk(kind):
    """Pillow writes inverted CMYK JPEGs with an Adobe marker, as Photoshop does."""
    data = saved(ink_patches(), kind, **({"quality": 100} if kind == "JPEG" else {}))
    if kind == "JPEG":
        assert b"Adobe" in data[:200]
    found = pixels(data)[8, 8::16]
    assert np.abs(found - np.array(INK_COLORS)).max() <= (2 if kind == "JPEG" else 1)


def test_cmyk_without_the_adobe_marker_is_not_inverted():
    data = saved(ink_patches(), "JPEG", quality=100)
    start = data.index(b"\xff\xee")  # the Adobe segment
    (length,) = struct.unpack_from(">H", data, start + 2)
    plain = data[:start] + data[start + 2 + length :]
    # The stored samples are inverted inks; without the marker they count as inks.
    stored = 255 - np.array(INKS)
    expected = (255 - stored[:, :3]) * (255 - stored[:, 3:]) / 255
    assert np.abs(pixels(plain)[8, 8::16] - expected).max() <= 2
    assert pixels(plain)[8, 8].tolist() == [0, 0, 0]


def test_converts_a_rotated_ycbcr_tiff_of_many_strips():
    stored = make_image(9, 90, 700)
    plain = stored.convert("YCbCr")
    for info in ({274: 6}, {274: 6, 278: 8}):
        data = saved(plain, "TIFF", tiffinfo=info)
        expected = np.asarray(stored.transpose(Image.Transpose.ROTATE_270)).astype(int)
        assert pixels(data).shape == (90, 700, 3)
        assert np.abs(pixels(data) - expected).max() <= 3  # twice rounded


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
@pytest.mark.parametrize("pages", [1, 2])
def test_converts_ycbcr_tiff_by_bt_601(compression, pages):
    picture = Image.new("YCbCr", (5, 1))
    samples = [(128, 128, 128), (76, 85, 255), (29, 255, 107), (16, 128, 128), (200, 90, 150)]
    picture.putdata(samples)
    y, cb, cr = np.array(samples, float).T - np.array([[0], [128], [128]])
    expected = np.stack([y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb], -1)
    more = {"save_all": True, "append_images": [picture] * (pages - 1)}
    found = pixels(saved(picture, "TIFF", compression=compression, **more))[0]
    assert np.abs(found - expected.clip(0, 255)).max() <= 1


def test_converts_lab_tiff_by_cie():
    samples = [(255, 0, 0), (0, 0, 0), (128, 0, 0), (136, 40, 30), (200, -40, 40), (120, 20, -50)]
    raw = np.array(samples).astype(np.uint8)  # a* and b* are signed bytes in a TIFF
    data = saved(Image.frombytes("LAB", (len(samples), 1), raw.tobytes()), "TIFF")
    assert raw.tobytes() in data
    found = pixels(data)[0]
    expected = np.array([srgb_of_lab(v / 255 * 100, a, b) for v, a, b in samples])
    assert np.abs(found - expected).max() <= 3  # littlecms interpolates


def srgb_of_lab(lightness: float, a: float, b: float) -> np.ndarray:
    """Convert CIE L*a*b* (D50) to sRGB by the published formulas, clipped to the gamut."""
    fy = (lightness + 16) / 116
    cube = np.array([fy + a / 500, fy, fy - b / 200])
    xyz = np.where(cube > 6 / 29, cube**3, 3 * (6 / 29) ** 2 * (cube - 4 / 29))
    xyz = xyz * [0.96422, 1.0, 0.82521]
    # Lindbloom: XYZ (D50) to linear sRGB by Bradford
    to_linear = np.array(
        [
            [3.1338561, -1.6168667, -0.4906146],
            [-0.9787684, 1.9161415, 0.0334540],
            [0.0719453, -0.2289914, 1.4052427],
        ]
    )
    linear = (to_linear @ xyz).clip(0, 1)
    return 255 * np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)


# ICC profiles


def rgb_profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def swapped_profile() -> bytes:
    """Return an sRGB profile with exchanged red and blue primaries, whose effect is obvious."""
    data = bytearray(rgb_profile())
    red, blue = data.index(b"rXYZ"), data.index(b"bXYZ")
    data[red : red + 4], data[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(data)


@pytest.mark.parametrize("profile", [swapped_profile(), b"no profile"], ids=["swapped", "none"])
def test_profiles_are_ignored(profile):
    data = saved(Image.new("RGB", (16, 16), (220, 60, 10)), "PNG", icc_profile=profile)
    assert pixels(data)[8, 8].tolist() == [220, 60, 10]


def test_converts_color_to_grey_by_bt_601():
    colors = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [12, 200, 77]]], np.uint8)
    luma = colors @ [0.299, 0.587, 0.114]
    assert np.abs(pixels(saved(Image.fromarray(colors), "PNG"), 1)[..., 0] - luma).max() <= 0.51
