"""The training examples, run as commands: accuracy on the validation split beats the baseline."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardmill.pipelines.commands.demo import write_files
from shardmill.pipelines.demo_files import shapes
from tests.conftest import ROOT, build_dataset
from tests.support.array_tools import published
from tests.support.examples_data import write_digits

pytestmark = pytest.mark.heavy

BATCH = 32
ACCURACY = 0.9  # minimum; choosing the nearest of ten mean images gives 0.88


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """A folder with the digits as a dataset of images and as one of arrays."""
    folder = tmp_path_factory.mktemp("digits")
    assert write_digits(folder) == 1797
    splits = "train:0.8,validation:0.2"
    build_dataset(
        input=folder / "images",
        output=folder / "pictures",
        image_size=8,
        channels=1,
        encoding="png",
        splits=splits,
        num_shards=2,
    )
    published(input=folder / "arrays", output=folder / "raw", splits=splits)
    return folder


WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys(["tensorflow", "apache_beam", "keras"]))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def train(name: str, dataset: Path, *options: str) -> tuple[dict[str, str], str]:
    """Run an example; return its output by the first word of a line, and its stderr."""
    command = [sys.executable, *options, str(ROOT / "examples" / name), str(dataset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^(\w+) +(.+)$", done.stdout, re.MULTILINE)), done.stderr


def check_accuracy(output: dict[str, str], dataset: Path) -> None:
    """Compare the accuracy with that of predicting the most frequent label."""
    split = json.loads((dataset / "manifest.json").read_text())["splits"]["validation"]
    majority = max(split["label_counts"].values()) / split["num_examples"]
    assert majority < 0.2, "the labels are too imbalanced"
    assert output["baseline"].startswith(f"{majority:.1%} of ")
    assert float(output["model"].rstrip("%")) / 100 > max(ACCURACY, majority + 0.5)


def sizes(dataset: Path) -> tuple[int, int]:
    """Return the numbers of examples in the splits, counted with gzip and record headers."""
    from tests.support.readers import gzip_records

    each = {
        split: sum(len(gzip_records(path)) for path in dataset.glob(f"current/{split}-*"))
        for split in ("train", "validation")
    }
    assert sum(each.values()) == 1797
    return each["train"], each["validation"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "data"), [("train_images.py", "pictures"), ("train_arrays.py", "raw")]
)
def test_tensorflow_trains_on_images_and_arrays(name, data, digits) -> None:
    dataset = digits / data
    output, errors = train(name, dataset)
    check_accuracy(output, dataset)
    steps, validation_steps = (-(-size // BATCH) for size in sizes(dataset))
    assert output["steps"] == f"{steps} an epoch, {validation_steps} of validation"
    fitted, epochs = map(int, re.findall(r"\d+", output["fitted"]))
    assert fitted == steps * epochs
    assert "ran out of data" not in errors


@pytest.mark.nightly
def test_keras_trains_on_several_labels_and_a_number(digits, tmp_path) -> None:
    """Both are far better than the best constant, which is counted from the listing."""
    build_dataset(
        input=digits / "listing.csv",
        output=tmp_path / "ds",
        label_from="listing",
        label_separator="|",
        image_size=8,
        channels=1,
        encoding="png",
        splits="train:0.8,validation:0.2",
    )
    output, _ = train("train_listing.py", tmp_path / "ds")
    right, constant = (float(each) for each in re.findall(r"([\d.]+)%", output["labels"]))
    assert 50 < constant < 70
    assert right > 95
    off, spread = (float(each) for each in re.findall(r"by ([\d.]+)", output["ink"]))
    assert off < spread / 2


OPTIONS = {"image_size": 64, "encoding": "png", "splits": "train:0.8,validation:0.2"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "least", "options"),
    [
        ("train_boxes.py", 25, {"annotations": "voc:{}/annotations"}),
        ("train_masks.py", 25, {"masks": "{}/masks"}),
    ],
)
def test_tensorflow_trains_on_boxes_and_masks(name, least, options, tmp_path) -> None:
    """Far better than the boxes of another picture, or than the most frequent class."""
    write_files(tmp_path, dict(shapes()))
    given = {flag: value.format(tmp_path / "shapes") for flag, value in options.items()}
    build_dataset(input=tmp_path / "shapes" / "images", output=tmp_path / "ds", **given, **OPTIONS)
    output, _ = train(name, tmp_path / "ds")
    model, baseline = (float(output[key].partition("%")[0]) for key in ("model", "baseline"))
    assert model > baseline + least
    assert baseline < 40


@pytest.mark.nightly
def test_detector_finds_cells_of_real_photos(shared_data, tmp_path) -> None:
    options = {**OPTIONS, "image_size": "120x160", "encoding": "jpeg", "annotations": "voc"}
    build_dataset(input=shared_data / "photos/voc_bccd", output=tmp_path / "ds", **options)
    output, _ = train("train_boxes.py", tmp_path / "ds")
    model, baseline = (float(output[key].partition("%")[0]) for key in ("model", "baseline"))
    assert model > baseline + 15


@pytest.mark.nightly
def test_torch_trains_on_images_without_tensorflow_and_beam(digits) -> None:
    dataset = digits / "pictures"
    output, _ = train("train_torch.py", dataset, "-c", WITHOUT)
    check_accuracy(output, dataset)
    size, validation_size = sizes(dataset)
    assert (
        output["steps"] == f"{-(-size // BATCH)} an epoch, {validation_size} images of validation"
    )
    assert re.match(
        rf"{5 * size:,} records, .*; waited [\d.]+ of [\d.]+ s \(\d+%\)$", output["data"]
    )


def test_jax_trains_on_images_without_tensorflow_and_beam(digits) -> None:
    dataset = digits / "pictures"
    output, _ = train("train_jax.py", dataset, "-c", WITHOUT)
    check_accuracy(output, dataset)
    steps = sizes(dataset)[0] // BATCH
    counted, fitted, epochs = map(int, re.findall(r"\d+", output["steps"]))
    assert counted == steps
    assert fitted == steps * epochs
