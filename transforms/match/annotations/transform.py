"""AttachAnnotations: gives references what annotations, masks and image sets say of them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import apache_beam as beam
from apache_beam.pvalue import AsDict
from blake3 import blake3

from shardmill.schemas.errors import InputError, StorageError
from shardmill.schemas.errors.catalogue import coded
from shardmill.schemas.map_ordered import map_ordered, storage_threads
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.storage import scheme_of
from shardmill.transforms.match.annotations.boxes import (
    Annotation,
    AnnotationError,
    attach,
    parse_voc,
    parse_yolo,
    with_attached,
    with_fields,
)
from shardmill.transforms.match.annotations.coco import (
    SECTIONS,
    make_references,
    read_categories,
    read_section,
)
from shardmill.transforms.match.annotations.pairing import pair, stem_of
from shardmill.transforms.match.counts import MatchCounts, sum_counts
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.read_input import read_input
from shardmill.transforms.match.transform import MatchedInputs, MatchFiles, find_inputs
from shardmill.transforms.match.walk import escape_name, is_junk, make_key

AnnotationKind = Literal["voc", "yolo", "coco"]
# Besides files with boxes: masks, and PASCAL VOC's lists of the images of each split.
AnnotationSource = Literal[AnnotationKind, "masks", "imagesets"]
_NAMES: dict[str, re.Pattern[str]] = {
    "voc": re.compile(r".*\.xml", re.IGNORECASE),
    "yolo": re.compile(r".*\.txt", re.IGNORECASE),
    "masks": re.compile(r".*\.(png|bmp|gif|tiff?)", re.IGNORECASE),
    "imagesets": re.compile(r"(.*/)?ImageSets/(Main|Segmentation)/(train|val|test)\.txt"),
}
_FLAGS = {"masks": "--masks", "imagesets": "--splits=imagesets"}  # others are of --annotations
_WANTED = {  # for messages
    "voc": ".xml files",
    "yolo": ".txt files",
    "masks": "PNG, GIF, BMP or TIFF files",
    "imagesets": "train.txt, val.txt or test.txt in ImageSets/{task}",
}
_SUFFIXES = {"voc": ".xml", "yolo": ".txt", "coco": ".json"}  # of files that are skipped as images
_UNPAIRED = {"voc": ".xml", "yolo": ".txt", "coco": "of COCO", "masks": "masks",
             "imagesets": "of an image set"}  # fmt: skip
_VOC_MASKS = re.compile(r"(.*/)?Segmentation(Class|Object)(Aug|Raw)?/[^/]*")
_FATAL = (InputError, StorageError, FileNotFoundError)  # of a file for many images
_BATCH = 64
_THREADS = 4  # that read local files
_Paired = tuple[InputRef | None, InputRef | None]


@dataclass(frozen=True)
class AnnotationSpec:
    """Annotations of images; a small picklable value.

    Attributes:
        kind: ``voc`` or ``yolo``: a file for each image; ``coco``: files for many images; or
            ``masks`` or ``imagesets``.
        places: The folders of files that match all of them, or the files of ``coco``.
        names: The classes of ``yolo`` by number.
        labels: The labels that boxes may have; None for any.
        root: Folder that holds the images.
        task: Folder of the lists of ``imagesets``.
    """

    kind: AnnotationSource
    places: tuple[MatchSpec, ...]
    names: tuple[str, ...] = ()
    labels: frozenset[str] | None = None
    root: str = ""
    task: Literal["Main", "Segmentation"] = "Main"

    def is_annotation(self, ref: InputRef) -> bool:
        """Return whether a file is named like an annotation."""
        match = _NAMES[self.kind].fullmatch(ref.key)
        hidden = is_junk(ref.key.rpartition("/")[2])
        return match is not None and not hidden and (match.re.groups < 3 or match[2] == self.task)

    def check_number(self, files: int) -> MatchCounts:
        """Return what makes the input unusable if no file is named like an annotation."""
        if files:
            return MatchCounts()
        wanted = _WANTED[self.kind].format(task=self.task)
        places = ", ".join(place.input for place in self.places)
        flag = flag_of(self.kind)
        return MatchCounts(fatal=coded("annotations-none", flag=flag, wanted=wanted, place=places))

    def is_image(self, ref: InputRef) -> bool:
        """Return whether a matched image is one, and not a mask in the same folder."""
        if self.kind != "masks":
            return True
        masks, root = map(_real_folder, (self.places[0].input, self.root))
        if root.startswith(masks):  # they are next to the images
            return not self.is_annotation(ref)
        return not make_key(f"{root}{ref.key}").startswith(make_key(masks))

    def attach(self, ref: InputRef, file: InputRef, content: bytes) -> InputRef:
        """Return an image with what a file says of it.

        Raises:
            AnnotationError: The file cannot be used.
        """
        if self.kind == "masks":
            made = with_fields(ref, {"mask_hash": blake3(content).hexdigest().encode()})
            return made._replace(mask=(file.uri, file.size, file.version))
        found = parse_voc(content) if self.kind == "voc" else parse_yolo(content, self.names)
        return attach(ref, found, self.labels)

    def without_files(self, counts: MatchCounts) -> MatchCounts:
        """Return the counts of the images' input without the skipped files that are annotations."""
        inside = [place.input for place in self.places if self._is_inside(place.input)]
        suffix = _SUFFIXES.get(self.kind, "") if inside else ""
        kinds = []
        for kind, number, key in counts.kinds:
            fewer = 0 if kind != suffix else number
            if self.kind == "coco":
                fewer = min(fewer, len(inside))
            counts = counts._replace(skipped=counts.skipped - fewer)
            kinds += [(kind, number - fewer, key)] if number > fewer else []
        return counts._replace(kinds=tuple(kinds))

    def _is_inside(self, path: str) -> bool:
        """Return whether a folder or file is in the folder of the images, or that in the folder."""
        one, other = map(_real_folder, (path, self.root))
        return one.startswith(other) or other.startswith(one)


def flag_of(kind: AnnotationSource) -> str:
    """Return the flag that names files of a kind."""
    return _FLAGS.get(kind, f"--annotations={kind}")


@functools.cache
def _real_folder(path: str) -> str:
    """Return a path without links, and with a slash at its end."""
    return f"{(path if scheme_of(path) else os.path.realpath(path)).rstrip('/')}/"


@dataclass(eq=False)
class AttachAnnotations(beam.PTransform):
    """Attaches annotations to matched images: ``matched | AttachAnnotations(spec)``.

    Gives ``MatchedInputs``. Images without an annotation are rejects, except those of YOLO, which
    have no boxes; those in no image set are skipped, as are annotations without an image.

    Args:
        spec: The annotations.
    """

    spec: AnnotationSpec

    def expand(self, matched: MatchedInputs) -> MatchedInputs:
        """Wire the pairing by the stems of names, and the reading of annotations."""
        spec = self.spec
        root = matched.refs.pipeline
        found, fatal = self._entries(root) if spec.kind == "coco" else self._files(root)
        images = matched.refs | "Images" >> beam.Filter(spec.is_image)
        keyed = {"images": images, "others": found}
        groups = {
            name: refs
            | f"Key_{name}"
            >> beam.Map(lambda ref: (stem_of(ref.key), ref)).with_output_types(tuple[str, InputRef])
            for name, refs in keyed.items()
        } | "GroupByStem" >> beam.CoGroupByKey()
        refs, unused = (
            groups
            | "Pair" >> beam.FlatMap(lambda group: pair(group[1]["images"], group[1]["others"]))
            | "Batch" >> beam.BatchElements(min_batch_size=1, max_batch_size=_BATCH)
            | "Attach" >> find_inputs(lambda pairs: _attach(pairs, spec))
        )
        # One sum: partial counts do not say which of their files are annotations.
        total = matched.counts | "SumSkipped" >> beam.CombineGlobally(sum_counts)
        counts = total | "WithoutFiles" >> beam.Map(spec.without_files).with_output_types(
            MatchCounts
        )
        return MatchedInputs(refs, (counts, fatal, unused) | "Counts" >> beam.Flatten())

    def _files(self, root: beam.Pipeline) -> MatchedInputs:
        found = [
            root | f"Annotations{number}" >> MatchFiles(place)
            for number, place in enumerate(self.spec.places, 1)
        ]
        every = [each.refs for each in found] | "AllFiles" >> beam.Flatten()
        refs = every | "Named" >> beam.Filter(self.spec.is_annotation)
        if self.spec.kind == "imagesets":
            refs = refs | "ReadSets" >> beam.FlatMap(_read_set).with_output_types(InputRef)
        counts = [each.counts for each in found] | "AllCounts" >> beam.Flatten()
        fatal = counts | "KeepFatal" >> beam.Map(
            lambda each: MatchCounts(fatal=each.fatal)
        ).with_output_types(MatchCounts)
        none = (
            refs
            | "CountFiles" >> beam.combiners.Count.Globally()
            | "CheckFiles" >> beam.Map(self.spec.check_number).with_output_types(MatchCounts)
        )
        return MatchedInputs(refs, (fatal, none) | "AllFatal" >> beam.Flatten())

    def _entries(self, root: beam.Pipeline) -> MatchedInputs:
        paths, labels = [place.input for place in self.spec.places], self.spec.labels
        sections = [(path, name) for path in paths for name in SECTIONS]
        categories, broken = (
            root
            | "Paths" >> beam.Create(paths)
            | "ReadCategories"
            >> find_inputs(
                lambda path: read_categories(path).items(),
                _FATAL,
                kind=tuple[tuple[str, str], str],
            )
        )
        rows, damaged = (
            root
            | "Sections" >> beam.Create(sections)
            | beam.Reshuffle()
            | "ReadSections" >> find_inputs(read_section, _FATAL, kind=tuple[str, list[Any]])
        )
        refs = (
            rows
            | "GroupById" >> beam.GroupByKey()
            | "MakeReferences"
            >> beam.FlatMap(
                lambda group, categories: make_references(group, categories, labels),
                AsDict(categories),
            ).with_output_types(InputRef)
        )
        return MatchedInputs(refs, (broken, damaged) | "Damaged" >> beam.Flatten())


def _read_set(file: InputRef) -> Iterator[InputRef]:
    """Yield a reference with the split for each image of a list (VOC devkit_doc.pdf, section 4)."""
    folder = file.key.split("ImageSets/")[0]
    try:
        content = read_input(file)
    except RejectedError as error:
        raise StorageError("imagesets-unreadable", path=file.uri, why=error.message) from error
    for line in content.splitlines():
        name = line.decode("utf-8", "surrogateescape").strip()
        if name:
            key = make_key(f"{folder}JPEGImages/{name}.jpg")
            yield InputRef(key, file.uri, split=stem_of(file.key))


def _attach(pairs: Sequence[_Paired], spec: AnnotationSpec) -> Iterator[InputRef | MatchCounts]:
    """Yield images with their annotations or the reason of a reject, and counts of others."""
    files: list[tuple[InputRef, InputRef]] = []
    for image, other in pairs:
        if image and other and not image.error and spec.kind in ("voc", "yolo", "masks"):
            files.append((image, other))
        elif image:
            yield image if image.error else _attach_entry(image, other, spec)
        elif other and spec.kind in _UNPAIRED:
            yield _skipped(f"{_UNPAIRED[spec.kind]} without an image", other.key or other.uri)
    threads = (storage_threads(files[0][1].uri) or _THREADS) if files else 0
    yield from map_ordered(lambda pair: _attach_file(*pair, spec), files, threads)


def _attach_entry(
    image: InputRef, entry: InputRef | None, spec: AnnotationSpec
) -> InputRef | MatchCounts:
    """Return an image with an entry of a file that describes many, or without any annotation."""
    if spec.kind == "imagesets":
        found = entry and not entry.error and image._replace(split=entry.split)
        return found or _skipped("in no image set or in several", image.key)
    if entry is None and spec.kind == "voc" and _VOC_MASKS.fullmatch(image.key):
        return _skipped("masks of VOC", image.key)
    if entry is None and spec.kind == "yolo":  # by its convention, without boxes
        return attach(image, Annotation(1, 1))
    if entry is None:
        return image.rejected("no_annotation", f"nothing describes {image.key!r}")
    if entry.error:
        return image.rejected(entry.error, entry.message)
    return with_attached(image, entry)._replace(classes=entry.classes)


def _skipped(kind: str, key: str) -> MatchCounts:
    return MatchCounts(1, kinds=((kind, 1, escape_name(key)),))


def _attach_file(ref: InputRef, file: InputRef, spec: AnnotationSpec) -> InputRef:
    """Return an image with what a file says of it."""
    if file.error:
        return ref.rejected(file.error, f"{file.key}: {file.message}")
    try:
        return spec.attach(ref, file, read_input(file))
    except RejectedError as error:
        return ref.rejected(error.error, f"{file.key}: {error.message}")
    except AnnotationError as error:
        return ref.rejected("annotation", f"{file.key}: {error}")
