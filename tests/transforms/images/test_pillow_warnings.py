"""Pillow's warnings are ignored while images are encoded; the caller's filters stay as they are."""

import io
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.images.convert import encode_image
from shardmill.transforms.images.pillow_warnings import ignore_pillow_warnings
from tests.support.pixel_tools import full, png, saved


def damaged_exif() -> bytes:
    return saved(Image.new("RGB", (8, 8)), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")


def test_warnings_turned_into_errors_reject_no_image() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            Image.open(io.BytesIO(damaged_exif())).getexif()
        before = list(warnings.filters)
        assert encode_image(damaged_exif(), full()).size == (8, 8)
        assert list(warnings.filters) == before


def test_images_above_the_limit_of_pillow_give_no_warning(recwarn) -> None:
    """Pillow warns above half the limit here; this PNG has no pixels, so it cannot be decoded."""
    large = png(10_000, 9_000, 8, 0, b"\0")
    with pytest.raises(RejectedError) as caught:
        encode_image(large, full(1))
    assert caught.value.error == "decode"
    assert not recwarn.list
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(io.BytesIO(large))


def test_filters_of_the_caller_stay_as_they_are_with_many_threads() -> None:
    before = list(warnings.filters)
    barrier = threading.Barrier(8)

    def encode(_) -> None:
        barrier.wait(30)
        for _ in range(50):
            encode_image(damaged_exif(), full())

    with warnings.catch_warnings(record=True) as recorded, ThreadPoolExecutor(8) as pool:
        list(pool.map(encode, range(8)))
    assert not recorded
    assert list(warnings.filters) == before


def test_filters_replaced_by_the_caller_meanwhile_are_kept() -> None:
    with warnings.catch_warnings():
        with ignore_pillow_warnings():
            warnings.resetwarnings()
        assert list(warnings.filters) == []
    with ignore_pillow_warnings(), pytest.warns(UserWarning, match="of the caller"):
        warnings.warn("of the caller", UserWarning, stacklevel=1)
