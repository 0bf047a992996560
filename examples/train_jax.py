"""Train a JAX network on a dataset of images that Grain reads.

usage:
  python examples/digits.py digits
  shardmill images --input=digits/images --output=ds --image_size=8 --channels=1 --encoding=png \
    --splits=train:0.8,validation:0.2
  python examples/train_jax.py ds
"""

from __future__ import annotations

import sys
from typing import Any

import grain
import jax
import jax.numpy as jnp

from shardmill.loaders import open_dataset, steps_per_epoch

BATCH = 32
EPOCHS = 10
RATE = 0.1
IMAGE, LABEL = "image", "label"
Params = list[tuple[jax.Array, jax.Array]]


def make_params(sizes: list[int]) -> Params:
    """Returns weights and biases of dense layers, given the sizes of inputs and outputs."""
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    return [
        (jax.random.normal(key, (above, below)) * (2 / above) ** 0.5, jnp.zeros(below))
        for key, above, below in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def predict(params: Params, images: jax.Array) -> jax.Array:
    """Returns logits [batch, classes] of uint8 images [batch, height, width, channels]."""
    values = images.reshape(len(images), -1) / 255
    for weights, bias in params[:-1]:
        values = jax.nn.relu(values @ weights + bias)
    weights, bias = params[-1]
    return values @ weights + bias


def loss(params: Params, batch: dict[str, Any]) -> jax.Array:
    """Returns the mean cross entropy."""
    logs = jax.nn.log_softmax(predict(params, batch[IMAGE]))
    return -jnp.take_along_axis(logs, batch[LABEL][:, None], axis=1).mean()


@jax.jit
def step(params: Params, batch: dict[str, Any]) -> Params:
    """Returns the parameters after a step of gradient descent."""
    gradients = jax.grad(loss)(params, batch)
    return jax.tree.map(lambda value, slope: value - RATE * slope, params, gradients)


def main(folder: str) -> None:
    """Trains the model and prints its accuracy."""
    images = open_dataset(folder, "train", features=[IMAGE, LABEL])
    # With full batches only, the step is compiled once. Each epoch has another order.
    steps = steps_per_epoch(folder, "train", BATCH, remainder="drop")
    epoch = grain.MapDataset.source(images).seed(0).shuffle().batch(BATCH, drop_remainder=True)
    train = epoch.repeat(EPOCHS).to_iter_dataset()
    params = make_params([images[0][IMAGE].size, 64, len(images.labels)])
    fitted = 0
    for batch in train:
        params = step(params, batch)
        fitted += 1

    held_out = open_dataset(folder, "validation", features=[IMAGE, LABEL])
    (batch,) = grain.MapDataset.source(held_out).batch(len(held_out))
    right = (predict(params, batch[IMAGE]).argmax(1) == batch[LABEL]).mean()
    counts = images.manifest.splits["validation"].label_counts
    print(f"steps     {steps} an epoch, {fitted} in {EPOCHS} epochs")
    print(f"baseline  {max(counts.values()) / len(held_out):.1%} of the validation images")
    print(f"model     {float(right):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
