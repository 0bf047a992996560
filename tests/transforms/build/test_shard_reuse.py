"""One set a label: what did not change stays where it is, and all is as if built from scratch."""

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
from shardmill.pipelines.report import summary
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import FormatError, OutputError, StaleBuildError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.local import LocalStorage
from shardmill.transforms.build.census import Census
from shardmill.transforms.build.finalize import planned_outcome
from shardmill.transforms.build.planning import Plan
from shardmill.transforms.build.shard_reuse import load_reused
from shardmill.transforms.build.spec import SinkSpec
from shardmill.transforms.build.transform import make_plan
from shardmill.transforms.match.transform import match_now
from shardmill.transforms.publish.journal import Journal, Kept, Move, fingerprint
from shardmill.transforms.publish.publish import publish, recover_output
from tests.conftest import ROOT, build_dataset, make_image, make_photos
from tests.support.fault_tools import JOURNAL, SOAK, Watched, check_dataset, check_manifest, zygote
from tests.support.readers import dataset_files

pytest_plugins = ["tests.support.gcs_server"]

OPTIONS = {"image_size": "8", "shard_by": "label", "num_shards": 2, "overwrite": True,
           "splits": "train:0.6,validation:0.4", "max_reject_fraction": 0.5}  # fmt: skip
FLAGS = [f"--{name}={value}" for name, value in OPTIONS.items() if name != "overwrite"]
CLASSES = {"bee": 7, "cat": 6, "dog": 6}
SCHEMA = json.loads((ROOT / "schemas" / "dataset" / "manifest.schema.json").read_text())


def add(source: Path, label: str) -> None:
    """Adds a class of four photos, the same ones at every call."""
    (source / label).mkdir()
    for number in range(4):
        path = source / label / f"{number:03d}.jpg"
        make_image(900 + number, 24, 16).save(path)
        os.utime(path, ns=(10**18, 10**18))


def swap(source: Path) -> None:
    """Takes one class away and adds another."""
    shutil.rmtree(source / "dog")
    add(source, "owl")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with ``pristine``: three classes, in two of them a file that will be a reject."""
    folder = tmp_path_factory.mktemp("label")
    pristine = make_photos(folder / "pristine", CLASSES, size=(24, 16))
    (pristine / "cat" / "text.jpg").write_text("no image at all")
    (pristine / "dog" / "empty.jpg").write_bytes(b"")
    return folder


def fresh(work: Path) -> Path:
    """Puts the photos back as they were, times included, always at one place."""
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
    """The photos and a copy of their dataset, both to be changed."""
    return fresh(work), shutil.copytree(before, tmp_path / "out")


def inodes(folder: Path) -> dict[str, tuple[int, int]]:
    """Which file a name stands for, and when it was written."""
    found = ((path.name, path.stat()) for path in folder.iterdir())
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found}


def lasting(folder: Path, hidden: str = "none") -> tuple[dict[str, bytes], dict]:
    """All that must be reproducible: the files, and the manifest but for the time."""
    manifest = check_manifest(folder)
    del manifest["build"]["finished"]
    check_dataset(folder, [path.name for path in folder.glob(f"{hidden}*")])
    return dataset_files(folder), manifest


def of(output: Path, *labels: str, split: str = "*") -> set[str]:
    """The names of the shards of some labels."""
    return {path.name for label in labels for path in output.glob(f"{split}-{label}-*")}


def planned(source: Path, output: Path, **options) -> tuple[Plan, Census, SinkSpec]:
    """What a build would do."""
    config = ImagesConfig(input=str(source), output=str(output), **{**OPTIONS, **options})
    job = resolve(config)
    place, census = job.sink.place, Census()
    for found in match_now(job.match)[0]:
        ref = place.with_split(config.label_spec.with_label(found))
        census.add(ref, place.series_of(ref))
    return make_plan(job.sink, config.encoder.expected_bytes, census), census, job.sink


def stays(source: Path, output: Path, **options) -> set[str]:
    """The names of the shards that a build would keep."""
    plan, _, _ = planned(source, output, **options)
    assert plan.status == "build"
    assert bool(plan.reused) == bool(plan.base)
    return {name for series in plan.reused for name in of(output, series.label, split=series.split)}


def rebuild(source: Path, output: Path, **options) -> tuple[set[str], object]:
    """Builds again; returns the shards that are the same files as before, and the outcome."""
    past, plan = inodes(output), stays(source, output, **options)
    outcome, _ = build_dataset(input=source, output=output, **{**OPTIONS, **options})
    assert outcome.status == "published", outcome.message
    stayed = {name for name, inode in inodes(output).items() if past.get(name) == inode}
    splits = check_manifest(output)["splits"].values()
    records = {shard["file"]: shard["records"] for split in splits for shard in split["shards"]}
    assert outcome.reused == (len(stayed), sum(records[name] for name in stayed))
    assert stayed == plan
    return stayed, outcome


def scratch(source: Path, output: Path, **options) -> Path:
    """The dataset of the same inputs, built where there is nothing."""
    build_dataset(input=source, output=output.parent / "scratch", **{**OPTIONS, **options})
    return output.parent / "scratch"


def test_a_label_is_added_and_another_removed_and_back(place, before, swapped):
    source, output = place
    swap(source)
    stayed, outcome = rebuild(source, output)
    assert stayed == of(before, "bee", "cat")
    assert 0 < outcome.parts_made <= len(of(output, "owl"))
    assert lasting(output) == lasting(swapped)
    said = "\n".join(summary.lines(outcome, str(output), 1.0))
    assert f"shards     {len(of(output, 'owl'))} made, {len(stayed)} kept\n" in said
    assert " 4 images/s" in said  # of those that were made
    shutil.rmtree(source)
    shutil.copytree(source.parent / "pristine", source)
    assert rebuild(source, output)[0] == of(before, "bee", "cat")
    assert lasting(output) == lasting(before)
    assert planned(source, output)[0].status == "up_to_date"


def test_a_removed_label_leaves_nothing_to_make(place):
    source, output = place
    shutil.rmtree(source / "dog")
    assert stays(source, output) == of(output, "bee", "cat")


def test_a_label_that_renumbers_others(place):
    """Sorted labels: what comes after the new one has another class id in every record."""
    source, output = place
    add(source, "bug")
    assert stays(source, output) == of(output, "bee")
    shutil.rmtree(source / "bee")
    assert stays(source, output) == of(output, "cat", "dog")  # ids 1 and 2 again
    shutil.rmtree(source / "bug")
    assert stays(source, output) == set()


def test_a_labels_file_that_grows_and_files_that_change(place, tmp_path):
    """A touched photo and a mended reject: their splits of their labels are made anew."""
    source, output = place
    labels = tmp_path / "labels"
    labels.write_text("bee\ncat\ndog\n")  # the numbers that they have
    assert stays(source, output, labels=str(labels)) == of(output, *CLASSES)
    labels.write_text("bee\ncat\ndog\nant\n")
    add(source, "ant")
    shutil.copy(source / "bee" / "000.jpg", source / "cat" / "text.jpg")
    os.utime(source / "bee" / "003.jpg", ns=(1, 1))
    stayed, _ = rebuild(source, output, labels=str(labels))
    assert of(output, "dog") < stayed
    assert {len(stayed & of(output, label)) for label in ("bee", "cat")} == {2}
    assert lasting(output) == lasting(scratch(source, output, labels=str(labels)))
    labels.write_text("ant\ncat\ndog\nbee\n")
    assert stays(source, output, labels=str(labels)) == of(output, "cat", "dog")


def test_a_label_gets_another_name(place):
    source, output = place
    (source / "dog").rename(source / "wolf")
    assert stays(source, output) == of(output, "bee", "cat")


@pytest.mark.parametrize("change", [{"seed": 5}, {"quality": 60}, {"num_shards": 1}])
def test_other_options_keep_nothing(place, change):
    assert stays(*place, **change) == set()


def test_nothing_is_kept_without_overwrite(place):
    source, output = place
    swap(source)
    plan, _, _ = planned(source, output, overwrite=False)
    assert (plan.status, plan.reused) == ("failed", frozenset())
    assert "add --overwrite" in plan.message


def test_a_dry_run_tells_what_stays(place):
    source, output = place
    swap(source)
    plan, census, _ = planned(source, output, dry_run=True)
    outcome = planned_outcome(plan, census)
    said = [line.split() for line in summary.lines(outcome, str(output), 1.0)]
    assert {line[1] for line in said if line[-3:] == ["shards", "that", "stay"]} == {"bee", "cat"}
    assert {line[1] for line in said if line[-1] == "parts"} == {"owl"}


Spoiler = Callable[[Path, dict], object]
CAT = "train-cat-00001-of-00002.tfrecord.gz"


def spoil_rejects(change: Callable[[bytes], bytes]) -> Spoiler:
    def spoil(output: Path, _: dict) -> None:
        path = output / "rejects.jsonl"
        path.write_bytes(change(path.read_bytes()))

    return spoil


def spoil_series(**changes: object) -> Spoiler:
    return lambda _, body: [each.update(changes) for each in body["series"]]


def reverse_shards(_: Path, body: dict) -> None:
    for split in body["splits"].values():
        split["shards"].reverse()


# How what is published was damaged, and what then is made anew.
SPOILED: dict[str, tuple[Spoiler, str]] = {
    "a shard gone": (lambda output, _: (output / CAT).unlink(), "train-cat"),
    "a shard cut": (lambda output, _: os.truncate(output / CAT, 9), "train-cat"),
    "rejects gone": (lambda output, _: (output / "rejects.jsonl").unlink(), "rejects"),
    "rejects cut": (spoil_rejects(lambda data: data[:-20]), "rejects"),
    "one reject too many": (spoil_rejects(lambda data: data + data), "rejects"),
    "rejects in disorder": (
        spoil_rejects(lambda data: b"".join(reversed(data.splitlines(keepends=True)))), "rejects"
    ),
    "rejects that are none": (spoil_rejects(lambda data: b"[]\n" * 2), "rejects"),
    "another root": (lambda _, body: body["inputs"].update(root="/elsewhere"), "rejects"),
    "no series": (lambda _, body: body.pop("series"), ""),
    "other ids": (spoil_series(id="0" * 32), ""),
    "does not add up": (spoil_series(refs=99), ""),
    "other names": (reverse_shards, ""),
}  # fmt: skip


def spoil(output: Path, how: str) -> set[str]:
    """Damages a dataset; returns the shards that can still stay."""
    body = json.loads((output / "manifest.json").read_text())
    shards = of(output, *CLASSES)
    told = [e for e in body["series"] if e["rejected_by_reason"]]
    lost = {
        "train-cat": of(output, "cat", split="train"),
        "rejects": {name for e in told for name in of(output, e["label"], split=e["split"])},
        "": shards,
    }
    change, what = SPOILED[how]
    change(output, body)
    (output / "manifest.json").write_text(json.dumps(body))
    assert lost[what]
    return shards - lost[what]


@pytest.mark.parametrize("how", SPOILED)
def test_what_was_damaged_is_made_anew(place, how):
    source, output = place
    left = spoil(output, how)
    add(source, "owl")
    assert stays(source, output) == left


def test_a_shard_gone_is_mended(place, before, swapped):
    source, output = place
    left = spoil(output, "a shard gone")
    assert stays(source, output) == left  # with nothing else changed
    swap(source)
    stayed, _ = rebuild(source, output)
    assert stayed == of(before, "bee", "cat") - of(before, "cat", split="train")
    assert lasting(output) == lasting(swapped)


def test_a_reject_of_the_moment_is_tried_again(place):
    """What could not be read then may be readable now, though it looks the same."""
    source, output = place
    for name in ("rejects.jsonl", "manifest.json"):
        text = (output / name).read_text()
        (output / name).write_text(text.replace('"not_an_image"', '"unreadable"'))
    body = json.loads((output / "manifest.json").read_text())
    (split,) = (e["split"] for e in body["series"] if "unreadable" in e["rejected_by_reason"])
    add(source, "owl")
    assert stays(source, output) == of(output, *CLASSES) - of(output, "cat", split=split)


def test_other_datasets_do_not_mention_labels_of_shards(before):
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
               {"rejected_by_reason": {"x": "1"}}, {"more": 1}, {"pixels": 5}, {"pixels": {"count": 1}},
               {"pixels": {"count": 1, "totals": [1], "squares": [1, 2]}},
               {"pixels": {"count": 1, "totals": ["1"], "squares": [1]}}]
)  # fmt: skip
def test_a_malformed_series_is_refused(before, change):
    body = json.loads((before / "manifest.json").read_text())
    body["series"][0].update(change)
    with pytest.raises(FormatError, match="missing or malformed"):
        Manifest.from_json(json.dumps(body))
    body["series"] = []
    body["splits"]["train"]["shards"][0]["label"] = 5
    with pytest.raises(FormatError, match="not a text"):
        Manifest.from_json(json.dumps(body))


# Kills and races, by the command.


def command(source: Path, output: Path, *flags: str) -> list[object]:
    return ["images", f"--input={source}", f"--output={output}", "--overwrite", *FLAGS, *flags]


def test_every_moment_of_publishing(place, before, swapped, tmp_path):
    """A copy of the output right before each change is what a kill there leaves."""
    source, output = place
    swap(source)
    past = inodes(output)
    watch = Watched(output, since=JOURNAL, copies=tmp_path / "copies")
    ended = zygote().run(*command(source, output), watch=watch)
    assert ended.code == 0, ended.stderr
    assert lasting(output) == lasting(swapped)
    kept = {name for name, inode in inodes(output).items() if past.get(name) == inode}
    assert kept == of(before, "bee", "cat")
    moments = sorted((tmp_path / "copies").iterdir())
    assert lasting(moments[0], ".build") == lasting(before)
    begun = 0
    for moment in moments:
        assert kept <= {path.name for path in moment.iterdir()}
        if (moment / "manifest.json").exists():
            check_manifest(moment)
        if (moment / JOURNAL).exists():
            begun += 1
            recover_output(LocalStorage(), str(moment))
            assert lasting(moment) == lasting(swapped)
    assert begun > 15


@pytest.mark.parametrize("at", range(3, 20) if SOAK else [9])
def test_killed_while_publishing(place, before, swapped, at):
    source, output = place
    swap(source)
    past, call = inodes(output), command(source, output)
    assert zygote().run(*call, watch=Watched(output, since=JOURNAL, at=(at,))).code < 0
    assert (output / JOURNAL).exists()
    assert "up to date" in zygote().run(*call).stdout
    assert lasting(output) == lasting(swapped)
    now = inodes(output)
    assert all(now[name] == past[name] for name in of(before, "bee", "cat"))


@pytest.mark.parametrize("what", ["replaced", "a shard gone", *["rejects gone"] * SOAK])
def test_what_was_to_be_kept_changes_meanwhile(place, before, swapped, what):
    """The builder looks again before it harms anything, and makes what is not there any more."""
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
    assert lasting(output) == lasting(swapped)


def test_the_same_dataset_was_published_meanwhile(place, swapped):
    """Another builder was first, or this one: a step that ended well may be run again."""
    source, output = place
    swap(source)
    plan, _, sink = planned(source, output)
    assert load_reused(LocalStorage(), sink, plan) is not None
    rejects = (output / "rejects.jsonl").read_bytes()
    (output / "rejects.jsonl").write_bytes(b"")
    with pytest.raises(StaleBuildError, match="run again"):
        load_reused(LocalStorage(), sink, plan)
    (output / "rejects.jsonl").write_bytes(rejects)
    shutil.copy(swapped / "manifest.json", output / "manifest.json")
    assert load_reused(LocalStorage(), sink, plan) is None
    with pytest.raises(StaleBuildError, match="run again"):
        load_reused(LocalStorage(), sink, replace(plan, input_id="0" * 32))
    (output / "manifest.json").unlink()
    with pytest.raises(StaleBuildError, match="run again"):
        load_reused(LocalStorage(), sink, plan)


# Publications made by hand, to reach what locks keep apart.


def hand_made(output: Path, manifest: Manifest) -> Journal:
    """The journal of a dataset that keeps all shards and replaces nothing but the manifest."""
    text = replace(manifest, build=replace(manifest.build, input_id="0" * 32)).to_json()
    (output / ".build-c" / "final").mkdir(parents=True)
    (output / ".build-c" / "final" / "manifest.json").write_text(text)
    move = Move(".build-c/final/manifest.json", "manifest.json", len(text.encode()))
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    kept = Kept(fingerprint(manifest), tuple((shard.file, shard.bytes) for shard in shards))
    return Journal(text, (move,), (), ".build-c", kept)


@pytest.fixture
def by_hand(before, tmp_path) -> tuple[Path, Manifest, Journal]:
    output = tmp_path / "out"
    shutil.copytree(before, output)
    manifest = Manifest.from_json((output / "manifest.json").read_bytes())
    journal = hand_made(output, manifest)
    assert Journal.from_json(journal.to_json()) == journal
    return output, manifest, journal


def test_a_journal_that_keeps_files_is_followed(by_hand):
    output, _, journal = by_hand
    (output / JOURNAL).write_bytes(journal.to_json())
    assert recover_output(LocalStorage(), str(output)) == Manifest.from_json(journal.manifest)
    check_dataset(output)


@pytest.mark.parametrize("what", ["another manifest", "no manifest to be read", "a shard is gone"])
def test_a_journal_is_taken_back_while_the_old_dataset_stands(by_hand, what):
    output, manifest, journal = by_hand
    (output / JOURNAL).write_bytes(journal.to_json())
    if what == "another manifest":
        manifest = replace(manifest, warnings=("another",))
        (output / "manifest.json").write_text(manifest.to_json())
    elif what == "a shard is gone":
        (output / manifest.files[3]).unlink()
    else:
        (output / "manifest.json").write_text("{}")
    text = (output / "manifest.json").read_text()
    if what == "no manifest to be read":
        with pytest.raises(OutputError, match="cannot be read"):
            recover_output(LocalStorage(), str(output))
    else:
        assert recover_output(LocalStorage(), str(output)) == manifest
    assert not (output / JOURNAL).exists()
    assert (output / "manifest.json").read_text() == text


def test_a_kept_file_lost_half_way_is_a_sentence(by_hand):
    """With the old manifest gone there is no way back, and no manifest may name what is not there."""
    output, manifest, journal = by_hand
    (output / JOURNAL).write_bytes(journal.to_json())
    (output / "manifest.json").unlink()
    (output / manifest.files[3]).unlink()
    with pytest.raises(OutputError, match=r"was to stay, so the publication cannot be completed"):
        recover_output(LocalStorage(), str(output))
    assert not (output / "manifest.json").exists()


def test_a_journal_keeps_what_it_deletes_or_replaces_is_refused(by_hand):
    _, manifest, journal = by_hand
    twice = [
        replace(journal, deletes=(manifest.files[0],)),
        replace(journal, kept=replace(journal.kept, files=(("manifest.json", 3),))),
        replace(journal, kept=replace(journal.kept, files=(("../x", 3),))),
        replace(journal, kept=replace(journal.kept, files=((".hidden", 3),))),
    ]
    for each in twice:
        with pytest.raises(FormatError):
            Journal.from_json(each.to_json())


def test_publishing_on_another_base_touches_nothing(by_hand):
    output, manifest, journal = by_hand
    shutil.copytree(output, output.parent / "copy")
    kept = replace(journal.kept, base="0" * 32)
    new = Manifest.from_json(journal.manifest)
    with pytest.raises(StaleBuildError, match="run again"):
        publish(LocalStorage(), str(output), new, [], ".build-c", overwrite=True, kept=kept)
    assert check_dataset(output, [".build-c"]) == check_dataset(
        output.parent / "copy", [".build-c"]
    )
    kept = journal.kept
    assert publish(LocalStorage(), str(output), new, [], ".build-c", overwrite=True, kept=kept)
    check_manifest(output)
    assert set(manifest.files) <= {path.name for path in output.iterdir()}
    for path in output.iterdir():
        path.unlink()
    hand_made(output, manifest)
    with pytest.raises(StaleBuildError, match="run again"):  # the whole dataset is gone
        publish(LocalStorage(), str(output), new, [], ".build-c", overwrite=True, kept=kept)
    assert [path.name for path in output.iterdir()] == [".build-c"]


# On gs:// there is no lock.


def test_a_label_is_added_in_a_bucket(place, swapped, tmp_path, strict_bucket, front):
    """Another builder replaces it all after the last look, right before the journal is written."""
    source, local = place
    output = f"{strict_bucket}/out"
    storage = open_storage(output)
    for path in local.iterdir():
        storage.replace(f"{output}/{path.name}", path.read_bytes())
    past = {entry.path: entry.version for entry in storage.walk(output)}
    come = []

    def meddle(call) -> None:
        if call.kind != "upload" or not call.name.endswith(JOURNAL) or come:
            return
        come.append(call.name)
        for name in of(local, "dog"):
            storage.delete(f"{output}/{name}")
        for name in (*of(swapped, "owl"), "rejects.jsonl", "labels.txt", "manifest.json"):
            storage.replace(f"{output}/{name}", (swapped / name).read_bytes())

    front.hook = meddle
    add(source, "fox")
    outcome, _ = build_dataset(input=source, output=output, **OPTIONS)
    assert come
    assert outcome.status == "published", outcome.message
    kept = of(local, "bee", "cat")
    assert outcome.reused[0] == len(kept)
    now = {entry.path: entry.version for entry in storage.walk(output)}
    assert all(now[f"{output}/{name}"] == past[f"{output}/{name}"] for name in kept)
    wanted, _ = lasting(scratch(source, local))
    assert {*wanted, "manifest.json"} == {path.rpartition("/")[2] for path in now}
    assert {name: storage.read(f"{output}/{name}") for name in wanted} == wanted
