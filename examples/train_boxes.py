"""Train a small detector: a grid of cells, each with a score per class and a box.

usage:
  shardmill demo demo
  shardmill images --input=demo/shapes/images --annotations=voc:demo/shapes/annotations \
    --output=ds --image_size=64 --encoding=png --splits=train:0.8,validation:0.2
  python examples/train_boxes.py ds
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shardmill.loaders import keras_dataset, open_dataset

BATCH, EPOCHS = 16, 30
LEAST_STEPS = 300  # few pictures need more epochs
CELL = 4  # pixels of a side of a cell
FOUND = 0.5  # least intersection over union of a box that is found


def make_model(classes: int) -> keras.Model:
    """Returns a convolutional model of pictures of any size, whose cells see 60 pixels."""
    layers = keras.layers
    inputs = keras.Input((None, None, 3))
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    for filters, strides in ((24, 2), (32, 2), (48, 1), (48, 1), (48, 1)):
        x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        x = layers.Activation("relu")(layers.BatchNormalization()(x))
        if strides == 1:
            x = x + layers.DepthwiseConv2D(7, padding="same")(x)
    scores = layers.Conv2D(classes, 1, activation="sigmoid", name="scores")(x)
    boxes = layers.Conv2D(4, 1, name="boxes")(x)
    model = keras.Model(inputs, {"scores": scores, "boxes": boxes})
    focal = keras.losses.BinaryFocalCrossentropy(alpha=0.9, apply_class_balancing=True)
    model.compile(
        keras.optimizers.Adam(0.003),
        loss={"scores": focal, "boxes": box_loss},
        loss_weights={"scores": 20.0, "boxes": 1.0},
    )
    return model


def box_loss(wanted: Any, found: Any) -> Any:
    """Returns the error of the boxes of cells that have one, which the last channel marks."""
    has_box = wanted[..., 4:]
    errors = keras.ops.sum(keras.ops.abs(wanted[..., :4] - found) * has_box)
    return errors / (keras.ops.sum(has_box) + 1)


def to_cells(classes: int) -> Any:
    """Returns a function that writes boxes, padded with -1, into the cells of their centers."""

    def encode(images: Any, target: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        shape = tf.shape(images)[1:3] // CELL
        center, size = target["boxes"][..., :2] / CELL, target["boxes"][..., 2:] / CELL
        cell = tf.cast(tf.floor(center), tf.int32)
        real = target["labels"] >= 0
        row = tf.where(real, cell[..., 1], -1)[..., None, None]
        column = cell[..., 0][..., None, None]
        here = (row == tf.range(shape[0])[:, None]) & (column == tf.range(shape[1]))
        here = tf.cast(here, tf.float32)  # [batch, boxes, rows, columns]
        kinds = tf.one_hot(target["labels"], classes)
        scores = tf.minimum(1.0, tf.einsum("bnyx,bnc->byxc", here, kinds))
        offset = tf.concat([center - tf.floor(center), tf.math.log(tf.maximum(size, 0.1))], -1)
        count = tf.reduce_sum(here, 1)[..., None]
        boxes = tf.einsum("bnyx,bnk->byxk", here, offset) / tf.maximum(count, 1.0)
        return images, {"scores": scores, "boxes": tf.concat([boxes, tf.minimum(count, 1.0)], -1)}

    return encode


def find_boxes(scores: Any, cells: Any, count: int) -> tuple[Any, Any]:
    """Returns the boxes (xyxy) and classes of the cells with the highest scores."""
    peaks = tf.nn.max_pool2d(scores[None], 3, 1, "SAME")[0].numpy()
    kept = np.where(scores == peaks, scores, 0)
    best = np.argsort(-kept, axis=None)[:count]
    row, column, kind = np.unravel_index(best, kept.shape)
    dx, dy, width, height = cells[row, column].T
    center = np.stack([column + dx, row + dy], -1)
    half = np.exp(np.minimum(np.stack([width, height], -1), 6)) / 2
    return np.concatenate([center - half, center + half], -1) * CELL, kind


def count_found(true: Any, ids: Any, boxes: Any, kinds: Any) -> int:
    """Returns the number of true boxes that a box of the same class overlaps."""
    low = np.maximum(true[:, None, :2], boxes[None, :, :2])
    high = np.minimum(true[:, None, 2:], boxes[None, :, 2:])
    common = np.prod(np.maximum(high - low, 0), -1)
    areas = [np.prod(each[:, 2:] - each[:, :2], -1) for each in (true, boxes)]
    overlap = common / (areas[0][:, None] + areas[1][None] - common)
    found = (overlap >= FOUND) & (ids[:, None] == kinds[None])
    return int(found.any(1).sum())


def main(folder: str) -> None:
    """Trains the model and prints how many objects it finds, and how many by chance."""
    keras.utils.set_random_seed(0)
    validation = open_dataset(folder, "validation", features=["image", "boxes/xyxy", "classes"])
    classes = len(validation.labels)
    train = keras_dataset(folder, label="boxes/center_xywh", batch_size=BATCH, shuffle=True)
    model = make_model(classes)
    epochs = max(EPOCHS, LEAST_STEPS // len(train))
    model.fit(train.map(to_cells(classes)), epochs=epochs, verbose=0)
    examples = list(validation)
    found, by_chance, total = 0, 0, 0
    for number, example in enumerate(examples):
        true, ids = example["boxes"], example["classes"]
        result = model.predict_on_batch(example["image"][None])
        boxes, kinds = find_boxes(result["scores"][0], result["boxes"][0], len(true))
        found += count_found(true, ids, boxes, kinds)
        other = examples[number - 1]  # boxes that have nothing to do with the picture
        by_chance += count_found(true, ids, other["boxes"], other["classes"])
        total += len(true)
    print(f"baseline  {by_chance / total:.1%} of {total} objects found")
    print(f"model     {found / total:.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
