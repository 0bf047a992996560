"""Layouts and batches for PyTorch: pixels of the same images, boxes as given, lists by hand."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from shardmill.loaders import (
    Stream,
    collate_boxes,
    collate_padded,
    mix,
    open_dataset,
    torch_dataset,
)
from shardmill.schemas.errors import UsageError
from tests.conftest import build_dataset
from tests.support.annotation_tools import NAMES, truth, write_coco, write_images, write_masks
from tests.support.rows_tools import build_rows

pytest_plugins = ["tests.support.loader_data"]
pytestmark = pytest.mark.xdist_group("torch")
BOXES: dict[str, Any] = {"features": ["image", "image/key", "boxes/xyxy", "classes"]}


# Layouts.


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["jpeg", "png", "raw", "none", "mixed", "bylabel"])
def test_images_have_their_channels_first(kind, images):
    options = {"features": ["image", "label"]}
    for as_supervised in (False, True):
        options["as_supervised"] = as_supervised
        name = 0 if as_supervised else "image"
        first = open_dataset(images(kind), layout="CHW", **options)
        last = open_dataset(images(kind), **options)
        for ours, theirs in zip(first, last, strict=True):
            assert ours[name].dtype == theirs[name].dtype
            assert np.array_equal(ours[name], np.moveaxis(theirs[name], 2, 0))
    grown = open_dataset(images(kind), layout="CHW", transform=lambda row: row["image"].shape)
    assert {shape[0] for shape in grown} == {{"png": 4, "raw": 1}.get(kind, 3)}


@pytest.mark.heavy
def test_other_arrays_keep_their_layout(tmp_path, images):
    import shardmill

    values = np.arange(5 * 4 * 6 * 3, dtype=np.float32).reshape(5, 4, 6, 3)
    np.save(tmp_path / "x.npy", values)
    shardmill.arrays(tmp_path / "x.npy", tmp_path / "ds", splits="train:1")
    rows = [*open_dataset(tmp_path / "ds", layout="CHW")]
    assert {next(iter(row.values())).shape for row in rows} == {(4, 6, 3)}
    raw = images("raw")
    mixed = open_dataset(mix({raw: 1}), layout="CHW", features=["image"])
    assert mixed[0]["image"].shape == (1, 16, 24)


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader_have_the_layout(images, workers):
    import torch
    from torch.utils.data import DataLoader

    options = {"features": ["image"], "layout": "CHW"}
    plain = np.stack([row["image"] for row in open_dataset(images("jpeg"), features=["image"])])
    for dataset in (open_dataset, torch_dataset):
        loader = DataLoader(dataset(images("jpeg"), **options), 7, num_workers=workers)
        batches = [batch["image"] for batch in loader]
        assert all(batch.is_contiguous() for batch in batches)
        found = torch.cat(batches).numpy()
        assert sorted(map(bytes, found)) == sorted(map(bytes, plain.transpose(0, 3, 1, 2)))


# Records that were opened.


@pytest.mark.heavy
def test_torch_dataset_takes_opened_records(images):
    options = {"features": ["image/key"], "text": True}
    order = {"shuffle": True, "order": "blocks", "buffer": 9, "seed": 3, "epoch": 2, "workers": 2}
    opened = open_dataset(images("jpeg"), **options)
    keys = [row["image/key"] for row in Stream(opened, **order)]
    for made in (
        torch_dataset(opened, **order),
        torch_dataset(images("jpeg"), **order, **options),
    ):
        assert [row["image/key"] for row in made] == keys
    half = torch_dataset(opened[::2], shuffle=True)
    assert len(half) == len([*half]) == -(-len(opened) // 2)
    for name, value in {"split": "validation", "text": True}.items():
        with pytest.raises(UsageError, match=f"opened without {name}: give it to open_dataset"):
            torch_dataset(opened, **{name: value})


@pytest.mark.heavy
def test_the_former_name_still_reads(images):
    from shardmill.loaders.torch_data import torch_stream

    records = open_dataset(images("jpeg"))
    with pytest.warns(FutureWarning, match=r"torch_stream is deprecated, .* use torch_dataset"):
        stream = torch_stream(records, shuffle=True)
    assert len([*stream]) == len(records)


# Batches.


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    """A dataset of images with boxes and masks, of the size that they have."""
    folder = write_images(tmp_path_factory.mktemp("boxes"))
    write_masks(folder / "masks")
    options = {"splits": "train:1", "num_shards": 2, "resize": "none", "masks": folder / "masks"}
    options |= write_coco(folder, truth())
    build_dataset(input=folder / "JPEGImages", output=folder / "ds", **options)
    return folder / "ds"


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first_class", [0, 1])
def test_boxes_as_the_models_of_torchvision_take_them(boxes, first_class, workers):
    import torch
    from torch.utils.data import DataLoader

    records = open_dataset(boxes, layout="CHW", **BOXES)
    truths, names = truth(), records.labels
    expected = {
        f"{(width, height)}": (box, (width, height)) for (width, height), _, box in truths.values()
    }
    collate = partial(collate_boxes, first_class=first_class)
    loader = DataLoader(torch_dataset(records), 5, num_workers=workers, collate_fn=collate)
    count = 0
    for pixels, targets in loader:
        for image, target in zip(pixels, targets, strict=True):
            count += 1
            assert image.dtype == torch.float32
            assert 0 <= image.min() < image.max() <= 1
            found, (width, height) = expected[str((image.shape[2], image.shape[1]))]
            assert tuple(image.shape) == (3, height, width)
            assert [*target] == ["boxes", "labels"]
            sides = np.array([box[1:] for box in found], np.float32).reshape(-1, 4)
            assert np.allclose(target["boxes"].numpy(), sides, atol=1e-3)
            assert target["boxes"].dtype == torch.float32
            labels = [names[label - first_class] for label in target["labels"].tolist()]
            assert labels == [box[0] for box in found]
            assert target["labels"].dtype == torch.int64
    assert count == len(truths)
    assert {*NAMES} <= {*names}


@pytest.mark.heavy
def test_lists_are_padded_to_the_longest(tmp_path):
    import torch
    from torch.utils.data import DataLoader

    lists = [list(range(number % 5)) for number in range(40)]
    table = tmp_path / "t.csv"
    lines = [f"{n},{'|'.join(map(str, each))},x{n}" for n, each in enumerate(lists)]
    table.write_text("\n".join(["id,tokens,name", *lines]))
    options = {"splits": "train:1", "types": "tokens:int:|"}
    build_rows(input=table, output=tmp_path / "ds", **options)
    collate = partial(collate_padded, padding={"tokens": -7})
    stream = torch_dataset(tmp_path / "ds", shuffle=True)
    read = []
    for batch in DataLoader(stream, 6, num_workers=2, collate_fn=collate):
        assert {*batch} == {"id", "name", "tokens", "tokens_length"}
        lengths = batch["tokens_length"].tolist()
        assert batch["tokens"].dtype == torch.int64
        assert tuple(batch["tokens"].shape) == (len(lengths), max(lengths))
        for number, row, length in zip(batch["id"].tolist(), batch["tokens"], lengths, strict=True):
            assert row.tolist() == lists[number] + [-7] * (len(row) - length)
            assert length == len(lists[number])
        read += batch["id"].tolist()
        assert batch["name"] == [f"x{n}".encode() for n in batch["id"].tolist()]
    assert sorted(read) == list(range(40))


@pytest.mark.heavy
def test_boxes_are_padded_too(boxes):
    rows = [*open_dataset(boxes, features=["boxes/xyxy", "classes"])]
    batch = collate_padded(rows, padding={"boxes": -1, "classes": -1})
    most = max(len(row["boxes"]) for row in rows)
    assert tuple(batch["boxes"].shape) == (len(rows), most, 4)
    assert batch["boxes_length"].tolist() == [len(row["boxes"]) for row in rows]
    for row, padded, ids in zip(rows, batch["boxes"], batch["classes"], strict=True):
        count = len(row["boxes"])
        assert np.array_equal(padded[:count].numpy(), row["boxes"])
        assert (padded[count:] == -1).all()
        assert ids.tolist() == row["classes"].tolist() + [-1] * (most - count)
