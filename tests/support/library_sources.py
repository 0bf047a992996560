"""Write a source of a library, and keep what it gives: ``python library_sources.py KIND FOLDER``."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import shardmill

NAMES = ["dark", "light"]
NUMBER = 160


def pixels(index: int) -> np.ndarray:
    """Return an image of the class ``index % 2``, whose mean brightness says which it is."""
    rng = np.random.default_rng(index)
    mean = 110 + 40 * (index % 2) + rng.integers(-15, 16)
    return np.clip(rng.normal(mean, 30, (16, 16, 3)), 0, 255).astype(np.uint8)


def png(index: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(index)).save(file, "PNG")
    return file.getvalue()


def image_folder(folder: Path) -> Any:
    from torchvision.datasets import ImageFolder

    for index in range(NUMBER):
        (folder / NAMES[index % 2]).mkdir(exist_ok=True)
        (folder / NAMES[index % 2] / f"{index}.png").write_bytes(png(index))
    return ImageFolder(str(folder))


def data_source(folder: Path) -> Any:
    import tensorflow_datasets as tfds

    class Shades(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            image = tfds.features.Image(shape=(16, 16, 3))
            label = tfds.features.ClassLabel(names=NAMES)
            features = tfds.features.FeaturesDict({"image": image, "label": label})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for index in range(NUMBER):
                yield index, {"image": pixels(index), "label": index % 2}

    builder = Shades(data_dir=str(folder), file_format="array_record")
    builder.download_and_prepare()
    return builder.as_data_source("train")


def in_memory(_: Path) -> Any:
    import datasets

    label = datasets.ClassLabel(names=NAMES)
    features = datasets.Features({"image": datasets.Image(), "label": label})
    rows = [{"image": pixels(index), "label": index % 2} for index in range(NUMBER)]
    return datasets.Dataset.from_list(rows, features=features)


def streaming(folder: Path) -> Any:
    return in_memory(folder).to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=50)


def frame(_: Path) -> Any:
    import polars as pl

    rows = [{"image": png(index), "label": index % 2} for index in range(NUMBER)]
    return pl.DataFrame(rows)


SOURCES = {
    "torchvision": image_folder,
    "tfds": data_source,
    "hugging face": in_memory,
    "streaming": streaming,
    "polars": frame,
}


def main(kind: str, folder: Path) -> None:
    """Write the dataset, and keep the values that the source gives."""
    (folder / "source").mkdir()
    source = SOURCES[kind](folder / "source")
    options = {"fields": ("image", "label")} if kind == "torchvision" else {}
    shardmill.write(
        source,
        folder / "ds",
        image="image",
        label="label",
        image_size=16,
        encoding="png",
        splits={"train": 0.75, "validation": 0.25},
        seed=1,
        workers=2,
        **options,
    )
    by_index = kind in ("torchvision", "tfds")
    records = (source[index] for index in range(NUMBER)) if by_index else source
    if kind == "polars":
        records = source.iter_rows(named=True)
    values = [
        each if isinstance(each, tuple) else (each["image"], each["label"]) for each in records
    ]
    images = [Image.open(io.BytesIO(x)) if isinstance(x, bytes) else x for x, _ in values]
    np.savez(
        folder / "wanted.npz",
        images=[*map(np.asarray, images)],
        labels=[y for _, y in values],
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
