"""Train a PyTorch CNN on a dataset of images, without TensorFlow and Beam.

usage:
  python examples/digits.py digits
  shardmill images --input=digits/images --output=ds --image_size=8 --channels=1 --encoding=png \
    --splits=train:0.8,validation:0.2
  python examples/train_torch.py ds
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from shardmill.loaders import torch_dataset

BATCH = 32
EPOCHS = 5
IMAGE, LABEL = "image", "label"
IMAGES = {"features": [IMAGE, LABEL], "layout": "CHW"}


def pixels(batch: dict[str, Tensor]) -> Tensor:
    """Returns the images of a batch as float32 [batch, channels, height, width], from 0 to 1."""
    return batch[IMAGE].float() / 255


def make_model(classes: int) -> nn.Module:
    """Returns a small CNN."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, classes),
    )


def main(folder: str) -> None:
    """Trains the model and prints its accuracy."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the other cores decode images for this small network
    stream = torch_dataset(folder, "train", shuffle=True, **IMAGES)  # each worker reads a share
    train = DataLoader(stream, batch_size=BATCH, num_workers=2, persistent_workers=True)
    model = make_model(len(stream.records.labels))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(EPOCHS):
        for batch in stream.timed(train):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels(batch)), batch[LABEL]).backward()
            optimizer.step()

    validation = torch_dataset(folder, "validation", **IMAGES)
    seen = right = 0
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(validation, batch_size=BATCH, num_workers=2):
            right += int((model(pixels(batch)).argmax(1) == batch[LABEL]).sum())
            seen += len(batch[LABEL])

    counts = stream.records.manifest.splits["validation"].label_counts
    print(f"steps     {len(train)} an epoch, {seen} images of validation")
    print(f"data      {stream.stats()}")
    print(f"baseline  {max(counts.values()) / len(validation):.1%} of the validation images")
    print(f"model     {right / seen:.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
