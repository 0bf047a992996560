"""Updates after arbitrary edits of arrays, and updates that are killed, equal a new build."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import build_dataset, examples, make_image, make_photos
from tests.support.fault_cases import moments
from tests.support.fault_tools import Watched, check_published, images, zygote

pytestmark = pytest.mark.heavy

STEPS = st.one_of(
    st.tuples(st.sampled_from(["append", "remove", "change", "relabel"]), st.integers(0, 99)),
    st.tuples(st.just("seed"), st.integers(0, 3)),
    st.tuples(st.just("splits"), st.sampled_from(["train:1", "train:0.5,test:0.5"])),
    st.tuples(st.just("num_shards"), st.integers(1, 4)),
)


CLASSES = np.array(["ant", "bee", "cat"])


def edit(folder: Path, kind: str, number: int) -> None:
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    row = number % len(x)
    if kind == "append":
        x, y = np.concatenate([x, x[:1] + number]), np.append(y, CLASSES[number % 3])
    elif kind == "remove" and len(x) > 20:
        x, y = np.delete(x, row, axis=0), np.delete(y, row)
    elif kind == "change":
        x[row] += 1
    elif kind == "relabel":
        y[row] = CLASSES[number % 3]
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)


@pytest.mark.nightly
@settings(max_examples=examples(18), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(st.lists(STEPS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_any_sequence_of_edits_of_arrays_equals_a_new_build(tmp_path, sequence):
    shutil.rmtree(tmp_path, ignore_errors=True)
    tmp_path.mkdir()
    np.save(tmp_path / "x.npy", np.arange(120).reshape(40, 3))
    np.save(tmp_path / "y.npy", CLASSES[np.arange(40) % 3])
    options = {"input": tmp_path / "x.npy", "labels": tmp_path / "y.npy"}
    build_dataset("arrays", output=tmp_path / "ds", **options)
    for steps in sequence:
        for kind, value in steps:
            if kind in ("seed", "splits", "num_shards"):
                options[kind] = value
            else:
                edit(tmp_path, kind, value)
        outcome, _ = build_dataset("arrays", output=tmp_path / "ds", update=True, **options)
        assert outcome.status in ("published", "up_to_date"), outcome.message
        shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
        build_dataset("arrays", output=tmp_path / "scratch", **options)
        assert check_published(tmp_path / "ds") == check_published(tmp_path / "scratch")


def test_a_killed_update_takes_each_record_once(tmp_path):
    """Parts that were finished before the kill count the records that they took."""
    photos, output = make_photos(tmp_path / "photos", {"bee": 9, "cat": 10}), tmp_path / "out"
    assert zygote().run(*images(photos, output)).code == 0
    make_image(5, 24, 16).save(photos / "bee" / "new.jpg")
    update = [*images(photos, output), "--seed=3", "--update"]
    shutil.copytree(output, tmp_path / "old", symlinks=True)
    log = tmp_path / "log"
    assert zygote().run(*update, watch=Watched(output, log=log)).code == 0
    whole, changes = (
        check_published(output),
        [each.split()[1] for each in log.read_text().splitlines()],
    )
    kills = 0
    for number in moments(changes, "images"):
        shutil.rmtree(output)
        shutil.copytree(tmp_path / "old", output, symlinks=True)
        kills += zygote().run(*update, watch=Watched(output, at=(number,))).code != 0
        ended = zygote().run(*update)
        assert ended.code == 0, ended.stderr
        said = " ".join(ended.stdout.split())
        assert "reused 19 records of unchanged inputs" in said or "is up to date" in said, said
        assert check_published(output) == whole
    assert kills >= 5
