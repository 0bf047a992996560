"""Encode image files as tf.train.Examples on a pool of threads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import deflate
import numpy as np

from shardmill.schemas.errors import ChangedError, StorageError
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import Reject, RejectedError
from shardmill.schemas.schema_pbtxt import image_features as names
from shardmill.schemas.schema_pbtxt.feature_spec import array_tags
from shardmill.schemas.schema_pbtxt.image_features import FeatureNames, image_schema
from shardmill.schemas.storage import open_storage
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.build.encoder import Example
from shardmill.transforms.images.convert import ImageSpec, codec_versions, encode_image
from shardmill.transforms.images.decode import MAX_FILE_BYTES
from shardmill.transforms.runtime.map_ordered import map_ordered
from shardmill.transforms.runtime.process_pool import usable_cores
from shardmill.transforms.statistics.sums import Summary

_IN_FLIGHT_BYTES = 64 << 20  # of files that are read ahead; a larger file is read alone
_ATTEMPTS = 3
_FIRST_DELAY = 0.2  # seconds; each retry waits 4 times longer


def read_input(ref: InputRef) -> bytes:
    """Return the content of an input file.

    Errors of the storage are retried, then raised: they say nothing about the input.

    Raises:
        RejectedError: The file is too large, missing or not readable, or has changed since it was
            listed.
        StorageError: Reading failed three times.
    """
    if ref.size > MAX_FILE_BYTES:
        raise RejectedError("read", "too_large", f"{ref.size:,} bytes exceed {MAX_FILE_BYTES:,}")
    storage = open_storage(ref.uri)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return storage.read_unchanged(ref.uri, ref.size, ref.version)
        except FileNotFoundError as error:
            raise RejectedError(
                "read", "not_found", "the file was there when it was listed"
            ) from error
        except PermissionError as error:
            raise RejectedError("read", "unreadable", "reading it is not permitted") from error
        except ChangedError as error:
            raise RejectedError("read", "changed", str(error)) from error
        except StorageError:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_FIRST_DELAY * 4 ** (attempt - 1))
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class ImageEncoder:
    """The ``Encoder`` of image files.

    Attributes:
        spec: How images are converted.
        feature_names: Names of the features of a record.
        packing: How members are packed.
        threads: Decoding threads per worker process; 0 for one per CPU core.
    """

    spec: ImageSpec
    feature_names: FeatureNames
    packing: Packing
    threads: int = 0

    @property
    def expected_bytes(self) -> int | None:
        """See ``Encoder.expected_bytes``."""
        return self.spec.expected_bytes()

    def versions(self) -> dict[str, str]:
        """See ``Encoder.versions``."""
        return {**codec_versions(), "deflate": deflate.__version__}

    def schema(self, labels: Sequence[str]) -> str:
        """See ``Encoder.schema``."""
        spec = self.spec
        tags = array_tags(np.dtype(np.uint8), spec.fixed_shape, spec.encoding, spec.channels)
        return image_schema(self.feature_names, labels, tags)

    def features(self) -> list[dict[str, Any]]:
        """See ``Encoder.features``."""
        return [dict(feature) for feature in self.feature_names.describe()]

    def encode(self, refs: Sequence[InputRef], labels: Sequence[str]) -> Iterator[Example | Reject]:
        """Yield an example or reject for each reference, in order; decode ahead on all threads."""
        ids = {label: number for number, label in enumerate(labels)}
        threads = self.threads or usable_cores()
        yield from map_ordered(
            lambda ref: self.encode_one(ref, ids), refs, threads, window=8 * threads,
            size_of=lambda ref: ref.size, max_size=_IN_FLIGHT_BYTES,
        )  # fmt: skip

    def encode_one(self, ref: InputRef, ids: dict[str, int]) -> Example | Reject:
        """Return the example of one image, or the reject.

        Args:
            ref: Reference to the image.
            ids: Class ID of each label.
        """
        try:
            image = encode_image(read_input(ref), self.spec)
        except RejectedError as error:
            return Reject(ref.key, ref.uri, error.stage, error.error, error.message)
        values: dict[str, bytes | int] = {
            names.ENCODED: image.data,
            names.FORMAT: self.spec.encoding.encode(),
            names.HEIGHT: image.size.height,
            names.WIDTH: image.size.width,
            names.KEY: ref.key.encode(),
        }
        if ref.label is not None:
            values[names.CLASS_ID] = ids[ref.label]
            values[names.CLASS_TEXT] = ref.label.encode()
        record = encode_example(self.feature_names.rename(values))
        return Example(record, ref.label, image.multi_frame, Summary(channels=image.channels))
