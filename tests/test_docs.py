"""Docs say what the code does."""

import re
import shutil
import subprocess

import pytest
from conftest import ROOT, build_dataset, shardmill

from shardmill.loaders import steps_per_epoch
from shardmill.pipelines import summary
from shardmill.pipelines.commands.count import count_parser
from shardmill.pipelines.options import images_parser
from shardmill.schemas.names import FIELDS
from shardmill.schemas.rejects import REASONS
from shardmill.schemas.scan import FAULTS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_reason_is_explained() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \|$", (ROOT / "docs/images.md").read_text(), re.MULTILINE
    )
    explained = dict(rows)
    assert {reason: explained.get(reason) for reason in REASONS} == REASONS


def test_every_flag_in_the_docs_exists() -> None:
    known = {flag for action in images_parser()._actions for flag in action.option_strings}
    others = {option for action in count_parser()._actions for option in action.option_strings} | {
        "--runner", "--temp_location", "--save_main_session", "--setup_file", "--version",
        "--split", "--batch_size", "--replicas", "--json", "--older_than", "--dry_run",
        "--records",
    }  # fmt: skip
    for page in PAGES:
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z_]+", page.read_text()):
            assert flag in known | others, f"{page.name}: {flag}"


def test_every_flag_is_in_the_docs() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    silent = {"--help", "-h", "--quality"}
    for action in [*images_parser()._actions, *count_parser()._actions]:
        for flag in action.option_strings:
            assert flag in text or flag in silent, flag
    for field in FIELDS:
        assert f"{{{field}" in text


def test_every_fault_is_explained() -> None:
    text = (ROOT / "docs/counting.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))
    assert rows == FAULTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_nothing_tells_of_one_machine() -> None:
    # The patterns are cut in two so that this file does not match itself.
    pattern = "(^|[ \"'=(])/(" + "|".join(["wor" + "k", "roo" + "t", "far" + "m"]) + ")/"
    found = subprocess.run(
        ["git", "grep", "-nE", pattern, "--", "."], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert found.stdout == ""


def test_the_training_example_trains(photos, tmp_path, monkeypatch) -> None:
    import tensorflow as tf

    build_dataset(input=photos, output=tmp_path / "ds", image_size=24, splits="train:1")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    (images, labels), *_ = list(names["train"])
    assert images.shape == (21, 24, 24, 3)
    assert set(labels.numpy()) == {0, 1}
    assert float(tf.reduce_max(images)) <= 1


def test_the_other_python_examples_run(photos, tmp_path, monkeypatch) -> None:
    photos.rename(tmp_path / "flower_photos")
    monkeypatch.chdir(tmp_path)
    for page in ("beam.md", "manifest.md", "counting.md"):
        (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
        exec(compile(code, page, "exec"), {})
    assert (tmp_path / "ds" / "manifest.json").exists()


def test_counting_shows_what_the_commands_say(shared_data, tmp_path) -> None:
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs/counting.md").read_text()
    taxi = tmp_path / "taxi"
    shutil.copytree(shared_data / "tfrecord" / "tfx_taxi_gz" / "csv_example_gen", taxi)
    done = shardmill("count", "--input=taxi", "--manifest=taxi.json", cwd=tmp_path)
    said = done.stdout.replace(str(tmp_path), "/data")
    steps = shardmill("steps", "taxi.json", "--split=eval", "--batch_size=256", cwd=tmp_path)
    build_dataset(
        input=shared_data / "photos" / "flower_photos", output=tmp_path / "ds", image_size=224
    )
    said += shardmill("verify", "ds", cwd=tmp_path).stdout
    lines = [line for line in said.splitlines() if not re.search(r" s, .*B/s$", line)]
    assert len(lines) == 10
    for line in lines:
        assert line in page.splitlines(), line
    for line in lines[:6]:
        assert line in readme.splitlines(), line
    assert f"--batch_size=256\n{steps.stdout}" in page


def test_the_readme_shows_what_the_command_says(shared_data, tmp_path) -> None:
    text = (ROOT / "README.md").read_text()
    outcome, manifest = build_dataset(
        input=shared_data / "photos" / "flower_photos", output=tmp_path / "ds", image_size=224
    )
    assert manifest is not None
    for line in summary.lines(outcome, "/data/ds", 1.0):
        if not line.startswith("  time"):
            assert line in text.splitlines(), line
    steps = steps_per_epoch(manifest, "train", 32)
    assert f"--split=train --batch_size=32\n{steps}\n" in text
