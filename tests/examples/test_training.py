"""The examples that train, run as a reader would: better than a guess on what they never saw."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, build_dataset
from tests.support.array_tools import published
from tests.support.examples_data import write_digits

pytestmark = pytest.mark.heavy

BATCH = 32
SHARE = 0.9  # of the digits that each must tell; the nearest of ten mean images tells 0.88


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """A folder with the digits as a dataset of images, and as one of arrays."""
    folder = tmp_path_factory.mktemp("digits")
    assert write_digits(folder) == 1797
    splits = "train:0.8,validation:0.2"
    build_dataset(
        input=folder / "images", output=folder / "pictures", image_size=8, channels=1,
        encoding="png", splits=splits, num_shards=2,
    )  # fmt: skip
    published(input=folder / "arrays", output=folder / "raw", splits=splits)
    return folder


def train(name: str, dataset: Path) -> tuple[dict[str, str], str]:
    """Returns what an example says by the first word of a line, and its stderr."""
    command = [sys.executable, str(ROOT / "examples" / name), str(dataset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^(\w+) +(.+)$", done.stdout, re.MULTILINE)), done.stderr


def judge(said: dict[str, str], dataset: Path) -> None:
    """Compares a model with what always saying the most frequent label would give."""
    split = json.loads((dataset / "manifest.json").read_text())["splits"]["validation"]
    majority = max(split["label_counts"].values()) / split["num_examples"]
    assert majority < 0.2, "the labels are too uneven to judge by"
    assert said["baseline"].startswith(f"{majority:.1%} of ")
    assert float(said["model"].rstrip("%")) / 100 > max(SHARE, majority + 0.5)


def sizes(dataset: Path) -> tuple[int, int]:
    """Returns how many examples the splits have, counted by gzip and record headers alone."""
    from tests.support.readers import gzip_records

    each = {
        split: sum(len(gzip_records(path)) for path in dataset.glob(f"{split}-*"))
        for split in ("train", "validation")
    }
    assert sum(each.values()) == 1797
    return each["train"], each["validation"]


def test_keras_trains_on_images(digits) -> None:
    dataset = digits / "pictures"
    said, errors = train("train_images.py", dataset)
    judge(said, dataset)
    steps, validation_steps = (-(-size // BATCH) for size in sizes(dataset))
    assert said["steps"] == f"{steps} an epoch, {validation_steps} of validation"
    fitted, epochs = map(int, re.findall(r"\d+", said["fitted"]))
    assert fitted == steps * epochs
    assert "ran out of data" not in errors


def test_a_loop_of_ones_own_trains_on_arrays(digits) -> None:
    dataset = digits / "raw"
    said, _ = train("train_arrays.py", dataset)
    judge(said, dataset)
    steps, validation_steps = (-(-size // BATCH) for size in sizes(dataset))
    assert said["steps"] == f"{steps} an epoch, {validation_steps} of validation"
    fitted, epochs = map(int, re.findall(r"\d+", said["fitted"]))
    assert fitted == steps * epochs


def test_torch_trains_on_images(digits) -> None:
    dataset = digits / "pictures"
    said, _ = train("train_torch.py", dataset)
    judge(said, dataset)
    size, validation_size = sizes(dataset)
    assert said["steps"] == f"{-(-size // BATCH)} an epoch, {validation_size} images of validation"


def test_jax_trains_on_images(digits) -> None:
    dataset = digits / "pictures"
    said, _ = train("train_jax.py", dataset)
    judge(said, dataset)
    steps = sizes(dataset)[0] // BATCH
    counted, fitted, epochs = map(int, re.findall(r"\d+", said["steps"]))
    assert counted == steps
    assert fitted == steps * epochs


@pytest.mark.parametrize("name", ["train_torch.py", "train_jax.py"])
def test_neither_tensorflow_nor_beam_is_needed(name, digits) -> None:
    code = (
        "import runpy, sys\n"
        "sys.modules.update(dict.fromkeys(['tensorflow', 'apache_beam', 'keras']))\n"
        f"runpy.run_path({str(ROOT / 'examples' / name)!r})\n"
        "from shardmill.loaders import open_dataset\n"
        f"print(open_dataset({str(digits / 'pictures')!r})[0]['image/encoded'].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(8, 8, 1)\n", done.stderr
