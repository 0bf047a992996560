"""Shards of unchanged labels are reused, and the result equals a build from scratch."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from shardmill.pipelines.images import resolve
from shardmill.pipelines.images_config import ImagesConfig
from shardmill.pipelines.report.summary import render_build
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import FormatError, StaleBuildError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.build.census import Census
from shardmill.transforms.build.finalize import planned_outcome
from shardmill.transforms.build.planning import Plan
from shardmill.transforms.build.shard_reuse import load_reused
from shardmill.transforms.build.spec import SinkSpec
from shardmill.transforms.build.transform import make_plan
from shardmill.transforms.match.transform import match_now
from tests.conftest import ROOT, build_dataset, make_image, make_photos
from tests.support.fault_tools import SOAK, Watched, check_dataset, check_manifest, zygote
from tests.support.readers import dataset_files

pytest_plugins = ["tests.support.gcs_server"]

OPTIONS = {"image_size": "8", "shard_by": "label", "num_shards": 2, "update": True,
           "splits": "train:0.6,validation:0.4", "max_reject_fraction": 0.5}  # fmt: skip
FLAGS = [f"--{name}={value}" for name, value in OPTIONS.items() if name != "update"]
CLASSES = {"bee": 7, "cat": 6, "dog": 6}
SCHEMA = json.loads((ROOT / "schemas" / "dataset" / "manifest.schema.json").read_text())


def add(source: Path, label: str) -> None:
    """Add a class of four photos, the same ones at every call."""
    (source / label).mkdir()
    for number in range(4):
        path = source / label / f"{number:03d}.jpg"
        make_image(900 + number, 24, 16).save(path)
        os.utime(path, ns=(10**18, 10**18))


def swap(source: Path) -> None:
    """Remove one class and add another."""
    shutil.rmtree(source / "dog")
    add(source, "owl")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with ``pristine``: three classes, two of them with a file that is rejected."""
    folder = tmp_path_factory.mktemp("label")
    pristine = make_photos(folder / "pristine", CLASSES, size=(24, 16))
    (pristine / "cat" / "text.jpg").write_text("not an image")
    (pristine / "dog" / "empty.jpg").write_bytes(b"")
    return folder


def fresh(work: Path) -> Path:
    """Restore the photos, times included, always at the same path."""
    shutil.rmtree(work / "photos", ignore_errors=True)
    return shutil.copytree(work / "pristine", work / "photos")


@pytest.fixture(scope="module")
def before(work) -> Path:
    """The dataset of the photos."""
    _, manifest = build_dataset(input=fresh(work), output=work / "before", **OPTIONS)
    assert {shard.label for s in manifest.splits.values() for shard in s.shards} == {*CLASSES}
    assert len(manifest.files) == 12
    assert sum(bool(each.rejected_by_reason) for each in manifest.series) == 2
    assert all(split.statistics.pixels.count for split in manifest.splits.values())
    jsonschema.validate(json.loads(manifest.to_json()), SCHEMA)
    return work / "before"


@pytest.fixture(scope="module")
def swapped(work) -> Path:
    """The dataset of the photos after ``swap``, built from scratch."""
    swap(fresh(work))
    build_dataset(input=work / "photos", output=work / "swapped", **OPTIONS)
    return work / "swapped"


@pytest.fixture
def place(work, before, swapped, tmp_path) -> tuple[Path, Path]:
    """The photos and a copy of their dataset, to change."""
    return fresh(work), shutil.copytree(before, tmp_path / "out", symlinks=True)


def inodes(folder: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of each file."""
    found = ((path.name, path.stat()) for path in (folder / "current").iterdir())
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found}


def files_of(folder: Path, hidden: str = "none") -> tuple[dict[str, bytes], dict]:
    """Return everything reproducible: the files, and the manifest without its time."""
    check_dataset(folder, [path.name for path in folder.glob(f"{hidden}*")])
    manifest = check_manifest(folder / "current")
    del manifest["build"]["finished"], manifest["build"]["command"]
    return dataset_files(folder), manifest


def shards_of(output: Path, *labels: str, split: str = "*") -> set[str]:
    """Return the names of the shards of some labels."""
    return {path.name for label in labels for path in output.glob(f"current/{split}-{label}-*")}


def plan_build(source: Path, output: Path, **options) -> tuple[Plan, Census, SinkSpec]:
    config = ImagesConfig(input=str(source), output=str(output), **{**OPTIONS, **options})
    job = resolve(config)
    place, census = job.sink.place, Census()
    for found in match_now(job.match)[0]:
        ref = place.with_split(config.label_spec.with_label(found))
        census.add(ref, place.series_of(ref))
    return make_plan(job.sink, config.encoder.expected_bytes, census), census, job.sink


def reusable(source: Path, output: Path, **options) -> set[str]:
    """Return the names of the shards that a build would reuse."""
    plan, _, _ = plan_build(source, output, **options)
    assert plan.status == "build"
    return set().union(*(shards_of(output, s.label, split=s.split) for s in plan.reused))


def rebuild(source: Path, output: Path, **options) -> tuple[set[str], object]:
    """Build again; return the shards that are the same files as before, and the outcome."""
    past, plan = inodes(output), reusable(source, output, **options)
    outcome, _ = build_dataset(input=source, output=output, **{**OPTIONS, **options})
    assert outcome.status == "published", outcome.message
    reused = {name for name, inode in inodes(output).items() if past.get(name) == inode}
    splits = check_manifest(output / "current")["splits"].values()
    records = {shard["file"]: shard["records"] for split in splits for shard in split["shards"]}
    assert outcome.reused == (len(reused), sum(records[name] for name in reused))
    assert reused == plan
    return reused, outcome


def build_scratch(source: Path, output: Path, **options) -> Path:
    """Return a dataset of the same inputs that is built from scratch."""
    build_dataset(input=source, output=output.parent / "scratch", **{**OPTIONS, **options})
    return output.parent / "scratch"


def test_replaces_a_label_and_restores_it(place, before, swapped):
    source, output = place
    swap(source)
    reused, outcome = rebuild(source, output)
    assert reused == shards_of(before, "bee", "cat")
    assert 0 < outcome.parts_made <= len(shards_of(output, "owl"))
    assert files_of(output) == files_of(swapped)
    text = "\n".join(line.plain for line in render_build(outcome, str(output), 1.0))
    assert f"shards     {len(shards_of(output, 'owl'))} made, {len(reused)} kept\n" in text
    assert " 4 images/s" in text  # only new images count
    shutil.rmtree(source)
    shutil.copytree(source.parent / "pristine", source)
    assert rebuild(source, output)[0] == shards_of(before, "bee", "cat")
    assert files_of(output) == files_of(before)
    assert plan_build(source, output)[0].status == "up_to_date"


def test_labels_that_are_removed_renamed_or_renumbered(place):
    """A class id depends on the labels that sort before it."""
    source, output = place
    (source / "dog").rename(source / "wolf")
    assert reusable(source, output) == shards_of(output, "bee", "cat")
    shutil.rmtree(source / "wolf")
    assert reusable(source, output) == shards_of(output, "bee", "cat")
    add(source, "bug")
    assert reusable(source, output) == shards_of(output, "bee")
    shutil.rmtree(source / "bee")
    assert reusable(source, output) == shards_of(output, "cat")  # class id 1 again
    shutil.rmtree(source / "bug")
    assert reusable(source, output) == set()


def test_labels_file_that_grows_and_inputs_that_change(place, tmp_path):
    """The series of a touched photo and of a repaired reject are built again."""
    source, output = place
    labels = tmp_path / "labels"
    labels.write_text("bee\ncat\ndog\n")  # the same class ids
    assert reusable(source, output, labels=str(labels)) == shards_of(output, *CLASSES)
    labels.write_text("bee\ncat\ndog\nant\n")
    add(source, "ant")
    shutil.copy(source / "bee" / "000.jpg", source / "cat" / "text.jpg")
    os.utime(source / "bee" / "003.jpg", ns=(1, 1))
    reused, _ = rebuild(source, output, labels=str(labels))
    assert shards_of(output, "dog") < reused
    assert {len(reused & shards_of(output, label)) for label in ("bee", "cat")} == {2}
    assert files_of(output) == files_of(build_scratch(source, output, labels=str(labels)))
    labels.write_text("ant\ncat\ndog\nbee\n")
    assert reusable(source, output, labels=str(labels)) == shards_of(output, "cat", "dog")


@pytest.mark.parametrize("change", [{"seed": 5}, {"quality": 60}, {"num_shards": 1}])
def test_other_options_reuse_nothing(place, change):
    assert reusable(*place, **change) == set()


def test_plans_without_overwrite_and_dry_runs(place):
    source, output = place
    swap(source)
    plan, _, _ = plan_build(source, output, update=False)
    assert (plan.status, plan.reused) == ("failed", frozenset())
    assert "add --update" in plan.message
    plan, _, _ = plan_build(source, output, update=False, overwrite=True)
    assert (plan.status, plan.reused) == ("build", frozenset())
    plan, census, _ = plan_build(source, output, dry_run=True)
    lines = render_build(planned_outcome(plan, census), str(output), 1.0)
    words = [line.plain.split() for line in lines]
    assert {each[1] for each in words if each[-3:] == ["shards", "that", "stay"]} == {"bee", "cat"}
    assert {each[1] for each in words if each[-1] == "parts"} == {"owl"}


Spoiler = Callable[[Path, dict], object]
CAT = "train-cat-00001-of-00002.tfrecord.gz"


def spoil_rejects(change: Callable[[bytes], bytes]) -> Spoiler:
    def spoil(output: Path, _: dict) -> None:
        path = output / "current/rejects.jsonl"
        path.write_bytes(change(path.read_bytes()))

    return spoil


def spoil_series(**changes: object) -> Spoiler:
    return lambda _, body: [each.update(changes) for each in body["series"]]


def reverse_shards(_: Path, body: dict) -> None:
    for split in body["splits"].values():
        split["shards"].reverse()


# Damages of the published dataset, and the shards that are then not reused.
SPOILED: dict[str, tuple[Spoiler, str]] = {
    "shard missing": (lambda output, _: (output / "current" / CAT).unlink(), "train-cat"),
    "shard truncated": (lambda output, _: os.truncate(output / "current" / CAT, 9), "train-cat"),
    "rejects missing": (lambda output, _: (output / "current/rejects.jsonl").unlink(), "rejects"),
    "rejects truncated": (spoil_rejects(lambda data: data[:-20]), "rejects"),
    "too many rejects": (spoil_rejects(lambda data: data + data), "rejects"),
    "rejects in another order": (
        spoil_rejects(lambda data: b"".join(reversed(data.splitlines(keepends=True)))), "rejects"
    ),
    "malformed rejects": (spoil_rejects(lambda data: b"[]\n" * 2), "rejects"),
    "another root": (lambda _, body: body["inputs"].update(root="/elsewhere"), "rejects"),
    "no series": (lambda _, body: body.pop("series"), ""),
    "other ids": (spoil_series(id="0" * 32), ""),
    "wrong number of inputs": (spoil_series(refs=99), ""),
    "other names": (reverse_shards, ""),
}  # fmt: skip


def spoil(output: Path, how: str) -> set[str]:
    """Damage a dataset; return the shards that can still be reused."""
    body = json.loads((output / "manifest.json").read_text())
    shards = shards_of(output, *CLASSES)
    series = [each for each in body["series"] if each["rejected_by_reason"]]
    lost = {
        "train-cat": shards_of(output, "cat", split="train"),
        "rejects": set().union(*(shards_of(output, e["label"], split=e["split"]) for e in series)),
        "": shards,
    }
    change, what = SPOILED[how]
    change(output, body)
    (output / "manifest.json").write_text(json.dumps(body))
    assert lost[what]
    return shards - lost[what]


@pytest.mark.parametrize("how", SPOILED)
def test_does_not_reuse_damaged_shards(place, how):
    source, output = place
    intact = spoil(output, how)
    add(source, "owl")
    assert reusable(source, output) == intact


def test_rebuilds_a_missing_shard(place, before, swapped):
    source, output = place
    intact = spoil(output, "shard missing")
    assert reusable(source, output) == intact  # without other changes
    swap(source)
    reused, _ = rebuild(source, output)
    assert reused == shards_of(before, "bee", "cat") - shards_of(before, "cat", split="train")
    assert files_of(output) == files_of(swapped)


def test_reads_transient_rejects_again(place):
    source, output = place
    for name in ("current/rejects.jsonl", "manifest.json"):
        text = (output / name).read_text()
        (output / name).write_text(text.replace('"not_an_image"', '"unreadable"'))
    body = json.loads((output / "manifest.json").read_text())
    (split,) = (e["split"] for e in body["series"] if "unreadable" in e["rejected_by_reason"])
    add(source, "owl")
    unreadable = shards_of(output, "cat", split=split)
    assert reusable(source, output) == shards_of(output, *CLASSES) - unreadable


def test_manifests_without_series_have_no_labels_of_shards(before):
    manifest = Manifest.from_json((before / "manifest.json").read_bytes())
    text = manifest.to_json()
    assert text == (before / "manifest.json").read_text()
    splits = {
        name: replace(s, shards=tuple(replace(shard, label=None) for shard in s.shards))
        for name, s in manifest.splits.items()
    }
    plain = replace(manifest, splits=splits, series=())
    assert '"series"' not in plain.to_json()
    assert '"label":' not in plain.to_json()
    jsonschema.validate(json.loads(plain.to_json()), SCHEMA)
    assert Manifest.from_json(plain.to_json()) == plain


@pytest.mark.parametrize(
    "change", [{"label": 7}, {"id": None}, {"refs": "3"}, {"rejected_by_reason": ["x"]},
               {"rejected_by_reason": {"x": "1"}}, {"pixels": 5}, {"pixels": {"count": 1}},
               {"pixels": {"count": 1, "totals": [1], "squares": [1, 2]}},
               {"pixels": {"count": 1, "totals": ["1"], "squares": [1]}}]
)  # fmt: skip
def test_rejects_malformed_series(before, change):
    body = json.loads((before / "manifest.json").read_text())
    body["series"][0].update(change)
    with pytest.raises(FormatError, match="missing or malformed"):
        Manifest.from_json(json.dumps(body))
    body["series"] = []
    body["splits"]["train"]["shards"][0]["label"] = 5
    with pytest.raises(FormatError, match="not a text"):
        Manifest.from_json(json.dumps(body))


# Kills and races of the command.


def command(source: Path, output: Path, *flags: str) -> list[object]:
    return ["images", f"--input={source}", f"--output={output}", "--update", *FLAGS, *flags]


@pytest.mark.parametrize("what", ["replaced", "shard missing", *["rejects missing"] * SOAK])
def test_published_dataset_changes_during_a_build(place, before, swapped, what):
    """The builder checks the published dataset again and builds the shards that are lost."""
    source, output = place
    swap(source)
    watch = Watched(output, since="/shards/", at=(1,), number=signal.SIGSTOP)
    first = zygote().start(*command(source, output), watch=watch)
    assert first.wait_stopped()
    if what == "replaced":
        assert zygote().run(*command(source, output, "--seed=9")).code == 0
    else:
        SPOILED[what][0](output, {})
    first.send(signal.SIGCONT)
    ended = first.wait()
    assert ended.code == 0, ended.stderr
    assert (" kept\n" in ended.stdout) == (what != "replaced")
    assert files_of(output) == files_of(swapped)


def test_same_dataset_is_published_during_a_build(place, swapped):
    """By another builder, or by this one: a runner may repeat a successful step."""
    source, output = place
    swap(source)
    plan, _, sink = plan_build(source, output)
    assert load_reused(LocalStorage(), sink, plan) is not None
    rejects = (output / "current/rejects.jsonl").read_bytes()
    (output / "current/rejects.jsonl").write_bytes(b"")
    with pytest.raises(StaleBuildError, match="run again"):
        load_reused(LocalStorage(), sink, plan)
    (output / "current/rejects.jsonl").write_bytes(rejects)
    shutil.copy(swapped / "manifest.json", output / "manifest.json")
    assert load_reused(LocalStorage(), sink, plan) is None
    with pytest.raises(StaleBuildError, match="run again"):
        load_reused(LocalStorage(), sink, replace(plan, input_id="0" * 32))
    (output / "manifest.json").unlink()
    with pytest.raises(StaleBuildError, match="run again"):
        load_reused(LocalStorage(), sink, plan)


# Storage without locks.


def test_dataset_in_a_bucket_is_replaced_during_a_build(place, strict_bucket, front):
    """Another builder replaces it after the last check, right before the manifest is written."""
    source, local = place
    output, storage = f"{strict_bucket}/out", open_storage(strict_bucket)
    for path in local.rglob("*"):
        if path.is_file():
            storage.replace(f"{output}/{path.relative_to(local)}", path.read_bytes())
    calls = []

    def replace_manifest(call) -> None:
        if call.kind == "upload" and call.name.endswith("out/manifest.json") and not calls:
            calls.append(call.name)
            data = storage.read(f"{output}/manifest.json")
            storage.replace(f"{output}/manifest.json", data.replace(b"in-memory", b"another"))

    front.hook = replace_manifest
    add(source, "fox")
    outcome, _ = build_dataset(input=source, output=output, **OPTIONS)
    assert calls
    assert outcome.status == "failed"
    assert "Another command has changed the dataset" in outcome.message
    outcome, _ = build_dataset(input=source, output=output, **OPTIONS)
    assert outcome.status == "published", outcome.message
    assert outcome.reused[0] == len(shards_of(local, *CLASSES))
    wanted, _ = files_of(build_scratch(source, local))
    folder = f"{output}/{json.loads(storage.read(f'{output}/manifest.json'))['generation']}"
    assert {name: storage.read(f"{folder}/{name}") for name in wanted} == wanted
