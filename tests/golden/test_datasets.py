"""The bytes of small datasets of each kind and packing, of updates and of their JSON outputs."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from _pytest.mark import ParameterSet

from tests.conftest import ROOT
from tests.fixtures.stored_datasets import CALLS, COMMANDS, SMALL, Build, Call, place_sources
from tests.support import golden
from tests.support.fault_tools import ended_here
from tests.support.golden import check_golden, stable, to_text
from tests.support.readers import framed_payloads, gzip_records, tf_records

DATASETS = golden.GOLDEN / "datasets"


def _images(*flags: str) -> Build:
    return Build("images", "folder", (*SMALL, *flags), catalog=True)


def _rows(*flags: str) -> Build:
    return Build("rows", "csv", ("--key=id", *flags))


KINDS: dict[str, Build | Call] = {
    **COMMANDS,
    **CALLS,
    "png": _images("--encoding=png", "--splits=train:0.5,test:0.5"),
}

PREPROCESSING = """
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    return {"id": inputs["id"], "label": inputs["label"], "z": tft.scale_to_z_score(inputs["id"])}
"""
IMAGE_PACKINGS = {
    "by_label": "--shard_by=label --label_order=number",
    "crop_grey": "--resize=crop --image_size=9x7 --channels=1 --quality=70",
    "drop": "--duplicates=drop --seed=3",
    "features": "--features=x=image/encoded,y=image/class/label --num_shards=1",
    "duplicates": "--duplicates=same_split --num_shards=30",
    "fit": "--resize=fit --only_shrink --image_size=14 --interpolation=lanczos --encoding=png",
    "listed": "--label_from=filename --label_pattern=.*(?P<label>[0-9])[.].* --limit=9 --max_reject_fraction=1",
    "keys": "--features=image/key,image/height",
    "none": "--compression=none --shard_bytes=2KiB",
    "pad_raw": "--resize=pad --encoding=raw --resizer=pillow",
    "renamed": "--features=picture=image/encoded,image/key --encoding=png",
    "shards": "--num_shards=3",
    "sized": "--shard_bytes=3KiB --shard_name={{split}}-{{index:02d}}-{{records}}.gz",
    "unlabelled": "--label_from=none --shard_examples=4",
    "unlabelled_split": "--unlabeled_splits=test --splits=train:0.6,test:0.4",
}
ROW_PACKINGS = {
    "grouped": "--label=label --group_by=label --splits=train:0.5,test:0.5",
    "none": "--compression=none --num_shards=1",
    "shards": "--num_shards=3 --seed=7",
    "sized": "--shard_bytes=1KiB",
    "split_by": "--split_by=label",
    "tft": "--preprocessing={sources}/preprocessing.py",
    "text_lists": "--types=label:text:| --compression=none --label=id",
    "typed": "--types=score:bytes --shard_examples=5 --shard_name={{split}}.{{index}}",
}
PACKINGS: dict[str, Build | Call] = {
    **{f"folder_{name}": _images(*flags.split()) for name, flags in IMAGE_PACKINGS.items()},
    **{f"csv_{name}": _rows(*flags.split()) for name, flags in ROW_PACKINGS.items()},
    "arrays_none": Build("arrays", "arrays", ("--compression=none", "--num_shards=2")),
    "arrays_sized": Build("arrays", "arrays", ("--shard_examples=5",)),
    "elements_none": Call(
        lambda output, count, **options: CALLS["write_dataset"].function(
            output, count, compression="none", num_shards=None, shard_bytes=1024, **options
        )
    ),
}


def build(case: Build | Call, *, earlier: bool, update: bool = False) -> str:
    """Build a dataset or update it; return the JSON of the command."""
    shutil.rmtree("sources", ignore_errors=True)
    sources = place_sources(Path("sources"), earlier=earlier)
    (sources / "preprocessing.py").write_text(PREPROCESSING)
    if isinstance(case, Call):
        options: dict[str, Any] = {"update": True, "keep": 0} if update else {}
        case.function(Path("ds"), case.counts[not earlier], **options)
        return ""
    flags = case.earlier if earlier else ()
    return run(
        *case.argv(sources, Path("ds"), *flags, *(["--update", "--keep=0"] if update else []))
    )


def run(*argv: object) -> str:
    """Run a command that must succeed; return its JSON for reading."""
    ended = ended_here(*argv, "--json")
    assert ended.code == 0, ended.stderr
    return to_text(json.loads(ended.stdout)) + "\n"


def check_intact() -> None:
    """Check that verify finds nothing in the dataset."""
    ended = ended_here("verify", "ds", "--deep")
    assert ended.code == 0, ended.stdout + ended.stderr


def describe_shard(path: Path, records: int) -> str:
    """Return what is compared of a shard, by a reader without code of Shardmill."""
    data = path.read_bytes()
    payloads = gzip_records(path) if data[:2] == b"\x1f\x8b" else framed_payloads(data)
    assert len(payloads) == records, path
    digest = hashlib.sha256(b"".join(payloads)).hexdigest()[:16]
    return f"{records} records {digest}, {len(data)} bytes {hashlib.sha256(data).hexdigest()}"


def describe_catalog(path: Path, folder: Path) -> str:
    """Return what is compared of a catalog: its rows, since PyArrow decides its bytes."""
    rows = pq.read_table(path).drop(["input_ctime"]).to_pylist()
    text = stable("".join(f"{json.dumps(row)}\n" for row in rows), folder)
    return f"{len(rows)} rows {hashlib.sha256(text.encode()).hexdigest()}"


def describe_shards(folder: Path) -> str:
    """Return a line for each file of a dataset, and the identities of the build."""
    current = folder / "ds" / "current"
    manifest = json.loads((current / "manifest.json").read_text())
    lines = [f"{name}: {manifest['build'].get(name)}" for name in ("config_id", "record_id")]
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            name, catalog = shard["file"], shard.get("catalog")
            lines.append(f"{name}: {describe_shard(current / name, shard['records'])}")
            if catalog:
                lines.append(
                    f"{catalog['file']}: {describe_catalog(current / catalog['file'], folder)}"
                )
    return "\n".join([*lines, ""])


def describe_side_files(folder: Path) -> str:
    """Return the other files of a dataset, without checksums of texts with the path of the test."""
    current = folder / "ds" / "current"
    texts = []
    for path in sorted(current.iterdir()):
        if path.suffix in (".txt", ".jsonl", ".pbtxt"):
            texts.append(f"{path.name}:\n{path.read_text()}")
        elif path.name == "manifest.json":
            manifest = json.loads(path.read_text())
            del manifest["checksums"]
            for split in manifest["splits"].values():
                del split["shards"]
            texts.append(f"{path.name}:\n{to_text(manifest)}\n")
    files = sorted(str(path.relative_to(current)) for path in current.rglob("*"))
    return "\n".join(["files:", *files, "", *texts])


def quickly(cases: Iterable[str], quick: str) -> list[ParameterSet]:
    """Return parameters; those that are not named are heavy."""
    return [
        pytest.param(case, marks=() if case in quick.split() else pytest.mark.heavy)
        for case in cases
    ]


@pytest.mark.usefixtures("golden_codecs")
@pytest.mark.parametrize("kind", quickly(KINDS, "folder coco csv arrays write_dataset"))
def test_an_updated_dataset_of_each_kind(kind, place) -> None:
    texts = ["earlier version:\n", build(KINDS[kind], earlier=True)]
    texts += ["update:\n", build(KINDS[kind], earlier=False, update=True)]
    check_intact()
    texts += [describe_shards(place), describe_side_files(place)]
    check_golden(DATASETS / f"{kind}.txt", stable("".join(texts), place))


QUICK = "folder_by_label folder_none folder_sized csv_grouped csv_sized"


@pytest.mark.usefixtures("golden_codecs")
@pytest.mark.parametrize("packing", quickly(PACKINGS, QUICK))
def test_a_dataset_of_each_packing(packing, place) -> None:
    build(PACKINGS[packing], earlier=False)
    check_intact()
    check_golden(DATASETS / f"{packing}.txt", stable(describe_shards(place), place))


@pytest.mark.heavy
@pytest.mark.usefixtures("golden_codecs")
@pytest.mark.parametrize("kind", ["folder", "csv", "write_dataset"])
def test_tensorflow_counts_the_same(kind, place) -> None:
    """The records of golden files, by another reader."""
    build(KINDS[kind], earlier=False)
    text = (DATASETS / f"{kind}.txt").read_text()
    for path in (place / "ds" / "current").glob("*.gz"):
        digest = hashlib.sha256(b"".join(records := tf_records(path))).hexdigest()[:16]
        assert f"{path.name}: {len(records)} records {digest}," in text


def test_the_codecs_are_those_of_continuous_integration() -> None:
    """Else all tests of bytes would be skipped there."""
    pins = dict(
        re.findall(r"^([\w-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    expected = golden.golden_versions()
    assert {name: pins[name] for name in golden.CODECS}.items() <= expected.items()
    assert (
        f'python-version: "{expected["python"]}"' in (ROOT / ".github/workflows/ci.yml").read_text()
    )
