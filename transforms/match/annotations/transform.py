"""AttachAnnotations: gives references what annotations, masks and image sets say of them.

Images are paired with the files or entries that describe them by their paths.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsDict, AsSingleton

from shardmill.schemas.errors import InputError, StorageError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.refs import InputRef, MatchCounts, RejectedError, sum_counts
from shardmill.schemas.storage.base import map_ordered, storage_threads
from shardmill.schemas.text_file import TextError, decode_lines, unreadable_text
from shardmill.transforms.match.annotations.annotation_spec import (
    OUTLINES,
    UNDECLARED,
    Annotation,
    AnnotationError,
    AnnotationSpec,
    attach,
    with_attached,
)
from shardmill.transforms.match.annotations.coco import (
    SECTIONS,
    list_categories,
    make_references,
    read_section,
)
from shardmill.transforms.match.read_input import read_input
from shardmill.transforms.match.transform import MatchedInputs, MatchFiles, find_inputs
from shardmill.transforms.match.walk import escape_name, make_key

_UNPAIRED = {
    "voc": ".xml",
    "yolo": ".txt",
    "coco": "of COCO",
    "masks": "masks",
    "imagesets": "of an image set",
}
_VOC_MASKS = re.compile(r"(.*/)?Segmentation(Class|Object)(Aug|Raw)?/[^/]*")
_FATAL = (InputError, StorageError, FileNotFoundError)  # of a file for many images
_BATCH = 64
_CLEAR = 3  # votes, against one of a file that is not
_THREADS = 4  # that read local files
_Paired = tuple[InputRef | None, InputRef | None]
# Names of folders next to each other in the layouts of PASCAL VOC, YOLO and common tools.
_FOLDERS = frozenset(
    {
        "annotation",
        "annotations",
        "annots",
        "image",
        "images",
        "img",
        "imgs",
        "jpegimages",
        "label",
        "labels",
        "mask",
        "masks",
        "xml",
        "xmls",
    }
)


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
        if spec.kind == "coco":
            annotations, fatal = self._entries(root)
        else:
            annotations, fatal = self._files(root)
        images = matched.refs | "Images" >> beam.Filter(spec.is_image)
        keyed = {"images": images, "others": annotations}
        groups = {
            name: refs
            | f"Key_{name}"
            >> beam.Map(lambda ref: (stem_of(ref.key), ref)).with_output_types(tuple[str, InputRef])
            for name, refs in keyed.items()
        } | "GroupByStem" >> beam.CoGroupByKey()
        batches = (
            groups
            | "Pair" >> beam.FlatMap(lambda group: pair(group[1]["images"], group[1]["others"]))
            | "Batch" >> beam.BatchElements(min_batch_size=1, max_batch_size=_BATCH)
        )
        if spec.kind == "yolo" and spec.line_format == UNDECLARED:
            refs, unused = self._attach_undeclared(batches)
        else:
            refs, unused = batches | "Attach" >> find_inputs(lambda pairs: _attach(pairs, spec))
        if spec.kind == "imagesets":
            unmatched = (
                groups
                | "ListNames" >> beam.FlatMap(_list_names)
                | "FindFirst" >> beam.CombinePerKey(min)
                | "AllNames" >> beam.combiners.ToDict()
                | "FindUnmatched" >> beam.Map(_why_unmatched).with_output_types(MatchCounts)
            )
            fatal = (fatal, unmatched) | "FatalCounts" >> beam.Flatten()
        # One sum: partial counts do not say which of their files are annotations.
        total = matched.counts | "SumSkipped" >> beam.CombineGlobally(sum_counts)
        counts = total | "WithoutFiles" >> beam.Map(spec.without_files).with_output_types(
            MatchCounts
        )
        return MatchedInputs(refs, (counts, fatal, unused) | "Counts" >> beam.Flatten())

    def _attach_undeclared(self, batches: beam.PCollection[list[_Paired]]) -> MatchedInputs:
        """Wire the reading of lines of YOLO that may be outlines: those of most files decide."""
        spec = self.spec
        tried, counts = batches | "Attach" >> find_inputs(
            lambda pairs: _try_attach(pairs, spec), kind=tuple[InputRef, Any]
        )
        majority = (
            tried
            | "Vote" >> beam.Map(lambda attempt: vote(attempt[0])).with_output_types(int)
            | "SumVotes" >> beam.CombineGlobally(sum)
        )
        refs = tried | "AttachOutlines" >> beam.Map(
            lambda attempt, votes: _attach_outlines(attempt, votes, spec),
            AsSingleton(majority),
        ).with_output_types(InputRef)
        return MatchedInputs(refs, counts)

    def _files(self, root: beam.Pipeline) -> MatchedInputs:
        matches = [
            root | f"Annotations{number}" >> MatchFiles(place)
            for number, place in enumerate(self.spec.places, 1)
        ]
        every = [match.refs for match in matches] | "AllFiles" >> beam.Flatten()
        refs = every | "Named" >> beam.Filter(self.spec.is_annotation)
        if self.spec.kind == "imagesets":
            refs = refs | "ReadSets" >> beam.FlatMap(_read_set).with_output_types(InputRef)
        counts = [match.counts for match in matches] | "AllCounts" >> beam.Flatten()
        fatal = counts | "KeepFatal" >> beam.Map(
            lambda count: MatchCounts(fatal=count.fatal)
        ).with_output_types(MatchCounts)
        none = (
            refs
            | "CountFiles" >> beam.combiners.Count.Globally()
            | "CheckFiles" >> beam.Map(self.spec.check_number).with_output_types(MatchCounts)
        )
        return MatchedInputs(refs, (fatal, none) | "AllFatal" >> beam.Flatten())

    def _entries(self, root: beam.Pipeline) -> MatchedInputs:
        paths, labels = [place.input for place in self.spec.places], self.spec.labels
        with_ids = self.spec.coco_ids
        sections = [(path, name) for path in paths for name in SECTIONS]
        categories, broken = (
            root
            | "Paths" >> beam.Create(paths)
            | "ReadCategories"
            >> find_inputs(list_categories, _FATAL, kind=tuple[tuple[str, str], str])
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
                lambda group, categories: make_references(
                    group, categories, labels, with_ids=with_ids
                ),
                AsDict(categories),
            ).with_output_types(InputRef)
        )
        return MatchedInputs(refs, (broken, damaged) | "Damaged" >> beam.Flatten())


def _read_set(file: InputRef) -> Iterator[InputRef]:
    """Yield a reference with the split for each image of a list (VOC devkit_doc.pdf, section 4)."""
    folder = file.key.split("ImageSets/")[0]
    try:
        lines = decode_lines(read_input(file))
    except RejectedError as error:
        raise StorageError(f"{file.uri} cannot be read: {error.message}.") from error
    except TextError as error:
        raise unreadable_text(source=file.uri, problem=error) from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise InputError(
            f"{file.uri} names no image, so that split {stem_of(file.key)!r} would be left out: "
            "write the names of its images, one a line, or delete the file."
        )
    for name in names:
        key = make_key(f"{folder}JPEGImages/{name}.jpg")
        yield InputRef(key, file.uri, split=stem_of(file.key))


def _list_names(group: tuple[str, dict[str, Any]]) -> Iterator[tuple[str, tuple[bool, str]]]:
    """Yield the keys of images, and the names in image sets by their files.

    Args:
        group: A stem with the images and the entries of image sets that have it.

    Yields:
        The file, or empty for an image; whether no image has the name; and the key.
    """
    images, entries = [*group[1]["images"]], group[1]["others"]
    yield from (("", (False, image.key)) for image in images)
    yield from ((entry.uri, (not images, entry.key)) for entry in entries)


def _why_unmatched(names: dict[str, tuple[bool, str]]) -> MatchCounts:
    """Return a fatal count if no name of an image set is that of an image.

    Args:
        names: For each file the first of what ``_list_names`` yields.
    """
    if "" not in names:  # without any image, another message says so
        return MatchCounts()
    _, image = names.pop("")
    for file, (is_unmatched, key) in sorted(names.items()):
        if is_unmatched:
            return MatchCounts(
                fatal=f"--splits=imagesets: no name in {file} is that of an image, such as "
                f"{stem_of(key)!r}; the images are named as {image!r}: write names without "
                "folders and suffix, one a line, add the images, or delete the file."
            )
    return MatchCounts()


def _attach(pairs: Sequence[_Paired], spec: AnnotationSpec) -> Iterator[InputRef | MatchCounts]:
    """Yield images with their annotations or the reason of a reject, and counts of others."""
    files: list[tuple[InputRef, InputRef]] = []
    for image, other in pairs:
        if image and image.error:
            yield image
        elif image and other and spec.kind in ("voc", "yolo", "masks"):
            files.append((image, other))
        elif image:
            yield _attach_entry(image, other, spec)
        elif other and spec.kind in _UNPAIRED:
            yield _skipped(f"{_UNPAIRED[spec.kind]} without an image", other.key or other.uri)
    threads = 0
    if files:
        threads = storage_threads(files[0][1].uri) or _THREADS
    yield from map_ordered(lambda pair: _attach_file(*pair, spec), files, threads)


def _try_attach(
    pairs: Sequence[_Paired], spec: AnnotationSpec
) -> Iterator[tuple[InputRef, _Paired | None] | MatchCounts]:
    """Call ``_attach``; yield each image with its pair if its annotation is rejected."""
    by_key = {image.key: (image, other) for image, other in pairs if image}
    for result in _attach(pairs, spec):
        if isinstance(result, MatchCounts):
            yield result
        elif result.error == "annotation":
            yield result, by_key[result.key]
        else:
            yield result, None


def vote(ref: InputRef) -> int:
    """Return the votes of an image for outlines in all files; negative ones are against them.

    Of random outlines at least half are clear, of random poses 1 in 100 looks like an outline: so
    those of a data set are outlines if a quarter of them is clear.
    """
    if ref.error:
        return -(ref.error == "annotation")
    has_outlines = parse_example(ref.attached)["box/outlines"].values != [0]
    if has_outlines:
        return _CLEAR
    return 0


def _attach_outlines(
    attempt: tuple[InputRef, _Paired | None], votes: int, spec: AnnotationSpec
) -> InputRef:
    """Return an image; read a rejected annotation again if most images have outlines.

    Args:
        attempt: A result of ``_try_attach``.
        votes: The sum of ``vote`` of all images.
        spec: The annotations.
    """
    ref, rejected = attempt
    image, file = rejected or (None, None)
    if votes <= 0 or image is None or file is None:
        return ref
    return _attach_file(image, file, replace(spec, line_format=OUTLINES))


def _attach_entry(
    image: InputRef, entry: InputRef | None, spec: AnnotationSpec
) -> InputRef | MatchCounts:
    """Attach an entry of a shared annotation file to an image, or handle an image without one."""
    if spec.kind == "imagesets":
        with_split = entry and not entry.error and image._replace(split=entry.split)
        return with_split or _skipped("in no image set or in several", image.key)
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
    """Attach an annotation file to an image."""
    if file.error:
        return ref.rejected(file.error, f"{file.key}: {file.message}")
    try:
        return spec.attach(ref, file, read_input(file))
    except RejectedError as error:
        return ref.rejected(error.error, f"{file.key}: {error.message}")
    except AnnotationError as error:
        return ref.rejected("annotation", f"{file.key}: {error}")


def stem_of(key: str) -> str:
    """Return the name of a file without folders and suffix."""
    return posixpath.splitext(posixpath.basename(key))[0]


def pair(images: Iterable[InputRef], others: Iterable[InputRef]) -> Iterator[_Paired]:
    """Pair images with annotations; yield None in place of a missing image or annotation.

    They belong together if an entry names the image as seen from the folder of its file; else if
    their paths or folders are the same; else if folders differ only in the names of usual layouts;
    else if an entry names the end of the path of one image; else if they are all of their stem.
    If several do equally, an image gets the first, rejected.

    Args:
        images: All images whose names have one stem.
        others: All files or entries that describe an image of this stem.
    """
    pairs: dict[InputRef, InputRef] = {}
    ordered, unused = sorted(images), sorted(others)
    are_only = len(ordered) == len(unused) == 1
    alike = [partial(_equal, name=name_of) for name_of in (str, posixpath.dirname, _layout)]
    rules: tuple[Callable[..., _Pairs], ...] = (_next_to, *alike, _end_of_path)
    for match in rules:
        pairs |= match([image for image in ordered if image not in pairs], unused)
        used = {*pairs.values()}
        unused = [other for other in unused if other not in used]
    if are_only and unused:
        pairs[ordered[0]] = unused.pop()
    yield from ((image, pairs.get(image)) for image in ordered)
    yield from ((None, other) for other in unused)


_Pairs = Iterator[tuple[InputRef, InputRef]]


def _by(names: Iterable[tuple[Any, InputRef]]) -> dict[Any, InputRef]:
    """Return a reference for each name: the first if all agree, else a rejected one."""
    refs_by_name: dict[Any, list[InputRef]] = {}
    for name, ref in names:
        refs_by_name.setdefault(name, []).append(ref)
    chosen = {}
    for name, refs in refs_by_name.items():
        ref = refs[0]
        if len({ref.attached or ref for ref in refs}) > 1:
            ref = ref.rejected("no_annotation", f"{refs[1].uri} describes the image as well")
        chosen[name] = ref
    return chosen


def _equal(
    images: Sequence[InputRef], others: Sequence[InputRef], name: Callable[[str], Any]
) -> _Pairs:
    """Yield the pairs whose keys give the same name: the path, the folder or the layout."""
    by_name = _by((name(other.key), other) for other in others)
    named = ((image, name(image.key)) for image in images)
    return ((image, by_name[n]) for image, n in named if n in by_name)


def _next_to(images: Sequence[InputRef], others: Sequence[InputRef]) -> _Pairs:
    by_uri = _by((posixpath.join(posixpath.dirname(o.uri), o.key), o) for o in others)
    return ((image, by_uri[image.uri]) for image in images if image.uri in by_uri)


def _layout(key: str) -> tuple[str, ...]:
    """Return the folders of a key, without those of usual layouts."""
    names = posixpath.dirname(key).split("/")
    return tuple(name for name in names if name and name.lower() not in _FOLDERS)


def _end_of_path(images: Sequence[InputRef], others: Sequence[InputRef]) -> _Pairs:
    by_key = _by((other.key, other) for other in others)
    ends: dict[str, list[InputRef]] = {}
    for image in images:
        names = image.key.split("/")
        tails = ("/".join(names[n:]) for n in range(len(names)))
        end = next((tail for tail in tails if tail in by_key), None)
        if end is not None:
            ends.setdefault(end, []).append(image)
    return ((images[0], by_key[end]) for end, images in ends.items() if len(images) == 1)
