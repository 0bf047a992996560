"""Encode image files as tf.train.Examples in decoder processes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import deflate
import numpy as np
from blake3 import blake3

from shardmill.schemas.dataset.catalog import CatalogRow
from shardmill.schemas.errors import ResourceError
from shardmill.schemas.example.parse import ExampleError, parse_example
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import InputRef, PublishedRecord, Reject, RejectedError
from shardmill.schemas.schema_pbtxt.image_features import BOX_COUNTS, IMAGE_HASH, FeatureSet
from shardmill.schemas.schema_pbtxt.schema_text import array_tags
from shardmill.schemas.storage import map_ordered, scheme_of, storage_threads
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.images.convert import ImageSpec, codec_versions
from shardmill.transforms.images.decoder_pool import FRAME_BYTES, DecoderPool, ImageInput, use_pool
from shardmill.transforms.images.decoder_protocol import DecoderOptions
from shardmill.transforms.images.fields import BoxesFrame, input_fields, place_boxes
from shardmill.transforms.images.image_options import DecoderLimits
from shardmill.transforms.images.resize import Resizer, Size, turned
from shardmill.transforms.images.scaling import DEFAULT_RESIZER, exact_extensions, resizer_of
from shardmill.transforms.match.containers.expand import ARCHIVE_SUFFIXES, unchosen_kind
from shardmill.transforms.match.next_steps import next_step, remedy_of, remedy_of_records
from shardmill.transforms.match.read_input import MAX_FILE_BYTES, read_inputs
from shardmill.transforms.runtime.process_pool import usable_cores
from shardmill.transforms.sink.reuse import record_path, take_records
from shardmill.transforms.sink.spec import BuildHooks, Example

_IN_FLIGHT_BYTES = 256 << 20  # of files and records; a larger image is alone
_BATCH = 32  # images, at most, of one request to a decoder
_BATCH_BYTES = 4 << 20  # of their files and records
_THREAD_BYTES = 1 << 20  # of new files among known ones that are worth the start of a process
# Records that keep the size of the image, in bytes per byte of a compressed file.
_GROWTH = {"jpeg": 2, "png": 10, "raw": 15, "keep": 2}

ClassIds: TypeAlias = dict[str, int]
Results: TypeAlias = dict[str, Example | Reject]  # by key


@dataclass(frozen=True)
class ImageEncoder:
    """The ``Encoder`` of image files.

    Attributes:
        spec: How images are converted.
        feature_set: The features of a record.
        workers: Decoder processes per worker process; 0 for one per core of the machine it runs on.
        limits: Pixels, memory and time of one image.
        boxes_frame: See ``place_boxes``.
    """

    spec: ImageSpec
    feature_set: FeatureSet
    workers: int = 0
    limits: DecoderLimits = field(default_factory=DecoderLimits)
    boxes_frame: BoxesFrame = ""

    @property
    def packing(self) -> Packing:
        """How members are packed: compressing a JPEG or PNG again saves nothing."""
        if self.spec.encoding == "raw":
            return "deflated"
        return "stored"

    @property
    def expected_bytes(self) -> int | None:
        """Approximate bytes of a record; None if they depend on the input."""
        pixels = self.spec.target_bytes
        if not pixels:
            return None
        sizes = {"raw": pixels, "png": pixels * 6 // 10}
        return sizes.get(self.spec.encoding, pixels // 5) + 256

    def versions(self) -> dict[str, str]:
        """Return the versions of all libraries that the bytes of shards depend on."""
        return {**codec_versions(self.spec.resizer), "deflate": deflate.__version__}

    def schema(self, labels: Sequence[str]) -> str:
        """Return the text of ``schema.pbtxt`` for labels in the order of their class ids."""
        spec = self.spec
        tags = array_tags(np.dtype(np.uint8), spec.fixed_shape, spec.encoding, spec.channels)
        shape = (*spec.fixed_shape[:2], 1) if spec.fixed_shape else None
        mask_tags = array_tags(np.dtype(np.uint8), shape, "png", 1)
        return self.feature_set.schema(labels, tags, mask_tags)

    def features(self) -> list[dict[str, Any]]:
        """Return name, type and source of each feature, for the manifest."""
        return self.feature_set.describe()

    def encode(self, refs: Sequence[InputRef], labels: Sequence[str]) -> Iterator[Example | Reject]:
        """Yield an example or reject for each reference, in order; read and decode ahead."""
        if self.spec.resizer == "simd":
            exact_extensions()  # fails where its pixels differ
        ids: ClassIds = {label: number for number, label in enumerate(labels)}
        task = DecoderOptions(self.spec, self.feature_set, self.limits, self.boxes_frame)
        workers = self.workers or usable_cores()
        threads = 2 * workers
        published = [ref for ref in refs if self._takes(ref)]
        if refs and scheme_of(refs[0].file):
            threads += storage_threads(refs[0].file)
        elif published and not scheme_of(record_path(published[0])):
            # Records of a local dataset are in the page cache: more threads wait for each other.
            new_bytes = sum(ref.size for ref in refs) - sum(ref.size for ref in published)
            threads = min(threads, -(-new_bytes // _THREAD_BYTES))
        # Before the first result of map_ordered, threads have begun with the next batches: that of
        # an empty batch is there at once.
        batches = itertools.chain([([], 0)], self._batches(refs, threads))
        with (
            use_pool(workers) as pool,
            contextlib.closing(
                map_ordered(
                    lambda batch: self._encode_batch(pool, task, batch[0], ids),
                    batches,
                    threads,
                    size_of=lambda batch: batch[1],
                    max_size=_IN_FLIGHT_BYTES // pool.users,
                )
            ) as results,
        ):
            next(results)
            yield from itertools.chain.from_iterable(results)

    def _encode_batch(
        self, pool: DecoderPool, task: DecoderOptions, refs: Sequence[InputRef], ids: ClassIds
    ) -> list[Example | Reject]:
        """Return the example or reject of each reference."""
        fields = {ref.key: input_fields(ref, ids) for ref in refs}
        taken = take_records([ref for ref in refs if self._takes(ref)])
        results: Results = {}
        for ref in refs:
            if ref.key in taken:
                example = self._update_record(ref, *taken[ref.key], fields[ref.key])
                if example is not None:
                    results[ref.key] = example
        new = [ImageInput(ref, fields[ref.key]) for ref in refs if ref.key not in results]
        _decode(pool, task, new, results)
        return [results[ref.key] for ref in refs]

    @cached_property
    def _can_place_boxes(self) -> bool:
        """Whether boxes can be placed in a record again, which needs the orientation of images."""
        return not self.feature_set.boxes or bool(self.feature_set.name_of("orientation"))

    @cached_property
    def _has_masks(self) -> bool:
        """Whether records have masks."""
        return bool(self.feature_set.name_of("mask"))

    def _takes(self, ref: InputRef) -> bool:
        """Return whether the published record of a reference is taken, unless it is damaged."""
        if not (ref.published and self._can_place_boxes):
            return False
        if not (ref.mask or self._has_masks):
            return True
        mask_hash = PublishedRecord.unpack(ref.published).image.features.get("mask_hash")
        current = parse_example(ref.attached)["mask_hash"].values if ref.mask else [b""]
        return [(mask_hash or "").encode()] == current

    def _update_record(
        self, ref: InputRef, published: PublishedRecord, record: bytes, fields: dict[str, Any]
    ) -> Example | None:
        """Return the example of a published record, with the current values of the input.

        None if the record does not have the image of its row in the catalog.
        """
        image = published.image
        expected = image.features.get(IMAGE_HASH)
        try:
            made = parse_example(record)
            # Without a hash, the catalog of the shard is proved by the CRC that it holds.
            data = made[self.feature_set.name_of("data")].values[0] if expected else b""
        except (ExampleError, LookupError):
            return None
        if expected and not (isinstance(data, bytes) and blake3(data).hexdigest() == expected):
            return None
        if self.feature_set.boxes:
            orientation = int(made[self.feature_set.name_of("orientation")].values[0])
            stored = turned(Size(image.width, image.height), orientation)
            geometry = self.spec.geometry(stored, orientation)
            fields |= place_boxes(fields, geometry, self.boxes_frame)
            counts = {name: fields[name] for name in BOX_COUNTS}
            image = image._replace(features={**image.features, **counts})
        current = self.feature_set.values(fields, of_input=True)
        names = {name for name, feature in self.feature_set.features if feature.of_input}
        updated = {name: feature for name, feature in made.items() if name not in names}
        updated |= parse_example(encode_example(current))
        if updated != made:
            record = encode_example({name: feature.values for name, feature in updated.items()})
        row = CatalogRow.of(ref, image, FRAME_BYTES + len(record))
        return Example(record, ref.labels, row, taken=True)

    def _batches(
        self, refs: Sequence[InputRef], threads: int
    ) -> Iterator[tuple[list[InputRef], int]]:
        """Yield references that one request holds, in order, and the bytes of files and records."""
        # Two requests for each thread: those of storage wait, and none should have nothing to read.
        largest = min(_BATCH, -(-len(refs) // (2 * threads or 1)))
        growth, expected = _GROWTH[self.spec.encoding], self.expected_bytes
        batch: list[InputRef] = []
        size = 0
        for ref in refs:
            more = ref.size + (expected or ref.size * growth)
            if batch and (len(batch) == largest or size + more > _BATCH_BYTES):
                yield batch, size
                batch, size = [], 0
            batch.append(ref)
            size += more
        if batch:
            yield batch, size


# Why an option of archives had no effect.
_WHY_UNUSED = {
    "image_column": "no input is a Parquet or TFRecord file",
    "image_suffix": "no input is a tar or zip archive",
    "zip_encoding": "all names in zip archives are UTF-8, or say their encoding",
}


@dataclass(frozen=True)
class ImagesHooks(BuildHooks):
    """The ``BuildHooks`` of images.

    Attributes:
        labels_are_names: Whether labels are the names of files.
        resizer: The resizer of this build.
        resizer_given: Whether the user chose it; else it is the client's default.
        image_suffix: What follows the first dot in the names of images in archives.
        archive_options: Names and values of the options of archives that are given.
        from_python: Whether the images are those of a Python source.
        annotations: Kind of the annotations, if there are any.
    """

    labels_are_names: bool = False
    resizer: Resizer = DEFAULT_RESIZER
    resizer_given: bool = False
    image_suffix: tuple[str, ...] = ()
    archive_options: tuple[tuple[str, str], ...] = ()
    from_python: bool = False
    annotations: str = ""
    inputs: str = "images"
    input_description: str = "an image"
    archives: tuple[str, ...] = ARCHIVE_SUFFIXES

    def next_step(self, name: str, default: str) -> str:
        """Return the fix for a file that is not an image."""
        return next_step(name, "images", default)

    def why_none(self, kinds: Iterable[tuple[str, int, str]]) -> str:
        """Return that ``--image_suffix`` leaves out all images, or an empty text."""
        left_out = unchosen_kind(self.image_suffix)
        for kind, number, key in kinds:
            if kind == left_out:
                return (
                    f"--image_suffix={','.join(self.image_suffix)} leaves out all images, "
                    f"{number:,}, such as {key!r}: give what follows the first dot of such names."
                )
        return ""

    def codec_change(self, versions: Mapping[str, str]) -> str:
        """Return how the resizer differs from that of a dataset, as a clause."""
        old = resizer_of(versions)
        if old not in (None, self.resizer):
            return f"resizer was {old}, now {self.resizer}"
        return ""

    def why_not_updated(self, output: str, versions: Mapping[str, str]) -> str:
        """Return why an update would change the resizer, with the fix, or an empty text.

        Without an option, the other resizer would decode all images of the dataset again.
        """
        if self.resizer_given or not self.codec_change(versions):
            return ""
        if self.resizer == "simd":
            return (
                f"{output} was resized by Pillow, and the default here is cykooz-resizer: add "
                "--resizer=pillow to keep its images, or --resizer=simd to decode all of them "
                "again."
            )
        return (
            f"{output} was resized by cykooz-resizer, which is not installed here: add "
            "--resizer=pillow to decode all images again, or update it where cykooz-resizer is "
            "installed."
        )

    def remedy(self, reason: str, keys: Sequence[str]) -> str:
        """Return the fix if matching rejected all images, or an empty text."""
        if self.from_python:
            return remedy_of_records(reason)
        return remedy_of(reason, keys, self.annotations)

    def unused_options(self, used: Collection[str]) -> Iterator[str]:
        """See ``BuildHooks``."""
        for name, value in self.archive_options:
            if name not in used:
                yield f"--{name}={value} had no effect: {_WHY_UNUSED[name]}"

    def input_warnings(self, labels: Collection[str], usable: int) -> Iterator[str]:
        """Yield a warning if each file has another label."""
        if self.labels_are_names and len(labels) == usable > 1:
            yield (
                f"each of the {usable:,} files has another label, such as {min(labels)!r}: set a "
                "--label_pattern that takes the class out of the name, or --label_from=none"
            )


def _decode(
    pool: DecoderPool, task: DecoderOptions, images: list[ImageInput], results: Results
) -> None:
    """Add the example or reject of each image.

    The decoder processes read local files. What they cannot read, and objects, is read here.
    """
    _read_masks(images, results)
    images = [image for image in images if image.ref.key not in results]
    _make_records(pool, task, [image for image in images if _is_local(image.ref)], results)
    images = [image for image in images if image.ref.key not in results]
    _make_records(pool, task, _read(images, results), results)


def _is_local(ref: InputRef) -> bool:
    """Return whether decoder processes can read an input."""
    return not scheme_of(ref.file) and ref.size <= MAX_FILE_BYTES


def _make_records(
    pool: DecoderPool, task: DecoderOptions, images: list[ImageInput], results: Results
) -> None:
    """Add the results of images whose files can be read."""
    made = pool.make_records(task, images) if images else []
    for image, result in zip(images, made, strict=True):
        if result is not None:
            results[image.ref.key] = result


def _read_masks(images: list[ImageInput], results: Results) -> None:
    """Add the contents of masks to the fields of images; add rejects of unreadable ones."""
    masked = [image for image in images if image.ref.mask]
    contents = read_inputs([InputRef(image.ref.key, *image.ref.mask) for image in masked])
    for image, content in zip(masked, contents, strict=True):
        if isinstance(content, bytes) and blake3(content).hexdigest() == image.fields["mask_hash"]:
            image.fields["mask/data"] = content
        else:
            error = content.error if isinstance(content, RejectedError) else "changed"
            message = "its mask cannot be read or changed after it was matched"
            results[image.ref.key] = Reject(image.ref.key, image.ref.uri, "read", error, message)


def _read(images: list[ImageInput], results: Results) -> list[ImageInput]:
    """Return images with the content of their files; add rejects of unreadable ones."""
    refs = [image.ref for image in images]
    try:
        contents = read_inputs(refs)
    except MemoryError as error:
        ref = max(refs, key=lambda ref: ref.size)
        raise ResourceError(
            f"{ref.uri} has {plural(ref.size, 'byte')}, and reading it needs more memory than this "
            "process can have: add memory, or set --workers lower."
        ) from error
    read = []
    for image, content in zip(images, contents, strict=True):
        if isinstance(content, RejectedError):
            key, uri = image.ref.key, image.ref.uri
            results[key] = Reject(key, uri, content.stage, content.error, content.message)
        else:
            read.append(image._replace(data=content))
    return read
