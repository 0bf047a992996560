"""AttachAnnotations: gives references the boxes of their annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import apache_beam as beam
from apache_beam.pvalue import AsDict

from shardmill.schemas.errors import InputError, StorageError
from shardmill.schemas.map_ordered import map_ordered, storage_threads
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.match.annotations.boxes import Annotation, AnnotationError, attach
from shardmill.transforms.match.annotations.coco import (
    SECTIONS,
    make_references,
    read_categories,
    read_section,
)
from shardmill.transforms.match.annotations.pairing import pair, stem_of
from shardmill.transforms.match.annotations.voc import parse_voc
from shardmill.transforms.match.annotations.yolo import parse_yolo
from shardmill.transforms.match.counts import MatchCounts
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.read_input import read_inputs
from shardmill.transforms.match.transform import MatchedInputs, MatchFiles, find_inputs
from shardmill.transforms.match.walk import is_junk

AnnotationKind = Literal["voc", "yolo", "coco"]
_SUFFIXES = {"voc": ".xml", "yolo": ".txt"}
_BATCH = 64
_THREADS = 4  # that read local files
_Paired = tuple[InputRef | None, InputRef | None]


@dataclass(frozen=True)
class AnnotationSpec:
    """Annotations of images; a small picklable value.

    Attributes:
        kind: ``voc`` or ``yolo``: a file for each image; ``coco``: files for many images.
        places: The folders of files that match all of them, or the files of ``coco``.
        names: The classes of ``yolo`` by number.
        labels: The labels that boxes may have; None for any.
        root: Folder that holds the images.
    """

    kind: AnnotationKind
    places: tuple[MatchSpec, ...]
    names: tuple[str, ...] = ()
    labels: frozenset[str] | None = None
    root: str = ""

    def parse(self, data: bytes) -> Annotation:
        """Return the annotation of a file.

        Raises:
            AnnotationError: It cannot be used.
        """
        return parse_voc(data) if self.kind == "voc" else parse_yolo(data, self.names)

    def is_annotation(self, ref: InputRef) -> bool:
        """Return whether a file is named like an annotation."""
        suffix = _SUFFIXES[self.kind]
        return ref.key.lower().endswith(suffix) and not is_junk(ref.key.rpartition("/")[2])

    def without_files(self, counts: MatchCounts) -> MatchCounts:
        """Return the counts of the images' input without the skipped files that are annotations."""
        inside = [place.input for place in self.places if self._is_inside(place.input)]
        suffix = _SUFFIXES.get(self.kind, ".json") if inside else ""
        kinds = []
        for kind, number, key in counts.kinds:
            fewer = 0 if kind != suffix else len(inside) if self.kind == "coco" else number
            counts = counts._replace(skipped=counts.skipped - fewer)
            kinds += [(kind, number - fewer, key)] if number > fewer else []
        return counts._replace(kinds=tuple(kinds))

    def _is_inside(self, path: str) -> bool:
        """Return whether a folder or file is in the folder of the images, or that in the folder."""
        one, other = (f"{each.rstrip('/')}/" for each in (path, self.root))
        return one.startswith(other) or other.startswith(one)


@dataclass(eq=False)
class AttachAnnotations(beam.PTransform):
    """Attaches annotations to matched images: ``matched | AttachAnnotations(spec)``.

    Gives ``MatchedInputs``. Images without an annotation are rejects, except those of YOLO, which
    have no boxes. Annotations without an image are counted as skipped.

    Args:
        spec: The annotations.
    """

    spec: AnnotationSpec

    def expand(self, matched: MatchedInputs) -> MatchedInputs:
        """Wire the pairing by the stems of names, and the reading of annotations."""
        spec = self.spec
        root = matched.refs.pipeline
        found, fatal = self._entries(root) if spec.kind == "coco" else self._files(root)
        keyed = {"images": matched.refs, "others": found}
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
        counts = matched.counts | "WithoutFiles" >> beam.Map(spec.without_files).with_output_types(
            MatchCounts
        )
        return MatchedInputs(refs, (counts, fatal, unused) | "Counts" >> beam.Flatten())

    def _files(self, root: beam.Pipeline) -> MatchedInputs:
        found = [
            root | f"Annotations{number}" >> MatchFiles(place)
            for number, place in enumerate(self.spec.places, 1)
        ]
        refs = [each.refs for each in found] | "AllFiles" >> beam.Flatten()
        counts = [each.counts for each in found] | "AllCounts" >> beam.Flatten()
        fatal = counts | "KeepFatal" >> beam.Map(
            lambda each: MatchCounts(fatal=each.fatal)
        ).with_output_types(MatchCounts)
        return MatchedInputs(refs | "Named" >> beam.Filter(self.spec.is_annotation), fatal)

    def _entries(self, root: beam.Pipeline) -> MatchedInputs:
        paths, labels = [place.input for place in self.spec.places], self.spec.labels
        sections = [(path, name) for path in paths for name in SECTIONS]
        categories, broken = _read(
            root | "Paths" >> beam.Create(paths), "ReadCategories",
            lambda path: read_categories(path).items(), tuple[tuple[str, str], str],
        )  # fmt: skip
        rows, damaged = _read(
            root | "Sections" >> beam.Create(sections) | beam.Reshuffle(), "ReadSections",
            read_section, tuple[str, tuple[Any, ...]],
        )  # fmt: skip
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


def _read(inputs: Any, name: str, read: Any, kind: Any) -> Any:
    """Return what a function yields of each input, and the counts of what makes it unusable."""

    def call(each: Any) -> Iterator[Any]:
        try:
            yield from read(each)
        except (InputError, StorageError, FileNotFoundError) as error:
            fatal = getattr(error, "coded", str(error))
            yield beam.pvalue.TaggedOutput("counts", MatchCounts(fatal=fatal))

    typed = beam.FlatMap(call).with_output_types(kind, counts=MatchCounts)
    return inputs | name >> typed.with_outputs("counts", main="found")


def _attach(pairs: Sequence[_Paired], spec: AnnotationSpec) -> Iterator[InputRef | MatchCounts]:
    """Yield images with their boxes or the reason why they are rejected, and counts of others."""
    files: list[tuple[InputRef, InputRef]] = []
    for image, other in pairs:
        if image is None:
            if other is not None:
                kind = f"{_SUFFIXES.get(spec.kind, 'COCO entry')} without an image"
                yield MatchCounts(1, kinds=((kind, 1, other.key or other.uri),))
        elif image.error:
            yield image
        elif other is None and spec.kind == "yolo":  # by its convention, without boxes
            yield attach(image, Annotation(1, 1))
        elif other is None:
            yield image.rejected("no_annotation", f"nothing describes {image.key!r}")
        elif spec.kind != "coco":
            files.append((image, other))
        elif other.error:
            yield image.rejected(other.error, other.message)
        else:
            yield image._replace(attached=other.attached, classes=other.classes)
    threads = (storage_threads(files[0][1].uri) or _THREADS) if files else 0
    yield from map_ordered(lambda pair: _with_file(*pair, spec), files, threads)


def _with_file(ref: InputRef, file: InputRef, spec: AnnotationSpec) -> InputRef:
    """Return an image with the boxes of a file."""
    if file.error:
        return ref.rejected(file.error, f"{file.key}: {file.message}")
    (content,) = read_inputs([file])
    if isinstance(content, RejectedError):
        return ref.rejected(content.error, f"{file.key}: {content.message}")
    try:
        return attach(ref, spec.parse(content), spec.labels)
    except AnnotationError as error:
        return ref.rejected("annotation", f"{file.key}: {error}")
