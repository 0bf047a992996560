"""Limits: a build that is beyond one publishes nothing, and keeps what it has made."""

import json
import shutil
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest

import shardmill
from shardmill.pipelines.limits import parse_limits
from shardmill.schemas.errors import LimitError, UsageError
from shardmill.transforms.images.encoder import ImageEncoder
from tests.conftest import make_photos
from tests.support.readers import current, tf_records
from tests.support.rows_tools import run_here

TOO_MANY = {"min_examples": 1000}


def write_limits(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def count_records(ds: Path) -> int:
    """Return the number of records that TensorFlow reads from the shards."""
    return sum(len(tf_records(path)) for path in current(ds).glob("*.tfrecord.gz"))


def photos_with_faults(folder: Path) -> Path:
    """Write 40 photos: copies of ten, which fall into both splits, and two of one color."""
    from PIL import Image

    make_photos(folder, {"cat": 18, "dog": 10})
    for number in range(10):
        shutil.copy(folder / f"cat/{number:03d}.jpg", folder / f"cat/copy{number}.jpg")
    for number in range(2):
        Image.new("RGB", (40, 40), (number, 9, 9)).save(folder / f"dog/flat{number}.png")
    return folder


@pytest.fixture
def source(tmp_path):
    return photos_with_faults(tmp_path / "in")


def inputs_of(kind: str, folder: Path) -> Path:
    """Write 40 inputs of a kind."""
    if kind == "images":
        return photos_with_faults(folder / "in")
    if kind == "rows":
        path = folder / "in.csv"
        path.write_text("x,y\n" + "".join(f"{number},{number % 2}\n" for number in range(40)))
        return path
    path = folder / "in.npy"
    np.save(path, np.arange(80, dtype=np.float32).reshape(40, 2))
    return path


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["images", "rows", "arrays"])
def test_a_build_beyond_a_limit_publishes_nothing_and_resumes(kind, tmp_path, capsys) -> None:
    source, ds = inputs_of(kind, tmp_path), tmp_path / "ds"
    limits = write_limits(
        tmp_path / "limits.toml", "min_examples = {train = 10, validation = 39}\n"
    )
    words = [kind, source, ds, f"--limits={limits}"]
    code, out, err = run_here(capsys, *words)
    assert code == 1
    assert "  fault  validation has " in out
    assert err.startswith(f"shardmill: {ds} was not published: validation has ")
    assert err.count("\n") == 1
    assert not (ds / "manifest.json").exists()
    assert not [*ds.glob("gen-*")]
    code, out, _ = run_here(capsys, *words, "--json")
    body = json.loads(out)
    assert (code, body["status"], body["type"]) == (1, "failed", "LimitError")
    assert [(f["name"], f["fails"]) for f in body["findings"] if f["fails"]] == [
        ("min_examples", True)
    ]
    write_limits(limits, "min_examples = {train = 10, validation = 1}\n")
    code, out, _ = run_here(capsys, *words, "--json")
    body = json.loads(out)
    assert (code, body["status"], body["parts_made"]) == (0, "published", 0)
    assert body["parts_reused"] > 0
    assert count_records(ds) == 40


def test_no_image_is_decoded_again_when_limits_are_relaxed(
    source, tmp_path, monkeypatch, capsys
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("an image was decoded again")

    ds, limits = tmp_path / "ds", tmp_path / "limits.toml"
    write_limits(limits, "copies_across_splits = 0\nconstant_images = 0\n")
    code, out, _ = run_here(capsys, "images", source, ds, f"--limits={limits}", "--json")
    names = [finding["name"] for finding in json.loads(out)["findings"] if finding["fails"]]
    assert (code, names) == (1, ["copies_across_splits", "constant_images"])
    monkeypatch.setattr(ImageEncoder, "encode", fail)
    write_limits(limits, "copies_across_splits = 10\nconstant_images = 0.5\n")
    code, out, _ = run_here(capsys, "images", source, ds, f"--limits={limits}", "--json")
    body = json.loads(out)
    assert (code, body["status"], body["parts_made"]) == (0, "published", 0)
    assert count_records(ds) == 40


@pytest.mark.nightly
def test_an_update_beyond_a_limit_leaves_the_version_that_is_served(
    source, tmp_path, capsys
) -> None:
    ds, limits = tmp_path / "ds", tmp_path / "limits.toml"
    assert run_here(capsys, "images", source, ds)[0] == 0
    before = (ds / "manifest.json").read_bytes(), current(ds)
    make_photos(source, {"bird": 3})
    write_limits(limits, "few_in_train = 5\n")
    words = ["images", source, ds, "--update", f"--limits={limits}"]
    code, out, err = run_here(capsys, *words)
    assert (code, "few_in_train: 1 of 3 labels have fewer than 5 examples" in err) == (1, True)
    assert ((ds / "manifest.json").read_bytes(), current(ds)) == before
    assert [path.name for path in ds.glob("gen-*")] == [current(ds).name]
    assert (ds / "current").resolve() == current(ds)
    assert count_records(ds) == 40
    write_limits(limits, "few_in_train = 1\n")
    code, out, _ = run_here(capsys, *words, "--json")
    body = json.loads(out)
    assert (code, body["status"], body["parts_made"]) == (0, "published", 0)
    assert count_records(ds) == 43


def test_one_file_has_options_and_limits(source, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = write_limits(
        tmp_path / "recipe.toml",
        '[options]\ninput = "in"\noutput = "ds"\n\n[limits]\nenlarged = 0\n',
    )
    code, _, err = run_here(capsys, "images", "--config=recipe.toml", "--image_size=300")
    assert (code, "enlarged: 40 of the 40 images" in err) == (1, True)
    write_limits(recipe, recipe.read_text().replace("enlarged = 0", "enlarged = 1"))
    assert run_here(capsys, "images", "--config=recipe.toml", "--image_size=300")[0] == 0
    command = json.loads(Path("ds/manifest.json").read_text())["build"]["command"]
    assert not [word for word in command if "limits" in word]


@pytest.mark.nightly
def test_calls_raise_the_findings(tmp_path) -> None:
    values = [{"x": number} for number in range(20)]
    with pytest.raises(LimitError, match="fewer than min_examples=1000 asks for") as caught:
        shardmill.write(values, tmp_path / "ds", limits=TOO_MANY)
    assert [finding["name"] for finding in caught.value.findings] == ["min_examples"]
    assert not (tmp_path / "ds/manifest.json").exists()
    shardmill.write(values, tmp_path / "ds", limits={"min_examples": 20})
    assert count_records(tmp_path / "ds") == 20


def test_a_pipeline_fails_beyond_a_limit(tmp_path) -> None:
    def write(limits: object) -> None:
        with beam.Pipeline(argv=[]) as pipeline:
            elements = pipeline | beam.Create([beam.Row(id=str(n), x=n) for n in range(20)])
            elements | shardmill.WriteDataset(tmp_path / "ds", key="id", limits=limits)

    with pytest.raises(Exception, match="fewer than min_examples=1000 asks for"):
        write(TOO_MANY)
    assert not (tmp_path / "ds/manifest.json").exists()
    write({"min_examples": {"train": 10}})
    assert count_records(tmp_path / "ds") == 20


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"copies_accross_splits": 0}, "did you mean copies_across_splits?"),
        ({"min_example": 3}, "did you mean min_examples?"),
        ({"zzz": 3}, "use min_examples, max_age, "),
        ({"enlarged": True}, "enlarged must be a number"),
        ({"enlarged": "1"}, "enlarged must be a number"),
        ({"max_age": []}, "max_age must be a number or a text"),
        ({"max_age": "26"}, "--max_age=26 is not a duration"),
        ({"min_examples": {"train": -1}}, "--min_examples=train:-1 is malformed"),
    ],
    ids=str,
)
def test_a_limit_that_is_wrong_is_an_error(limits, message) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limits("limits", limits)
    assert message in str(caught.value)


def test_a_wrong_limit_of_a_recipe_names_the_file(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text('[options]\ninput = "in"\noutput = "ds"\n[limits]\nrejectd = 0\n')
    code, _, err = run_here(capsys, "rows", "--config=r.toml")
    sentence = "r.toml: [limits]: 'rejectd' is not the name of a limit; did you mean rejected?"
    assert (code, err) == (2, f"shardmill: {sentence}\n")


def test_times_of_toml_are_limits(tmp_path, capsys) -> None:
    source, ds = inputs_of("rows", tmp_path), tmp_path / "ds"
    assert run_here(capsys, "rows", source, ds)[0] == 0
    limits = write_limits(tmp_path / "limits.toml", "finished_after = 2999-01-01T00:00:00Z\n")
    code, _, err = run_here(capsys, "check", ds, f"--limits={limits}")
    assert (code, "before finished_after=2999-01-01T00:00:00+00:00" in err) == (1, True)
    flag = "--finished_after=2021-01-01T00:00:00Z"  # a flag wins over the file
    assert run_here(capsys, "check", ds, f"--limits={limits}", flag)[0] == 0


def test_a_dry_run_prints_the_limits(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    inputs_of("rows", tmp_path)
    options = '[options]\ninput = "in.csv"\noutput = "ds"\n'
    Path("r.toml").write_text(f"{options}[limits]\nfinished_after = 2021-01-01T00:00:00Z\n")
    code, out, _ = run_here(capsys, "rows", "--config=r.toml", "--dry_run", "--json")
    limits = {"finished_after": "2021-01-01T00:00:00+00:00"}
    assert (code, json.loads(out)["options"]["limits"]) == (0, limits)
    Path("r.toml").write_text(f'{options}limits = "l.toml"\n[limits]\nrejected = 0\n')
    code, _, err = run_here(capsys, "rows", "--config=r.toml")
    assert (code, "r.toml has limits in [options] and in [limits]" in err) == (2, True)


def test_check_lists_findings_and_fails_for_limits_or_all(source, tmp_path, capsys) -> None:
    ds = tmp_path / "ds"
    labels = write_limits(tmp_path / "labels.txt", "cat\ndog\nunicorn\n")
    assert run_here(capsys, "images", source, ds, f"--labels={labels}")[0] == 0
    code, out, err = run_here(capsys, "check", ds)
    marks = [line.split()[:2] for line in out.splitlines() if line[:9].strip() in ("warn", "ok")]
    assert (code, err) == (0, "")
    assert [name.rstrip(":") for mark, name in marks if mark == "warn"][:3] == [
        "copies_across_splits",
        "few_in_split",
        "few_in_train",
    ]
    assert "unicorn 0" in out
    assert "constant_images: 2 of the 40 images" in " ".join(out.split())
    assert marks[-1] == ["ok", "40"]  # the worst first
    code, out, err = run_here(capsys, "check", ds, "--strict")
    assert (code, "  warn " in out) == (1, False)
    assert err.startswith(f"shardmill: {ds}: copies_across_splits: ")
    code, out, _ = run_here(capsys, "check", ds, "--min_examples=99", "--json")
    names = [finding["name"] for finding in json.loads(out)["findings"]]
    assert (code, names[:2]) == (1, ["min_examples", "copies_across_splits"])


def test_findings_is_deprecated_and_changes_nothing(source, tmp_path, capsys) -> None:
    ds = tmp_path / "ds"
    assert run_here(capsys, "images", source, ds)[0] == 0
    plain = run_here(capsys, "check", ds)
    with pytest.warns(FutureWarning, match="--findings is deprecated"):
        assert run_here(capsys, "check", ds, "--findings")[:2] == plain[:2]
