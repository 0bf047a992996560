"""The identities of builds: by default, and with each option changed alone.

An identity that changes makes every build of users decode everything again.
"""

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.pipelines.commands import INPUT_KINDS
from shardmill.schemas.option_types import options_of
from tests.conftest import resolve_job
from tests.fixtures.stored_datasets import place_sources
from tests.support.element_tools import write
from tests.support.golden import GOLDEN, check_golden

# A line is a build: the option that is changed, and others that it needs.
OF_ALL = """
root=sources
splits=train:0.5,test:0.5
splits=train:1
num_shards=3
shard_bytes=1MiB
shard_examples=7
shard_name={split}-{index}
compression=none
seed=5
max_reject_fraction=0.5
update
overwrite
keep=3
limits=limits.toml
dry_run
"""
CHANGES = {
    "images": f"""
{OF_ALL}
beam_options=label=x
label_from=none
label_from=filename label_pattern=.*(?P<label>[0-9])[.].*
label_pattern=(?P<label>.).*
labels=labels.txt
label_order=number
image_column=image input=images.parquet
label_column=kind input=images.parquet
image_suffix=png input=sources/tar
zip_encoding=cp932 input=images.zip
unlabeled_splits=validation
label_separator=; label_from=listing input=sources/listing/list.csv
types=score:float label_from=listing input=sources/listing/list.csv
null_values=x label_from=listing input=sources/listing/list.csv
decimal=, label_from=listing input=sources/listing/list.csv
thousands=' label_from=listing input=sources/listing/list.csv
infinity=missing label_from=listing input=sources/listing/list.csv
quote=' label_from=listing input=sources/listing/list.csv
escape=\\ label_from=listing input=sources/listing/list.csv
comment=# label_from=listing input=sources/listing/list.csv
pad_rows label_from=listing input=sources/listing/list.csv
skip_lines=0 label_from=listing input=sources/listing/list.csv
strip label_from=listing input=sources/listing/list.csv
delimiter=; label_from=listing input=listing.csv
header=none columns=path,label,score,caption label_from=listing input=sources/listing/list.csv
columns=path,label label_from=listing input=plain.csv
annotations=voc input=sources/voc
annotations=coco:sources/coco/all.json input=sources/coco/images
coco_ids annotations=coco:sources/coco/all.json input=sources/coco/images
masks=sources/masks input=sources/voc
boxes_frame=upright masks=sources/masks input=sources/voc
boxes_frame=stored annotations=voc input=sources/voc
group_pattern=[0-9]
image_size=32
image_size=32x16
resize=fit
resize=pad
resize=crop
resize=none
interpolation=lanczos
only_shrink
reducing_gap=0
resizer=pillow
encoding=png
encoding=raw
encoding=keep resize=none
strip_metadata encoding=keep resize=none
quality=90
channels=1
channels=4 encoding=png
shard_by=label
duplicates=drop
duplicates=same_split
features=x=image/encoded
limit=3
max_pixels=1000
decoder_memory=2GiB
decoder_seconds=3
workers=1
follow_links
""",
    "rows": f"""
{OF_ALL}
beam_options=label=x
schema=schema.pbtxt
label=label
key=id
group_by=name
split_by=label
unlabeled_splits=validation label=label
select=id,name
drop=score
rename=name:n
types=score:bytes
defaults=score:0
decimal=,
thousands=_
infinity=missing
delimiter=; input=other.csv
delimiter=whitespace input=other.csv
quote='
escape=\\
comment=#
pad_rows
encoding=latin-1
header=none
columns=a,b,c,d
skip_lines=1
strip
partitions
null_values=x
preprocessing=preprocessing.py
sample_bytes=1KiB
max_rejected_files=1
threads=1
limit=3
follow_links
input=sources/parquet
input=sources/jsonl
""",
    "arrays": f"""
{OF_ALL}
beam_options=label=x
labels=labels.npy
label=
arrays=x
threads=1
""",
}
DEFAULT = {"images": "sources/folder", "rows": "sources/csv", "arrays": "sources/arrays"}
SCHEMA = """
feature { name: "id" type: INT presence { min_fraction: 1 } shape { dim { size: 1 } } }
"""
PREPROCESSING = "def preprocessing_fn(inputs):\n    return inputs\n"


OF_ELEMENTS = [
    {"splits": "train:1"},
    {"seed": 5},
    {"num_shards": 1},
    {"num_shards": None},
    {"num_shards": None, "shard_bytes": "1MiB"},
    {"num_shards": None, "shard_examples": 7},
    {"shard_name": "{split}-{index}"},
    {"compression": "none"},
    {"max_reject_fraction": 0.5},
    {"update": True},
    {"overwrite": True},
    {"keep": 3},
    {"limits": {"rejected": 0.5}},
    {"label": "label"},
    {"split": "id", "splits": None},
    {"split": lambda _: "train", "splits": None},
    {"key": "label"},
    {"key": lambda element: element["id"]},
    {"duplicates": "drop"},
    {"schema": SCHEMA},
]


def write_inputs() -> None:
    """Write what the options name."""
    place_sources(Path("sources"))
    Path("labels.txt").write_text("cat\ndög\n")
    Path("limits.toml").write_text("rejected = 0.5\n")
    Path("schema.pbtxt").write_text(SCHEMA)
    Path("preprocessing.py").write_text(PREPROCESSING)
    Path("labels.npy").write_bytes(Path("sources/arrays/y.npy").read_bytes())
    Path("listing.csv").write_text("path;label\nsources/folder/cat/000.jpg;cat\n")
    Path("plain.csv").write_text("sources/folder/cat/000.jpg,cat\n")
    Path("other.csv").write_text("a;b c\n1;2 3\n")
    image = Path("sources/folder/cat/000.jpg").read_bytes()
    pq.write_table(pa.table({"image": [image], "kind": ["cat"]}), "images.parquet")
    with zipfile.ZipFile("images.zip", "w") as archive:
        archive.writestr("cat/000.jpg", image)


def identities(kind: str, line: str) -> str:
    """Return the identities of a build: of its options, and of the options of a record."""
    options: dict[str, object] = {"input": DEFAULT[kind], "output": "ds"}
    for pair in line.split():
        name, equals, value = pair.partition("=")
        options[name] = value if equals else True
    sink = resolve_job(kind, **options).sink
    return f"{sink.config_id} {sink.record_id}".strip()


@pytest.mark.usefixtures("golden_codecs")
@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_identities_with_each_option_changed(kind, place) -> None:
    write_inputs()
    builds = ["", *filter(None, CHANGES[kind].splitlines())]
    lines = [f"{kind} {build or 'by default'}: {identities(kind, build)}\n" for build in builds]
    check_golden(GOLDEN / "identities" / f"{kind}.txt", "".join(lines))


@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_each_option_is_changed(kind) -> None:
    changed = {line.split("=")[0].split()[0] for line in CHANGES[kind].splitlines() if line}
    assert changed - {"input"} == {*options_of(INPUT_KINDS[kind].load_options())}


@pytest.mark.heavy
@pytest.mark.usefixtures("golden_codecs")
def test_identities_of_write_dataset(place) -> None:
    lines = []
    for number, options in enumerate([{}, *OF_ELEMENTS]):
        element = {"id": 1} if "schema" in options else {"id": "train", "label": 1}
        write(place / f"{number}", [element], **options)
        build = json.loads((place / f"{number}" / "manifest.json").read_text())["build"]
        given = {name: "CODE" if callable(value) else value for name, value in options.items()}
        lines.append(f"WriteDataset {given or 'by default'}: {build['config_id']}\n")
    check_golden(GOLDEN / "identities" / "write_dataset.txt", "".join(lines))
