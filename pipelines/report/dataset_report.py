"""``report``: a page about a dataset, as one HTML file."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from shardmill.loaders.boxes import BOXES
from shardmill.loaders.html.render import SIDE, is_picture, make_histogram, make_thumbnail, render
from shardmill.loaders.record_decoder import IMAGE_ENCODINGS, RecordDecoder
from shardmill.loaders.records import Records, open_encoded
from shardmill.pipelines.report.findings import (
    SampledRecord,
    choose_examples,
    find_problems,
    splits_of_shards,
)
from shardmill.pipelines.report.sample import noting, sample_records
from shardmill.pipelines.report.show_data import describe_dataset
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.dataset.read_manifest import OpenedManifest, open_manifest
from shardmill.schemas.dataset.shard_names import CURRENT, is_generation
from shardmill.schemas.errors import OutputError, UsageError
from shardmill.schemas.option_types import Path, parse_path
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec
from shardmill.schemas.storage import absolute, open_storage

_MARK = b'<meta name="generator" content="Shardmill report">'
_PICTURES, _MAX_CLASSES, _PER_CLASS, _WITHOUT_LABELS = 240, 160, 6, 36  # thumbnails
# Formats of rejected files that are drawn. The files are damaged, and may be named by another
# person's dataset: Pillow's decoders of these formats clear the picture first, and use no other
# libraries than libjpeg-turbo and zlib.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_UNSAFE = {"decoder_crashed", "decoder_memory", "decoder_timeout", "outside_root", "too_large"}
_REJECTS = 2000
_MAX_FILE_BYTES, _MAX_PIXELS = 16 << 20, 1 << 25
_REASONS, _TRIED, _SHOWN = 6, 30, 4  # shown are at most 24 pictures
Samples = Sequence[SampledRecord]


@check_arguments()
def report(dataset: Path, output: Path | None = None, *, inputs: Path | None = None) -> str:
    """Writes a page about a dataset: one HTML file without scripts, which needs no network.

    It has the splits, the balance of the classes, thumbnails, statistics and histograms, rejects
    and warnings, and how the dataset was built. Large datasets are sampled; the page says how.

    Args:
        dataset: The dataset's folder or its manifest, or a manifest of ``shardmill count``, on any
            storage.
        output: The file; by default NAME-report.html in the current folder.
        inputs: Local folder of the inputs, to show the readable part of rejected images; by
            default, no file outside the dataset is read.

    Returns:
        The path of the file.

    Raises:
        InputError: The manifest does not exist, or this release cannot read it.
        OutputError: The file exists and is not a report.
        UsageError: The file would be inside the dataset, or the folder of inputs does not exist.
    """
    opened = open_manifest(dataset)
    folder, file = opened.folder, opened.file
    own = absolute(folder or os.path.splitext(file)[0])
    if folder and (own.endswith(f"/{CURRENT}") or is_generation(os.path.basename(own))):
        own = os.path.dirname(own)
    default = f"{os.path.basename(own) or 'dataset'}-report.html"
    target = parse_path("output", default if output is None else output) or default
    _check_output(target, own if folder else "")
    if inputs is not None and not os.path.isdir(parse_path("inputs", inputs)):
        raise UsageError(
            f"--inputs={inputs} is not a folder of this machine: give the folder of the dataset's "
            "inputs, or leave it out."
        )
    page = gather(opened, inputs)
    html = render("report.html", {**page, "name": os.path.basename(own)})
    open_storage(target).replace(target, html.encode())
    return target


def _check_output(target: str, dataset: str) -> None:
    """Checks that a report may be written to a file.

    Raises:
        OutputError: It exists and is not a report.
        UsageError: It would be inside the dataset.
    """
    # Also of two URIs: both get the same prefix.
    if dataset and f"{os.path.realpath(target)}/".startswith(f"{os.path.realpath(dataset)}/"):
        raise UsageError(
            f"The report {target} would be inside the dataset {dataset}: choose another --output."
        )
    storage = open_storage(target)
    entry = storage.stat(target)
    readable = entry is not None and entry.kind == "file" and entry.size < 1 << 26
    if entry is not None and not (readable and _MARK in storage.read(target)[:400]):
        raise OutputError(
            f"{target} exists and is not a report: delete it, or choose another --output."
        )


def gather(opened: OpenedManifest, inputs: Path | None) -> dict[str, Any]:
    """Returns the values that the page shows: a description, findings, pictures and histograms.

    Args:
        opened: The manifest.
        inputs: Folder of the inputs, whose rejected images are drawn.
    """
    base, manifest = opened.base, opened.manifest
    page = {**describe_dataset(opened, rejects=_REJECTS), "notes": [], "sheets": []}
    notes: list[str] = page["notes"]
    specs, samples = sample_records(base, manifest, notes)
    problems = [] if manifest.root else find_problems(manifest, samples)
    findings = [{**problem._asdict(), "groups": []} for problem in problems]
    splits = splits_of_shards(manifest)
    if samples:
        with noting(notes), open_encoded(base, "+".join(manifest.splits)) as records:
            draw = _drawer(records, specs, splits)
            samples_by_label = _choose_samples(
                samples, page["labels"], splits, manifest.label_separator
            )
            for label, chosen in samples_by_label.items():
                pictures = [picture for sample in chosen for picture in draw(sample)]
                if pictures:
                    page["sheets"].append({"label": label, "pictures": pictures})
            for finding in findings:
                examples = choose_examples(finding["name"], samples, manifest)
                for group in examples:
                    finding["groups"].append([(sample, draw(sample)) for sample in group])
    rows = [sample.features for sample in samples]
    return {
        **page,
        "samples": samples,
        "findings": findings,
        "build": manifest.build,
        "columns": [describe_column(spec, rows) for spec in specs],
        "largest": {n: max(s.label_counts.values(), default=0) for n, s in manifest.splits.items()},
        "drawn": draw_rejects(inputs, page["rejects"]) if inputs else {},
    }


def _choose_samples(
    samples: Samples, labels: Sequence[dict[str, Any]], splits: Sequence[str], separator: str
) -> dict[str, list[SampledRecord]]:
    """Returns some samples of each label, from its splits in turn; without labels the first ones.

    Of many labels, the most frequent and the rarest are kept.
    """
    by_label = defaultdict[str, list[tuple[int, SampledRecord]]](list)
    ranks = Counter[tuple[str, str]]()  # the number of samples of a label in a split
    for sample in samples:
        text = sample.label or ""
        for label in text.split(separator) if separator else [text]:
            place = label, splits[sample.part]
            by_label[label].append((ranks[place], sample))
            ranks[place] += 1
    totals = {label["label"]: label["total"] for label in labels if label["label"] in by_label}
    ranked = sorted(totals, key=lambda name: -totals[name])
    kept = {*ranked[: _MAX_CLASSES // 2], *ranked[-_MAX_CLASSES // 2 :]}
    names = [name for name in totals if name in kept] or [next(iter(by_label))]
    most = _WITHOUT_LABELS if "" in names else _PER_CLASS
    counts = Counter((names * most)[:_PICTURES])
    chosen = {}
    for name in names:
        in_turns = sorted(by_label[name], key=lambda ranked_sample: ranked_sample[0])
        chosen[name] = [sample for _, sample in in_turns[: counts[name]]]
    return chosen


def _drawer(
    records: Records, specs: Sequence[FeatureSpec], splits: Sequence[str]
) -> Callable[[SampledRecord], list[dict[str, Any]]]:
    """Returns a function that gives thumbnails of a record, with ``split`` and ``alt`` text."""
    images = tuple(filter(is_image, specs))[:2]  # such as a photo and its segmentation
    source = records.source
    boxes = (source.spec_of(BOXES),) if source.has_boxes else ()
    decode = RecordDecoder((*images, *boxes), {}, True, source.sides, {})

    def draw(sample: SampledRecord) -> list[dict[str, Any]]:
        part, record, label, *_ = sample
        values = decode(records.files.payload(part, record)) if images else {}
        drawn = values.pop(BOXES, ())
        where = f"record {record:,} of {source.shards[part].file}"
        alts = {name: f"{label or ''} {name}, {where}".strip() for name in values}
        return [
            {**make_thumbnail(pixels, drawn), "split": splits[part], "alt": alts[name]}
            for name, pixels in values.items()
            if is_picture(pixels.shape, pixels.dtype, 1)
        ]

    return draw


def describe_column(spec: FeatureSpec, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a description of a feature of some records.

    Returns:
        ``spec``, ``picture`` (whether its values can be shown as images), ``missing`` (number of
        records without values), ``histogram`` of numbers,
        ``texts`` (the most frequent, with their shares), ``distinct`` (number of texts) and
        ``unique`` (whether all texts differ).
    """
    cells = [record.get(spec.value or spec.name, ("missing", ())) for record in records]
    values: list[Any] = [v for kind, some in cells if spec.kind.startswith(kind) for v in some]
    numbers, texts = np.array([]), Counter[bytes]()
    if spec.encoding == "raw" and spec.dtype is not None and spec.dtype.kind != "c":
        size = spec.dtype.itemsize
        data = b"".join(value[: len(value) // size * size] for value in values)
        numbers = np.frombuffer(data, spec.dtype).astype(np.float64)
    elif spec.kind != "bytes":
        numbers = np.array(values, np.float64)
    elif not spec.encoding:
        texts = Counter(values)
    return {
        "spec": spec,
        "picture": is_image(spec),
        "histogram": make_histogram(numbers),
        "missing": sum(not some for _, some in cells),
        "texts": [
            (text.decode("utf-8", "backslashreplace"), count / len(values))
            for text, count in texts.most_common(5)
        ],
        "distinct": len(texts),
        "unique": len(texts) == len(values),
    }


def is_image(spec: FeatureSpec) -> bool:
    """Returns whether the values of a feature can be shown as images."""
    raw = spec.encoding == "raw" and is_picture(spec.shape or (), spec.dtype)
    return raw or spec.channels > 0 or spec.encoding in IMAGE_ENCODINGS


def draw_rejects(
    root: str | os.PathLike[str], rejects: Sequence[Mapping[str, str]]
) -> dict[str, list[Any]]:
    """Returns a few pictures by reason; see ``draw_partly``.

    Args:
        root: Folder of the inputs.
        rejects: ``key`` and ``error`` of each.
    """
    drawn = {}
    reasons = dict.fromkeys(reject["error"] for reject in rejects if reject["error"] not in _UNSAFE)
    for reason in islice(reasons, _REASONS):
        keys = [reject["key"] for reject in rejects if reject["error"] == reason][:_TRIED]
        pictures = (draw_partly(root, key) for key in keys)
        drawn[reason] = [*islice(filter(None, pictures), _SHOWN)]
    return drawn


def draw_partly(root: str | os.PathLike[str], key: str) -> dict[str, Any] | None:
    """Returns a thumbnail of the part of an image file before its damage; None if it is empty.

    Args:
        root: A folder.
        key: Path of the file relative to it. Files that are elsewhere are not read.
    """
    from PIL import Image

    try:
        path = pathlib.Path(root, key).resolve()
        inside = path.is_relative_to(pathlib.Path(root).resolve()) and path.is_file()
        data = path.read_bytes() if inside and path.stat().st_size <= _MAX_FILE_BYTES else b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
            image.draft("RGB", (SIDE, SIDE))
            if image.width * image.height > _MAX_PIXELS:
                return None
            with contextlib.suppress(Exception):
                image.load()
            image.tile = []  # keeps what was decoded
            image.thumbnail((SIDE, SIDE))
            pixels = np.asarray(image.convert("RGB"))
    except Exception:  # noqa: BLE001 - Pillow's plugins raise many types
        return None
    has_contrast = pixels.size and pixels.min() < pixels.max()
    if has_contrast:
        return {**make_thumbnail(pixels), "key": key, "alt": f"Rejected: {key}"}
    return None
