"""The examples of the docs, run as commands."""

import re
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from shardmill.pipelines.images_config import ImagesConfig
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.transforms.images.transform import EncodeImages
from shardmill.transforms.match.inputs import find_input
from shardmill.transforms.match.labels import LabelSpec
from shardmill.transforms.match.transform import MatchFiles
from tests.conftest import ROOT
from tests.support.examples_data import write_titanic
from tests.support.readers import tf_examples
from tests.support.rows_tools import build_rows

pytestmark = pytest.mark.heavy


def run_example(name: str, *args: object) -> str:
    """Run an example and return its output."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_custom_pipeline(tmp_path) -> None:
    for label in ("ham", "spam"):
        (tmp_path / "in" / label).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "in" / label / f"{number}.text").write_text(f"{label} number {number}")
    out = run_example("own_pipeline.py", tmp_path / "in", tmp_path / "ds")
    assert "published" in out
    manifest = Manifest.from_json((tmp_path / "ds" / "manifest.json").read_text())
    assert (manifest.written, manifest.labels) == (20, ("ham", "spam"))
    found = {
        (e["key"][0], e["text"][0], e["words"][0], e["label"][0])
        for name in manifest.files
        for e in tf_examples(tmp_path / "ds/current" / name)
    }
    assert found == {
        (f"{label}/{n}.text".encode(), f"{label} number {n}".encode(), 3, label.encode())
        for label in ("ham", "spam")
        for n in range(10)
    }
    assert "up_to_date" in run_example("own_pipeline.py", tmp_path / "in", tmp_path / "ds")


def test_encode_images_with_another_sink(photos, tmp_path) -> None:
    (photos / "cat" / "bad.jpg").write_bytes(b"no")
    encoder = ImagesConfig(input="x", output="y", image_size="16").encoder
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        refs = (pipeline | MatchFiles(find_input(str(photos)), LabelSpec())).refs
        done = refs | EncodeImages(encoder, ["cat", "dog"])
        _ = (
            done.examples
            | beam.Map(lambda example: example.record).with_output_types(bytes)
            | beam.io.WriteToTFRecord(str(tmp_path / "out"), num_shards=1)
        )
        _ = (
            done.rejects
            | beam.Map(lambda reject: reject.key)
            | beam.io.WriteToText(str(tmp_path / "rejects"), num_shards=1)
        )
    (path,) = tmp_path.glob("out-*")
    assert len(tf_examples(path, "")) == 21
    (path,) = tmp_path.glob("rejects-*")
    assert path.read_text() == "cat/bad.jpg\n"


def build_titanic(folder: Path, name: str, **options) -> Manifest:
    """Build a dataset of the Titanic table and return its manifest."""
    table = folder / "titanic.csv"
    if not table.exists():
        assert write_titanic(table) == 1309
    _, manifest = build_rows(
        input=table, output=folder / name, label="survived", null_values="?", **options
    )
    return manifest


def test_keras_trains_on_rows(tmp_path) -> None:
    manifest = build_titanic(tmp_path, "ds", splits="train:0.8,validation:0.2")
    out = run_example("train_rows.py", tmp_path / "ds")
    shares = dict(re.findall(r"^(baseline|model) +([\d.]+)%", out, re.MULTILINE))
    split = manifest.splits["validation"]
    dead = split.label_counts["0"] / split.num_examples
    assert float(shares["baseline"]) == round(100 * dead, 1)
    assert float(shares["model"]) > float(shares["baseline"]) + 5


@pytest.mark.nightly
def test_served_model_transforms_as_in_training(tmp_path) -> None:
    build_titanic(tmp_path, "raw")
    build_titanic(tmp_path, "ds", preprocessing=ROOT / "examples" / "preprocessing.py")
    out = run_example("transform_rows.py", tmp_path / "ds", tmp_path / "raw", tmp_path / "model")
    assert "served    1,309 raw rows: each has the features that training saw" in out
    (accuracy,) = re.findall(r"^accuracy +([\d.]+)%", out, re.MULTILINE)
    assert float(accuracy) > 70
    assert (tmp_path / "model" / "saved_model.pb").exists()
