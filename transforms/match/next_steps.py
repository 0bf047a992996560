"""What to do with files that are not of the wanted kind, by their names."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence

_HEIC = "install shardmill[heic] for HEIC images"
_STEPS = tuple(
    (re.compile(rf"\.(?:{suffixes})(?:\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE), step)
    for suffixes, step in (
        ("zip|7z|rar|tar|tgz|tbz2?|txz", "unpack archives first"),
        ("mp4|m4v|mov|avi|mkv|webm|mpe?g", "extract the frames of videos first, with ffmpeg"),
        ("heic|heif", _HEIC),
        ("npy|npz", "use `shardmill arrays` for NumPy arrays"),
        ("parquet", "use `shardmill rows` for tables"),
        ("csv|tsv|jsonl", "use `shardmill rows` for tables"),
        ("feather|arrow|xlsx?|json", "export tables as CSV, and use `shardmill rows`"),
        ("tfrecords?", "use `shardmill count` for TFRecord files"),
        ("jpe?g|png|gif|bmp|webp|tiff?", "use `shardmill images` for images"),
    )
)


def next_step(name: str, command: str, default: str) -> str:
    """Return how to get a dataset of a file that a command cannot use.

    Args:
        name: Name of the file.
        command: The command.
        default: What to return if the name does not say.
    """
    for pattern, step in _STEPS:
        if not pattern.search(name) or f"`shardmill {command}`" in step:
            continue
        if step == _HEIC and importlib.util.find_spec("pillow_heif"):
            continue  # the extra is installed: the file itself is damaged
        return step
    return default


def remedy_of_records(reason: str) -> str:
    """Return the fix if all images of a Python source were rejected, or an empty text.

    Args:
        reason: The reason.
    """
    remedies = {
        "no_label": "give records a value in the field of label=..., or leave label out",
        "no_split": "give records the name of a split in the field of split=..., or leave split "
        "out and give splits shares, as in splits='train:0.9,validation:0.1'",
        "unknown_label": "add the labels to the file of labels=..., or leave labels out",
    }
    return remedies.get(reason, "")


def remedy_of(reason: str, keys: Sequence[str], annotations: str = "") -> str:
    """Return the fix if matching rejected all inputs for a reason, or an empty text.

    Args:
        reason: The reason.
        keys: Some of the inputs.
        annotations: Kind of the annotations, if there are any.
    """
    if reason == "annotation" and annotations == "coco":
        return "correct these entries in the file of --annotations"
    if reason == "annotation" and annotations == "voc":
        return "correct these XML files of --annotations"
    if reason == "no_label":
        if any("/" in key for key in keys):
            return (
                "set --label_from, or --label_column for archives, or a --label_pattern that "
                "matches such keys"
            )
        return (
            "set --label_from=none, or --label_column for archives, or give the folder above as "
            "--input"
        )
    remedies = {
        "annotation": "check the format of the files of --annotations; of YOLO, declare key points "
        "by kpt_shape, or outlines by task: segment, in the data.yaml of --labels",
        "no_annotation": "check that --annotations or --masks has files with the names of these "
        "images (a.txt or a.png for a.jpg); one XML for all, as CVAT has it, is not read",
        "no_split": "set --splits to shares, or name the first folders train, validation, test",
        "unknown_label": "add the labels to the --labels file",
        "outside_root": "add --follow_links",
    }
    return remedies.get(reason, "")
