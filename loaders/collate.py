"""Functions for ``DataLoader(collate_fn=...)``: examples of different lengths become a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.loaders.frameworks import require_framework
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.errors import UsageError, format_names

if TYPE_CHECKING:
    import torch


@check_arguments()
def collate_boxes(
    examples: Sequence[Mapping[str, Any]], *, first_class: int = 1
) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Returns a batch as the detection models of torchvision take it.

    Args:
        examples: Examples with ``image`` (uint8 of shape [channels, height, width]), ``boxes`` and
            ``classes``, as ``features=["image", "boxes/xyxy", "classes"], layout="CHW"`` gives
            them.
        first_class: The number of class 0; the class 0 of most models is the background.

    Returns:
        Images as float32 from 0 to 1 of shape [channels, height, width], and for each a dict of
        ``boxes`` (float32 of shape [boxes, 4]) and ``labels`` (int64 of shape [boxes]).

    Raises:
        UsageError: An example lacks one of them, or an image has its channels last.
    """
    require_framework("torch")
    import torch

    images, targets = [], []
    for example in examples:
        _check_names(example, ("image", "boxes", "classes"), "features", "boxes/xyxy")
        image = torch.as_tensor(example["image"])
        if image.shape[0] not in (1, 3, 4):
            raise UsageError(
                f"collate_boxes needs images of shape [channels, height, width], and one has "
                f"{[*image.shape]}: open the dataset with layout='CHW'."
            )
        images.append(image.float() / 255)
        boxes = torch.as_tensor(example["boxes"], dtype=torch.float32).reshape(-1, 4)
        labels = torch.as_tensor(example["classes"], dtype=torch.int64).reshape(-1)
        targets.append({"boxes": boxes, "labels": labels + first_class})
    return images, targets


@check_arguments()
def collate_padded(
    examples: Sequence[Mapping[str, Any]], *, padding: Mapping[str, float]
) -> dict[str, Any]:
    """Returns a batch in which lists of different lengths are padded to the longest of them.

    Args:
        examples: Examples, which are dicts.
        padding: For each feature that is a list, the value that fills it up, as in
            ``functools.partial(collate_padded, padding={"tokens": 0})``.

    Returns:
        A dict by feature as torch's default makes it. Each list ``NAME`` is a tensor of shape
        [batch, longest, ...], and ``NAME_length`` has the lengths, int64 of shape [batch].

    Raises:
        UsageError: An example lacks a list, or it is not an array of numbers.
    """
    require_framework("torch")
    import torch
    from torch.utils.data import default_collate

    for example in examples:
        _check_names(example, [*padding], "padding", "tokens")
    rest = [_without(example, padding) for example in examples]
    batch: dict[str, Any] = {}
    if any(rest):
        batch = default_collate(rest)
    for name, value in padding.items():
        lists = [np.asarray(example[name]) for example in examples]
        for array in lists:
            if array.ndim == 0 or array.dtype.kind not in "biuf":
                raise UsageError(
                    f"padding={{{name!r}: ...}}: the feature is {array.dtype} of shape "
                    f"{array.shape}, and lists of numbers can be padded: leave it out."
                )
        lengths = [len(array) for array in lists]
        shape = (len(lists), max(lengths), *lists[0].shape[1:])
        padded = np.full(shape, value, lists[0].dtype)
        for row, array in zip(padded, lists, strict=True):
            row[: len(array)] = array
        batch[name] = torch.from_numpy(padded)
        batch[f"{name}_length"] = torch.tensor(lengths)
    return batch


def _without(example: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in example.items() if name not in names}


def _check_names(example: Any, names: Sequence[str], option: str, instance: str) -> None:
    """Checks that an example has some features.

    Raises:
        UsageError: It is not a dict, or lacks one.
    """
    if not isinstance(example, Mapping):
        raise UsageError(
            f"an example is a {type(example).__name__}, and this collate_fn takes dicts: open the "
            "dataset without as_supervised."
        )
    lacking = [name for name in names if name not in example]
    if lacking:
        raise UsageError(
            f"the examples have {format_names([*example])}, and no {lacking[0]!r}: name it in "
            f"{option}, such as {instance!r}."
        )
