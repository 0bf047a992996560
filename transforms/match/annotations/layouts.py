"""Find annotations, masks and listings next to images that a build does not read."""

from __future__ import annotations

import contextlib
import csv
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.storage import join, open_storage, scheme_of
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.walk import glob_regex, list_names

_IMAGE = re.compile(r".+\.(jpe?g|jfif|png|gif|bmp|webp|tiff?|heic|heif)", re.IGNORECASE)
_TEXT_TABLE = r".+\.(csv|tsv|jsonl)"
_TABLE = re.compile(r".+\.(csv|tsv|jsonl|parquet)", re.IGNORECASE)
_HEAD_BYTES = 64 << 10
_MAX_FOLDERS = 60
_MAX_SUBFOLDERS = 12  # of one folder, besides those that are named like a layout's
_MAX_DEPTH = 4
_MAX_FILES = 6  # that are opened for each kind
_BOXES = re.compile(rb"\s*\d+([ \t]+[-+.0-9eE]+){4,}\s*(\n|\Z)")  # a line of YOLO
_COCO = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_NOT_BOXES = re.compile(r"captions|panoptic|image_info|keypoints|stuff", re.IGNORECASE)
_NAMES_OF_CLASSES = ("data.yaml", "data.yml", "dataset.yaml", "classes.txt", "obj.names")
_COLUMNS = ("path", "uri", "file_name")  # of a listing
# Annotations that are not read, by suffix: the programs, and a pattern of the files' first bytes.
_FOREIGN = {
    "xml": {"CVAT": rb"<annotations\b"},
    "json": {
        "LabelMe": rb'"shapes"\s*:\s*\[',
        "Label Studio": rb'"(from_name|rectanglelabels|polygonlabels)"\s*:',
        "VGG Image Annotator": rb'"(_via_img_metadata|shape_attributes)"\s*:',
        "CreateML": rb'"coordinates"\s*:\s*\{',
        "Supervisely": rb'"classTitle"\s*:',
        "VoTT": rb'"boundingBox"\s*:\s*\{',
    },
    "txt": {
        "KITTI": rb"\A[A-Za-z_]+( [-+.0-9eE]+){14,15}\s*$",
        "DOTA": rb"(\Aimagesource:|\A([-.0-9]+ ){8}[A-Za-z][-\w]* [0-9]\s*$)",
    },
}
# Columns of tables with a row for each box.
_BOX_COLUMNS = (
    {"xmin", "ymin", "xmax", "ymax"},
    {"x1", "y1", "x2", "y2"},
    {"x_min", "y_min", "x_max", "y_max"},
    {"region_shape_attributes"},  # of VGG Image Annotator
)
# Words in the names of folders.
_IMAGE_WORDS = frozenset(
    {
        "image",
        "images",
        "img",
        "imgs",
        "jpegimages",
        "input",
        "inputs",
        "photo",
        "photos",
        "picture",
        "pictures",
        "rgb",
    }
)
_MASK_WORDS = frozenset(
    {
        "annotation",
        "annotations",
        "annot",
        "annots",
        "groundtruth",
        "gt",
        "label",
        "labels",
        "mask",
        "masks",
        "seg",
        "segmentation",
        "segmentations",
        "segmentationclass",
        "segmentationobject",
        "target",
        "targets",
        "trimap",
        "trimaps",
    }
)
_LAYOUT_WORDS = _IMAGE_WORDS | _MASK_WORDS
_MASK_SUFFIX = re.compile(
    r"[-_. ](mask|masks|gt|seg|segmentation|label|labels|annotation)\Z", re.IGNORECASE
)


@dataclass
class _Folders:
    """Files in the first folders of an input, by folder relative to it.

    Attributes:
        images: Names of the images.
        others: Names of the other files.
        by_stem: One image of each stem, as a path.
    """

    images: dict[str, list[str]] = field(default_factory=dict)
    others: dict[str, list[str]] = field(default_factory=dict)
    by_stem: dict[str, str] = field(default_factory=dict)

    def files(self, pattern: str) -> list[str]:
        """Return the paths of files, other than images, whose names match."""
        return [
            posixpath.join(folder, name)
            for folder, names in self.others.items()
            for name in names
            if re.fullmatch(pattern, name, re.IGNORECASE)
        ]


def warn_of_layout(match: MatchSpec, *, annotations: Sequence[str], masks: str) -> Iterator[str]:
    """Yield a warning for each kind of annotation next to the images that no option names.

    Only the first folders are listed and a few files opened, so that this takes no time; what a
    listing or an archive names is what the user wants.

    Args:
        match: The input.
        annotations: The value of ``--annotations``.
        masks: The value of ``--masks``.
    """
    if match.archives:
        return
    for part in match.parts or (match,):
        if part.kind not in ("directory", "glob") or masks:
            continue
        folders = _list_folders(part)
        readers = [_find_voc, _find_yolo, _find_coco, _find_foreign, _find_listing]
        box_searches = [] if annotations else readers
        searches: list[Callable[[_Folders, str], str]] = [*box_searches, _find_masks]
        if any(item.startswith("voc") for item in annotations):
            # These are skipped where the annotations are PASCAL's.
            for folder in [*folders.images]:
                if "Segmentation" in folder:
                    del folders.images[folder]
        for search in searches:
            with contextlib.suppress(OSError, ShardmillError):  # a warning is not worth an error
                warning = search(folders, part.top)
                if warning:
                    yield warning


def _list_folders(match: MatchSpec) -> _Folders:
    """Return the first folders of an input, level by level."""
    folders = _Folders()
    is_matched: Callable[[str], object] = lambda _: True  # noqa: E731
    if match.kind == "glob":
        is_matched = glob_regex(match.input).fullmatch
    is_remote = bool(scheme_of(match.top))
    level = [""]
    for _ in range(_MAX_DEPTH):
        deeper = []
        for folder in level[: _MAX_FOLDERS - len(folders.others)]:
            path = join(match.top, folder) if folder else match.top
            subfolders, files = list_names(path)
            images = [
                name for name in files if _IMAGE.fullmatch(name) and is_matched(join(path, name))
            ]
            folders.images[folder] = images
            folders.others[folder] = [name for name in files if not _IMAGE.fullmatch(name)]
            for name in images:
                folders.by_stem.setdefault(_stem(name), posixpath.join(folder, name))
            named = [name for name in subfolders if _LAYOUT_WORDS & {*_words(name)}]
            # Each listing of a folder of a bucket takes a request.
            others = [name for name in subfolders if name not in named and not is_remote]
            rest = others[:_MAX_SUBFOLDERS]
            deeper += [posixpath.join(folder, name) for name in (*named, *rest)]
        level = deeper
    return folders


def is_named_like_annotations(folder: str) -> bool:
    """Return whether a folder is named as those of annotations or masks are."""
    return bool(_MASK_WORDS & {*_words(folder)})


def _stem(name: str) -> str:
    return posixpath.splitext(posixpath.basename(name))[0]


def _words(path: str) -> list[str]:
    """Return the words in the names of folders, in lower case."""
    return [word for word in re.split(r"[-_. /]+", path.lower()) if word]


def _read_head(top: str, path: str) -> bytes:
    path = join(top, path)
    with open_storage(path).open_at(path) as reader:
        return bytes(reader.read_at(0, _HEAD_BYTES))


def _say(file: str, image: str, option: str) -> str:
    return f"{file!r} describes {image!r} and is not read: {option}"


def _find_described(folders: _Folders, suffix: str) -> list[tuple[str, str]]:
    """Return the first files of a suffix that have the name of an image, and the images."""
    files = ((file, folders.by_stem.get(_stem(file))) for file in folders.files(rf".+\.{suffix}"))
    pairs = [(file, image) for file, image in files if image is not None]
    return pairs[:_MAX_FILES]


def _find_voc(folders: _Folders, top: str) -> str:
    for file, image in _find_described(folders, "xml"):
        head = _read_head(top, file).replace(b"\0", b"")
        if b"<annotation" in head:
            return _say(file, image, "--annotations=voc attaches its boxes")
    return ""


def _find_yolo(folders: _Folders, top: str) -> str:
    for file, image in _find_described(folders, "txt"):
        if _BOXES.match(_read_head(top, file)):
            names = folders.files("|".join(map(re.escape, _NAMES_OF_CLASSES)))
            labels = join(top, names[0]) if names else "FILE, the names of its classes,"
            return _say(file, image, f"--annotations=yolo --labels={labels} attaches its boxes")
    return ""


def _find_coco(folders: _Folders, top: str) -> str:
    files = sorted(folders.files(r".+\.json"), key=lambda file: "instances" not in file)
    coco_files = []
    for file in [file for file in files if not _NOT_BOXES.search(file)][:_MAX_FILES]:
        head = _read_head(top, file).replace(b"\0", b"")
        if head.lstrip(b"\xef\xbb\xbf\xff\xfe \r\n\t").startswith(b"{") and _COCO.search(head):
            coco_files.append(file)
    if not coco_files or not folders.by_stem:
        return ""
    value = ",".join(f"coco:{join(top, file)}" for file in coco_files)
    image = min(folders.by_stem.values())
    return _say(coco_files[0], image, f"--annotations={value} attaches its boxes")


def _find_foreign(folders: _Folders, top: str) -> str:
    """Return a warning about annotations of a program that ``--annotations`` does not read."""
    if not folders.by_stem:
        return ""
    for suffix, programs in _FOREIGN.items():
        for file in folders.files(rf".+\.{suffix}")[:_MAX_FILES]:
            head = _read_head(top, file).replace(b"\0", b"")
            for program, pattern in programs.items():
                if re.search(pattern, head, re.MULTILINE):
                    return _say_foreign(file, f"annotations of {program}")
    for file in folders.files(_TEXT_TABLE)[:_MAX_FILES]:
        columns, _ = _read_rows(file, _read_head(top, file))
        if _has_boxes(columns):
            return _say_foreign(file, "a table of boxes")
    return ""


def _has_boxes(columns: Sequence[str]) -> bool:
    names = {name.lower() for name in columns}
    return any(sides <= names for sides in _BOX_COLUMNS)


def _say_foreign(file: str, what: str) -> str:
    return (
        f"{file!r} seems to be {what}, and is not read: --annotations reads PASCAL VOC, YOLO and "
        "COCO, so export or convert it to one of them"
    )


def _find_listing(folders: _Folders, top: str) -> str:
    images = {posixpath.basename(path): path for path in folders.by_stem.values()}
    for file in folders.files(_TABLE.pattern)[:_MAX_FILES]:
        path = join(top, file)
        if file.lower().endswith(".parquet"):
            if _stem(file).lower() == "metadata" and images:
                return _say(file, min(images.values()), f"--input={path} reads its columns")
            continue
        columns, row = _read_rows(file, _read_head(top, file))
        if _has_boxes(columns):
            continue
        for column, cell in zip(columns, row, strict=False):
            image = images.get(posixpath.basename(cell.replace("\\", "/")))
            if image is None:
                continue
            source = _input_flags(folders, top, file, cell, image)
            option = f"{source} reads its columns"
            if posixpath.dirname(image) == posixpath.dirname(file):  # which is not a label
                option = f"{source} --label_from=none reads its columns"
            if "label" in columns:
                option = f"{source} --label_from=listing takes its labels"
            if column not in _COLUMNS:
                option = f"rename its column {column!r} to path, and {option}"
            return _say(file, image, option)
    return ""


def _input_flags(folders: _Folders, top: str, file: str, cell: str, image: str) -> str:
    """Return the flags that name a listing, and the folder of its paths if that is another.

    Args:
        folders: The first folders of an input.
        top: The input.
        file: The listing.
        cell: The path of an image in it.
        image: The path of an image with that name.
    """
    flags = f"--input={join(top, file)}"
    cell = posixpath.normpath(cell.replace("\\", "/"))
    folder, name = posixpath.split(posixpath.join(posixpath.dirname(file), cell))
    if name in folders.images.get(folder, ()) or not f"/{image}".endswith(f"/{cell}"):
        return flags
    root = image.removesuffix(cell).rstrip("/")
    return f"{flags} --root={join(top, root) if root else top}"


def _read_rows(file: str, head: bytes) -> tuple[list[str], list[str]]:
    """Return the columns of a table, and the cells of its first row."""
    lines = head.decode("utf-8-sig", "replace").splitlines()[:2]
    if file.lower().endswith(".jsonl"):
        try:
            record = json.loads(lines[0])
        except (IndexError, ValueError, RecursionError):
            return [], []
        return [*record], [str(value) for value in record.values()]
    counts = {delimiter: "".join(lines[:1]).count(delimiter) for delimiter in ",;\t|"}
    delimiter = max(counts, key=lambda name: counts[name])
    rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    columns, row = rows if len(rows) > 1 else ([], [])
    return [column.strip() for column in columns], [cell.strip() for cell in row]


def _find_masks(folders: _Folders, top: str) -> str:
    of_layout: dict[tuple[str, ...], list[str]] = {}
    masked = [folder for folder in folders.images if _MASK_WORDS & {*_words(folder)}]
    for folder, names in folders.images.items():
        if names and folder not in masked:
            rest = tuple(word for word in _words(folder) if word not in _IMAGE_WORDS)
            of_layout.setdefault(rest, []).append(folder)
    for folder in masked:
        rest = tuple(word for word in _words(folder) if word not in _LAYOUT_WORDS)
        for other in of_layout.get(rest, ()):
            for rename in (None, partial(_MASK_SUFFIX.sub, "")):
                warning = _compare(folders, folder, other, rename, top)
                if warning:
                    return warning
    return ""


def _compare(
    folders: _Folders, masks: str, images: str, rename: Callable[[str], str] | None, top: str
) -> str:
    """Return a warning if a folder holds masks of the images in another one, or an empty text."""
    stems = {_stem(name): name for name in folders.images[images]}
    pairs = {}
    for name in folders.images[masks]:
        stem = rename(_stem(name)) if rename else _stem(name)
        if stem in stems:
            pairs[name] = stems[stem]
    if 2 * len(pairs) < min(len(stems), len(folders.images[masks])) or not pairs:
        return ""
    name, image = min(pairs.items())
    # The folder above all masks, as in masks/train, or that of this name.
    words = masks.split("/")
    depth = next(number for number, word in enumerate(words) if _MASK_WORDS & {*_words(word)})
    folder = join(top, "/".join(words[: depth + 1]))
    option = f"--masks={folder} attaches the masks"
    if rename:
        option = f"give masks the names of their images, and {option}"
    mask = posixpath.join(masks, name)
    return (
        f"{mask!r} looks like the mask of {posixpath.join(images, image)!r}, but both became "
        f"images of the dataset: {option}"
    )
